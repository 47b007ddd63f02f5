import pytest

from kafka_throttle.pipeline.report.next_commands import next_commands
from kafka_throttle.pipeline.report.page import page_of
from kafka_throttle.pipeline.report.views import named, tables_of
from tests.pipeline.spools import MONDAY_MS
from tests.pipeline.test_report_page import findings
from tests.support.browser import chromium


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
        display = await page.value("getComputedStyle(document.querySelector('#throttling tbody tr')).display")
        assert display == ("block" if width == 390 else "table-row")
        if width == 390:
            cut = "[...document.querySelectorAll('.scroll')].filter((one) => one.scrollWidth > one.clientWidth).length"
            assert await page.value(cut) == 0, "each row is a card"
            label = "getComputedStyle(document.querySelector('#throttling td'), '::before').content"
            assert await page.value(label) == '"User"'
        assert [url for url in page.requests if url not in (path.as_uri(), "data:,")] == []
        assert page.complaints == []


@pytest.mark.nightly
async def test_a_command_is_copied_or_selected_by_a_click_and_its_links_lead_to_it(tmp_path):
    found = findings(table="/srv/my table")
    path = tmp_path / "report.html"
    path.write_text(page_of(found, tables_of(found), MONDAY_MS))
    async with chromium() as page:
        await page.open(path.as_uri(), 1440)
        await page.value("document.querySelector('.copy').click()")
        [command] = [one.recommend for one in next_commands(found, named(tables_of(found))["throttled"].rows)]
        assert await page.value("getSelection().toString()") == command
        assert await page.value("document.querySelector('.command code').textContent") == command
        label = "new Promise((done) => setTimeout(() => done(document.querySelector('.copy').textContent), 200))"
        assert await page.value(label) in ("Copied", "Selected")
        links = "[...document.querySelectorAll('a[href^=\"#\"]')].map((one) => one.hash.slice(1))"
        lost = f"{links}.filter((one) => !document.getElementById(one))"
        assert await page.value(lost) == []
        assert page.complaints == []
