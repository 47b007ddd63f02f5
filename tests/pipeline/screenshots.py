"""Pictures of the report in docs/reference/, of nine weeks that are made up (story.py): about two minutes.

python -m tests.pipeline.screenshots [--page report.html]
"""

import argparse
import asyncio
import tempfile
from pathlib import Path

from kafka_throttle.pipeline.jobs import report
from kafka_throttle.pipeline.report.findings import Missing
from kafka_throttle.pipeline.report.price_sheet import price_sheet
from kafka_throttle.pipeline.spark.session import spark_session
from kafka_throttle.pipeline.steps import Steps
from kafka_throttle.pipeline.table.schemas import schema_of
from kafka_throttle.quotas.records.usage_record import UsageRecord
from tests.pipeline import story
from tests.pipeline.spools import MONDAY_MS
from tests.support.browser import chromium
from tests.support.places import ROOT

DOCS = ROOT / "docs/reference"
PICTURES = (("report-1440.webp", 1440, False, 1300), ("report-390.webp", 390, False, 3000))
DARK = ("report-dark.webp", 1440, True, 1500)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path, help="a report that is there already")
    given = parser.parse_args().page
    with tempfile.TemporaryDirectory() as folder:
        page = given or made(Path(folder))
        for name, width, dark, height in (*PICTURES, DARK):
            picture = asyncio.run(taken(page.resolve().as_uri(), width, dark, height))
            (DOCS / name).write_bytes(picture)
            print(f"docs/reference/{name}: {len(picture) // 1000} kB")


def made(folder: Path) -> Path:
    """The report on the story, in a folder."""
    spark = spark_session()
    records = folder / "records.parquet"
    story.records().to_parquet(records)
    usage = spark.read.schema(schema_of(UsageRecord)).parquet(str(records))
    lost = [Missing("proxy-1", MONDAY_MS - 5_000, 379_201, 380_344, False)]
    found = report.find(usage, Steps(7), table="/data/usage", top_n=20, sheet=price_sheet(story.PRICES), missing=lost)
    spark.stop()
    (folder / "tables").mkdir()
    report.write(found, folder)
    return folder / "report.html"


async def taken(url: str, width: int, dark: bool, height: int) -> bytes:
    async with chromium() as page:
        await page.open(url, width, dark)
        return await page.picture(height)


if __name__ == "__main__":
    main()
