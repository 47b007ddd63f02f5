"""`kafka-throttle usage ship`: send the files of a spool to a Kafka topic."""

import sys
import threading
from pathlib import Path

import click

from kafka_throttle.common.login_secrets import PasswordFile
from kafka_throttle.proxy.cli.config_file import REFUSED, refuse
from kafka_throttle.proxy.cli.key_values import key_values, with_files
from kafka_throttle.proxy.cli.servers import servers_of
from kafka_throttle.proxy.config.settings import TOPIC


@click.command()
@click.option("--from", "spool", required=True, metavar="DIRECTORY", help="The spool, as the proxy writes it.")
@click.option("--to-topic", "topic", required=True, metavar="TOPIC", help="The Kafka topic to send to.")
@click.option(
    "--bootstrap-server", "servers", required=True, metavar="HOST:PORT[,...]", help="The cluster of the topic."
)
@click.option(
    "--kafka-conf",
    "pairs",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of kafka-python's producer, as security_protocol=SSL; a VALUE of @FILE is read from the file, a "
    "password of @FILE for each login.",
)
@click.option(
    "--every",
    "every_s",
    type=click.IntRange(1, 86_400),
    metavar="S",
    help="Continue, and look for new files every S seconds.",
)
def ship(spool: str, topic: str, servers: str, pairs: tuple[str, ...], every_s: int | None) -> None:
    """Send the lines of complete files that a Kafka topic does not have yet. Ends after that, unless --every is given.

    A proxy with `usage.kafka` does the same; this is for spools of other proxies. The spool stores what was sent.
    Exit status 1: the topic does not take the lines; 2: an argument is invalid.
    """
    from kafka_throttle.proxy.observe import logs
    from kafka_throttle.proxy.usage.kafka_topic import KafkaTopic, producer_settings
    from kafka_throttle.proxy.usage.shipper import Shipped, Shipper, SpoolBusy, TopicUnavailable, alone_at
    from kafka_throttle.proxy.usage.shipping import keep_shipping

    if not TOPIC.fullmatch(topic):
        refuse(f"--to-topic: expected 1 to 249 letters, digits, '.', '_' or '-', got {topic!r}")
    addresses = servers_of(servers, "--bootstrap-server")
    given = key_values(pairs, "--kafka-conf", "[a-z_]+", "KEY=VALUE with a setting of kafka-python's producer")
    try:
        settings = producer_settings(with_files(given, "--kafka-conf"))
    except ValueError as error:
        refuse(f"--kafka-conf: {error}")
    logs.configure("info", "console")
    password, user = given.get("sasl_plain_password", ""), given.get("sasl_plain_username", "")
    secret = PasswordFile(password[1:], f"{user} at {servers}") if password.startswith("@") else None
    there = KafkaTopic(topic, {**settings, "bootstrap_servers": addresses}, secret)
    directory = Path(spool)

    def tell(totals: Shipped) -> None:
        if sys.stderr.isatty():
            click.echo(f"\r{totals.lines:,} lines sent, {totals.waiting_files:,} files to go ", nl=False, err=True)

    try:
        with alone_at(directory):
            shipper = Shipper(directory, there, tell)
            if every_s is not None:
                logs.write_in_thread()
                keep_shipping(shipper, threading.Event(), every_s, tell)
            shipper.ship()
    except SpoolBusy as error:
        refuse(f"--from: {error}")
    except OSError as error:
        place = error.filename if error.filename and directory.is_dir() else spool
        refuse(f"--from: {place}: {error.strerror or error}")
    except TopicUnavailable as error:
        refuse(str(error), REFUSED)
    finally:
        there.close()
    totals = shipper.totals
    lost = f"; {totals.lost_files:,} files were deleted before" if totals.lost_files else ""
    click.echo(f"{totals.files:,} files, {totals.lines:,} lines sent to {topic}{lost}")
