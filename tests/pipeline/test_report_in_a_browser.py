import pytest

from pipeline.report.page import page_of
from pipeline.report.views import tables_of
from tests.browser import chromium
from tests.pipeline.spools import MONDAY_MS
from tests.pipeline.test_report_page import findings


@pytest.mark.nightly
@pytest.mark.parametrize("width", [390, 1440])
async def test_a_page_with_hostile_names_fetches_nothing_and_fits(tmp_path, width):
    found = findings()
    path = tmp_path / "report.html"
    path.write_text(page_of(found, tables_of(found), MONDAY_MS))
    async with chromium() as page:
        await page.open(path.as_uri(), width)
        await page.value("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        await page.value("document.querySelectorAll('th button').forEach((one) => one.click())")
        assert await page.value("document.querySelectorAll('th[aria-sort]').length") > 5
        assert await page.value("document.documentElement.scrollWidth") <= width
        assert await page.value("document.documentElement.clientWidth") == width
        assert [url for url in page.requests if url not in (path.as_uri(), "data:,")] == []
        assert page.complaints == []
