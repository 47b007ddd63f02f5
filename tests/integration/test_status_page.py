"""The status page in a browser, against a proxy under load: found in two clicks, live, accessible, and by itself."""

import asyncio
import json

import pytest

from tests.integration.status_scene import THROTTLED, scene
from tests.support.browser import chromium
from tests.support.places import ROOT
from tests.support.timeouts import TIMEOUT_S

AXE = ROOT / "tests/proxy/observe/page/axe.min.js"
RULES = {
    "runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
}
TOO_WIDE = """[...document.querySelectorAll("body *")].filter((one) => one.getBoundingClientRect().right > WIDTH
  && !one.closest(".unseen, .skip, .plot")).map((one) => one.outerHTML.slice(0, 200)).join()"""

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def proxy(newest_kafka):
    with scene(newest_kafka, "status-page") as proxy:
        yield proxy


def url_of(proxy, path="/"):
    return f"http://127.0.0.1:{proxy.admin_port}{path}"


async def until(page, expression):
    async with asyncio.timeout(TIMEOUT_S):
        while not (found := await page.value(expression)):  # noqa: ASYNC110 - nothing tells when it is true
            await asyncio.sleep(0.05)
    return found


async def axe(page):
    """What axe complains about, in short."""
    await page.value(AXE.read_text() + "; 0")
    run = f"axe.run({json.dumps(RULES)}).then((found) => JSON.stringify(found.violations))"
    violations = json.loads(await page.value(run))
    return [(one["id"], [node["html"] for node in one["nodes"]][:3]) for one in violations]


def checked(page, proxy):
    """Nothing was asked of anybody else, and the console is empty."""
    elsewhere = [url for url in page.requests if not url.startswith(url_of(proxy)) and not url.startswith("data:")]
    assert elsewhere == []
    assert page.complaints == []


async def test_a_throttled_client_is_found_in_two_clicks(proxy):
    async with chromium() as page:
        await page.open(url_of(proxy), 1440)
        await until(page, f"document.getElementById('throttled').textContent.includes('{THROTTLED}')")
        assert await page.value("document.querySelector('main section h2').textContent") == "Throttled now"
        link = f"[...document.querySelectorAll('#throttled a')].find((one) => one.textContent.includes('{THROTTLED}'))"
        await page.value(f"{link}.click()")
        await until(page, "location.pathname === '/explain' && document.readyState === 'complete'")
        text = await page.value("document.querySelector('main').textContent.replace(/\\s+/g, ' ')")
        for expected in (THROTTLED, "producer_byte_rate", "1.00 MB/s", "proxy.yaml", "Last throttles by this quota"):
            assert expected in text
        checked(page, proxy)


async def test_a_second_of_the_past_leads_to_its_explanation(proxy):
    async with chromium() as page:
        await page.open(url_of(proxy), 1440)
        await until(page, f"document.getElementById('throttled').textContent.includes('{THROTTLED}')")
        await asyncio.sleep(6)
        await page.value("document.getElementById('at').value = '-3s'; document.querySelector('form').requestSubmit()")
        await until(page, "location.pathname === '/past' && document.readyState === 'complete'")
        link = f"[...document.querySelectorAll('main a')].find((one) => one.textContent.includes('{THROTTLED}'))"
        await page.value(f"{link}.click()")
        await until(page, "location.pathname === '/explain' && document.readyState === 'complete'")
        text = await page.value("document.querySelector('main').textContent.replace(/\\s+/g, ' ')")
        for expected in (THROTTLED, "1.00 MB/s", "Throttled by it in this second", "to the second"):
            assert expected in text
        checked(page, proxy)


async def test_the_page_changes_without_a_reload_and_keeps_the_focus_and_what_is_open(proxy):
    async with chromium() as page:
        await page.open(url_of(proxy), 1440)
        await until(page, "document.querySelector('#throttled tbody a') !== null")
        await page.value("window.before = document.querySelector('time').textContent; window.stays = true")
        await page.value("document.querySelector('#throttled tbody a').focus()")
        await until(page, "document.querySelector('time').textContent !== window.before")
        muted = "document.activeElement.closest('tr').querySelector('[data-label=\"Time muted\"]').textContent"
        seen = await page.value(muted)
        await until(page, f"{muted} !== {json.dumps(seen)}")
        assert await page.value("window.stays && document.activeElement.matches('#throttled tbody a')")
        assert await page.value("document.getElementById('link').textContent") == "Live"
        await until(page, "document.querySelectorAll('.plot canvas').length === 6")
        assert len([url for url in page.requests if url == url_of(proxy)]) == 1
        checked(page, proxy)


async def test_updates_can_be_paused(proxy):
    async with chromium() as page:
        await page.open(url_of(proxy), 1440)
        await until(page, "document.getElementById('link').textContent === 'Live'")
        await page.value("document.getElementById('pause').click()")
        before = await page.value("document.querySelector('time').textContent")
        await asyncio.sleep(2.5)
        assert await page.value("document.querySelector('time').textContent") == before
        await page.value("document.getElementById('pause').click()")
        await until(page, f"document.querySelector('time').textContent !== {json.dumps(before)}")
        checked(page, proxy)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
async def test_every_page_fits_and_axe_has_nothing_to_say(proxy, width, dark):
    explain = f"/explain?client_id={THROTTLED}"
    async with chromium() as page:
        then = ("/past?at=-5s", f"{explain}&at=-5s", "/search?q=i&at=-5s")
        for path in ("/", explain, "/search?q=i", "/search?q=nobody", "/explain?ip=nonsense", *then):
            await page.open(url_of(proxy, path), width, dark)
            if path == "/":
                await until(page, "document.querySelectorAll('.plot canvas').length === 6")
            assert await page.value("document.documentElement.scrollWidth") <= width, path
            assert await axe(page) == [], path
        expected = "Failed to load resource: the server responded with a status of 400 (Bad Request)"
        page.complaints = [text for text in page.complaints if text != expected]
        checked(page, proxy)


async def test_without_scripts_all_is_there(proxy):
    async with chromium() as page:
        await page.call("Emulation.setScriptExecutionDisabled", value=True)
        await page.open(url_of(proxy), 1440)
        tree = await page.call("DOM.getDocument", depth=-1, pierce=False)
        text = json.dumps(tree)
        for expected in (THROTTLED, "Requests per second", "at most", "By listener"):
            assert expected in text
        checked(page, proxy)
