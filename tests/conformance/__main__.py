"""The differential proof: prints the table of docs/proofs/conformance.md; exit status 1 if anything differs."""

import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path

import click

from kafka_throttle.quotas.entities import QuotaType
from tests.conformance.oracle import Comparison
from tests.conformance.proofs import VERSIONS, Proof, other_tags


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--events", default=1_000_000, show_default=True, help="Random events for each quota type and version.")
@click.option("--seed", default=2, show_default=True, help="Another one makes other scripts.")
@click.option("--type", "types", multiple=True, type=click.Choice([each.name for each in QuotaType]), help="Only this.")
def main(events: int, seed: int, types: tuple[str, ...]) -> None:
    """Kafka's own classes beside ours on the same random scripts, under the same clock."""
    print("| quota type | Kafka | events | throttled | differences | s |\n|---|---|---|---|---|---|")
    failed = [compared for compared in _proofs(seed, events, types) if compared.differences]
    with tempfile.TemporaryDirectory() as folder:
        print(f"\n4.3.1 forgets kinds of entity, we do not: {other_tags('4.3.1', seed, events // 10, Path(folder))}")
    for compared in failed:
        print(compared, file=sys.stderr)
    sys.exit(bool(failed))


def _proofs(seed: int, events: int, types: tuple[str, ...]) -> Iterator[Comparison]:
    proofs = [Proof(*each) for each in product((QuotaType[name] for name in types) if types else QuotaType, VERSIONS)]
    with ProcessPoolExecutor() as pool:
        for proof, (compared, seconds) in zip(proofs, pool.map(partial(_compared, seed, events), proofs), strict=True):
            figures = f"{compared.events:,} | {compared.throttles:,} | {compared.differences}"
            print(f"| {proof.quota_type.name} | {proof.version} | {figures} | {seconds:.0f} |", flush=True)
            yield compared


def _compared(seed: int, events: int, proof: Proof) -> tuple[Comparison, float]:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        return proof.compare(seed, events, Path(folder)), time.monotonic() - began


if __name__ == "__main__":
    main()
