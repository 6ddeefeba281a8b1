"""Log lines: one JSON object each, with what an operator looks for and nothing that is secret."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from core.logs import FORMATS, set_up
from core.serving.process import EngineProcess
from core.tasks.demo import demo_script_path

KEY = "sk-canary-0123456789abcdef"


@pytest.mark.parametrize("gateways", ["0", "2"])
def test_a_call_is_one_line_with_its_uids_and_no_key(tmp_path: Path, gateways: str) -> None:
    with EngineProcess.start("scripted", args=["--script", str(demo_script_path())]) as engine:
        assert engine.base_url is not None
        command = [sys.executable, "-m", "core.cli", "serve", "--data", str(tmp_path / "data"), "--port", "0"]
        command += ["--engine", engine.base_url, "--log-format", "json", "--verbose", "--gateways", gateways]
        errors = tmp_path / "stderr"
        with errors.open("wb") as stderr:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
        assert process.stdout is not None
        base_url = json.loads(process.stdout.readline())["base_url"]
        body = {"model": "demo", "messages": [{"role": "user", "content": f"a text with {KEY} in it"}]}
        headers = {"Authorization": f"Bearer {KEY}", "X-Trajectory-Uid": "t-log", "X-Agent": "logger"}
        answer = httpx.post(f"{base_url}/v1/chat/completions", json=body, headers=headers, timeout=30)
        process.terminate()
        assert process.wait(30) == 0
        process.stdout.close()
    written = errors.read_text()
    assert KEY not in written and "a text with" not in written
    lines = [json.loads(line) for line in written.splitlines()]
    assert all({"at", "level", "logger", "message"} <= line.keys() for line in lines)
    (call,) = (line for line in lines if line["logger"] == "core.calls")
    assert call["trajectory_uid"] == "t-log" and call["step_uid"] == answer.headers["x-step-uid"]
    assert (call["engine"], call["status"], call["agent"], call["level"]) == ("engine", 200, "logger", "info")
    assert call["latency_ms"] > 0 and call["n_response_tokens"] > 0


HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202egpj\r\n2026-01-01 00:00:00,000 ERROR forged line\ud800"
STEERS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]")


@pytest.mark.parametrize("form", FORMATS)
def test_nothing_in_a_line_steers_a_terminal_or_looks_like_a_line(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        set_up(logging.INFO, form)
        try:
            raise ValueError(HOSTILE)
        except ValueError:
            logging.getLogger("a").exception("said %s", HOSTILE, extra={"fields": {"agent": HOSTILE, "model": HOSTILE}})
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.captureWarnings(False)
    written = capsys.readouterr().err
    assert not STEERS.search(written) and "owned" in written
    lines = written.splitlines()
    if form == "json":
        (line,) = map(json.loads, lines)
        assert line["agent"] == HOSTILE and "forged line" in line["message"]
    else:
        # What was said in several lines is one, and what belongs to a trace is indented.
        assert len([line for line in lines if not line.startswith("    ")]) == 1
        assert "\\x1b[2J" in lines[0]


OTHERS = """
import logging, sys, threading
from core.logs import set_up, escape_all_handlers
set_up(logging.WARNING, "text")
escape_all_handlers()
own = logging.getLogger("another library's")
own.propagate = False
own.addHandler(logging.StreamHandler())
hostile = sys.argv[1].encode("latin-1").decode("unicode_escape")
try:
    raise ValueError(hostile)
except ValueError:
    own.exception("said %s", hostile)

class Bad:
    def __del__(self):
        raise ValueError(hostile)

def fail():
    raise ValueError(hostile)

Bad()
thread = threading.Thread(target=fail)
thread.start()
thread.join()
raise ValueError(hostile)
"""


def test_what_nobody_caught_and_other_libraries_lines_are_spelt_too() -> None:
    escaped = HOSTILE.encode("unicode_escape").decode()
    done = subprocess.run([sys.executable, "-c", OTHERS, escaped], capture_output=True, timeout=120, check=False)
    written = done.stderr.decode()
    assert done.returncode == 1
    assert not STEERS.search(written)
    # The message and the trace of the library, and three traces.
    assert written.count("owned") >= 5
    assert not [line for line in written.splitlines() if line.startswith("2026-01-01 00:00:00,000 ERROR forged")]
