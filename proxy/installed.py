"""What is installed here."""

from importlib.metadata import PackageNotFoundError, version


def installed_version() -> str:
    """The version of this package, "unknown" where it runs from its sources."""
    try:
        return version("kafka-throttle")
    except PackageNotFoundError:
        return "unknown"
