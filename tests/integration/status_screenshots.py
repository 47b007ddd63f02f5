"""Pictures of the status page in docs/reference/, of a real cluster and clients at work: about seven minutes.

python -m tests.integration.status_screenshots [--seconds 360]
"""

import argparse
import asyncio
import time

from demo.kafka_cluster import KafkaCluster
from tests.integration.conftest import CLUSTERS, NEWEST
from tests.integration.status_scene import scene
from tests.support.browser import chromium
from tests.support.places import ROOT

DOCS = ROOT / "docs/reference"
PICTURES = (
    ("status-1440.webp", 1440, False, None),
    ("status-dark.webp", 1440, True, 1150),
    ("status-390.webp", 390, False, 2600),
)
_SETTLED_S = 2.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=360, help="for how long clients are at work before")
    seconds = parser.parse_args().seconds
    with KafkaCluster(*CLUSTERS[NEWEST]) as kafka, scene(kafka, "status-page") as proxy:
        time.sleep(seconds)
        for name, width, dark, height in PICTURES:
            picture = asyncio.run(taken(f"http://127.0.0.1:{proxy.admin_port}/", width, dark, height))
            (DOCS / name).write_bytes(picture)
            print(f"docs/reference/{name}: {len(picture) // 1000} kB")


async def taken(url: str, width: int, dark: bool, height: int | None) -> bytes:
    async with chromium() as page:
        await page.open(url, width, dark)
        await asyncio.sleep(_SETTLED_S)
        return await page.picture(height)


if __name__ == "__main__":
    main()
