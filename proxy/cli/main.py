"""The command line `kafka-throttle`."""

import signal
import sys
from pathlib import Path

import click

from kafka_throttle.common.places import placed
from kafka_throttle.common.problems import bounded
from kafka_throttle.proxy.cli.certificate_check import certificate_findings
from kafka_throttle.proxy.cli.config_file import config_option, load, load_with_files, refuse
from kafka_throttle.proxy.cli.explain import explain
from kafka_throttle.proxy.cli.init import init
from kafka_throttle.proxy.cli.live_check import findings_at
from kafka_throttle.proxy.cli.overrides import override_warnings
from kafka_throttle.proxy.cli.quotas import quotas
from kafka_throttle.proxy.cli.state_file_check import state_file_findings
from kafka_throttle.proxy.cli.top import top
from kafka_throttle.proxy.cli.usage import usage
from kafka_throttle.proxy.cli.usage_plan import apply, plan
from kafka_throttle.proxy.cli.usage_recommend import recommend
from kafka_throttle.proxy.cli.usage_report import report
from kafka_throttle.proxy.cli.usage_ship import ship
from kafka_throttle.proxy.cli.usage_simulate import simulate
from kafka_throttle.proxy.config.checks import listener_ports
from kafka_throttle.proxy.config.effective import effective_file
from kafka_throttle.proxy.config.kinds import HostPort, show_range, worker_count
from kafka_throttle.proxy.config.problems import ConfigErrors
from kafka_throttle.proxy.config.settings import Config
from kafka_throttle.proxy.config.warnings import ephemeral_ports, warnings_of, written_file_warnings
from kafka_throttle.proxy.installed import build_in_use, installed_version, run_again_pure


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(
    installed_version(), prog_name="kafka-throttle", message=f"%(prog)s, version %(version)s, {build_in_use()}"
)
def main() -> None:
    """A Kafka proxy that enforces Kafka's own quotas in front of a cluster."""


@main.command()
@config_option
def run(path: Path) -> None:
    """Run the proxy."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # until it has started, and can hand over
    config = load(path)
    if config.usage.trace.entities and build_in_use() == "compiled":
        if not path.is_file():
            refuse(f"{path} can be read only once, so set KAFKA_THROTTLE_PURE=1: usage.trace needs pure Python")
        run_again_pure()  # a traced handle is an int with more in it, which compiled code would drop
    if worker_count(config.workers) == 1:
        from kafka_throttle.proxy.server.service import run as run_service
    else:
        from kafka_throttle.proxy.server.workers.supervisor import run as run_service

    try:
        sys.exit(run_service(path, config))
    except ConfigErrors as errors:
        refuse(str(ConfigErrors(placed(errors.problems, path))))


@main.command()
@config_option
@click.option("--connect", is_flag=True, help="Compare the file with the clusters that it names, too.")
@click.option("--print", "prints", is_flag=True, help="Print the file with the default of all that it leaves out.")
def check(path: Path, connect: bool, prints: bool) -> None:
    """Validate a configuration file; print every problem with its place."""
    config = load_with_files(path)
    found = [*certificate_findings(config), *state_file_findings(config)]
    if connect:
        found += findings_at(config, path)
    warnings = [*warnings_of(config, ephemeral_ports()), *written_file_warnings(config)]
    warnings += override_warnings(config, path)
    warnings += [each.shown() for each in found if each.is_warning]
    for warning in placed(bounded(warnings, "warnings"), path):
        click.echo(f"warning: {warning}", err=True)
    if problems := bounded(each.shown() for each in found if not each.is_warning):
        refuse(str(ConfigErrors(placed(problems, path))))
    if prints:
        click.echo(effective_file(config), nl=False)
        return
    fits = " and fits its clusters" if connect else ""
    click.echo(f"{path} is valid{fits}\n{summary(config)}")


def summary(config: Config) -> str:
    """A summary of a configuration, for people."""
    lines = []
    for cluster in config.virtual_clusters:
        servers = ", ".join(str(server) for server in cluster.upstream.bootstrap_servers)
        lines.append(f"virtual cluster {cluster.name}: {len(cluster.quotas.entries)} quota entries, upstream {servers}")
        for listener in cluster.listeners:
            ports = ", ".join(show_range(claim.ports) for claim in listener_ports("", listener))
            place = f"{listener.advertised_host}, ports {ports} of {listener.bind}"
            lines.append(f"  listener {listener.name}: {cluster.client_protocol(listener)}, {place}")
    for section, http, path in (("metrics", config.metrics, "metrics"), ("admin", config.admin, "api/v1")):
        scheme = "http" if http.tls is None else "https"
        lines.append(f"{section}: {scheme}://{HostPort(http.bind, http.port)}/{path}")
    return "\n".join(lines)


main.add_command(explain)
main.add_command(init)
main.add_command(quotas)
main.add_command(top)
main.add_command(usage)
usage.add_command(simulate)
usage.add_command(report)
usage.add_command(plan)
usage.add_command(apply)
usage.add_command(recommend)
usage.add_command(ship)
