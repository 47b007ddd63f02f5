"""Child processes that do not outlive the process that started them."""

import ctypes
import signal

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the thread that starts this process ends; for `preexec_fn`."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
