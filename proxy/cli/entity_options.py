"""Entities on the command line: --user NAME or --default-user, and so on."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from proxy.cli.config_file import refuse
from quotas.entities import DEFAULT, Entity, InvalidQuota, Name, is_ip

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--user", metavar="NAME", help="A user; ANONYMOUS is who does not authenticate."),
    click.option("--default-user", is_flag=True, help="Each user without a quota of its own."),
    click.option("--client-id", metavar="NAME", help="A client-id."),
    click.option("--default-client-id", is_flag=True, help="Each client-id without a quota of its own."),
    click.option("--ip", metavar="ADDRESS", help="An address, by itself."),
    click.option("--default-ip", is_flag=True, help="Each address without a quota of its own."),
)


def entity_options(command: Command) -> Command:
    """Give a command the six options; it takes them as `**parts`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def parts_of(options: dict[str, Any]) -> dict[str, Name]:
    """Each part that was given; ends the process if one was given twice."""
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
    """False for an argument whose bytes the system could not read as text."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


def entity_of(options: dict[str, Any]) -> Entity:
    """The entity that was given; ends the process if there is no such."""
    parts = parts_of(options)
    if not parts:
        refuse("expected an entity (--user, --client-id, --ip, or the default of one), got nothing")
    try:
        return Entity(**parts)
    except InvalidQuota as error:
        refuse(str(error))
