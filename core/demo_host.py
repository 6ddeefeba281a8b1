"""Starts and stops the demo agent's runs, and the scripted engine that serves its policy."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from core.client import trusting
from core.config import Settings
from core.gateway.engines.registry import AddEngine
from core.serving.process import EngineProcess
from core.tasks.demo import DemoRun, demo_script_path

ENGINE = "demo"
MODELS = ["demo-*"]


class DemoHost:
    """The demo agent of a service. Its engine is a process of its own and stays for the next run.

    Args:
        base_url: returns the studio's root URL.
        add_engine: registers the engine.
    """

    def __init__(self, settings: Settings, base_url: Callable[[], str], add_engine: AddEngine) -> None:
        self._settings = settings
        self._base_url = base_url
        self._add_engine = add_engine
        self._engine: EngineProcess | None = None
        self._run: DemoRun | None = None
        self._lock = threading.Lock()

    def start(self, n_rollouts: int = 4, *, seed: int = 0) -> DemoRun:
        """Run the demo agent against the scripted demo engine; if a run is in progress, that one is returned."""
        with self._lock:
            if self._run is not None and self._run.status()["running"]:
                return self._run
            if self._engine is None or not self._engine.alive:
                engine = EngineProcess.start("scripted", args=["--script", str(demo_script_path())])
                engine.wait_ready()
                self._engine = engine
                self._add_engine(ENGINE, str(engine.base_url), MODELS)
            settings = self._settings
            tls = None if settings.tls_cert is None else trusting(settings.tls_cert)
            self._run = DemoRun(self._base_url(), n_rollouts=n_rollouts, seed=seed, api_key=settings.api_key, tls=tls)
            self._run.start()
            return self._run

    def status(self) -> dict[str, Any]:
        """``{running, done, total, error}`` of the newest run."""
        if self._run is None:
            return {"running": False, "done": 0, "total": 0, "error": None}
        return self._run.status()

    def close(self) -> None:
        """End run and engine."""
        if self._run is not None:
            self._run.stop()
        if self._engine is not None:
            self._engine.stop()
