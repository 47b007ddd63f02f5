"""The log of a fleet: each change once."""

from collections.abc import Collection, Mapping
from typing import Final

import structlog

from kafka_throttle.common.at_most_every import AtMostEvery
from kafka_throttle.common.printable import printable
from kafka_throttle.quotas.shares.member import Member

NAME_MS: Final = 60_000
"""How long another member may have the name of this one before it is logged: a process that takes over has it too."""

_JOIN_MS: Final = 30_000
"""How long it may take to join before it is logged that this member is cut off: until then it has never been in."""

_REPEATED_US: Final = 60_000_000
_NAMED: Final = 20
"""How many members a line names."""


class Reports:
    """Logs what happens to a member, and to the others as far as it sees them."""

    def __init__(self, virtual_cluster: str, member: Member) -> None:
        self._log = structlog.get_logger().bind(virtual_cluster=virtual_cluster, member=member.id)
        self._member = member
        self._is_known = False
        self._is_cut_off = False
        self._joins_until_ms: int | None = None
        """Until when this member is expected to join; None before the first look."""
        self._excesses = 0
        self._others: frozenset[str] = frozenset()
        self._problems: Mapping[str, str] = {}
        self._refused: dict[str, AtMostEvery] = {}
        self._same_name: dict[str, int | None] = {}
        """Members with the name of this one: since when; None once it was logged."""

    def look(self, others: Collection[str], problems: Mapping[str, str], now_ms: int) -> None:
        """Log what has changed since the last look."""
        self._look_at_others(frozenset(others), now_ms)
        self._look_at_problems(problems)
        member = self._member
        still_joins = self._still_joins(now_ms)
        is_cut_off = member.is_cut_off and not still_joins
        if member.is_known and not self._is_known:
            names = [printable(name) for name in sorted(others)[:_NAMED]]
            self._log.info("fleet_joined", members=member.members, others=names)
        if is_cut_off and not self._is_cut_off:
            problem = printable(problems.get("", "this instance has not heard of the others for too long"))
            self._log.warning("fleet_cut_off", members=member.members, problem=problem)
        elif self._is_cut_off and not is_cut_off:
            self._log.info("fleet_reached", members=member.members)
        self._is_known, self._is_cut_off = member.is_known, is_cut_off
        if (excesses := member.totals.over) > self._excesses:
            self._log.error("fleet_claims_exceed_limit", keys=excesses - self._excesses)
            self._excesses = excesses

    def _still_joins(self, now_ms: int) -> bool:
        """Whether this member has not been in the fleet since its start, which was not long ago."""
        if self._joins_until_ms is None:
            self._joins_until_ms = now_ms + _JOIN_MS
        if self._member.is_known:
            self._joins_until_ms = now_ms
        return now_ms < self._joins_until_ms

    def refused(self, origin: str, problem: str, now_us: int) -> None:
        """Log that a document or record makes no sense, once a minute for each member, and for the topic."""
        if documents := self._refused.setdefault(origin, AtMostEvery(_REPEATED_US)).times(now_us):
            line = {"other": printable(origin), "problem": printable(problem), "documents": documents}
            self._log.warning("fleet_document_refused", **line)

    def _look_at_others(self, others: frozenset[str], now_ms: int) -> None:
        if others != self._others:
            for name in sorted(others - self._others):
                self._log.info("fleet_member_joined", other=printable(name), members=len(others) + 1)
            for name in sorted(self._others - others):
                self._log.info("fleet_member_left", other=printable(name), members=len(others) + 1)
                self._refused.pop(name, None)
            self._others = others
            name = _name_of(self._member.id)
            self._same_name = {other: self._same_name.get(other, now_ms) for other in others if _name_of(other) == name}
        for other, since_ms in self._same_name.items():
            if since_ms is not None and now_ms - since_ms > NAME_MS:
                self._same_name[other] = None
                self._log.warning("fleet_name_taken", other=printable(other), setting="usage.instance")

    def _look_at_problems(self, problems: Mapping[str, str]) -> None:
        if problems is self._problems:
            return
        for place, problem in problems.items():
            if self._problems.get(place) != problem:
                self._log.warning("fleet_problem", other=printable(place), problem=printable(problem, 1_000))
        for place in self._problems.keys() - problems.keys():
            self._log.info("fleet_problem_ended", other=printable(place))
        self._problems = problems


def _name_of(member_id: str) -> str:
    return member_id.rpartition("#")[0] or member_id
