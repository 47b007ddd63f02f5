"""Random scripts for controller mutations, and how our own classes response them."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from kafka_throttle.quotas.client_quotas import ClientQuotaManager
from kafka_throttle.quotas.entities import QuotaType, SensorTags
from kafka_throttle.quotas.quota_table import QuotaTable
from kafka_throttle.quotas.sensors.token_buckets import TokenBuckets, remaining_ms
from kafka_throttle.quotas.sensors.windowed_rate import MAX_THROTTLE_MS, Sensors
from tests.conformance.client_quotas import BEGIN_MS, ROWS, ByManager, ByTags, quota_step, state
from tests.conformance.entities import EVENTS_BETWEEN_CHANGES, USERS, RandomQuotas, random_client, random_step_ms
from tests.conformance.oracle import Step

REQUESTS_AT_A_TIME = 8


@dataclass(slots=True)
class Request:
    """A request for mutations that is under way: its row, if the type was on, and what it was told last, and when."""

    handle: int | None
    tags: SensorTags
    strict: bool
    reported_ms: int = 0
    reported_at_ms: int = 0


def mutation_limit(rng: random.Random) -> float:
    """At least 0.5/s, so that no delay passes int32: a broker would wrap it, we cut."""
    limit = 10 ** rng.uniform(-0.3, 1.5)
    return limit if limit < 1 or rng.random() < 0.5 else float(int(limit))


def random_partitions(rng: random.Random) -> float:
    """Mostly whole; fractions make adding up round."""
    return rng.random() * 10 if rng.random() < 0.1 else float(min(int(rng.lognormvariate(2, 1.3)), 500))


@dataclass(slots=True)
class MutationScript:
    """Requests of random clients, several at a time, strict or permissive, with live quota changes."""

    buckets: TokenBuckets
    side: ByTags
    rng: random.Random
    _now_ms: int = BEGIN_MS
    _requests: dict[int, Request] = field(default_factory=dict)
    _last_id: int = 0

    def steps(self, events: int, anchored: bool) -> Iterator[Step]:
        """The script with our responses."""
        quotas = RandomQuotas(self.rng, mutation_limit, anchored)
        for change in quotas.first():
            yield quota_step(self.side, change, self._now_ms)
        for i in range(events):
            if i % EVENTS_BETWEEN_CHANGES == 0:
                yield from self._change_under_a_newcomer(quotas)
            yield self._step()

    def _change_under_a_newcomer(self, quotas: RandomQuotas) -> Iterator[Step]:
        """A quota changes after somebody's first request has begun, and before it mutates: how full is its bucket?"""
        yield self._begin(self.rng.choice(USERS), f"newcomer-{self.rng.randrange(1000)}")
        yield quota_step(self.side, quotas.change(), self._now_ms)
        yield self._mutate(self._last_id, random_partitions(self.rng))

    def _step(self) -> Step:
        rng = self.rng
        self._now_ms += random_step_ms(rng) // 4
        chance = rng.random()
        if not self._requests or (chance < 0.2 and len(self._requests) < REQUESTS_AT_A_TIME):
            return self._begin(*random_client(rng))
        number = rng.choice(list(self._requests))
        if chance < 0.75:
            return self._mutate(number, self._partitions(number))
        return self._give_back(number, random_partitions(rng)) if chance < 0.8 else self._response(number)

    def _begin(self, user: str, client_id: str) -> Step:
        self._last_id += 1
        strict = self.rng.random() < 0.6
        self._requests[self._last_id] = Request(*self.side.find(user, client_id, self._now_ms), strict)
        return Step(f"N\t{self._now_ms}\t{self._last_id}\t{user}\t{client_id}\t{'s' if strict else 'p'}", "")

    def _partitions(self, number: int) -> float:
        """Now and then just what the bucket holds: then nothing is left, and nothing is overdrawn."""
        handle = self._requests[number].handle
        if handle is not None and self.rng.random() < 0.05:
            return min(max(self.buckets.tokens(handle, self._now_ms), 0.0), 1000.0)
        return random_partitions(self.rng)

    def _mutate(self, number: int, value: float) -> Step:
        line, request = f"R\t{self._now_ms}\t{number}\t{value!r}", self._requests[number]
        if request.handle is None:
            return Step(line, "ok\toff")
        spend = self.buckets.spend_strictly if request.strict else self.buckets.spend_permissively
        reported_ms = spend(request.handle, value, self._now_ms)
        if reported_ms is not None:
            request.reported_ms, request.reported_at_ms = reported_ms, self._now_ms
        decision = f"refused {reported_ms}" if request.strict and reported_ms is not None else "ok"
        return Step(line, f"{decision}\t{self._state(request)}", reported_ms is not None)

    def _give_back(self, number: int, value: float) -> Step:
        line, request = f"B\t{self._now_ms}\t{number}\t{value!r}", self._requests[number]
        if request.handle is None:
            return Step(line, "ok\toff")
        self.buckets.give_back(request.handle, value, self._now_ms)
        return Step(line, f"ok\t{self._state(request)}")

    def _response(self, number: int) -> Step:
        request = self._requests.pop(number)
        left_ms = remaining_ms(request.reported_ms, request.reported_at_ms, self._now_ms)
        return Step(f"T\t{self._now_ms}\t{number}", str(left_ms), left_ms > 0)

    def _state(self, request: Request) -> str:
        assert request.handle is not None
        return state(self.buckets.tokens(request.handle, self._now_ms), request.tags)


def mutation_script(seed: int, samples: int = 11, window_s: int = 1, remembers_kinds: bool = True) -> MutationScript:
    """With the cap lifted out of the way."""
    buckets = TokenBuckets(ROWS, samples, window_s * 1000, max_throttle_ms=MAX_THROTTLE_MS)
    side = ByTags(QuotaType.CONTROLLER_MUTATION, buckets, remembers_kinds=False)
    if remembers_kinds:
        side = ByManager(
            QuotaType.CONTROLLER_MUTATION, ClientQuotaManager(Sensors(1), QuotaTable(), buckets=buckets), buckets
        )
    return MutationScript(buckets, side, random.Random(seed))
