# Sourced by setup.sh, pythons.sh and release.sh.

# The versions of Python that the product is for.
PYTHONS=(3.11 3.12 3.13 3.14)

# The path of the first candidate that is a Python from version $1 to version $2 with ensurepip; nothing if none is.
find_python() {
    local candidate low=$1 high=$2
    shift 2
    for candidate in "$@"; do
        if command -v "$candidate" >/dev/null && "$candidate" -c "
import ensurepip, sys
low, high = (tuple(map(int, version.split('.'))) for version in sys.argv[1:])
sys.exit(not low <= sys.version_info[:2] <= high)" "$low" "$high" 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
}

# The path of the Python of version $1, in the PATH or in pyenv; nothing if there is none.
python_of() {
    find_python "$1" "$1" "/usr/bin/python$1" "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python
}
