"""A page in headless Chromium, driven by its own protocol: what it asks for, what it complains about, how it looks."""

import asyncio
import base64
import contextlib
import itertools
import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

TIMEOUT_S = 120


class Page:
    """One tab. `requests`: all URLs that it asked for; `complaints`: what came to its console, and exceptions."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._loaded = False

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            reported = await self._next()
            if reported.get("id") == number:
                assert "error" not in reported, (method, reported["error"])
                return reported["result"]

    async def _next(self) -> dict[str, Any]:
        reported = json.loads((await self._socket.receive(timeout=TIMEOUT_S)).data)
        method, parameters = reported.get("method"), reported.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Log.entryAdded":
            self.complaints.append(parameters["entry"]["text"])
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(str(parameters["args"]))
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(parameters["exceptionDetails"]))
        elif method == "Page.loadEventFired":
            self._loaded = True
        return reported

    async def open(self, url: str, width: int, dark: bool = False) -> None:
        for domain in ("Page", "Network", "Log", "Runtime"):
            await self.call(f"{domain}.enable")
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._loaded = False
        await self.call("Page.navigate", url=url)
        while not self._loaded:
            await self._next()

    async def value(self, expression: str) -> Any:
        reported = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        return reported["result"].get("value")

    async def picture(self, height: int | None = None, top: int = 0) -> bytes:
        """WebP of the page, from `top`, all of it or so much."""
        size = (await self.call("Page.getLayoutMetrics"))["cssContentSize"]
        clip = {"x": 0, "y": top, "width": size["width"], "height": height or size["height"] - top, "scale": 1}
        taken = await self.call(
            "Page.captureScreenshot", format="webp", quality=72, clip=clip, captureBeyondViewport=True
        )
        return base64.b64decode(taken["data"])


@contextlib.asynccontextmanager
async def chromium() -> AsyncIterator[Page]:
    """A browser with one empty tab."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            "chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--hide-scrollbars", "--disable-background-networking", "--disable-component-update",
            "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank",
            stderr=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            async with asyncio.timeout(TIMEOUT_S):
                port = await _port(Path(profile) / "DevToolsActivePort")
                async with aiohttp.ClientSession() as session:
                    async with session.get(f"http://127.0.0.1:{port}/json/list") as response:
                        tabs = [tab for tab in await response.json() if tab["type"] == "page"]
                    async with session.ws_connect(tabs[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                        yield Page(socket)
        finally:
            process.kill()
            await process.wait()


async def _port(path: Path) -> int:
    """Chromium writes the file when it listens."""
    while (port := _read_port(path)) is None:  # noqa: ASYNC110 - nothing tells when a file is there
        await asyncio.sleep(0.05)
    return port


def _read_port(path: Path) -> int | None:
    try:
        return int(path.read_text().splitlines()[0])
    except (OSError, ValueError, IndexError):
        return None
