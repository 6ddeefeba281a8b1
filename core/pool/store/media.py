"""Images in messages: each stored once, however many messages hold it.

Agents send screenshots inside messages as ``data:`` URLs, and the same one again in another message after every
edit of its text. A stored body names them instead (``claw-media:`` and the hash); a body that is read back is whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import pyarrow as pa

from core.pool.store.content import content_hash
from core.pool.store.database import Cursor, registered

_MIN_CHARS = 1024
"""Shorter URLs stay in the body: a separate row would not pay."""
_URL = re.compile(rb'"(data:[\w.+-]+/[\w.+-]+;base64,[A-Za-z0-9+/=]{%d,})"' % _MIN_CHARS)
_NAME = re.compile(r'"claw-media:([0-9a-f]{32})"')


def extract_media(body: bytes, media: dict[bytes, bytes]) -> bytes:
    """The body with names in place of its long data URLs, which are added to ``media`` by hash."""
    if b";base64," not in body:
        return body

    def name(match: re.Match[bytes]) -> bytes:
        digest = content_hash(match[1])
        media[digest] = match[1]
        return b'"claw-media:%b"' % digest.hex().encode()

    return _URL.sub(name, body)


def insert_media(cursor: Cursor, media: Mapping[bytes, bytes]) -> None:
    """Store those that the pool does not hold."""
    if not media:
        return
    table = pa.table(
        {
            "content_hash": pa.array([digest.hex() for digest in media], pa.string()),
            "url": pa.array([url.decode("ascii") for url in media.values()], pa.string()),
        }
    )
    with registered(cursor, new_media=table):
        cursor.execute(
            "INSERT INTO media SELECT content_hash::UUID, url FROM new_media"
            " WHERE content_hash::UUID NOT IN (SELECT content_hash FROM media)"
        )


def restore_media(cursor: Cursor, bodies: Iterable[tuple[int, str, str]]) -> dict[int, str]:
    """Whole bodies by message id.

    Args:
        bodies: (message id, its content hash as 32 hex digits, stored body).
    """
    restored: dict[int, str] = {}
    named: dict[int, tuple[str, str]] = {}
    for number, digest, body in bodies:
        restored[number] = body
        if "claw-media:" in body:
            named[number] = (digest, body)
    hashes = {name for _, body in named.values() for name in _NAME.findall(body)}
    if not hashes:
        return restored
    with registered(cursor, wanted_media=pa.table({"content_hash": pa.array(sorted(hashes), pa.string())})):
        urls = dict(
            cursor.execute(
                "SELECT replace(content_hash::VARCHAR, '-', ''), url FROM media"
                " WHERE content_hash IN (SELECT content_hash::UUID FROM wanted_media)"
            ).fetchall()
        )
    for number, (digest, body) in named.items():
        filled = _NAME.sub(lambda match: f'"{urls[match[1]]}"' if match[1] in urls else match[0], body)
        # A message may contain such a name itself: the stored hash shows which of the two was sent.
        if content_hash(filled.encode("utf-8")).hex() == digest:
            restored[number] = filled
    return restored
