"""Registers the engines of the settings with the gateway; the embedded one starts at its first call."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from core.config import EngineConfig, Settings
from core.errors import EngineError
from core.gateway.engines.registry import EngineSet
from core.gateway.transport.connection import Bounds
from core.gateway.transport.connection_pool import Timeouts
from core.serving.process import EngineProcess

LOCAL_ENGINE = "local"
LOCAL_MODELS = ["claw-*", "local"]
ENGINE = "engine"
LITELLM_ENGINE = "litellm"
LITELLM = "litellm:"


class EngineStarter(Protocol):
    """Starts the embedded engine on demand."""

    def ensure(self) -> str:
        """Base URL of the running engine; starts it and waits. Raises EngineError."""
        ...


class LocalEngineHost:
    """The embedded engine's process, started on demand, and again if it has ended.

    Args:
        weights: returns folder and version of the weights that the last sync loaded; None if there was none. A new
            process starts with them.
    """

    def __init__(self, settings: Settings, weights: Callable[[], tuple[str, int] | None] = lambda: None) -> None:
        self._model_dir = settings.local_model_dir or settings.data_dir / "model"
        self._weights = weights
        self._options = ["--threads", settings.local_threads, "--max-sequences", settings.local_sequences]
        if settings.local_context is not None:
            self._options += ["--context-length", settings.local_context]
        self._startup_timeout_s = min(600.0, settings.engine_timeout_s)
        self._process: EngineProcess | None = None
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """Process id of the engine; None if none was started."""
        process = self._process
        return None if process is None else process.pid

    def ensure(self) -> str:
        """Base URL of the running engine; starts it and waits. Raises EngineError with the engine's last output."""
        with self._lock:
            if self._process is None or not self._process.alive:
                self._process = EngineProcess.start(
                    "local",
                    args=[*self._model(), *map(str, self._options)],
                    startup_timeout_s=self._startup_timeout_s,
                )
            base_url = self._process.wait_ready().base_url
        if base_url is None:
            raise EngineError("the embedded engine is ready but reported no address")
        return base_url

    def _model(self) -> list[str]:
        synced = self._weights()
        if synced is None:
            return ["--model-dir", str(self._model_dir)]
        path, version = synced
        if not Path(path).is_dir():
            # Other weights under this version would be wrong in every record.
            raise EngineError(
                f"the weights of version {version} are gone: {path}",
                field="engine",
                hint="restore the folder, or load other weights: Trainer.sync_weights, POST /api/v1/policy/sync; "
                "POST /api/v1/policy registers the version of local_model_dir",
            )
        return ["--model-dir", path, "--policy-version", str(version)]

    def stop(self) -> None:
        """End the process, if there is one."""
        with self._lock:
            if self._process is not None:
                self._process.stop()
                self._process = None


def timeouts_of(settings: Settings) -> Timeouts:
    """Timeouts of engine calls."""
    return Timeouts(
        total=settings.engine_timeout_s,
        first_byte=settings.engine_first_byte_timeout_s,
        idle=settings.engine_idle_timeout_s,
    )


def bounds_of(settings: Settings) -> Bounds:
    """Size limits of engine answers."""
    return Bounds(answer=settings.max_answer_bytes, head=settings.max_answer_head_bytes, aside=settings.max_aside_bytes)


def add_configured_engines(engines: EngineSet, settings: Settings, local: EngineStarter) -> None:
    """Register ``settings.engine`` as the default engine, its replicas, and ``settings.engines``."""
    first, *others = [part.strip() for part in settings.engine.split(",")]
    name = LOCAL_ENGINE if first == "local" else LITELLM_ENGINE if first.startswith(LITELLM) else ENGINE
    how: dict[str, Any] = {
        "api_key": os.environ.get(settings.engine_api_key_env),
        "streaming": settings.engine_streaming,
        "concurrency": settings.engine_concurrency,
        "weights_hook": settings.engine_weights_hook,
    }
    if first == "local":
        engines.add(name, None, default=True, **{**how, "models": LOCAL_MODELS, "ready": local.ensure, "api_key": None})
    else:
        _add(engines, name, first, default=True, **how)
    for number, address in enumerate(others, 2):
        # "a, b": one model at several addresses.
        _add(engines, f"{name}-{number}", address, replica_of=name, **how)
    for one in settings.engines:
        engines.add(**engine_arguments(one))


def engine_arguments(one: EngineConfig) -> dict[str, Any]:
    """The arguments of ``EngineSet.add`` for a configured engine; its key is read from the environment."""
    return {
        **_address(one.base_url),
        "name": one.name,
        "models": list(one.models),
        "api_key": os.environ.get(one.api_key_env) if one.api_key_env else None,
        "streaming": one.streaming,
        "concurrency": one.concurrency,
        "replica_of": one.replica_of,
        "weights_hook": one.weights_hook,
    }


def _add(engines: EngineSet, name: str, address: str, **how: Any) -> None:
    engines.add(name, **_address(address), **how)


def _address(address: str) -> dict[str, Any]:
    if address.startswith(LITELLM):
        return {"base_url": address.removeprefix(LITELLM), "kind": "litellm"}
    return {"base_url": address.rstrip("/")}
