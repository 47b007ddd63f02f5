"""Requests about quotas, a row for each response that Kafka has: they are sent to a broker and to the proxy.

Quotas that remain on entities of other tests are too high to have an effect.
"""

from math import inf, nan

P, F = "producer_byte_rate", "consumer_byte_rate"
R, M, C = "request_percentage", "controller_mutation_rate", "connection_creation_rate"

ALICE = (("user", "row-alice"),)


def put(key, value):
    """An operation that sets a key."""
    return key, value, False


def drop(key):
    """An operation that removes a key; its value counts for nothing."""
    return key, nan, True


def one(entity, *operations):
    """A request about one entity."""
    return [(entity, operations)]


VALID = [
    (("user", "row-all"),),
    (("user", None),),
    (("client-id", "row-all"),),
    (("client-id", None),),
    (("user", "row-all"), ("client-id", "row-all")),
    (("user", "row-all"), ("client-id", None)),
    (("user", None), ("client-id", "row-all")),
    (("user", None), ("client-id", None)),
    (("client-id", "row-turned"), ("user", "row-turned")),
    (("user", "row <default>/ü+%20*~"),),
    (("user", "<default>"),),
]
IPS = ["10.9.8.7", None, "::1", "2001:db8::5", "::ffff:10.9.8.6"]

VALUES = [
    *(0.0, -0.0, -1.0, -2.0, -1e-9, 1e-9, 1e-7, 0.5, 1.0, 1235.0000001, 1234.9999999, 10000.5, 1.0000005, 1.000002),
    *(2.0**31 - 1, 2.0**31, 2.0**53 + 2, 2.0**63 - 1024, 2.0**63, 2.0**63 + 2048, 1e300, inf, -inf, nan),
]

ALTERS = {
    **{
        f"all keys of {entity}": one(entity, put(P, 1e12), put(F, 2e12), put(R, 1e6 + 0.5), put(M, 1e6 + 0.25))
        for entity in VALID
    },
    **{f"ip {ip}": one((("ip", ip),), put(C, 1_000_007)) for ip in IPS},
    "no entry": [],
    "no operation": one(ALICE),
    "no entity type": one((), put(P, 1)),
    "no entity type, no operation": one(()),
    "unknown entity type": one((("group", "x"),), put(P, 1)),
    "empty entity type": one((("", "x"),), put(P, 1)),
    "known and unknown entity type": one((("user", "row"), ("group", "x")), put(P, 1)),
    "empty user": one((("user", ""),), put(P, 1)),
    "empty client-id": one((("client-id", ""),), put(P, 1)),
    "empty client-id of a user": one((("user", "row"), ("client-id", "")), put(P, 1)),
    "empty ip": one((("ip", ""),), put(C, 1)),
    "ip and user": one((("ip", "10.0.0.1"), ("user", "row")), put(P, 1)),
    "ip and client-id": one((("ip", "10.0.0.1"), ("client-id", "row")), put(C, 1)),
    "ip and default user": one((("ip", None), ("user", None)), put(C, 1)),
    "no ip": one((("ip", "300.1.2.3"),), put(C, 1)),
    "no ip with blanks": one((("ip", "a b"),), put(C, 1)),
    "default ip by its name": one((("ip", "<default>"),), put(C, 1)),
    "host name": one((("ip", "localhost"),), put(C, 1)),
    "user key on an ip": one((("ip", "10.0.0.2"),), put(P, 1)),
    "ip key on a user": one(ALICE, put(C, 1)),
    "ip key on a client-id": one((("client-id", "row"),), put(C, 1)),
    "unknown key": one(ALICE, put("fast", 1)),
    "empty key": one(ALICE, put("", 1)),
    "shadow key": one(ALICE, put("shadow_producer_byte_rate", 1)),
    "SCRAM key": one(ALICE, put("SCRAM-SHA-256", 1)),
    "good and unknown key": one(ALICE, put(P, 77), put("fast", 1)),
    "good key and bad value": one(ALICE, put(P, 77), put(F, -1)),
    "two bad keys": one(ALICE, put("fast", 1), put("faster", 1)),
    "bad value and bad key": one(ALICE, put(P, -1), put("fast", 1)),
    **{
        f"{key} {value!r}": one((("ip", f"10.3.0.{i}"),) if key == C else ALICE, put(key, value))
        for key in (P, R, M, C)
        for i, value in enumerate(VALUES)
    },
    "removal of an absent key": one((("user", "row-absent"),), drop(P)),
    "removal of an unknown key": one((("user", "row-absent"),), drop("fast")),
    "removal of a shadow key": one((("user", "row-absent"),), drop("shadow_producer_byte_rate")),
    "removal of a key of an ip from a user": one((("user", "row-absent"),), drop(C)),
    "removal from no entity": one((), drop(P)),
    "removal from a bad ip": one((("ip", "a b"),), drop(C)),
    "set and removal": one(ALICE, put(P, 5), drop(F)),
    "same key twice": one(ALICE, put(P, 5), put(P, 6)),
    "same key set and removed": one(ALICE, put(P, 5), drop(P)),
    "same key removed twice": one(ALICE, drop(P), drop(P)),
    "same key twice, for no entity": one((), put(P, 5), put(P, 6)),
    "same bad key twice": one(ALICE, put("fast", 5), put("fast", 6)),
    "same entity twice": [(ALICE, [put(P, 51)]), (ALICE, [put(P, 52)])],
    "same entity twice, other keys": [(ALICE, [put(P, 53)]), (ALICE, [put(F, 54)])],
    "same entity twice, bad first": [(ALICE, [put(P, -1)]), (ALICE, [put(P, 55)])],
    "same entity twice, bad second": [(ALICE, [put(P, 56)]), (ALICE, [put(P, -1)])],
    "same entity three times": [(ALICE, [put(P, 57)])] * 3,
    "same pair twice, turned": [
        ((("user", "row-a"), ("client-id", "row-b")), [put(P, 58)]),
        ((("client-id", "row-b"), ("user", "row-a")), [put(P, 59)]),
    ],
    "same default twice": [((("client-id", None),), [put(P, 3e12)])] * 2,
    "same ip twice": [((("ip", "10.0.0.4"),), [put(C, 60)])] * 2,
    "no entity twice": [((), [put(P, 60)])] * 2,
    "entity type twice": one((("user", "row-first"), ("user", "row-last")), put(P, 61)),
    "entity type twice, bad first": one((("user", ""), ("user", "row-last")), put(P, 62)),
    "entity type twice, bad last": one((("user", "row-first"), ("user", "")), put(P, 63)),
    "two spellings of an entity": [
        ((("user", "row-first"), ("user", "row-last")), [put(P, 64)]),
        ((("user", "row-last"),), [put(P, 65)]),
    ],
    "one good, one bad": [((("user", "row-good"),), [put(P, 66)]), ((("user", "row-bad"),), [put(P, -1)])],
    "one bad, one good": [((("user", "row-bad"),), [put(P, -1)]), ((("user", "row-good"),), [put(P, 67)])],
    "long user": one((("user", "u" * 249),), put(P, 1)),
    "very long unknown type": one((("t" * 32_700, "x"),), put(P, 1)),
}
"""Entries of requests to alter quotas, by what they are about."""

POPULATION = [
    ((("user", "pop-a"),), [put(P, 1e12 + 1), put(F, 1e12 + 2)]),
    ((("user", "pop-b"),), [put(R, 1e6 + 3.5)]),
    ((("user", None),), [put(P, 1e12 + 4)]),
    ((("user", "<default>"),), [put(P, 1e12 + 5)]),
    ((("client-id", "pop-a"),), [put(P, 1e12 + 6)]),
    ((("client-id", None),), [put(P, 1e12 + 7)]),
    ((("user", "pop-a"), ("client-id", "pop-a")), [put(P, 1e12 + 8), put(M, 1e6 + 0.5)]),
    ((("user", "pop-a"), ("client-id", None)), [put(P, 1e12 + 9)]),
    ((("user", None), ("client-id", "pop-a")), [put(P, 1e12 + 10)]),
    ((("user", None), ("client-id", None)), [put(P, 1e12 + 11)]),
    ((("ip", "10.1.1.1"),), [put(C, 12)]),
    ((("ip", None),), [put(C, 1_000_013)]),
    ((("ip", "::2"),), [put(C, 14)]),
]
"""The entities with quotas while DESCRIBES are sent."""

EXACT, DEFAULT, ANY = 0, 1, 2

DESCRIBES = {
    "everything": [],
    "user pop-a": [("user", EXACT, "pop-a")],
    "user of no quota": [("user", EXACT, "pop-x")],
    "user called <default>": [("user", EXACT, "<default>")],
    "user of no name": [("user", EXACT, "")],
    "default user": [("user", DEFAULT, None)],
    "any user": [("user", ANY, None)],
    "client-id pop-a": [("client-id", EXACT, "pop-a")],
    "default client-id": [("client-id", DEFAULT, None)],
    "any client-id": [("client-id", ANY, None)],
    "ip 10.1.1.1": [("ip", EXACT, "10.1.1.1")],
    "ip ::2": [("ip", EXACT, "::2")],
    "ip that is none": [("ip", EXACT, "a b")],
    "default ip": [("ip", DEFAULT, None)],
    "any ip": [("ip", ANY, None)],
    "user and client-id": [("user", EXACT, "pop-a"), ("client-id", EXACT, "pop-a")],
    "client-id and user": [("client-id", EXACT, "pop-a"), ("user", EXACT, "pop-a")],
    "user and default client-id": [("user", EXACT, "pop-a"), ("client-id", DEFAULT, None)],
    "user and any client-id": [("user", EXACT, "pop-a"), ("client-id", ANY, None)],
    "default user and client-id": [("user", DEFAULT, None), ("client-id", EXACT, "pop-a")],
    "any user and default client-id": [("user", ANY, None), ("client-id", DEFAULT, None)],
    "any user and any client-id": [("user", ANY, None), ("client-id", ANY, None)],
    "empty type": [("", EXACT, "x")],
    "empty type, unknown match type": [("", 9, None)],
    "unknown type": [("group", EXACT, "x")],
    "unknown type after a good one": [("user", EXACT, "pop-a"), ("group", ANY, None)],
    "unknown type twice": [("group", ANY, None), ("group", ANY, None)],
    "unknown type, unknown match type": [("group", 9, None)],
    "type twice": [("user", EXACT, "pop-a"), ("user", EXACT, "pop-b")],
    "type twice in two ways": [("user", EXACT, "pop-a"), ("user", ANY, None)],
    "type twice, second of unknown match type": [("user", EXACT, "pop-a"), ("user", 9, None)],
    "ip and user": [("ip", EXACT, "10.1.1.1"), ("user", EXACT, "pop-a")],
    "user and ip": [("user", ANY, None), ("ip", DEFAULT, None)],
    "ip and client-id": [("ip", ANY, None), ("client-id", ANY, None)],
    "ip and user and unknown type": [("ip", ANY, None), ("user", ANY, None), ("group", ANY, None)],
    "match type 3": [("user", 3, None)],
    "match type 3 with a name": [("user", 3, "x")],
    "match type -1": [("user", -1, None)],
    "exact without a name": [("user", EXACT, None)],
    "default with a name": [("user", DEFAULT, "pop-a")],
    "default with an empty name": [("user", DEFAULT, "")],
    "any with a name": [("user", ANY, "pop-a")],
    "very long unknown type": [("t" * 32_700, EXACT, "x")],
}
"""Filters of requests to describe quotas, each sent strict and not."""

DIFFERENT = {
    "host name",  # a broker resolves it
    "two bad keys",  # which one Kafka reports is an accident
    *(f"{P} {value}" for value in (1e-9, 1e-7, nan)),
    *(f"{key} {value}" for key in (R, M) for value in (inf, nan)),
    *(f"{C} {value}" for value in (0.0, -0.0, 1e-9, 1e-7, nan)),  # 0 is a ban
}
"""Of ALTERS: where the proxy responds otherwise than a KRaft controller; else nonsense would be in force."""
