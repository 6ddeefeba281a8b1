"""Works on a run: stage by stage, rows in parallel; what is stored is not made again."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from core.errors import InvalidInput, StudioError
from core.rewards.services import Reply
from core.sandbox import IsolationMissing
from core.scoring.prices import price_of
from core.synthesis.asking import Asker, Engines, Stopped
from core.synthesis.embedding import Embed, Embeddings
from core.synthesis.log import LogWriter
from core.synthesis.routes import Route, route_of
from core.synthesis.rows import DONE, FAILED, Failed, Row, digest
from core.synthesis.settings import SynthesisSettings
from core.synthesis.stages.base import Product, Result, Stage, Work
from core.synthesis.state import BEGIN, END, ROW, State
from core.synthesis.store import CANCEL, SynthesisRun
from core.synthesis.templates import Template
from core.synthesis.vectors import Vectors, tf_idf

Report = Callable[[Mapping[str, Any]], None]
"""Called after each stored answer and row: ``{event: call, id}`` or ``{event: row, stage, key, state, reason}``."""
FINISHED = "finished"


@dataclass
class _Used:
    """What one row used: prompts, models, calls, money."""

    prompts: dict[str, str] = field(default_factory=dict)
    replies: list[Reply] = field(default_factory=list)

    @property
    def cost_usd(self) -> float | None:
        costs = [one.cost_usd for one in self.replies]
        known = [one for one in costs if one is not None]
        return math.fsum(known) if len(known) == len(costs) else None


def work(
    run: SynthesisRun,
    engines: Engines,
    *,
    embed: Embed | None = None,
    until: str | None = None,
    budget: Mapping[str, Any] | None = None,
    clock: Callable[[], float] = time.time,
    report: Report = lambda _: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> str:
    """Work on a run until it is finished or stopped; returns ``finished`` or why it stopped.

    Args:
        run: the run.
        engines: model name -> what asks this model.
        embed: asks the embedding model of the settings, where they name one.
        until: the last stage to work on.
        budget: ``max_calls``, ``max_total_tokens``, ``max_usd`` in place of those of the settings.
        clock: seconds since the epoch.
        report: called after each stored answer and row.
        should_stop: asked before each call and row; the run stops as if it was cancelled.

    Raises:
        AlreadyOwned: another process works on it.
        InvalidInput: there is no such stage, seeds or skills can't be read, or the price of a model is not known where
            money is limited; or the settings name an embedding model, and ``embed`` is missing.
        IsolationMissing: the machine does not have the level of isolation.
    """
    settings = replace(run.settings, **(budget or {}))
    _check_prices(settings)
    route = route_of(settings.route)
    if until is not None:
        route.stage(until)
    if settings.embedding_model and embed is None:
        raise InvalidInput("embeddings need an engine", field="embedding_model", hint="leave it out to compare words")
    templates = run.templates()
    with run.writer() as writer:
        (run.folder / CANCEL).unlink(missing_ok=True)
        worker = _Worker(run, settings, route, templates, engines, embed, writer, clock, report, should_stop)
        return worker.work(until)


def _check_prices(settings: SynthesisSettings) -> None:
    models = {settings.model_of(role) for role in ("writer", "judge", "solver")}
    models |= {settings.embedding_model} if settings.embedding_model else set()
    unknown = sorted(one for one in models if price_of(one) is None)
    if settings.max_usd is not None and unknown:
        raise InvalidInput(
            f"the price of {unknown[0]} is not known", field="max_usd", hint="limit max_calls or max_total_tokens"
        )


class _Worker:
    """The work on one run."""

    def __init__(
        self,
        run: SynthesisRun,
        settings: SynthesisSettings,
        route: Route,
        templates: Mapping[str, Template],
        engines: Engines,
        embed: Embed | None,
        writer: LogWriter,
        clock: Callable[[], float],
        report: Report,
        should_stop: Callable[[], bool],
    ) -> None:
        self._run, self._settings, self._route, self._templates = run, settings, route, templates
        self._writer, self._clock, self._report = writer, clock, report
        self._asked_to_stop = should_stop
        self._state: State = run.state()
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._asker = Asker(
            settings,
            engines,
            self._state,
            writer,
            should_stop=self._should_stop,
            clock=clock,
            stored=lambda id_: report({"event": "call", "id": id_}),
        )
        self._vectors: Vectors = tf_idf
        if embed is not None and settings.embedding_model:
            self._vectors = Embeddings(settings.embedding_model, embed, self._asker, self._state, writer)

    def work(self, until: str | None) -> str:
        end = FINISHED if until is None else f"stopped after {until}"
        self._note({"kind": BEGIN, "at": self._clock()})
        try:
            for stage in self._route.stages:
                if stage.make_all is not None:
                    self._all(stage, stage.make_all(self._settings, self._state, self._vectors))
                else:
                    self._each(stage)
                if stage.name == until:
                    break
        except Stopped as stopped:
            end = stopped.message
        self._note({"kind": END, "reason": end, "at": self._clock()})
        return end

    def _note(self, record: Mapping[str, Any]) -> None:
        self._writer.write(record)
        self._state.apply(record)

    def _should_stop(self) -> bool:
        return self._stop.is_set() or self._asked_to_stop() or (self._run.folder / CANCEL).exists()

    def _check_stop(self) -> None:
        if self._should_stop():
            raise Stopped("the run was cancelled", field="run", hint="resume goes on")

    def _all(self, stage: Stage, results: Mapping[str, Result]) -> None:
        """Store the rows of a stage that are not stored already. Rows that a person wrote stay."""
        for key, (product, reason) in results.items():
            known = self._state.current(stage.name, key)
            same = known is not None and (known.edited or (known.product, known.reason) == (product, reason))
            if not same:
                state = DONE if reason is None else FAILED
                generation = self._state.generation(stage.name, key)
                self._keep(Row(stage.name, key, state, product, reason, generation=generation, at=self._clock()))

    def _each(self, stage: Stage) -> None:
        """Make the rows of a stage that are missing, or made from something else; in parallel."""
        keys = waiting(stage, self._state)
        with ThreadPoolExecutor(self._settings.workers) as pool:
            for key in keys:
                pool.submit(self._guarded, stage, key)
        if self._failure is not None:
            raise self._failure

    def _guarded(self, stage: Stage, key: str) -> None:
        """Make one row; the first error stops the others."""
        try:
            self._check_stop()
            self._one(stage, key)
        except BaseException as error:
            if not self._stop.is_set():
                self._failure = error
            self._stop.set()

    def _one(self, stage: Stage, key: str) -> None:
        assert stage.make is not None
        products = products_of(stage, key, self._state)
        used, begin, generation = _Used(), self._clock(), self._state.generation(stage.name, key)
        state, reason, transient = DONE, None, False
        made: Product | None
        try:
            made = stage.make(Work(self._settings, key, self._ask(stage.name, key, used), self._check_stop), products)
        except Failed as failed:
            made, reason, transient, state = failed.product, failed.reason, failed.transient, FAILED
        except (Stopped, IsolationMissing):
            raise
        except StudioError as error:
            made, reason, state = None, error.message, FAILED
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            # An edited product can have any form.
            made, reason, state = None, f"a product before it has another form: {type(error).__name__}: {error}", FAILED
        self._keep(
            Row(
                stage.name,
                key,
                state,
                made,
                reason,
                based_on=digest(products),
                generation=generation,
                transient=transient,
                prompts=used.prompts,
                models=tuple(sorted({one.model for one in used.replies})),
                n_calls=len(used.replies),
                cost_usd=used.cost_usd,
                wall_s=self._clock() - begin,
                at=self._clock(),
            )
        )

    def _ask(self, stage: str, key: str, used: _Used) -> Callable[[str, str, Mapping[str, str]], str]:
        def ask(role: str, prompt: str, values: Mapping[str, str]) -> str:
            template = self._templates[prompt]
            text = template.render(values)
            reply = self._asker.ask(stage, key, role, template, text, number=len(used.replies))
            used.prompts[prompt] = template.sha256
            used.replies.append(reply)
            return reply.text

        return ask

    def _keep(self, row: Row) -> None:
        self._note({"kind": ROW, "row": row.to_json()})
        self._report({"event": "row", "stage": row.stage, "key": row.key, "state": row.state, "reason": row.reason})


def products_of(stage: Stage, key: str, state: State) -> dict[str, Product]:
    """The products that a stage gets for a row."""
    return {name: dict(state.rows[name, key].product or {}) for name in stage.shows}


def ready(route: Route, state: State) -> list[str]:
    """The rows that passed every stage, in order of their keys.

    A row that is to be made again, since what it was made from has changed, is not among them.
    """
    last = route.stages[-1]
    late = {key for stage in route.stages if stage.make is not None for key in waiting(stage, state)}
    keys = [row.key for row in state.of_stage(last.name) if row.key not in late]
    return [key for key in keys if all(state.passes(name, key) for name in (*last.needs, last.name))]


def waiting(stage: Stage, state: State) -> list[str]:
    """The rows that a stage has to make: not made yet, made from something else, or failed for want of an engine."""
    keys = []
    for row in state.of_stage(stage.needs[0]):
        if all(state.passes(name, row.key) for name in stage.needs):
            known = state.current(stage.name, row.key)
            if known is None or known.transient or known.based_on != digest(products_of(stage, row.key, state)):
                keys.append(row.key)
    return keys
