"""Each quota type beside Kafka's own class: which script is given to which program."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kafka_throttle.quotas.entities import QuotaType
from tests.conformance.client_quotas import client_script
from tests.conformance.connections import connection_script
from tests.conformance.mutations import mutation_script
from tests.conformance.oracle import Comparison, Step, run

VERSIONS = ("3.9.2", "4.3.1")

FORGETFUL = {"4.3.1"}
"""Versions that forget a kind of entity (user, client-id, pair) with its last quota; 3.9 remembers it until a restart,
and so do we. It decides under which tags clients without a quota are measured."""


@dataclass(frozen=True, slots=True)
class Proof:
    """One quota type at one version of Kafka, under the settings `quota.window.num` and `quota.window.size.seconds`.

    With a forgetful version a quota of each kind of entity always stays; or, `forgetting`, we forget kinds as it does.
    """

    quota_type: QuotaType
    version: str
    samples: int = 11
    window_s: int = 1
    forgetting: bool = False

    def compare(self, seed: int, events: int, folder: Path) -> Comparison:
        """Both sides response `events` random events, and all the changes of quotas between them."""
        arguments: list[object] = [self.samples, self.window_s]
        program = "ConnectionOracle"
        if self.quota_type is not QuotaType.CONNECTION:
            program = "QuotaOracle"
            arguments.insert(0, self.quota_type.name)
        return run(program, self.version, self._steps(seed, events), folder, *arguments).comparison()

    def _steps(self, seed: int, events: int) -> Iterable[Step]:
        anchored = self.version in FORGETFUL and not self.forgetting
        if self.quota_type is QuotaType.CONNECTION:
            return connection_script(seed, self.samples, self.window_s).steps(events)
        if self.quota_type is QuotaType.CONTROLLER_MUTATION:
            return mutation_script(seed, self.samples, self.window_s, not self.forgetting).steps(events, anchored)
        script = client_script(self.quota_type, self.samples, self.window_s, not self.forgetting)
        return script.steps(seed, events, anchored)


@dataclass(frozen=True, slots=True)
class OtherTags:
    """How a forgetful version differs from us in `charges`: the price of remembering kinds of entity.

    `tags`: measured under other tags, or not at all; `throttled` of these were throttled by either. `history`: under
    the same tags, but the sensor has seen something else before; `throttles` of these have another throttle time.
    """

    charges: int
    tags: int
    throttled: int
    history: int
    throttles: int


def other_tags(version: str, seed: int, events: int, folder: Path) -> OtherTags:
    """What comes of it that we remember kinds of entity and this version does not."""
    steps = client_script(QuotaType.PRODUCE).steps(seed, events, anchored=False)
    charges, tags, throttled, history, throttles = 0, 0, 0, 0, 0
    for line, ours, kafkas in run("QuotaOracle", version, steps, folder, "PRODUCE", 11, 1).replies():
        charges += line.startswith("C")
        if ours == kafkas:
            continue
        our_throttle, _, *our_tags = ours.split("\t")
        their_throttle, _, *their_tags = kafkas.split("\t")
        if our_tags != their_tags:
            tags += 1
            throttled += (our_throttle, their_throttle) != ("0", "0")
        else:
            history += 1
            throttles += our_throttle != their_throttle
    return OtherTags(charges, tags, throttled, history, throttles)
