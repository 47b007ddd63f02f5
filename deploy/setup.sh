#!/usr/bin/env bash
# Sets up what the Makefile's targets need, and prints the path of the Python to use (all else goes to stderr).
#
#   deploy/setup.sh build|demo|pipeline|dev|fuzz|release [debian-package ...]
#
# Tools come from apt (as root, when missing); a JDK and Maven for demo, pipeline and dev, which start Kafka or Spark.
# Python packages come from the hash-pinned lock into an environment that is named for the lock's content and the
# interpreter. Both it and the Kafka jars live in ${KAFKA_THROTTLE_CACHE:-~/.cache/kafka-throttle}. The distribution's own
# Python comes first: it is built with profile-guided optimisation, as that of the image is, and what is in the PATH often
# is not (a fifth slower). KAFKA_THROTTLE_PYTHON names another one, of 3.11 to 3.14.
set -euo pipefail
cd "$(dirname "$0")/.."
kind=$1
shift
cache=${KAFKA_THROTTLE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kafka-throttle}
lock=requirements-$kind.lock

say() { echo "setup: $*" >&2; }

. deploy/find_python.sh
usable_python() {
    find_python 3.11 3.14 ${KAFKA_THROTTLE_PYTHON:-/usr/bin/python3.11 python3.11 python3.12 python3.13 python3.14 python3}
}

missing=()
python=$(usable_python)
if [ -z "$python" ]; then
    missing+=(python3 python3-venv)
fi
java_major() { java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1; }
case $kind in
    demo | pipeline | dev)
        if ! command -v java >/dev/null || ! command -v javac >/dev/null || [ "$(java_major)" -lt 17 ]; then
            missing+=(openjdk-17-jdk-headless)
        fi
        command -v mvn >/dev/null || missing+=(maven)
        ;;
esac
for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done

if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" != 0 ]; then
        say "missing: ${missing[*]}. Run once:  sudo apt-get update && sudo apt-get install -y ${missing[*]}"
        exit 1
    fi
    say "installing ${missing[*]} with apt (about a minute)"
    log=$(mktemp)
    if ! { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        say "apt-get failed"
        exit 1
    fi
    rm -f "$log"
    python=$(usable_python)
fi
if [ -z "$python" ]; then
    say "no Python 3.11 to 3.14 with ensurepip and venv is here, nor in what apt has: install one, in the PATH"
    exit 1
fi

environment=$cache/python-$kind-$({ cat "$lock"; realpath "$python"; "$python" -VV; } | sha256sum | cut -c1-16)
if [ ! -e "$environment/.complete" ]; then
    say "installing the Python packages of $lock into $environment"
    mkdir -p "$cache"
    (
        flock 9
        if [ ! -e "$environment/.complete" ]; then
            rm -rf "$environment"
            "$python" -m venv "$environment" >&2
            "$environment/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r "$lock" >&2
            touch "$environment/.complete"
        fi
    ) 9>"$cache/setup.lock"
fi
echo "$environment/bin/python"
