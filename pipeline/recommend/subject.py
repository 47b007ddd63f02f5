"""What a quota could be set on, for use that was recorded under certain names."""

from dataclasses import dataclass

from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaType

OVERFLOW = "<overflow>"
"""The name in records for clients that were too many to be recorded separately (quotas/records/usage_record.py)."""

USER, CLIENT_ID, PAIR = "user", "client-id", "user+client-id"
KINDS = (USER, CLIENT_ID, PAIR)


@dataclass(frozen=True, slots=True)
class Subject:
    """Names as records have them; names that do not matter for the kind of entity are empty."""

    virtual_cluster: str
    quota_type: QuotaType
    user: str = ""
    client_id: str = ""
    ip: str = ""

    def __str__(self) -> str:
        entity = self.entity
        return "(unnamed)" if entity is None else str(entity)

    @property
    def entity(self) -> Entity | None:
        """The entity of these names; None if there is no name at all."""
        if not (self.user or self.client_id or self.ip):
            return None
        return Entity(self.user or None, self.client_id or None, self.ip or None)

    def nameless(self, by: str) -> str:
        """The reason why no quota of the kind `by` can be set on these names; empty if one can."""
        if OVERFLOW in (self.user, self.client_id, self.ip):
            return "clients that were too many for the proxy to tell apart"
        if not self.virtual_cluster:
            return "the records name no virtual cluster"
        if self.quota_type is QuotaType.CONNECTION:
            return "" if self.ip else "the records name no address"
        if not self.user and by in (USER, PAIR):
            return "the user is not known: the connection had not authenticated yet"
        if not self.client_id and by in (CLIENT_ID, PAIR):
            return "the clients sent no client-id, so no quota for a client-id applies to them"
        return ""

    def holds_alone(self, rule: str) -> bool:
        """Whether the quota `rule`, as in records, measures exactly this subject: its own quota, or a default
        for each.
        """
        entity = self.entity
        if entity is None:
            return False
        options = [[None] if name is None else [name, DEFAULT] for name in (entity.user, entity.client_id, entity.ip)]
        users, client_ids, ips = options
        return rule in {str(Entity(u, c, ip)) for u in users for c in client_ids for ip in ips}
