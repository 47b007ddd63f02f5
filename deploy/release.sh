#!/usr/bin/env bash
# Builds what is released, from what is committed: the same commit gives the same bytes.
#
#   deploy/release.sh [DIRECTORY [VERSION ...]]     into dist/, compiled for Python 3.11 to 3.14, without them
#
#   kafka_throttle-V.tar.gz              what the wheels are built of
#   kafka_throttle-V-py3-none-any.whl    pure Python
#   kafka_throttle-V-cpXY-...-manylinux  compiled, for each of these Pythons that is here
#   kafka-throttle[-pipeline].cdx.json   what the locks pin, as CycloneDX
#   SHA256SUMS
set -euo pipefail
cd "$(dirname "$0")/.."
say() { echo "release: $*" >&2; }

. deploy/find_python.sh

if [ -n "$(git status --porcelain)" ]; then
    say "what is not committed would not be released: commit it, or remove it (git status)"
    exit 1
fi
out=$(realpath -m "${1:-dist}")
shift $(($# > 0))
versions=("${@:-3.11 3.12 3.13 3.14}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH PYTHONHASHSEED=0
rm -rf "$out"
mkdir -p "$out"

tools=$(deploy/setup.sh release gcc libc6-dev)
"$tools" -m hatchling build -t sdist -d "$out" >&2
mkdir "$work/source"
tar -xf "$out"/*.tar.gz -C "$work/source" --strip-components=1
(cd "$work/source" && KAFKA_THROTTLE_PURE=1 "$tools" -m hatchling build -t wheel -d "$out") >&2
for version in ${versions[*]}; do
    python=$(python_of "$version")
    if [ -z "$python" ]; then
        say "Python $version: not found, no compiled wheel for it"
        continue
    fi
    of_version=$(KAFKA_THROTTLE_PYTHON=$python deploy/setup.sh release gcc libc6-dev)
    (cd "$work/source" && "$of_version" -m hatchling build -t wheel -d "$work/$version") >&2
    PATH=$(dirname "$of_version"):$PATH "$of_version" -m auditwheel repair -w "$out" "$work/$version"/*.whl >&2
done
for part in "" -pipeline; do
    "$(dirname "$tools")/cyclonedx-py" requirements --pyproject pyproject.toml --mc-type application \
        --output-reproducible -o "$out/kafka-throttle$part.cdx.json" "requirements$part.lock"
done
cd "$out"
sha256sum -- * >SHA256SUMS
cat SHA256SUMS
