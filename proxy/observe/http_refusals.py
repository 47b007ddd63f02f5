"""What an HTTP listener refuses: counted by reason, and logged seldom."""

import asyncio
import logging
from enum import Enum

import structlog
from prometheus_client import Counter

from kafka_throttle.common.at_most_every import AtMostEvery

REPORTED_EVERY_S = 60.0
"""A warning that any peer can cause is logged at most this often, with the number of times since."""

log = structlog.get_logger()


class Refusal(Enum):
    """Why an HTTP listener refuses a request or a connection. The value is the `reason` in metrics and the log."""

    TOO_MANY_CONNECTIONS = "too_many_connections"
    TLS_FAILED = "tls_failed"
    MALFORMED = "malformed"
    HEADERS_TOO_LARGE = "headers_too_large"
    PATH = "path"
    HOST = "host"
    CROSS_SITE = "cross_site"
    NO_CREDENTIALS = "no_credentials"
    WRONG_CREDENTIALS = "wrong_credentials"
    NO_RIGHT = "no_right"
    BODY_TOO_LARGE = "body_too_large"
    BODY_TOO_SLOW = "body_too_slow"


class HttpRefusals:
    """The refusals of one HTTP listener."""

    def __init__(self, listener: str, counter: Counter) -> None:
        self.listener = listener
        self._counters = {refusal: counter.labels(listener, refusal.value) for refusal in Refusal}
        self._reports = {refusal: AtMostEvery(REPORTED_EVERY_S) for refusal in Refusal}

    def times(self, refusal: Refusal) -> int:
        """Count one more refusal. Returns how many there were since the last one to be logged; 0: do not log it now."""
        self._counters[refusal].inc()
        return self._reports[refusal].times(asyncio.get_running_loop().time())

    def note_request(self, refusal: Refusal, address: str, path: str) -> None:
        """Count a request that is refused, and log it if that is due."""
        if times := self.times(refusal):
            log.log(
                _level_of_refusal(refusal),
                "http_requests_refused",
                listener=self.listener,
                reason=refusal.value,
                requests=times,
                last_address=address,
                last_path=path,
            )


def _level_of_refusal(refusal: Refusal) -> int:
    """INFO where nothing need be wrong: a browser asks without credentials first, and then with those of its user."""
    return logging.INFO if refusal is Refusal.NO_CREDENTIALS else logging.WARNING
