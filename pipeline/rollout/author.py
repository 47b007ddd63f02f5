"""The author and the time of a plan or an audit line."""

import os
import pwd
import socket
from datetime import UTC, datetime


def now() -> str:
    """The current time in UTC, as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def who() -> str:
    """The user of this process in the system's list of users, and the machine; with sudo, also the user who
    called it.
    """
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # in a container the user may have a number only
        name = str(os.getuid())
    before = os.environ.get("SUDO_USER")
    return f"{name}@{socket.gethostname()}" + (f" (sudo of {before})" if before else "")
