"""Options that name an entity: --user NAME or --default-user, and so on."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from kafka_throttle.proxy.cli.config_file import refuse
from kafka_throttle.quotas.entities import DEFAULT, Entity, InvalidQuota, Name, is_ip

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--user", metavar="NAME", help="A user; ANONYMOUS for clients that do not authenticate."),
    click.option("--default-user", is_flag=True, help="All users without a quota under their name."),
    click.option("--client-id", metavar="NAME", help="A client-id."),
    click.option("--default-client-id", is_flag=True, help="All client-ids without a quota under their name."),
    click.option("--ip", metavar="ADDRESS", help="An IP address; not together with other options."),
    click.option("--default-ip", is_flag=True, help="All addresses without a quota of the address."),
)


def entity_options(command: Command) -> Command:
    """Add the six options to a command, which takes them as `**options`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def parts_of(options: dict[str, Any]) -> dict[str, Name]:
    """The parts of the entity that were given. Ends the process if a part is invalid or was given twice."""
    parts: dict[str, Name] = {}
    for part in ("user", "client_id", "ip"):
        name, is_default = options[part], options[f"default_{part}"]
        flag = part.replace("_", "-")
        if name is not None and is_default:
            refuse(f"expected either --{flag} or --default-{flag}, got both")
        if name is not None and not _is_utf8(name):
            refuse(f"--{flag}: expected UTF-8, got {name!r}")
        if part == "ip" and name is not None and not is_ip(name):
            refuse(f"--ip: expected an IP address, got {name!r}")
        if name is not None or is_default:
            parts[part] = DEFAULT if is_default else name
    return parts


def _is_utf8(argument: str) -> bool:
    """Whether an argument is valid UTF-8. Python keeps other bytes as surrogates."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


def entity_of(options: dict[str, Any]) -> Entity:
    """The entity that was given. Ends the process if none was given, or it is invalid."""
    parts = parts_of(options)
    if not parts:
        refuse("expected an entity (--user, --client-id, --ip, or the default of one), got nothing")
    try:
        return Entity(**parts)
    except InvalidQuota as error:
        refuse(str(error))
