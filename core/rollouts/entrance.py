"""Plain HTTP for agents in sandboxes when the gateway serves HTTPS only.

Agents would have to trust the gateway's certificate, each in its own way. Instead, the supervisor of a run listens on a
port of 127.0.0.1 and passes connections on over TLS, for which it trusts the gateway's own certificate file. Keys are
checked by the gateway as always. Nothing but this machine's loopback sees plain text.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading

CHUNK = 1 << 16


class Entrance:
    """A port of 127.0.0.1 behind which ``gateway`` is reached over TLS; lives in a thread until ``close``.

    A connection ends as soon as one of its sides does: TLS has no half-closed connections.

    Args:
        gateway: host and port.
        tls: TLS context of a client that trusts the gateway.

    Attributes:
        address: host and port for agents.
    """

    def __init__(self, gateway: tuple[str, int], tls: ssl.SSLContext) -> None:
        self._gateway, self._tls = gateway, tls
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="entrance", daemon=True)
        self._thread.start()
        listening = asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(listening, self._loop).result()
        self.address: tuple[str, int] = self._server.sockets[0].getsockname()[:2]

    def __enter__(self) -> Entrance:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the thread and all connections."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            host, port = self._gateway
            far_reader, far_writer = await asyncio.open_connection(host, port, ssl=self._tls, server_hostname=host)
            both = [asyncio.ensure_future(_copy(reader, far_writer)), asyncio.ensure_future(_copy(far_reader, writer))]
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in both:
                    one.cancel()
                await asyncio.gather(*both, return_exceptions=True)
                far_writer.close()
        except OSError:  # the agent sees a connection that ends
            pass
        finally:
            writer.close()
            self._tasks.discard(task)


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(CHUNK):
            target.write(data)
            await target.drain()
