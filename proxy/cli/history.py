"""Answers for the past from the files of the history, for commands that no proxy answers."""

from collections.abc import Callable

import click

from kafka_throttle.proxy.cli.admin_client import NoProxy
from kafka_throttle.proxy.cli.config_file import REFUSED, refuse
from kafka_throttle.proxy.config.settings import Config
from kafka_throttle.proxy.observe.explained import Form
from kafka_throttle.proxy.observe.past.look_up import Past
from kafka_throttle.proxy.observe.past.moments import BadMoment, NotHeld
from kafka_throttle.proxy.usage.past_trace import past_of


def from_history(config: Config, no_proxy: NoProxy, answer: Callable[[Past], Form]) -> Form:
    """The answer, in place of the proxy's. Ends the process if there is none."""
    past = past_of(config.history, config.usage)
    if past is None:
        refuse(f"no proxy answers at {no_proxy}, and no files hold the past: history.directory is not set", REFUSED)
    click.echo(f"no proxy answers at {no_proxy}: this is from the files of the history", err=True)
    try:
        return answer(past)
    except BadMoment as error:
        refuse(f"--{error}")
    except NotHeld as error:
        refuse(f"--{error}", REFUSED)
