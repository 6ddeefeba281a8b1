"""Files made to exhaust, to run something or to lie: each is a typed error that names the file, and nothing runs.

What a hostile pickle or archive does is decided by Python's own ``pickle`` and ``zipfile``, which make them here.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import resource
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from core.errors import InvalidInput
from core.imports import run
from core.imports.bounds import check_archive

STEP = {"trajectory_uid": "t", "step_index": 0, "prompt_ids": [1], "response_ids": [2], "token_source": "engine"}


class Kept:
    """Takes what an import sends."""

    def __init__(self) -> None:
        self.steps: list[Mapping[str, Any]] = []

    def known(self, step_uids: Sequence[str]) -> set[str]:
        return set()

    def submit(self, steps: Iterable[Mapping[str, Any]]) -> int:
        new = list(steps)
        self.steps += new
        return len(new)

    def complete(self, trajectory_uid: str, *, reward: float | None = None, outcome: str | None = None) -> None:
        pass


class Runs:
    """A pickle of it runs a command when it is opened."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.file}",)


def torch_file(path: Path, data: bytes, *, names: Sequence[str] = ("archive/data.pkl",), packed: bool = False) -> Path:
    how = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", how) as archive:
        for name in names:
            archive.writestr(name, data)
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")
    return path


def parquet(path: Path) -> bytes:
    sink = io.BytesIO()
    rows = {name: [value] for name, value in STEP.items()} | {"step_uid": ["s"], "trajectory_reward": [1.0]}
    pq.write_table(pa.table(rows), sink)
    return sink.getvalue()


def sqlite(path: Path, *statements: str) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()
    return path


def deep(n: int) -> str:
    return '{"a":' * n + "1" + "}" * n


def step_with(metadata: str) -> str:
    return json.dumps({**STEP, "metadata": "HERE"}).replace('"HERE"', metadata)


def write(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


ENDLESS = (
    "WITH RECURSIVE r AS (SELECT 'x' AS trace_id UNION ALL SELECT trace_id FROM r) SELECT trace_id, 1 AS data FROM r"
)
FILES: dict[str, Callable[[Path], Path]] = {
    "a pickle that runs": lambda at: torch_file(at / "x.pt", pickle.dumps(Runs(at / "ran"))),
    "a pickle that imports": lambda at: torch_file(
        at / "x.pt", b"cos\nsystem\n(S'touch " + bytes(at / "ran") + b"'\ntR."),
    "no pickle": lambda at: torch_file(at / "x.pt", b"nothing of the kind"),
    "a pickle cut short": lambda at: torch_file(at / "x.pt", pickle.dumps([{"tokens": [1, 2]}])[:-4]),
    "an empty pickle": lambda at: torch_file(at / "x.pt", b""),
    "a pickle of lists in lists": lambda at: torch_file(
        at / "x.pt", b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b"."),
    "an archive that leaves": lambda at: torch_file(at / "x.pt", b"x", names=["archive/data.pkl", "../../ran"]),
    "an archive to the root": lambda at: torch_file(at / "x.pt", b"x", names=["archive/data.pkl", "/tmp/ran"]),
    "an archive that leaves otherwise": lambda at: torch_file(at / "x.pt", b"x", names=["archive\\..\\..\\ran"]),
    "an archive of nothing": lambda at: torch_file(at / "x.pt", b"\0" * (64 << 20), packed=True),
    "an archive of too many": lambda at: torch_file(at / "x.pt", b"", names=[f"a/{i}" for i in range(100_001)]),
    "an archive cut short": lambda at: write(at / "x.pt", b"PK\x03\x04" + b"\0" * 100),
    "parquet cut short": lambda at: write(at / "x.parquet", parquet(at)[:-20]),
    "parquet without a foot": lambda at: write(at / "x.parquet", b"PAR1" + b"\xff" * 1000 + b"PAR1"),
    "parquet with a flipped page": lambda at: write(at / "x.parquet", b"PAR1" + b"\xff" * 200 + parquet(at)[204:]),
    "sqlite cut short": lambda at: write(
        at / "x.db", sqlite(at / "y", "CREATE TABLE traces (a)", "CREATE TABLE b (a)").read_bytes()[:3000]
    ),
    "sqlite of garbage": lambda at: write(at / "x.db", b"SQLite format 3\x00" + b"\xff" * 5000),
    "sqlite with a view without an end": lambda at: sqlite(
        at / "x.db", f"CREATE VIEW traces AS {ENDLESS}", "CREATE TABLE trace_sessions (trace_id, session_id, at)"
    ),
    "deep lines": lambda at: write(at / "x.jsonl", step_with(deep(100_000)) + "\n"),
    "250 deep": lambda at: write(at / "x.jsonl", step_with(deep(250)) + "\n"),
    "900 deep": lambda at: write(at / "x.jsonl", step_with(deep(900)) + "\n"),
    "a deep array": lambda at: write(at / "x.json", "[\n" + step_with(deep(100_000)) + "]"),
    "a deep element of a good array": lambda at: write(at / "x.json", "[\n" + step_with(deep(900)) + "]"),
    "one deep value": lambda at: write(at / "x.json", '{\n"data": [' + step_with(deep(5000)) + "]}"),
    "gzip cut short": lambda at: write(at / "x.jsonl.gz", gzip.compress(os.urandom(1 << 20))[:50_000]),
    "gzip with a wrong sum": lambda at: write(at / "x.jsonl.gz", gzip.compress(b"{}\n")[:-8] + b"\0" * 8),
    "text of another encoding": lambda at: write(at / "x.jsonl", b'\xff\xfe{"a": 1}\n'),
    "nothing": lambda at: write(at / "x.jsonl", b""),
    "NULs": lambda at: write(at / "x.jsonl", b"\0" * 1_000_000),
}  # fmt: skip
FORMAT = {".pt": "slime", ".parquet": "steps_parquet", ".db": "rllm"}


@pytest.mark.parametrize("named", [False, True], ids=["recognised", "by its format"])
@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file_is_an_error_with_its_name(tmp_path: Path, name: str, named: bool) -> None:
    path = FILES[name](tmp_path)
    before = set(tmp_path.rglob("*"))
    kept = Kept()
    try:
        report = run([path], kept, format=FORMAT.get(path.suffix, "steps") if named else None)
    except InvalidInput as error:
        assert path.name in error.message
    else:
        assert all(path.name in problem.where for problem in report.problems)
        assert report.n_problems or path.stat().st_size == 0
    assert kept.steps == []
    assert set(tmp_path.rglob("*")) == before, "nothing was run or written"


def test_what_stands_before_the_damage_is_taken(tmp_path: Path) -> None:
    lines = b"".join(json.dumps({**STEP, "step_index": i}).encode() + b"\n" for i in range(2000))
    path = write(tmp_path / "x.jsonl.gz", gzip.compress(lines)[:-100])
    kept = Kept()
    report = run([path], kept)
    assert 0 < len(kept.steps) < 2000
    assert [problem.where for problem in report.problems] == [f"x.jsonl.gz (behind x.jsonl.gz:{len(kept.steps)})"]


def test_a_good_archive_passes(tmp_path: Path) -> None:
    import torch

    path = tmp_path / "good.pt"
    torch.save({"samples": [{"tokens": [1, 2, 3], "response_length": 2, "x": torch.zeros(2000)}]}, path)
    check_archive(path)
    kept = Kept()
    assert run([path], kept).n_problems == 0
    assert len(kept.steps) == 1


def test_a_line_without_an_end_takes_no_memory(tmp_path: Path) -> None:
    """A GB of one line, packed into a few MB; the reading process may have one and a half."""
    path = tmp_path / "x.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b'{"trajectory_uid": "')
        for _ in range(1024):
            file.write(b"a" * (1 << 20))
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_DATA, (3 << 29, 3 << 29));"
        "from pathlib import Path; from core.imports import FORMATS;"
        "print([found.message for found in FORMATS['steps'].read(Path(sys.argv[1]))])"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "['a line of more than 256 MB']", done.stderr[-500:]
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY


def test_the_command_says_one_line(tmp_path: Path) -> None:
    """The CLI, without a service that it could send to being needed to say what is wrong with the file's form."""
    path = FILES["250 deep"](tmp_path)
    with pytest.raises(InvalidInput, match=r"x\.jsonl:1"):
        run([path], Kept(), all_or_nothing=True)
