"""Members of a fleet without ZooKeeper: documents in one dict, and rows that are only written down."""

from kafka_throttle.proxy.server.fleet.transport import TransportLost


class FakeTransport:
    """Carries documents at once, between all that have the same `exchange`."""

    def __init__(self, exchange, clock, cut_off_ms=5_500):
        self.cut_off_ms = cut_off_ms
        self.losses = 0
        self.problems = {}
        self.refused = []
        self.is_reachable = True
        self.published = []
        self._exchange = exchange
        self._clock = clock
        self._heard_ms = None
        self._name = ""

    @property
    def heard_ms(self):
        if self.is_reachable and self._name:
            self._heard_ms = self._clock.now_ms()
        return self._heard_ms

    async def start(self, member_id, changed):
        self._name = member_id

    def take_refused(self):
        refused, self.refused = self.refused, []
        return refused

    def view(self):
        return {name: content for name, content in self._exchange.items() if name != self._name}

    async def publish(self, content):
        if not self.is_reachable:
            raise TransportLost("it is away")
        self.published.append(content)
        self._exchange[self._name] = content

    def expire(self):
        """The others do not see this member any more."""
        del self._exchange[self._name]
        self.losses += 1

    async def stop(self):
        self._exchange.pop(self._name, None)


class FakeRows:
    """`in_use` is what the next look finds; `applied` are all moves so far."""

    def __init__(self):
        self.in_use = []
        self.applied = []

    def uses(self, now_ms):
        return self.in_use

    def apply(self, moves, now_ms):
        self.applied += moves

    def go_on(self, now_ms):
        return False
