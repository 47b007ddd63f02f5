"""Who does something, and when, as plans and audits tell it."""

import os
import pwd
import socket
from datetime import UTC, datetime


def now() -> str:
    """This moment, UTC, as ISO 8601 has it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def who() -> str:
    """The user of this process by the system's own list, at which machine; and as whom he came, if by sudo."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # in a container, as a number
        name = str(os.getuid())
    before = os.environ.get("SUDO_USER")
    return f"{name}@{socket.gethostname()}" + (f" (sudo of {before})" if before else "")
