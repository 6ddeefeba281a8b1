"""Names that others choose never become paths: the file system before and after is the reference.

Every name goes through all that writes files or names downloads. Afterwards no file is there but below the folders
that were meant, no answer has a header that its name brought along, and nothing was the studio's own fault (500).
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from core.serving.process import EngineProcess
from tests.batch.keeping_all import SFT_ALL
from tests.conftest import PATIENCE_S, ServeProcess
from tests.effort import sampled, settings

HOSTILE = (
    "..", ".", "...", "../../../escaped", "..\\..\\escaped", "/tmp/escaped-abs", "a/../../../escaped", "C:\\escaped",
    "a\0b", "\0", "a\r\nX-Evil: 1", "a\nSet-Cookie: evil=1", "\x1b[2J", "\x7f\x80\x9f", "x" * 300, "é" * 300, "CON",
    "nul.txt", "COM1", "-rf", "--out=/tmp/escaped-dash", ".hidden", "~", "~root", "$HOME", "`id`", "a;b", 'a"b',
    "%2e%2e%2f", "%00", "\u2025\uff0f", "\uff0e\uff0e\uff0fescaped", "\u2215escaped", "\u202egpj", "\ufeff", " ", "a ",
    "trailing.", "plan", "pool", "progress", "clock", "options",
    "*", "?", "|", "<script>", "pool.duckdb", "journal", "owner.json", "run-" + "0" * 32,
)  # fmt: skip
PIECES = st.sampled_from(
    ["..", "/", "\\", "\0", "\r\n", ".", "-", "~", "a", "é", "\uff0f", "\u2024", "%2f", ":", "X-Evil: 1"]
)
NAMES = st.one_of(
    st.sampled_from(HOSTILE),
    st.lists(PIECES, min_size=1, max_size=12).map("".join),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40),
)
OURS = {
    "content-length", "content-type", "content-disposition", "date", "etag", "last-modified", "accept-ranges",
    "x-batch-uid", "x-trajectory-uid", "x-prompt-uid", "x-step-uid", "x-policy-version", "retry-after", "connection",
    "x-session-id", "transfer-encoding", "server", "cache-control", "allow", "x-request-id",
}  # fmt: skip


class Hall:
    """A studio in a folder inside a folder that is watched whole."""

    def __init__(self, top: Path) -> None:
        self.top = top
        (top / "script.json").write_text('{"rules": [{"reply": {"content": "well"}}]}')
        self.home = top / "deep" / "down"
        self.home.mkdir(parents=True)
        self.data = self.home / "data"
        self.engine = EngineProcess.start("scripted", args=["--script", top / "script.json"])
        self.engine.wait_ready()
        self.studio = ServeProcess(self.data, str(self.engine.base_url))
        self.http = httpx.Client(base_url=f"{self.studio.base_url}/api/v1", timeout=PATIENCE_S)
        step = {"trajectory_uid": "t", "prompt_uid": "p", "step_index": 0, "step_uid": "s", "channel": "train"}
        body = {**step, "prompt_ids": [1], "response_ids": [2], "response_logprobs": [-0.5], "reward": 1.0}
        self.http.post("/steps", json={"steps": [body]}).raise_for_status()
        self.http.post("/trajectories/t/complete", json={"reward": 1.0}).raise_for_status()
        self.batch = self.http.post("/batches/fetch", json={"consumer": "c", "recipe": SFT_ALL}).json()

    def close(self) -> None:
        self.http.close()
        assert self.studio.stop() == 0
        self.engine.stop()

    def outside(self) -> set[str]:
        """Every path that is not of the data folder's own parts, here and where names point to most."""
        ours = {"journal", "opinions", "trash", "exports", "model"}
        paths = set()
        for root, folders, files in os.walk(self.top):
            if Path(root) == self.data:
                folders[:] = [one for one in folders if one not in ours]
                files = [one for one in files if not one.startswith(("pool.duckdb", "owner."))]
            paths |= {str(Path(root, one)) for one in (*folders, *files)}
        near = [Path("/"), Path("/tmp"), Path.cwd(), Path.home()]
        return paths | {str(path) for folder in near for path in folder.glob("*escaped*")}

    def inside(self) -> set[str]:
        """Folders of exports and trash, which nobody's name may add to."""
        return {
            str(path.relative_to(self.data))
            for part in ("exports", "trash")
            for path in (self.data / part).rglob("*")
            if path.is_dir()
        }

    def raw(self, method: str, path: str, body: Any = None) -> tuple[int, list[tuple[str, str]], bytes]:
        """Status, headers and body, as they stand on the wire."""
        where = urlsplit(self.studio.base_url)
        wire = http.client.HTTPConnection(str(where.hostname), where.port, timeout=60)
        try:
            data = None if body is None else json.dumps(body)
            wire.request(method, path, data, {} if data is None else {"Content-Type": "application/json"})
            got = wire.getresponse()
            return got.status, got.getheaders(), got.read()
        finally:
            wire.close()


@pytest.fixture(scope="module")
def hall(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hall]:
    opened = Hall(tmp_path_factory.mktemp("names"))
    yield opened
    opened.close()


def calls(hall: Hall, name: str) -> Iterator[tuple[str, str, Any]]:
    """Everything that takes a name and writes or hands out a file."""
    part = quote(name, safe="")
    uids = {"trajectory_uid": name, "prompt_uid": name, "step_uid": name, "channel": name, "agent": name}
    recipe = SFT_ALL
    api = "/api/v1"
    yield "POST", f"{api}/steps", {"steps": [{**uids, "step_index": 0, "prompt_ids": [1], "response_ids": [2]}]}
    yield "POST", f"/{part}/{part}/v1/chat/completions", {"model": name, "messages": [{"role": "user", "content": "x"}]}
    yield "PUT", f"{api}/views/{part}", {"filters": {}, "where": ""}
    yield "POST", f"{api}/datasets", {"name": name, "recipe": recipe, "note": name, "author": name}
    yield "GET", f"{api}/datasets/{part}", None
    for form in ("trl_sft", "steps_parquet", name):
        yield "POST", f"{api}/datasets/{part}/export", {"format": form}
        yield "POST", f"{api}/exports", {"format": form, "recipe": recipe, "view": {"filters": {"channel": [name]}}}
        yield "GET", f"{api}/batches/{hall.batch['batch_uid']}/file?format={quote(form, safe='')}", None
        yield "GET", f"{api}/batches/{part}/file?format={quote(form, safe='')}", None
    yield "POST", f"{api}/exports", {"format": "trl_sft", "recipe": recipe, "options": {name: name}}
    yield "POST", f"{api}/exports", {"format": "trl_sft", "recipe": {**recipe, "dataset": name}}
    yield "POST", f"{api}/batches/fetch", {"consumer": name, "recipe": recipe, "view": {"where": ""}}
    for path in (name, f"./{name}", f"../{name}", f"{hall.home}/../{name}"):
        if not Path(path).is_absolute() or ".." in Path(path).parts or "\0" in path:
            yield "POST", f"{api}/exports", {"format": "trl_sft", "recipe": recipe, "out": path}
            yield "POST", f"{api}/datasets/{part}/export", {"format": "trl_sft", "out": path}
            yield "POST", f"{api}/backup", {"out": path}
            yield "POST", f"{api}/values/compute", {"model_dir": path, "name": name}
    yield "POST", f"{api}/trash/{part}/restore", {"author": name}
    yield "POST", f"{api}/sessions", {"trajectory_uid": name, "prompt_uid": name, "agent": name}
    yield "PUT", f"{api}/rewards/{part}", {"policy": {"sources": [name]}, "author": name}
    yield "GET", f"{api}/trajectories/{part}", None
    yield "POST", f"{api}/retention", {"older_than_days": 0, "channel": name}


def attack(hall: Hall, name: str) -> None:
    before, folders = hall.outside(), hall.inside()
    for method, path, body in calls(hall, name):
        status, headers, raw = hall.raw(method, path, body)
        assert status < 500 or (status == 502 and "/v1/chat" in path), (method, path[:200], body, raw[:500])
        assert status < 400 or b'"message"' in raw, (path, raw[:200])
        foreign = {key.lower() for key, _ in headers} - OURS
        assert not foreign, (path, foreign)
        for key, value in headers:
            assert "\r" not in value and "\n" not in value, (path, key, value)
            if key.lower() == "content-disposition":
                filename = value.partition("filename=")[2].strip('"')
                assert filename and filename == Path(filename).name and filename[0].isalnum() and "%" not in filename, (
                    value
                )
    assert hall.outside() == before
    assert hall.inside() - folders <= {"exports", "exports/batches", f"exports/batches/{hall.batch['batch_uid']}"}


@pytest.mark.parametrize("name", sampled(HOSTILE, 4, "forty calls each"))
def test_named_ones(hall: Hall, name: str) -> None:
    attack(hall, name)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@example("..\r\n/\0")
@example("/")
@given(NAMES)
def test_any(hall: Hall, name: str) -> None:
    attack(hall, name)


@pytest.mark.parametrize(
    ("out", "why"),
    [("/x\0y", "NUL"), ("relative/x", "absolute"), ("", ""), ("/tmp/../x", ".."), ("/" + "a" * 300, "too long"),
     ("/" + "a/" * 3000, "too long"), (7, ""),
     ("/proc/nothing/x", "can't"), ("/dev/null/x", "can't"), ("~/x", "absolute")],
)  # fmt: skip
@pytest.mark.parametrize("call", ["exports", "datasets/v/export", "backup", "values/compute"])
def test_targets_that_an_admin_names_are_checked_by_field(hall: Hall, call: str, out: Any, why: str) -> None:
    hall.http.post("/datasets", json={"name": "v", "recipe": SFT_ALL})
    field = "model_dir" if call == "values/compute" else "out"
    body = {"exports": {"format": "trl_sft", "recipe": SFT_ALL}, "values/compute": {"name": "c"},
            "datasets/v/export": {"format": "trl_sft"}, "backup": {}}[call]  # fmt: skip
    got = hall.http.post(f"/{call}", json={**body, field: out})
    assert (got.status_code, got.json()["field"]) == (422, field), got.text
    assert why in got.json()["message"] or field == "model_dir", got.text


def test_a_target_that_an_admin_names_takes_all_of_it_and_nothing_beside(hall: Hall, tmp_path: Path) -> None:
    out = tmp_path / "-rf é\u202e $HOME"
    got = hall.http.post(
        "/exports",
        json={"format": "trl_sft", "recipe": SFT_ALL, "out": str(out)},
    )
    assert got.status_code == 200 and Path(got.json()["path"]).parent == out
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


NAMES_OF_COMMANDS = ["../../escaped", "-rf", "/tmp/escaped-cli", "..", "a\nb", "\u202e", "CON", "x" * 300]


@pytest.mark.parametrize("name", sampled(NAMES_OF_COMMANDS, 4, "five commands each"))
def test_by_the_command_line(hall: Hall, name: str) -> None:
    before = hall.outside()
    for words in (["freeze", "--", name], ["export-version", "--", name, "trl_sft"], ["export", "--", name],
                  ["trash", "restore", "--", name], ["export", "--dataset", name, "trl_sft"]):  # fmt: skip
        completed = subprocess.run(
            [sys.executable, "-m", "core.cli", *words], capture_output=True, text=True, timeout=120,
            env={**os.environ, "CLAW_STUDIO_DATA_DIR": str(hall.data)}, check=False,
        )  # fmt: skip
        assert completed.returncode in (0, 2), (words, completed.stderr[-500:])
        assert "Traceback" not in completed.stderr, completed.stderr
    assert hall.outside() == before


def test_importing_what_is_named_like_a_path_writes_nothing_beside(hall: Hall, tmp_path: Path) -> None:
    before = hall.outside()
    lines = [{"trajectory_uid": name, "prompt_uid": name, "step_uid": f"i {name}", "step_index": 0, "channel": name,
              "prompt_ids": [1], "response_ids": [2]} for name in HOSTILE if name.strip()]  # fmt: skip
    path = tmp_path / "steps.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    completed = subprocess.run(
        [sys.executable, "-m", "core.cli", "import", "--data", str(hall.data), str(path)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert completed.returncode in (0, 1) and "Traceback" not in completed.stderr, completed.stderr
    assert hall.outside() == before


CRITICS: dict[str, bytes] = {
    "not json": b"{", "a list": b"[]", "no kind": b"{}", "kind is a number": b'{"architectures": [7]}',
    "kinds are a text": b'{"architectures": "Qwen2ForTokenClassification"}', "bytes": b"\xff\xfe",
    "deep": b"[" * 100_000, "no weights": b'{"architectures": ["Qwen2ForTokenClassification"], "model_type": "qwen2"}',
    "unknown": b'{"architectures": ["XForTokenClassification"], "model_type": "nobody"}',
    "odd": b'{"architectures": ["Qwen2ForTokenClassification"], "model_type": "qwen2", "hidden_size": "x"}',
    "own code": b'{"architectures": ["EvilForTokenClassification"], "model_type": "evil",'
                b' "auto_map": {"AutoConfig": "evil.Config", "AutoModelForTokenClassification": "evil.Model"}}',
}  # fmt: skip


@pytest.mark.parametrize("case", sampled([*reversed(CRITICS), "weights are garbage", "nothing"], 4, "loads a model"))
def test_a_bad_critic_is_a_typed_error_that_names_it(hall: Hall, tmp_path: Path, case: str) -> None:
    folder = tmp_path / "critic"
    folder.mkdir()
    if case != "nothing":
        (folder / "config.json").write_bytes(CRITICS.get(case, CRITICS["no weights"]))
    if case == "weights are garbage":
        (folder / "model.safetensors").write_bytes(b"\xff" * 64)
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    got = hall.http.post("/values/compute", json={"model_dir": str(folder), "name": "c"})
    assert (got.status_code, got.json()["field"]) == (422, "model_dir"), got.text
    assert not (tmp_path / "ran").exists()


def test_metadata_that_is_deep_is_a_typed_error(hall: Hall) -> None:
    ids = '"prompt_ids": [1], "response_ids": [2]'
    deep = '{"a":' * 250 + "1" + "}" * 250
    for path, body in (
        ("/api/v1/sessions", f'{{"metadata": {deep}}}'),
        ("/api/v1/steps", f'{{"steps": [{{"trajectory_uid": "m", {ids}, "metadata": {deep}}}]}}'),
        ("/api/v1/policy", f'{{"version": 1, "event": "registered", "metadata": {deep}}}'),
        ("/v1/chat/completions", f'{{"messages": [{{"role": "user", "content": "x"}}], "metadata": {deep}}}'),
    ):
        got = httpx.post(
            hall.studio.base_url + path, content=body, headers={"content-type": "application/json"}, timeout=60
        )
        assert got.status_code < 500, (path, got.status_code, got.text[:300])
    assert httpx.get(f"{hall.studio.base_url}/healthz", timeout=120).status_code == 200
