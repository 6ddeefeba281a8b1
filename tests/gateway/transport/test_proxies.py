"""Proxies and authorities of the environment, with a real proxy and a server that speaks TLS, both on this machine.

Servers here are called by names that only the proxy resolves, as loopback addresses are never asked through one.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import uvloop

from core.gateway.transport.connection import ConnectError, HttpError
from core.gateway.transport.connection_pool import ConnectionPool
from core.gateway.transport.http1 import HttpClient
from core.gateway.transport.proxies import Proxies, Proxy
from tests.certificates import self_signed

NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that says nothing."""
    for name in (*NAMES, "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Self-signed, for engine.test."""
    return self_signed(tmp_path_factory.mktemp("tls"), "engine.test", "DNS:engine.test")


class Peer:
    """A server that answers each request with its own head, so that what reached it is seen."""

    def __init__(self, tls: tuple[Path, Path] | None = None) -> None:
        self._tls = None
        if tls is not None:
            self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            self._tls.load_cert_chain(*tls)

    async def __aenter__(self) -> Peer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(head) + head)
                await writer.drain()
        writer.close()


class RealProxy:
    """Passes requests of absolute form on, and tunnels CONNECT, all to one server; wants a login where one is set."""

    def __init__(self, to: Peer, login: bytes | None = None, refuses: bytes | None = None) -> None:
        self.heads: list[bytes] = []
        self._to, self._login, self._refuses = to, login, refuses

    async def __aenter__(self) -> RealProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            if self._refuses is not None:
                writer.write(self._refuses)
                return
            if self._login is not None and b"Proxy-Authorization: Basic " + self._login not in head:
                writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
                return
            there, onward = await asyncio.open_connection("127.0.0.1", self._to.port)
            if head.startswith(b"CONNECT "):
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                onward.write(head)
            await asyncio.gather(carry(reader, onward), carry(there, writer))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def client() -> AsyncIterator[HttpClient]:
    made = HttpClient(connect_timeout_s=10.0, proxies=Proxies.of_environment())
    try:
        yield made
    finally:
        made.close()


async def get(url: str, n: int = 1) -> bytes:
    async with client() as http:
        for _ in range(n):
            async with await http.request("GET", url, headers={"X-Asked": "yes"}) as answer:
                assert answer.status == 200
                body = await answer.read()
    return body


runs: list[Callable[..., object]] = [asyncio.run, uvloop.run]


@pytest.mark.parametrize("run", runs, ids=["asyncio", "uvloop"])
def test_plain_http_goes_through_the_proxy_in_absolute_form(run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def asked() -> None:
        async with Peer() as peer, RealProxy(peer, login=b"bWU6cEBzcw==") as proxy:
            monkeypatch.setenv("http_proxy", f"http://me:p%40ss@127.0.0.1:{proxy.port}")
            seen = await get("http://engine.test:8000/v1/models?a=1", n=3)
            assert seen.startswith(b"GET http://engine.test:8000/v1/models?a=1 HTTP/1.1\r\nHost: engine.test:8000\r\n")
            assert b"X-Asked: yes" in seen
            assert len(proxy.heads) == 1, "the connection is kept"

    run(asked())


@pytest.mark.parametrize("run", runs, ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_tls_goes_through_a_tunnel_and_the_server_is_checked(
    run, name: str, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def asked() -> None:
        async with Peer(certificate) as peer, RealProxy(peer, login=b"bWU6eA==") as proxy:
            monkeypatch.setenv("HTTPS_PROXY", f"http://me:x@127.0.0.1:{proxy.port}")
            with pytest.raises(ConnectError, match="TLS failed: CERTIFICATE"):
                await get("https://engine.test/v1/models")
            monkeypatch.setenv(name, str(certificate[0]))
            seen = await get("https://engine.test/v1/models", n=3)
            assert seen.startswith(b"GET /v1/models HTTP/1.1\r\nHost: engine.test\r\n")
            assert b"Proxy-Authorization" not in seen, "the login is the proxy's, not the server's"
            connects = [head for head in proxy.heads if head.startswith(b"CONNECT engine.test:443 HTTP/1.1\r\n")]
            assert connects == proxy.heads and len(proxy.heads) == 2
            # Another name than the certificate's is refused, tunnel or not.
            with pytest.raises(ConnectError, match="TLS failed: CERTIFICATE"):
                await get("https://other.test/v1/models")

    run(asked())


def test_what_a_proxy_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def asked() -> None:
        async with Peer() as peer:
            async with RealProxy(peer, login=b"nobody") as proxy:
                monkeypatch.setenv("ALL_PROXY", f"127.0.0.1:{proxy.port}")
                with pytest.raises(ConnectError, match=f"the proxy 127.0.0.1:{proxy.port} refused .* 407"):
                    await get("https://engine.test/")
            for reply in (b"", b"\0" * 100_000, b"nothing\r\n\r\n"):
                async with RealProxy(peer, refuses=reply) as proxy:
                    monkeypatch.setenv("ALL_PROXY", f"127.0.0.1:{proxy.port}")
                    with pytest.raises(ConnectError, match="proxy"):
                        await get("https://engine.test/")
        monkeypatch.setenv("ALL_PROXY", f"127.0.0.1:{proxy.port}")
        with pytest.raises(ConnectError, match=f"through the proxy 127.0.0.1:{proxy.port}"):
            await get("http://engine.test/")
        for url in ("socks5://127.0.0.1:1", "https://127.0.0.1:1", "http://127.0.0.1:x", "http://:80"):
            monkeypatch.setenv("ALL_PROXY", url)
            with pytest.raises(ConnectError, match="the environment names a proxy"):
                await get("http://engine.test/")

    uvloop.run(asked())


def test_a_bundle_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "gone.pem"))
    with pytest.raises(ConnectError, match=r"REQUESTS_CA_BUNDLE names no file of certificates: .*gone\.pem"):
        uvloop.run(get("https://127.0.0.1:1/"))


def test_this_machine_is_asked_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    async def asked() -> None:
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
        async with Peer() as peer:
            assert (await get(f"http://127.0.0.1:{peer.port}/x")).startswith(b"GET /x HTTP/1.1")
            status, body = await ConnectionPool().request_aside("GET", f"http://127.0.0.1:{peer.port}/y", {})
            assert (status, body[:15]) == (200, b"GET /y HTTP/1.1")
            with pytest.raises(HttpError):
                await ConnectionPool().request_aside("GET", f"http://engine.test:{peer.port}/y", {})

    uvloop.run(asked())


@pytest.mark.parametrize(
    ("no", "host", "port", "direct"),
    [
        ("engine.test", "engine.test", 80, True),
        ("engine.test", "ENGINE.test.", 80, True),
        ("engine.test", "a.engine.test", 80, True),
        ("engine.test", "myengine.test", 80, False),
        (".test", "engine.test", 80, True),
        ("*.test", "engine.test", 80, True),
        ("other, .lan ,engine.test:8000", "engine.test", 8000, True),
        ("engine.test:8000", "engine.test", 80, False),
        ("*", "engine.test", 80, True),
        ("", "engine.test", 80, False),
        (",", "engine.test", 80, False),
        ("10.0.0.0/8", "10.1.2.3", 80, True),
        ("10.0.0.0/8", "11.1.2.3", 80, False),
        ("10.1.2.3:80", "10.1.2.3", 80, True),
        ("0.1.2.3", "10.1.2.3", 80, False),
        ("[fd00::1]:80", "fd00::1", 80, True),
        ("fd00::/8", "fd00::1", 80, True),
        ("fd00::1", "fd00::2", 80, False),
        ("", "localhost", 80, True),
        ("", "127.0.0.2", 80, True),
        ("", "::1", 80, True),
    ],
)
def test_who_needs_no_proxy(no: str, host: str, port: int, direct: bool) -> None:
    proxy = Proxies({"all": "http://proxy.test:3128", "no": no}).proxy_for(host, port, False)
    assert proxy == (None if direct else Proxy("proxy.test", 3128))


def test_each_scheme_has_its_own() -> None:
    proxies = Proxies({"http": "a.test", "https": "http://b.test:1"})
    assert proxies.proxy_for("engine.test", 80, False) == Proxy("a.test", 80)
    assert proxies.proxy_for("engine.test", 443, True) == Proxy("b.test", 1)
    assert Proxies({"http": "a.test"}).proxy_for("engine.test", 443, True) is None
