"""A proxy that is ended and started again in one of several ways."""

import os
import signal
import time
from typing import Literal, get_args

from tests.integration.restarts import RelayedProxy

Restart = Literal["sigterm", "sigkill", "sigusr2", "none"]
RESTARTS: tuple[Restart, ...] = get_args(Restart)


class RestartedProxy(RelayedProxy):
    """A proxy with a supervisor that starts it again as soon as it has ended."""

    def restart(self, how: Restart) -> float:
        """Wait until the next process is started; after SIGUSR2 it serves already. Returns how many seconds the old one
        took to end."""
        began_s = time.monotonic()
        match how:
            case "sigterm":
                self.terminate()
            case "sigkill":
                os.kill(self.pid, signal.SIGKILL)
                self.wait_for_exit()
            case "sigusr2":
                self.take_over()
        ended_s = time.monotonic()
        if how in ("sigterm", "sigkill"):
            self.launch()
        return ended_s - began_s
