"""Asks models: each answer is stored before it is used, within the budget of the run, and never paid twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict

from core.errors import StudioError
from core.rewards.base import Unscored
from core.rewards.services import Judge, Reply
from core.synthesis.log import LogWriter
from core.synthesis.rows import Failed, digest
from core.synthesis.settings import SynthesisSettings
from core.synthesis.state import CALL, State
from core.synthesis.templates import Template

Engines = Callable[[str], Judge]
"""Model name -> what asks this model."""


class Stopped(StudioError):
    """The run stops here: its budget is spent, or it was cancelled. It can be resumed."""

    type = "synthesis_stopped"
    http_status = 409


class Asker:
    """Asks the models of a run. Thread-safe.

    The budget is checked before each call, so tokens and money can exceed it by the calls that are then in flight; the
    number of calls can't.
    """

    def __init__(
        self,
        settings: SynthesisSettings,
        engines: Engines,
        state: State,
        writer: LogWriter,
        *,
        should_stop: Callable[[], bool],
        clock: Callable[[], float] = time.time,
        stored: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._settings, self._engines, self._state, self._writer = settings, engines, state, writer
        self._should_stop, self._clock, self._stored = should_stop, clock, stored
        self._judges: dict[str, Judge] = {}
        self._in_flight = 0
        self._lock = threading.Lock()

    def ask(self, stage: str, key: str, role: str, template: Template, text: str, *, number: int) -> Reply:
        """The answer to the prompt ``number`` of a row; one that is stored is not asked for again.

        Raises:
            Stopped: the budget is spent, or the run was cancelled.
            Failed: the engine failed; the row is made again when the run is resumed.
        """
        model = self._settings.model_of(role)
        generation = self._state.generation(stage, key)
        id_ = digest([stage, key, generation, number, model, text])[:24]
        known = self._state.calls.get(id_)
        if known is not None:
            return known
        record = {"kind": CALL, "id": id_, "stage": stage, "key": key, "generation": generation, "model": model}
        record |= {"prompt": template.name, "prompt_sha256": template.sha256, "text_sha256": digest(text)}
        begin = self._clock()
        with self.within_budget():
            try:
                reply = self._judge(model)([{"role": "user", "content": text}], 1, 0)[0]
            except Unscored as error:
                self._keep({**record, "reply": None, "error": str(error), "at": begin})
                raise Failed(f"the engine gave no answer: {error}", transient=True) from error
            self._keep({**record, "reply": asdict(reply), "at": begin, "wall_s": self._clock() - begin})
        self._stored(id_)
        return reply

    def _keep(self, record: dict[str, object]) -> None:
        self._writer.write(record)
        self._state.apply(record)

    def _judge(self, model: str) -> Judge:
        with self._lock:
            if model not in self._judges:
                self._judges[model] = self._engines(model)
            return self._judges[model]

    @contextmanager
    def within_budget(self) -> Iterator[None]:
        """Around one call, until it is stored.

        Raises:
            Stopped: the budget is spent, or the run was cancelled.
        """
        self._begin()
        try:
            yield
        finally:
            with self._lock:
                self._in_flight -= 1

    def _begin(self) -> None:
        if self._should_stop():
            raise Stopped("the run was cancelled", field="run", hint="resume goes on")
        settings, state = self._settings, self._state
        with self._lock:
            if settings.max_calls is not None and state.n_calls + self._in_flight >= settings.max_calls:
                raise Stopped(f"the budget of {settings.max_calls} calls is spent", field="max_calls")
            if settings.max_total_tokens is not None and state.n_tokens >= settings.max_total_tokens:
                raise Stopped(f"the budget of {settings.max_total_tokens} tokens is spent", field="max_total_tokens")
            if settings.max_usd is not None and state.cost_usd >= settings.max_usd:
                raise Stopped(f"the budget of {settings.max_usd:g} US dollars is spent", field="max_usd")
            self._in_flight += 1
