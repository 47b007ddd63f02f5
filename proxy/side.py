"""The two ends of a connection that is carried."""

from enum import Enum


class QuickEnum(Enum):
    """Members are told apart by what they are, as each is one of a kind: Enum's own hash takes much longer."""

    __hash__ = object.__hash__


class Side(QuickEnum):
    """The two ends of a relay."""

    CLIENT = "client"
    NODE = "node"
