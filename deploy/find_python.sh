# Sourced by setup.sh and pythons.sh.

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
