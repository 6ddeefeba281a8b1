"""Engines that are added, removed, paused and tested while the studio runs.

A change is on disk (``engines.json`` in the data folder) and in force in every gateway process before the call that
makes it returns; the next start applies it again. Keys of engines are never stored: a file names the environment
variable that holds one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from core.config import EngineConfig, Settings
from core.durable import sync_folder
from core.engine_host import EngineStarter, add_configured_engines, bounds_of, engine_arguments
from core.errors import Conflict, EngineError, InvalidInput, NotFound, StudioError
from core.gateway.engines.answer import EngineCall
from core.gateway.engines.registry import IMPLICIT_PROVIDER, EngineSet
from core.gateway.served_dialects import CHAT
from core.gateway.transport.connection_pool import Timeouts
from core.tokens import extract_tokens

FILE = "engines.json"
TEST_TIMEOUT_S = 120.0
"""Longest wait for the answer of a test, including the start of the embedded engine, seconds."""

log = logging.getLogger(__name__)


class Processes(Protocol):
    """The gateway processes (``core.workers.fleet.Fleet``)."""

    def add_engine(self, name: str, base_url: str | None, *, models: list[str], **how: Any) -> None:
        """Add an engine to each."""
        ...

    def remove_engine(self, name: str) -> None:
        """Remove it from each."""
        ...

    def pause_engines(self, names: frozenset[str]) -> None:
        """Set which engines take no new calls."""
        ...


@dataclass(frozen=True, slots=True)
class EngineTest:
    """The answer of an engine to one short request that is not captured.

    Attributes:
        ok: the engine answered.
        seconds: until the answer.
        message: the error, or what the answer contains.
        exact: token ids and log-probs came with the answer; None without an answer.
    """

    ok: bool
    seconds: float
    message: str
    exact: bool | None


class EngineChanges:
    """Changes the engines of the running studio. Thread-safe.

    Args:
        engines: of this process; already holds the configured engines.
        settings: of the studio.
        local: starts the embedded engine.
        processes: returns the gateway processes; None: there are none.
    """

    def __init__(
        self,
        engines: EngineSet,
        settings: Settings,
        local: EngineStarter,
        processes: Callable[[], Processes | None],
    ) -> None:
        self._engines, self._settings, self._local, self._processes = engines, settings, local, processes
        self._path = settings.data_dir / FILE
        self._lock = threading.Lock()
        self._added: dict[str, EngineConfig] = {}

    @property
    def added(self) -> tuple[str, ...]:
        """Names of the engines that were added here, which alone can be removed."""
        return tuple(self._added)

    def restore(self) -> None:
        """Apply what earlier runs stored to this process. An entry that is not valid any more is reported and kept."""
        added, paused = _read(self._path)
        configured = {engine.name for engine in self._engines.engines()}
        for entry in added:
            try:
                one = EngineConfig(**entry)
                if one.name in configured:
                    raise Conflict(f"the settings have an engine {one.name!r}", field="name")
                self._engines.add(**engine_arguments(one))
                self._added[one.name] = one
            except (ValidationError, StudioError, TypeError) as error:
                log.error("an engine of %s is left out: %s", self._path, error)
        self._engines.pause(paused)

    def tell(self, processes: Processes) -> None:
        """Apply the same to the gateway processes; they may not run yet."""
        for one in self._added.values():
            processes.add_engine(**engine_arguments(one))
        if self._engines.paused:
            processes.pause_engines(self._engines.paused)

    def add(self, fields: Mapping[str, Any]) -> None:
        """Add an engine; calls that name its models go to it at once.

        Args:
            fields: of ``EngineConfig``.

        Raises:
            InvalidInput: a field is wrong, or the environment has no such variable. Conflict: the name is taken.
        """
        one = _checked(fields)
        with self._lock:
            if one.name in {engine.name for engine in self._engines.engines()} | {IMPLICIT_PROVIDER}:
                raise Conflict(f"there is an engine {one.name!r}", field="name", hint="choose another name")
            arguments = engine_arguments(one)
            self._engines.add(**arguments)
            self._added[one.name] = one
            self._store()
            if (processes := self._processes()) is not None:
                processes.add_engine(**arguments)

    def remove(self, name: str) -> None:
        """Remove an engine that was added here; its calls in flight finish.

        Raises:
            NotFound: no engine was added under this name.
        """
        with self._lock:
            if name not in self._added:
                raise NotFound(
                    f"no engine {name!r} was added while the studio ran",
                    field="name",
                    hint="engines of the settings are removed there",
                )
            del self._added[name]
            self._engines.pause(self._engines.paused - {name})
            self._engines.remove(name)
            self._store()
            if (processes := self._processes()) is not None:
                processes.remove_engine(name)
                processes.pause_engines(self._engines.paused)

    def pause(self, name: str, paused: bool = True) -> None:
        """Let an engine take no new calls, or take them again; calls in flight finish.

        Its calls go to engines that serve the same models. Without one they get 503 with ``Retry-After``.

        Raises:
            NotFound: there is no such engine.
        """
        with self._lock:
            if name not in {engine.name for engine in self._engines.engines()} and name not in self._engines.paused:
                raise NotFound(f"no engine {name!r}", field="name")
            before = self._engines.paused
            self._engines.pause(before | {name} if paused else before - {name})
            self._store()
            if (processes := self._processes()) is not None:
                processes.pause_engines(self._engines.paused)

    def test(self, name: str) -> EngineTest:
        """Ask an engine for one short answer. Blocking; it is not captured and not counted.

        Raises:
            NotFound: there is no such engine.
        """
        engines = EngineSet(timeouts=Timeouts(total=TEST_TIMEOUT_S), bounds=bounds_of(self._settings))
        add_configured_engines(engines, self._settings, self._local)
        for one in list(self._added.values()):
            engines.add(**engine_arguments(one))
        running = next((one for one in self._engines.engines() if one.name == name), None)
        if name not in {one.name for one in engines.engines()} and running is not None and running.address:
            # Of the demo agent or the learning run, which start theirs.
            engines.add(name, running.address, models=running.models)
        return asyncio.run(_test(engines, name))

    def _store(self) -> None:
        """Write the file; it is replaced atomically. The lock must be held."""
        entries = [one.model_dump(mode="json", exclude_defaults=True) for one in self._added.values()]
        text = json.dumps({"added": entries, "paused": sorted(self._engines.paused)}, indent=1)
        fresh = self._path.with_suffix(".part")
        with fresh.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
        sync_folder(self._path.parent)


async def _test(engines: EngineSet, name: str) -> EngineTest:
    engine = next((one for one in engines.engines() if one.name == name), None)
    if engine is None:
        raise NotFound(f"no engine {name!r} can be tested", field="name")
    began = time.monotonic()
    body = {"messages": [{"role": "user", "content": "Say OK."}], "max_tokens": 4, "logprobs": True}
    try:
        # Without a model name the engine's own is used.
        answer = await engine.complete(EngineCall(CHAT, body, next(iter(engine.plain_models()), None)))
    except EngineError as error:
        return EngineTest(False, time.monotonic() - began, error.message, None)
    seconds = time.monotonic() - began
    if answer.status != 200:
        text = answer.raw[:300].decode("utf-8", "replace")
        return EngineTest(False, seconds, f"status {answer.status}: {text}", None)
    try:
        tokens = extract_tokens(answer.body, 0, CHAT.name)
    except (LookupError, TypeError, ValueError):
        return EngineTest(False, seconds, "the answer has no choice", None)
    has_ids, has_logprobs = tokens.response_ids is not None, tokens.response_logprobs is not None
    parts = [text for text, there in (("token ids", has_ids), ("log-probs", has_logprobs)) if there]
    model = answer.body.get("model") or answer.model
    return EngineTest(
        True, seconds, f"{model} answered with {' and '.join(parts) or 'text only'}", has_ids and has_logprobs
    )


def _checked(fields: Mapping[str, Any]) -> EngineConfig:
    """The configuration; InvalidInput names the field that is wrong."""
    try:
        one = EngineConfig(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidInput(f"the engine's {first['loc'][0]}: {first['msg']}", field=str(first["loc"][0])) from error
    if not one.base_url.startswith(("http://", "https://", "litellm:")):
        raise InvalidInput(
            f"{one.base_url!r} is no address of an engine",
            field="base_url",
            hint="http://host:port/v1, or litellm:provider/model",
        )
    if one.api_key_env and one.api_key_env not in os.environ:
        raise InvalidInput(
            f"the studio's environment has no {one.api_key_env}",
            field="api_key_env",
            hint="set it and start the studio again; keys are never stored",
        )
    return one


def _read(path: Path) -> tuple[list[dict[str, Any]], frozenset[str]]:
    """The stored engines and the names of the paused ones; an unreadable file counts as empty and is reported."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return [dict(one) for one in stored["added"]], frozenset(map(str, stored["paused"]))
    except FileNotFoundError:
        return [], frozenset()
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.error("%s can't be read, so engines that were added are missing and none is paused: %s", path, error)
        return [], frozenset()
