"""Starts and stops the learning demo: its engine, registered with the gateway, and its run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from core.config import Settings
from core.errors import Conflict
from core.gateway.engines.registry import AddEngine
from core.serving.process import EngineProcess
from core.tasks.learn import ENGINE, MODEL, POLICY
from core.tasks.learn_process import LearnProcess

MODELS = ["learn-*"]
MOST_SEQUENCES = 64
STARTUP_S = 300.0
"""Longest start of the engine, seconds: on a busy machine the import of torch alone takes a minute."""


class LearnHost:
    """The learning demo of a service. Engine and run are processes of their own.

    Args:
        base_url: returns the studio's root URL.
        add_engine: registers the engine.
    """

    def __init__(self, settings: Settings, base_url: Callable[[], str], add_engine: AddEngine) -> None:
        self._settings = settings
        self._base_url = base_url
        self._add_engine = add_engine
        self._engine: EngineProcess | None = None
        self._run: LearnProcess | None = None
        self._lock = threading.Lock()

    def start(self, *, updates: int = 15, seed: int = 0, max_staleness: int = 0, control: str | None = None) -> None:
        """Start the engine, if it does not run, and a run.

        Raises:
            Conflict: a run is in progress.
            EngineError: the engine did not start.
            InvalidInput: updates, staleness or control are out of range.
        """
        with self._lock:
            if self._run is not None and self._run.running:
                raise Conflict("the learning demo is running", hint="stop it first: DELETE /api/v1/learning/demo")
            if self._engine is None or not self._engine.alive:
                options = ["--model-dir", str(POLICY / "model"), "--served-model-name", MODEL, "--threads", "1"]
                options += ["--max-sequences", str(MOST_SEQUENCES), "--no-reasoning-parser"]
                engine = EngineProcess.start("local", args=options, startup_timeout_s=STARTUP_S)
                self._engine = engine
                self._add_engine(ENGINE, str(engine.wait_ready().base_url), MODELS)
            self._run = LearnProcess(
                self._base_url(),
                self._settings.data_dir.absolute() / "learn",
                updates=updates,
                seed=seed,
                max_staleness=max_staleness,
                control=control,
                api_key=self._settings.api_key,
                tls_cert=self._settings.tls_cert,
            )

    def status(self) -> dict[str, Any]:
        """See ``LearnProcess.status``; before the first run nothing runs."""
        run = self._run
        if run is None:
            return {"running": False, "updates": 0, "update": 0, "run": None, "control": None, "error": None}
        return run.status()

    def events(self) -> list[dict[str, Any]]:
        """Progress messages of the newest run."""
        return [] if self._run is None else self._run.events()

    def stop(self) -> None:
        """End the run; the engine stays for the next one."""
        with self._lock:
            if self._run is not None:
                self._run.stop()

    def close(self) -> None:
        """End run and engine."""
        self.stop()
        with self._lock:
            if self._engine is not None:
                self._engine.stop()
                self._engine = None
