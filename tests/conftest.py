"""Fixtures shared by all tests: engines and services as real processes and threads on free ports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, settings

from core.serving.process import EngineProcess
from tests.effort import n_examples
from tests.left_out import pytest_terminal_summary
from tests.side_by_side import pytest_collection_modifyitems, pytest_xdist_make_scheduler

__all__ = [
    "ServeProcess",
    "eventually",
    "pytest_collection_modifyitems",
    "pytest_terminal_summary",
    "pytest_xdist_make_scheduler",
    "serve",
]

GATEWAYS = "CLAW_STUDIO_GATEWAYS"
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Each client of httpx reads all public authorities, 25 ms of computing; nothing here talks to the public.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).with_name("authority.pem"))
# Most tests need no gateway process: it costs a second of each start. ``users_gateways`` gives the default.
os.environ.setdefault(GATEWAYS, "0")
# Spinning OpenMP threads starve everything else on a small machine that runs several processes.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# What an example takes says more about the machine's other work than about the code; bench/ measures.
settings.register_profile(
    "no clock", max_examples=n_examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("no clock")


PATIENCE_S = 120.0
"""How long a test waits for what must come: on a machine with ten things to do, LiteLLM's import takes a minute."""


def user_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that starts as a user starts it: the default settings, and these."""
    return {**{name: value for name, value in os.environ.items() if name != GATEWAYS}, **settings}


@pytest.fixture(scope="package")
def users_gateways() -> Iterator[None]:
    """Services have as many gateway processes as a user's have by default."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServeProcess, "environment", staticmethod(user_environment))
        yield


def eventually(condition: Callable[[], Any], *, timeout_s: float = PATIENCE_S, every_s: float = 0.05) -> Any:
    """The first true value of ``condition``; fails with the last value seen when time is up."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"did not come true within {timeout_s} s; last value: {value!r}")
        time.sleep(every_s)


def scripted_engine(folder: Path, script: Mapping[str, Any]) -> EngineProcess:
    """The engine that answers by a script, as a process that ends with the ``with`` block."""
    path = folder / "script.json"
    path.write_text(json.dumps(script))
    return EngineProcess.start("scripted", args=["--script", path])


class ServeProcess:
    """``claw-studio serve``; the main process takes calls unless ``env`` or ``users_gateways`` says otherwise."""

    environment: Callable[[Mapping[str, str]], dict[str, str]] = staticmethod(
        lambda settings: {**os.environ, **settings}
    )

    def __init__(
        self,
        data: Path,
        engine: str,
        *,
        env: dict[str, str] | None = None,
        port: int = 0,
        stderr: Any = None,
        verbose: bool = False,
    ) -> None:
        command = [sys.executable, "-m", "core.cli", "serve", "--data", str(data), "--port", str(port)]
        command += ["--verbose"] if verbose else []
        process = subprocess.Popen(
            [*command, "--engine", engine],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=self.environment({"PYTHONFAULTHANDLER": "1", **(env or {})}),
        )
        self.take(process)

    def take(self, process: subprocess.Popen[str]) -> None:
        """A process that was started: wait for its ready line."""
        self.process = process
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"serve ended with {self.process.wait(30)} before its ready line")
        self.ready: dict[str, Any] = json.loads(line)
        self.base_url: str = self.ready["base_url"]
        self.http = httpx.Client(base_url=self.base_url, timeout=PATIENCE_S)

    def stop(self) -> int:
        """SIGTERM, then the exit code; where none comes, the stacks of its threads stand on stderr."""
        self.http.close()
        self.process.terminate()
        try:
            code = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)
            raise
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def kill(self) -> None:
        """SIGKILL: nothing gets a chance to finish."""
        self.http.close()
        self.process.kill()
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., ServeProcess]]:
    """Start services; all of them are ended after the test."""
    started: list[ServeProcess] = []

    def start(engine: str, data: Path | None = None, **kwargs: Any) -> ServeProcess:
        started.append(ServeProcess(data or tmp_path / "data", engine, **kwargs))
        return started[-1]

    yield start
    for process in started:
        if process.process.poll() is None:
            process.kill()
