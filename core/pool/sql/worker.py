"""The worker process that runs SQL console queries. It opens no file, and ends when its parent ends.

It communicates over the socket that is its standard input. A message is its length (8 bytes), JSON, and a body.

    ⟵  {"sql", "limit", "timeout_s", "tables", "hidden"}
    ⟶  {"reads": [...]}                            tables and columns that the query needs
    ⟵  {"tables": [...]} with one descriptor each   an Arrow file of each
    ⟶  {"n_bytes", "truncated"} and an Arrow stream, or {"error", "hint"} at any point

Each query has a database of its own in memory, with no access to files, network or settings; the system limits the
process's memory and processor time and the size of files (none).
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import select
import socket
import struct
import threading
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from core.errors import InvalidInput
from core.pool.sql.check import check

MAX_BYTES = 64 << 20
"""Bytes of an answer."""
MAX_MEMORY = 1 << 30
"""Bytes that DuckDB may use by its own count."""
MAX_DATA = 2 << 30
"""The process's memory limit in bytes above its size at the start, including memory that DuckDB doesn't count."""
THREADS = 2
IDLE_S = 300.0
"""Seconds after which an idle worker ends."""
LENGTH = struct.Struct("<Q")
MAX_MESSAGE = 4 << 20

_CONFIG = {
    "memory_limit": f"{MAX_MEMORY >> 20}MiB",
    "threads": THREADS,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
    "python_enable_replacements": False,
}
# The order matters: the second setting forbids the first, and the third forbids both.
_CLOSED = "SET temp_directory = ''; SET enable_external_access = FALSE; SET lock_configuration = TRUE"


def send(sock: socket.socket, message: dict[str, Any], *, fds: list[int] | None = None, body: Any = b"") -> None:
    """One message; descriptors go with its first bytes."""
    text = json.dumps(message).encode()
    socket.send_fds(sock, [LENGTH.pack(len(text))], fds or [])
    sock.sendall(text)
    if len(body):
        sock.sendall(body)


def _receive(sock: socket.socket, n_fds: int = 0) -> tuple[dict[str, Any], list[int]]:
    """The next message with its descriptors. EOFError when the other side has closed."""
    head, fds, _, _ = socket.recv_fds(sock, LENGTH.size, n_fds)
    while len(head) < LENGTH.size:
        more = sock.recv(LENGTH.size - len(head))
        if not more:
            raise EOFError
        head += more
    text = bytearray()
    n_bytes = LENGTH.unpack(head)[0]
    while len(text) < n_bytes:
        more = sock.recv(n_bytes - len(text))
        if not more:
            raise EOFError
        text += more
    message: dict[str, Any] = json.loads(text)
    return message, fds


def _database() -> Any:
    """An empty database in memory, closed to everything outside of it."""
    cursor = duckdb.connect(":memory:", config=_CONFIG)
    cursor.execute(_CLOSED)
    return cursor


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _tables(cursor: Any, names: list[str], fds: list[int], types: dict[str, dict[str, str]]) -> None:
    """Make the files readable under their tables' names, in the columns' own types."""
    for index, (name, fd) in enumerate(zip(names, fds, strict=True)):
        with os.fdopen(fd, "rb") as file:
            held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        raw = f"read_{index}"
        cursor.register(raw, pa.ipc.open_file(pa.py_buffer(held)).read_all())
        columns = []
        for column, arrived in cursor.execute(f"SELECT column_name, column_type FROM (DESCRIBE {raw})").fetchall():
            wanted = types[name][column]
            quoted = _quoted(column)
            columns.append(quoted if arrived == wanted else f"CAST({quoted} AS {wanted}) AS {quoted}")
        cursor.execute(f"CREATE TEMP VIEW {raw}_typed AS SELECT {', '.join(columns)} FROM {raw}")
        cursor.execute(f"CREATE VIEW main.{_quoted(name)} AS FROM {raw}_typed")


def _run(cursor: Any, text: str, limit: int) -> tuple[pa.Buffer, bool]:
    # A relation streams; the limit is a node of its plan and no text, so no comment can swallow it.
    reader = cursor.sql(text).limit(limit + 1).to_arrow_reader(256)
    batches: list[pa.RecordBatch] = []
    n_rows = n_bytes = 0
    truncated = False
    for arrived in reader:
        batch, room = arrived, limit - n_rows
        if batch.num_rows > room:
            batch, truncated = batch.slice(0, room), True
        if n_bytes + batch.nbytes > MAX_BYTES:
            batch = batch.slice(0, int(batch.num_rows * (MAX_BYTES - n_bytes) / batch.nbytes))
            truncated = True
            if not n_rows and not batch.num_rows:
                raise InvalidInput(f"A row has more than {MAX_BYTES >> 20} MiB.", field="sql", hint="Ask for less.")
        batches.append(batch)
        n_rows += batch.num_rows
        n_bytes += batch.nbytes
        if truncated:
            break
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, reader.schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    result = sink.getvalue()
    if result.size > 2 * MAX_BYTES:
        raise InvalidInput(f"The answer has more than {MAX_BYTES >> 20} MiB.", field="sql", hint="Ask for less.")
    return result, truncated


def _answer(sock: socket.socket, request: dict[str, Any]) -> None:
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(used + (THREADS + 1) * request["timeout_s"]) + 10, hard))
    cursor = _database()
    try:
        try:
            reads = check(cursor, request["sql"], request["tables"], request["hidden"], request["limit"])
            send(sock, {"reads": [[read.table, read.columns, read.keep, read.limit] for read in reads]})
            files, fds = _receive(sock, len(reads))
            _tables(cursor, files["tables"], fds, request["tables"])
            body, truncated = _run(cursor, request["sql"], request["limit"])
        except InvalidInput as error:
            send(sock, {"error": error.message, "hint": error.hint})
        except (duckdb.Error, OSError, pa.ArrowException, MemoryError, RecursionError, UnicodeError) as error:
            send(sock, {"error": str(error) or type(error).__name__, "hint": None})
        else:
            send(sock, {"n_bytes": body.size, "truncated": truncated}, body=memoryview(body))
    finally:
        cursor.close()


def _end_with_parent(sock: socket.socket) -> None:
    """A thread that ends the process when the other side closes the socket, even during a query."""

    def watch() -> None:
        poll = select.poll()
        poll.register(sock, select.POLLRDHUP)
        poll.poll()
        os._exit(0)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()


def _bytes_of_data() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) << 10
    return 0


def _limit_process() -> None:
    """Set the process's resource limits, which can't be raised again."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    if Path("/proc/self/status").exists():
        max_bytes = _bytes_of_data() + MAX_DATA
        resource.setrlimit(resource.RLIMIT_DATA, (max_bytes, max_bytes))


def main() -> None:
    """Answer one query after another until the other side closes."""
    sock = socket.socket(fileno=os.dup(0))
    os.environ.clear()
    os.chdir("/")
    if hasattr(select, "POLLRDHUP"):
        _end_with_parent(sock)
    # The first connection loads what all later ones use.
    _database().close()
    _limit_process()
    send(sock, {"ready": os.getpid()})
    # `select` refuses descriptors over 1023; the service passes its own number on.
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    while True:
        if not poll.poll(IDLE_S * 1000):
            return
        try:
            request, _ = _receive(sock)
        except EOFError:
            return
        _answer(sock, request)
