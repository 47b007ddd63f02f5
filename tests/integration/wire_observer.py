"""Between clients and a proxy: counts the bytes that pass in either direction."""

import asyncio
import contextlib
import threading
from collections.abc import Iterable

_CHUNK_BYTES = 1 << 16


class WireObserver:
    """Listens at `host` on the same ports as the proxy does at `proxy_host`. A context manager; has its own thread.

    `to_proxy` and `from_proxy` are bytes. Whatever a client does, what it has sent is delivered and what the proxy
    writes is read to its end, so that nothing is left in a kernel unless the proxy is killed.
    """

    def __init__(self, host: str, proxy_host: str, ports: Iterable[int]) -> None:
        self.to_proxy = self.from_proxy = self.open = 0
        self._host, self._proxy_host, self._ports = host, proxy_host, sorted(ports)
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)

    def __enter__(self) -> "WireObserver":
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)

    @property
    def counts(self) -> tuple[int, int]:
        """Bytes to the proxy, and from it."""
        return self.to_proxy, self.from_proxy

    async def _serve(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for port in self._ports:
                server = await asyncio.start_server(self._carrier(port), self._host, port)
                stack.callback(server.close)
            self._ready.set()
            await self._stop.wait()

    def _carrier(self, port: int):
        async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.open += 1
            try:
                from_proxy, to_proxy = await asyncio.open_connection(self._proxy_host, port)
                await asyncio.gather(self._up(reader, to_proxy), self._down(from_proxy, writer))
                to_proxy.close()
            except OSError:
                pass
            finally:
                writer.close()
                self.open -= 1

        return carry

    async def _up(self, client: asyncio.StreamReader, proxy: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await client.read(_CHUNK_BYTES):
                self.to_proxy += len(data)
                proxy.write(data)
                await proxy.drain()
        with contextlib.suppress(OSError):
            proxy.write_eof()

    async def _down(self, proxy: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await proxy.read(_CHUNK_BYTES):
                self.from_proxy += len(data)
                with contextlib.suppress(OSError):
                    client.write(data)
                    await client.drain()
        client.close()
