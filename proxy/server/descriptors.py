"""How many sockets of clients this process has descriptors for."""

import resource

_OF_ONE_CLIENT = 2
"""Its own and that to its node."""

_SPARE = 128
"""For files, sources of quotas, and whatever else is nobody's who connects."""


def clients_within_descriptors(wanted: int, others: int) -> int:
    """`wanted`, or less where this process may not have descriptors for so many beside `others`.

    These are its listening ports and what connects to the HTTP listeners.

    The system's soft limit (RLIMIT_NOFILE) is raised as far as that takes, and the hard one allows.
    """
    needed = wanted * _OF_ONE_CLIENT + others + _SPARE
    soft, hard = (_number(limit) for limit in resource.getrlimit(resource.RLIMIT_NOFILE))
    if soft < min(needed, hard):
        soft = min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    return wanted if soft >= needed else max((soft - others - _SPARE) // _OF_ONE_CLIENT, 1)


def _number(limit: int) -> int:
    return 1 << 40 if limit == resource.RLIM_INFINITY else limit
