#!/usr/bin/env bash
# Runs the fast tests of protocol, quotas and proxy on each Python from 3.11 to 3.14 that is found in the PATH or in
# pyenv. Says which are not found, and ends with an error if any test failed or no Python was found.
#
#   deploy/pythons.sh [pytest option ...]
set -euo pipefail
cd "$(dirname "$0")/.."

. deploy/find_python.sh

found=0 failed=0
for version in "${PYTHONS[@]}"; do
    python=$(python_of "$version")
    if [ -z "$python" ]; then
        echo "Python $version: not found, neither in the PATH nor in pyenv"
        continue
    fi
    found=1
    echo "Python $version: $python"
    python=$(KAFKA_THROTTLE_PYTHON=$python deploy/setup.sh dev)
    "$python" -m pytest -q -n 2 -m "not nightly and not kafka and not spark and not exclusive" \
        tests/protocol tests/quotas tests/relay tests/proxy "$@" || failed=1
done
if [ "$found" = 0 ]; then
    echo "no Python from 3.11 to 3.14 was found"
    exit 1
fi
exit "$failed"
