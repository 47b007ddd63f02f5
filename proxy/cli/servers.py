"""Lists of servers, as several commands take them."""

from proxy.cli.config_file import refuse
from proxy.config.kinds import host_port


def servers_of(text: str, option: str) -> list[str]:
    """HOST:PORT,... one by one; ends the process if it is anything else, which is told of `option`."""
    try:
        return [str(host_port(part.strip())) for part in text.split(",")]
    except ValueError:
        refuse(f"{option}: expected HOST:PORT, or several with commas between, got {text!r}")
