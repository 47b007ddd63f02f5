"""How many client connections this process has file descriptors for."""

import resource

_OF_ONE_CLIENT = 2
"""Descriptors of one client: its own socket and the one to its node."""

_SPARE = 128
"""Descriptors for files, quota sources, and everything else that belongs to no connection."""


def clients_within_descriptors(wanted: int, others: int) -> int:
    """`wanted`, or the number of clients that the descriptor limit allows, if that is less.

    `others` are the descriptors of listening ports and of the connections to the HTTP listeners. The soft limit of the
    system (RLIMIT_NOFILE) is raised as far as needed and as far as the hard limit allows.
    """
    needed = wanted * _OF_ONE_CLIENT + others + _SPARE
    soft, hard = (_number(limit) for limit in resource.getrlimit(resource.RLIMIT_NOFILE))
    if soft < min(needed, hard):
        soft = min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    return wanted if soft >= needed else max((soft - others - _SPARE) // _OF_ONE_CLIENT, 1)


def _number(limit: int) -> int:
    return 1 << 40 if limit == resource.RLIM_INFINITY else limit
