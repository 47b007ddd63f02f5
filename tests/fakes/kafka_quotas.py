"""A cluster that knows nothing but quotas, and connections to it; messages are kafka-python's, as on the wire."""

from kafka.protocol.admin import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

from kafka_throttle.protocol.api_key import METADATA
from kafka_throttle.protocol.fields import FieldReader, FieldWriter
from kafka_throttle.protocol.messages.metadata import ClusterNodes
from kafka_throttle.quotas.changes import SourceUnavailable

_VERSION = 1
_REQUESTS = {48: DescribeClientQuotasRequest, 49: AlterClientQuotasRequest}


class FakeCluster:
    """`quotas` has, for each entity (a tuple of pairs of type and name), its values by key.

    `lag` is for how many responses a change stays hidden; `refusals` has an error code and message for entities;
    `down` names servers that cannot be had; `error` is what every Describe is answered with; `nodes` are those that it
    names.
    """

    def __init__(self, quotas=None):
        self.quotas = dict(quotas or {})
        self.lag = 0
        self.refusals = {}
        self.down = set()
        self.error = (0, None)
        self.nodes = ()
        self.connections = []
        self.alterations = []
        self._shown = []

    def connect(self, server, credentials, timeout_s):
        connection = FakeConnection(self, server, timeout_s)
        self.connections.append(connection)
        return connection

    @property
    def open_connections(self):
        return [connection for connection in self.connections if not connection.closed]

    def response(self, request):
        if request.api_key == METADATA:
            return ClusterNodes(tuple(self.nodes), 0)
        kind = _REQUESTS[request.api_key]
        sent = kind.decode(request.write(FieldWriter(compact=True), _VERSION), version=_VERSION)
        response = self._describe() if kind is DescribeClientQuotasRequest else self._alter(sent)
        return request.read(FieldReader(bytes(response.encode(version=_VERSION)), 0, compact=True), _VERSION)

    def _describe(self):
        shown = self._shown.pop(0) if self._shown else self.quotas
        of_entry = DescribeClientQuotasResponse.EntryData
        entries = [
            of_entry(
                entity=[of_entry.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
                values=[of_entry.ValueData(key=key, value=value) for key, value in values.items()],
            )
            for entity, values in shown.items()
        ]
        code, message = self.error
        return DescribeClientQuotasResponse(
            throttle_time_ms=0, error_code=code, error_message=message, entries=None if code else entries
        )

    def _alter(self, request):
        assert isinstance(request, AlterClientQuotasRequest)
        entities = [tuple((part.entity_type, part.entity_name) for part in entry.entity) for entry in request.entries]
        assert len(set(entities)) == len(entities), "KRaft refuses the second of two alterations of an entity"
        before = {entity: dict(values) for entity, values in self.quotas.items()}
        if not request.validate_only:
            self.alterations.append(entities)
        of_entry = AlterClientQuotasResponse.EntryData
        entries = []
        for entity, entry in zip(entities, request.entries, strict=True):
            code, message = self.refusals.get(entity, (0, None))
            parts = [of_entry.EntityData(entity_type=kind, entity_name=name) for kind, name in entity]
            entries.append(of_entry(error_code=code, error_message=message, entity=parts))
            for op in () if code or request.validate_only else entry.ops:
                self._apply(entity, op)
        self._shown = [before] * self.lag
        return AlterClientQuotasResponse(throttle_time_ms=0, entries=entries[::-1])

    def _apply(self, entity, op):
        values = self.quotas.setdefault(entity, {})
        if op.remove:
            values.pop(op.key, None)
        else:
            values[op.key] = op.value
        if not values:
            del self.quotas[entity]


class FakeConnection:
    """Fails once interrupted, or while its server is down."""

    def __init__(self, cluster, server, timeout_s):
        self.server, self.timeout_s = server, timeout_s
        self.closed = False
        self._cluster = cluster
        self._interrupted = False

    def ask(self, request):
        assert not self.closed
        if self._interrupted or self.server in self._cluster.down:
            raise SourceUnavailable(f"{self.server}: down")
        return self._cluster.response(request)

    def interrupt(self):
        self._interrupted = True

    def close(self):
        self.closed = True
