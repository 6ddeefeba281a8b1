"""A connection through an HTTP proxy to a server that speaks TLS (RFC 9110, CONNECT)."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from core.gateway.transport.connection import ConnectError
from core.gateway.transport.proxies import Proxy

_MAX_HEAD_BYTES: Final = 64 << 10


async def tunnel(proxy: Proxy, host: str, port: int) -> socket.socket:
    """A socket whose other end is the server.

    Raises:
        ConnectError: the proxy refuses. OSError: it is not reached, or closes the connection.
    """
    connection = await _connected(proxy)
    try:
        authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        lines = [f"CONNECT {authority} HTTP/1.1", f"Host: {authority}"]
        if proxy.authorization is not None:
            lines.append(f"Proxy-Authorization: {proxy.authorization}")
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(connection, "\r\n".join([*lines, "", ""]).encode("latin-1"))
        head = b""
        while b"\r\n\r\n" not in head:
            # The server speaks only when it was spoken to, so nothing of it can follow the proxy's answer.
            piece = await loop.sock_recv(connection, 4096)
            if not piece or len(head) > _MAX_HEAD_BYTES:
                raise ConnectError(f"the proxy {proxy.host}:{proxy.port} gave no answer to CONNECT")
            head += piece
        status = head.split(b"\r\n", 1)[0].decode("latin-1")
        if status.split(" ")[1:2] != ["200"]:
            raise ConnectError(f"the proxy {proxy.host}:{proxy.port} refused the connection: {status[:200]}")
    except BaseException:
        connection.close()
        raise
    return connection


async def _connected(proxy: Proxy) -> socket.socket:
    loop = asyncio.get_running_loop()
    failure = OSError(f"the proxy {proxy.host}:{proxy.port} has no address")
    for family, kind, protocol, _, address in await loop.getaddrinfo(proxy.host, proxy.port, type=socket.SOCK_STREAM):
        connection = socket.socket(family, kind, protocol)
        connection.setblocking(False)
        try:
            await loop.sock_connect(connection, address)
        except OSError as error:
            connection.close()
            failure = error
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise failure
