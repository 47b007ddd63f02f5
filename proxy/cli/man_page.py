"""docs/reference/kafka-throttle.1, the manual page, made from the commands.

python -m kafka_throttle.proxy.cli.man_page > docs/reference/kafka-throttle.1
"""

import re
from collections.abc import Iterator
from inspect import cleandoc

import click

from kafka_throttle.proxy.cli.main import main

_NAME = "kafka-throttle"

_END = f""".SH EXIT STATUS
.TP
0
Done.
.TP
1
A source or a running proxy refuses a request, or cannot be reached.
.TP
2
The configuration or the command line cannot be used.
.SH ENVIRONMENT
.TP
KAFKA_THROTTLE_ACTOR
The author whom usage plan and usage apply write down, unless --by names one.
.TP
KAFKA_THROTTLE_PURE
1: pure Python runs, also where compiled modules are installed.
.TP
_KAFKA_THROTTLE_COMPLETE
bash_source, zsh_source or fish_source: print the completion for this shell and end, as in
.br
eval "$(_KAFKA_THROTTLE_COMPLETE=bash_source {_NAME})"
.SH FILES
.TP
deploy/proxy.example.yaml
An example of the configuration. All settings are in docs/reference/configuration.md.
"""


def man_page() -> str:
    """The page, for man(1)."""
    lines = [f'.TH {_NAME.upper()} 1 "" "" "{_NAME}"', ".SH NAME", rf"{_roff(_NAME)} \- {_roff(_first_sentence(main))}"]
    lines += [".SH SYNOPSIS", rf"\fB{_roff(_NAME)}\fR COMMAND [OPTIONS]", ".SH DESCRIPTION", *_text(main)]
    context = click.Context(main, info_name=_NAME, **main.context_settings)
    lines += [*_options(main, context), *_commands(main, context)]
    return "\n".join(lines) + "\n" + _END.replace("-", r"\-")


def _commands(group: click.Group, parent: click.Context) -> Iterator[str]:
    """A section for each command below a group."""
    for name in sorted(group.commands):
        command = group.commands[name]
        context = click.Context(command, info_name=name, parent=parent)
        if isinstance(command, click.Group):
            yield from (f'.SH "{_roff(context.command_path)}"', *_text(command))
            yield from _commands(command, context)
            continue
        yield f'.SH "{_roff(context.command_path)}"'
        yield rf"\fB{_roff(context.command_path)}\fR {_roff(' '.join(command.collect_usage_pieces(context)))}"
        yield ".PP"
        yield from _text(command)
        yield from _options(command, context)


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            names, about = record
            yield from (".TP", rf"\fB{_roff(names)}\fR", _roff(about))


def _text(command: click.Command) -> Iterator[str]:
    """The help of a command, by paragraphs."""
    for number, paragraph in enumerate(cleandoc(command.help or "").split("\n\n")):
        yield from ([".PP"] if number else [])
        yield _roff(" ".join(paragraph.split()))


def _first_sentence(command: click.Command) -> str:
    return cleandoc(command.help or "").partition(".")[0]


def _roff(text: str) -> str:
    """The text with roff's own characters escaped."""
    return re.sub(r"^(?=[.'])", r"\\&", text.replace("\\", r"\e").replace("-", r"\-"))


if __name__ == "__main__":
    print(man_page(), end="")
