#!/usr/bin/env bash
# Builds what is released, from what is committed. On one machine the same commit gives the same bytes.
#
#   deploy/release.sh [DIRECTORY [VERSION ...]]     into dist/, compiled for each Python from 3.11 to 3.14 that is here
#
#   kafka_throttle-V.tar.gz              what the wheels are built of
#   kafka_throttle-V-py3-none-any.whl    pure Python
#   kafka_throttle-V-cpXY-...-manylinux  compiled
#   kafka-throttle[-pipeline].cdx.json   what the locks pin, and the JavaScript of others, as CycloneDX
#   SHA256SUMS
#
# DIRECTORY is replaced when all is built. It may be new, empty, or an earlier release. A VERSION that is named must be here.
set -euo pipefail
say() { echo "release: $*" >&2; }
fail() { say "$*"; exit 1; }

repository=$(realpath "$(dirname "$0")/..")
out=$(realpath -m "${1:-$repository/dist}")
shift $(($# > 0))
cd "$repository"
. deploy/find_python.sh

changes=$(git status --porcelain --untracked-files=normal)
[ -z "$changes" ] || fail "what is not committed would not be released: commit it, or remove it (git status)"
if [ -d "$out" ] && [ -n "$(ls -A "$out")" ] && [ ! -e "$out/SHA256SUMS" ]; then
    fail "$out has other files: name a new directory"
fi
declare -A pythons
for version in "${@:-${PYTHONS[@]}}"; do
    python=$(python_of "$version")
    if [ -n "$python" ]; then
        pythons[$version]=$python
    elif [ $# -gt 0 ]; then
        fail "Python $version: not found, neither in the PATH nor in pyenv"
    else
        say "Python $version: not found, no compiled wheel for it"
    fi
done
[ ${#pythons[@]} -gt 0 ] || fail "no Python from 3.11 to 3.14 was found"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH PYTHONHASHSEED=0
unset KAFKA_THROTTLE_PURE
mkdir "$work/commit" "$work/source" "$work/made"
git archive HEAD | tar -x -C "$work/commit"

tools=$(deploy/setup.sh release gcc libc6-dev)
(cd "$work/commit" && "$tools" -m hatchling build -t sdist -d "$work/made") >&2
tar -xf "$work/made"/*.tar.gz -C "$work/source" --strip-components=1
(cd "$work/source" && KAFKA_THROTTLE_PURE=1 "$tools" -m hatchling build -t wheel -d "$work/made") >&2
for version in $(printf '%s\n' "${!pythons[@]}" | sort -V); do
    of_version=$(KAFKA_THROTTLE_PYTHON=${pythons[$version]} deploy/setup.sh release)
    include=$("$of_version" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    [ -e "$include/Python.h" ] || fail "the headers of Python $version are not here (on Debian: apt-get install libpython$version-dev)"
    (cd "$work/source" && "$of_version" -m hatchling build -t wheel -d "$work/$version") >&2
    PATH=$(dirname "$of_version"):$PATH "$of_version" -m auditwheel repair -w "$work/made" "$work/$version"/*.whl >&2
done
for part in "" -pipeline; do
    "$(dirname "$tools")/cyclonedx-py" requirements --pyproject pyproject.toml --mc-type application \
        --output-reproducible -o "$work/made/kafka-throttle$part.cdx.json" "requirements$part.lock"
done
"$tools" deploy/files_of_others.py "$work/made"/*.cdx.json
(cd "$work/made" && sha256sum -- * >SHA256SUMS)
rm -rf "$out"
mkdir -p "$(dirname "$out")"
mv "$work/made" "$out"
cat "$out/SHA256SUMS"
