"""A process with idempotent producers of librdkafka, one for each plan."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from tests.conservation.orders import Orders, tell
from tests.conservation.pace import Plan, Sender
from tests.conservation.records import LARGE_BYTES

_FLUSH_S = 180.0
_NEVER_MS = 1_000_000
_BURST = 200
"""At most so many records at a time for one producer, so that the others have their turn."""


class ConfluentProducer:
    """One producer, and another one when the first has met an error that it cannot survive, or was given up.

    Giving up is done by us and not by message.timeout.ms: when that is over for one record, librdkafka 2.16 goes on
    under a new epoch, sends again what else was in flight, and so doubles what the node had taken. Seen without a
    proxy too.
    """

    def __init__(self, plan: Plan, bootstrap: str) -> None:
        self.sender = Sender(plan)
        self.throttles = 0
        self.made = 0
        self._fatal = False
        self._waiting: dict[tuple[int, int], float] = {}
        """When each record without a response was sent, the oldest first."""
        self._settings = {
            "bootstrap.servers": bootstrap,
            "client.id": plan.client_id,
            "enable.idempotence": True,
            "compression.type": plan.compression,
            "linger.ms": 20,
            "message.max.bytes": 2 * LARGE_BYTES,
            "message.timeout.ms": _NEVER_MS,
            "request.timeout.ms": 15_000,
            "socket.timeout.ms": 15_000,
            "reconnect.backoff.max.ms": 1000,
            "queue.buffering.max.kbytes": 64 * 1024,
            "topic.metadata.refresh.interval.ms": 5000,
            "statistics.interval.ms": 0,
            "debug": "eos",
            "error_cb": self._on_error,
            "throttle_cb": self._on_throttle,
        }
        self._producer = self._make()

    def work(self) -> None:
        """Send what is due and hear what became of earlier records."""
        if self._fatal and len(self._producer) == 0:
            self._producer = self._make()
        if self._waiting and time.monotonic() > next(iter(self._waiting.values())) + self.sender.plan.timeout_s:
            self._give_up()
        for _ in range(_BURST):
            if self._fatal or not self.sender.due:
                break
            partition, sequence, value = self.sender.next()
            settle = partial(self._settle, partition, sequence)
            try:
                self._producer.produce(self.sender.plan.topic, value, partition=partition, on_delivery=settle)
            except BufferError:
                break
            except KafkaException as error:
                self._on_refusal(error.args[0])
                break
            self._waiting[partition, sequence] = time.monotonic()
            self.sender.accepted()
        self._hear(partial(self._producer.poll, 0))

    def flush(self, timeout_s: float) -> None:
        """Wait for the rest; what has no response then has none in the account either."""
        self._hear(partial(self._producer.flush, timeout_s))

    def _hear(self, hear: Callable[[], object]) -> None:
        """Hear of records and errors. Of a fatal one the client tells by raising it, once, in place of calling back.

        One that is met now and then: a node that was stopped takes itself for the leader still when it goes on, until
        it hears otherwise, and finds what a producer sends to it out of order.
        """
        try:
            hear()
        except KafkaException as error:
            if not error.args[0].fatal():
                raise
            self._on_error(error.args[0])
            hear()

    def _give_up(self) -> None:
        """Have all that is under way reported as failed; none of it is sent again."""
        self._producer.purge()
        self._hear(partial(self._producer.flush, 10))
        self._producer = self._make()

    def _make(self) -> Producer:
        self.made += 1
        self._fatal = False
        return Producer(self._settings)

    def _settle(self, partition: int, sequence: int, error: KafkaError | None, message: object) -> None:
        del self._waiting[partition, sequence]
        self.sender.sent.settle(partition, sequence, error)

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            tell(trouble=f"{self.sender.plan.client_id}: {error}")
            self._fatal = True

    def _on_refusal(self, error: KafkaError) -> None:
        """The client has not taken a record, which is to be sent later. Raises what no later time would mend.

        librdkafka turns fatal in a thread of its own and refuses from then on, while the error waits for the next
        poll to be told. It knows no topic any more when a node was asked that has just come back and has yet to hear
        of it.
        """
        if error.code() == KafkaError._FATAL:
            self._fatal = True
        elif error.code() not in (KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION):
            raise KafkaException(error)

    def _on_throttle(self, event: Any) -> None:
        self.throttles += 1


def main() -> None:
    orders = Orders()
    producers = [ConfluentProducer(Plan(**plan), orders.given["bootstrap"]) for plan in orders.given["plans"]]
    while not all(producer.sender.finished for producer in producers):
        for producer in producers:
            producer.sender.stopped = orders.stop.is_set()
            producer.work()
        orders.tell_progress(sent=sum(producer.sender.count for producer in producers))
        time.sleep(0.01)
    deadline = time.monotonic() + _FLUSH_S
    for producer in producers:
        producer.flush(max(0.1, deadline - time.monotonic()))
        producer.sender.sent.save(orders.folder)
    throttles = sum(producer.throttles for producer in producers)
    made = sum(producer.made for producer in producers)
    tell(done=[producer.sender.report() for producer in producers], throttles=throttles, made=made)


if __name__ == "__main__":
    main()
