"""A scheduler that looks for shares of a key that add up to more than 1: any order of looks, publications and views.

python -m tests.quotas.shares.adversary SEED STEPS SEEDS
"""

import sys
from random import Random

from kafka_throttle.quotas.shares.member import Member, State
from kafka_throttle.quotas.shares.moves import Key, Use
from tests.quotas.shares.fleet import CUT_OFF_MS, SESSION_MS, Fleet, Instance

COUNT = ("count", 1)
KEYS = (("k", 1), ("k", 2), COUNT)
MOST = 5


class Violation(AssertionError):
    """Shares that must not be."""


class Adversary:
    """Does one thing after the other to a fleet, and checks it after each."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.fleet = Fleet(is_count=lambda key: key == COUNT)
        self.done = 0
        self.highest = 0.0
        """The largest share."""
        self.seen = dict.fromkeys(State, 0)
        self.members: list[Member] = []
        self.pace_ms = 100
        self.peace = 0.99
        self.uses: dict[tuple[str, Key], float] = {}
        """How often each key is used at each member, at the moment."""

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        self.done += 1
        random, fleet = self.random, self.fleet
        if self.done % 500 == 1:
            self.pace_ms = random.choice([3, 20, 100, 300])
            self.uses.clear()
            self.peace = random.choice([1.0, 0.998, 0.99])
        fleet.now_ms += random.randrange(self.pace_ms)
        self._expire()
        for instance in fleet.instances.values():
            if random.random() < 0.3:
                fleet.hear(instance)
        if not fleet.instances or (len(fleet.instances) < MOST and random.random() < 0.004):
            self.members.append(fleet.join(offset_ms=random.randrange(-900_000, 900_000)).member)
        else:
            self._act(random.choice(list(fleet.instances.values())))
        self.check()

    def _act(self, instance: Instance) -> None:
        random, fleet = self.random, self.fleet
        chance = random.random()
        if instance.is_frozen:
            if chance < 0.02:
                self._wake(instance)
        elif chance < 0.4:
            self._look(instance)
        elif chance < 0.75:
            self._publish(instance)
        elif chance < self.peace:
            if instance.is_reached:
                fleet.hear(instance)
                authors = list(fleet.registers.latest())
                fleet.deliver(instance, random.sample(authors, random.randrange(len(authors) + 1)))
        else:
            self._disturb(instance)

    def _look(self, instance: Instance) -> None:
        uses = []
        for key in KEYS:
            share = instance.member.share_of(key)
            chance = self.uses.setdefault((instance.member.id, key), self.random.choice([0.0, 0.0, 0.1, 0.7]))
            if self.random.random() < chance:
                rate = self.random.choice([0.0, share, share, self.random.random() * share])
                is_pressed = rate == share and self.random.random() < 0.7
                held = self.random.choice([0.0, 0.0, 0.0, share / 2])
                unit = 0.1 if key == COUNT else 0.0
                uses.append(Use(key, rate, is_pressed, (rate,) * 10, held, unit=unit))
        self.fleet.look(instance, uses)

    def _publish(self, instance: Instance) -> None:
        if not instance.is_reached:
            return
        self.fleet.hear(instance)
        if instance.in_flight is None:
            self.fleet.publish(instance)
        elif not instance.is_ordered:
            if self.random.random() < 0.1:
                instance.in_flight = None
            else:
                self.fleet.order(instance)
        elif self.random.random() < 0.1:
            instance.in_flight = None
        else:
            self.fleet.confirm(instance)

    def _disturb(self, instance: Instance) -> None:
        fleet, chance = self.fleet, self.random.random()
        if chance < 0.25:
            del fleet.instances[instance.member.id]
            fleet.remove(instance)
        elif chance < 0.4:
            del fleet.instances[instance.member.id]
            self.fleet.gone.append(instance)
        elif chance < 0.6:
            instance.is_frozen = True
        elif chance < 0.7 and instance.is_reached:
            fleet.remove(instance)
            fleet.hear(instance)
        else:
            instance.is_reached = not instance.is_reached

    def _wake(self, instance: Instance) -> None:
        instance.is_frozen = False
        self._look(instance)

    def _expire(self) -> None:
        fleet = self.fleet
        for instance in [*fleet.instances.values(), *fleet.gone]:
            if instance.has_record and fleet.now_ms - instance.contact_ms > SESSION_MS:
                fleet.remove(instance)
        for instance in fleet.instances.values():
            # An instance that runs looks often enough to find out in time that it is cut off.
            if not instance.is_frozen and fleet.now_ms - instance.looked_ms > (SESSION_MS - CUT_OFF_MS) / 2:
                self._look(instance)

    def check(self) -> None:
        fleet = self.fleet
        for instance in fleet.instances.values():
            self.seen[instance.member.state] += 1
        for key in KEYS:
            if fleet.excess(key) > 1e-9:
                raise Violation(f"step {self.done}: {key} has {1 + fleet.excess(key)}\n{self.shown(key)}")
            for instance in fleet.instances.values():
                member, share = instance.member, instance.member.share_of(key)
                self.highest = max(self.highest, share)
                least = 1 / member.members if member.is_cut_off and member.members > 1 else 1
                if not 0 <= share <= least or (share == 0 and key != COUNT):
                    raise Violation(f"step {self.done}: {key} has {share} at {member.id}\n{self.shown(key)}")

    def shown(self, key: tuple[object, ...]) -> str:
        lines = []
        for instance in self.fleet.instances.values():
            member = instance.member
            lines.append(
                f"{member.id} {member.state} cut off {self.fleet.is_cut_off(instance)} {member.share_of(key)} "
                f"{member.explain(key)}"
            )
        return "\n".join(lines)


if __name__ == "__main__":
    for seed in range(int(sys.argv[1]), int(sys.argv[1]) + int(sys.argv[3])):
        adversary = Adversary(seed)
        adversary.run(int(sys.argv[2]))
        totals = [member.totals for member in adversary.members]
        counts = {
            name: sum(getattr(each, name) for each in totals) for name in ("raises", "lowers", "conflicts", "over")
        }
        print(seed, len(totals), counts, {state.name: count for state, count in adversary.seen.items()})
