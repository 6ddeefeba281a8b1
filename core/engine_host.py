"""Registers the engines of the settings with the gateway; the embedded one starts at its first call."""

from __future__ import annotations

import os
import threading
from typing import Any, Protocol

from core.config import Settings
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
    """The embedded engine's process, started once on demand."""

    def __init__(self, settings: Settings) -> None:
        self._model_dir = settings.local_model_dir or settings.data_dir / "model"
        self._startup_timeout_s = min(120.0, settings.engine_timeout_s)
        self._process: EngineProcess | None = None
        self._lock = threading.Lock()

    def ensure(self) -> str:
        """Base URL of the running engine; starts it and waits. Raises EngineError with the engine's last output."""
        with self._lock:
            if self._process is None or not self._process.alive:
                self._process = EngineProcess.start(
                    "local",
                    args=["--model-dir", str(self._model_dir)],
                    startup_timeout_s=self._startup_timeout_s,
                )
            base_url = self._process.wait_ready().base_url
        if base_url is None:
            raise EngineError("the embedded engine is ready but reported no address")
        return base_url

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
    }
    if first == "local":
        engines.add(name, None, default=True, **{**how, "models": LOCAL_MODELS, "ready": local.ensure, "api_key": None})
    else:
        _add(engines, name, first, default=True, **how)
    for number, address in enumerate(others, 2):
        # "a, b": one model at several addresses.
        _add(engines, f"{name}-{number}", address, replica_of=name, **how)
    for one in settings.engines:
        _add(
            engines,
            one.name,
            one.base_url,
            models=one.models,
            api_key=os.environ.get(one.api_key_env) if one.api_key_env else None,
            streaming=one.streaming,
            concurrency=one.concurrency,
            replica_of=one.replica_of,
        )


def _add(engines: EngineSet, name: str, address: str, **how: Any) -> None:
    if address.startswith(LITELLM):
        engines.add(name, address.removeprefix(LITELLM), kind="litellm", **how)
    else:
        engines.add(name, address.rstrip("/"), **how)
