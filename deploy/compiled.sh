#!/usr/bin/env bash
# Compiles the deciding code (deploy/compile.py) and prints the directory of the compiled modules, for
# KAFKA_THROTTLE_COMPILED. Prints nothing where there is no compiler: pure Python then runs, as with
# KAFKA_THROTTLE_PURE=1. Fails if a module does not compile. All else goes to stderr.
set -euo pipefail
cd "$(dirname "$0")/.."
say() { echo "compiled: $*" >&2; }

if [ "${KAFKA_THROTTLE_PURE:-}" = 1 ]; then
    exit 0
fi
if ! command -v cc >/dev/null; then
    say "no C compiler is here (apt-get install gcc libc6-dev): pure Python runs"
    exit 0
fi
python=$(deploy/setup.sh build)
if ! "$python" -c 'import os, sysconfig, sys; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'; then
    say "the headers of $("$python" -V) are not here (apt-get install libpython3-dev): pure Python runs"
    exit 0
fi
cache=${KAFKA_THROTTLE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kafka-throttle}
if ! "$python" deploy/compile.py --cache "$cache"; then
    say "could not compile, see above (KAFKA_THROTTLE_PURE=1 runs pure Python)"
    exit 1
fi
