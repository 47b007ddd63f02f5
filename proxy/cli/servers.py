"""Options that take a list of servers."""

from kafka_throttle.proxy.cli.config_file import refuse
from kafka_throttle.proxy.config.kinds import host_port


def servers_of(text: str, option: str) -> list[str]:
    """The servers in "HOST:PORT,...". Ends the process if the text is invalid; the error names `option`."""
    try:
        return [str(host_port(part.strip())) for part in text.split(",")]
    except ValueError:
        refuse(f"{option}: expected HOST:PORT, or several with commas between, got {text!r}")
