"""What ends a step that takes up a configuration: everything that is wrong with it."""

from kafka_throttle.common.problems import Problems


class ConfigErrors(Problems):
    """All problems that one run has found; its text has one line for each."""


class ConfigUnreadable(ConfigErrors):
    """The file is not to be had, now at least."""
