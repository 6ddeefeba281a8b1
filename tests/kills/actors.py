"""Who takes part in a run: the service, its engine, and those who call it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import httpx

from core.serving.process import EngineProcess
from tests.conftest import ServeProcess
from tests.kills.nursery import Child, Nursery

SCRIPT = {
    "model": "scripted-1",
    "rules": [],
    "default": {"reply": {"content": "An answer of a few tokens."}, "delay_s": 0.004},
}
GONE = {502, 503, 504}
"""What a call may be answered with while the engine, or the owner behind a worker, is away."""


def serve(nursery: Nursery, data: Path, engine: str, env: Mapping[str, str]) -> Child:
    """``claw-studio serve``, forked from the nursery."""
    args = ["serve", "--data", str(data), "--port", "0", "--engine", engine]
    child = nursery.start("core.cli", args, {**os.environ, **env})
    threading.Thread(target=child.stderr.read, daemon=True).start()
    return child


class Served(ServeProcess):
    """A forked service that is ready."""

    def __init__(self, nursery: Nursery, data: Path, engine: str, *, env: Mapping[str, str]) -> None:
        self.take(cast("subprocess.Popen[str]", serve(nursery, data, engine, env)))


class Engine:
    """The scripted engine at one address, again after each of its ends."""

    def __init__(self, folder: Path, nursery: Nursery) -> None:
        self.nursery = nursery
        self.script = folder / "script.json"
        self.script.write_text(json.dumps(SCRIPT))
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.port = sock.getsockname()[1]
        self.base_url = f"http://127.0.0.1:{self.port}/v1"
        self.start()

    def start(self) -> None:
        args = ["--script", str(self.script), "--port", str(self.port), "--exit-with-parent"]
        child = self.nursery.start("core.serving.scripted", args, os.environ)
        self.process = EngineProcess(cast("subprocess.Popen[str]", child), "scripted", 60).wait_ready()

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.stop()


class Caller(threading.Thread):
    """Calls until it is told to stop, with short pauses in which the rest of the service gets its turn."""

    def __init__(self, base_url: str, number: int, name: str) -> None:
        super().__init__(name=name)
        self.base_url, self.number = base_url, number
        self.answered: dict[str, str] = {}
        self.doubled = 0
        self.refused: Counter[int] = Counter()
        self.stopping = threading.Event()

    def run(self) -> None:
        with httpx.Client(base_url=self.base_url, timeout=30) as http:
            for n in range(1_000_000):
                if self.stopping.is_set():
                    return
                with contextlib.suppress(httpx.TransportError):
                    self._call(http, n)
                self.stopping.wait(0.02)

    def _call(self, http: httpx.Client, n: int) -> None:
        question = f"{self.name} asks {n}"
        stream = n % 3 == 2
        body = {"model": "scripted-1", "messages": [{"role": "user", "content": question}], "stream": stream}
        headers = {"X-Trajectory-Uid": f"{self.name}-{n // 3}", "X-Prompt-Uid": f"round-{self.number}"}
        answer = http.post("/v1/chat/completions", json=body, headers=headers)
        text = answer.text.strip()
        whole = text.endswith("data: [DONE]") if stream else text.endswith("}")
        if answer.status_code != 200:
            self.refused[answer.status_code] += 1
        elif whole:
            uid = answer.headers["x-step-uid"]
            self.doubled += uid in self.answered
            self.answered[uid] = question
