"""The synthesis of a service: starts runs, each in a process of its own, reads their state, and stores their packs."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from core.client import StudioClient, trusting
from core.config import Settings
from core.errors import Conflict, InvalidInput, NotFound
from core.packs import Pack
from core.packs.library import PackEntry, PackLibrary
from core.rollouts import RunStore
from core.rollouts.settings import run_name
from core.sandbox import choose
from core.supervisors import Supervisors
from core.synthesis import SynthesisRun, SynthesisSettings, SynthesisStore
from core.synthesis.behaviour import SameAs, same_behaviour, words_of
from core.synthesis.difficulty import Difficulty, difficulty_of
from core.synthesis.estimate import estimate
from core.synthesis.log import LOG
from core.synthesis.pack import Choice, pack_of, tasks_of
from core.synthesis.progress import progress
from core.synthesis.routes import route_of
from core.synthesis.seeds import demo_folder, read_seeds
from core.synthesis.settings import PERSONA, SKILL
from core.synthesis.state import State
from core.synthesis.store import CANCEL
from core.synthesis.work import FINISHED

BUDGET = ("max_calls", "max_total_tokens", "max_usd")
MOST_KEPT = 4
"""Runs whose state is kept in memory."""


class Trajectories(Protocol):
    """Reads the steps of trajectories (``core.pool.trajectories``)."""

    def turns(self, trajectory_uid: str) -> list[dict[str, Any]]:
        """The steps of one trajectory, in order."""
        ...


class SynthesisHost:
    """The runs of a data folder. Their processes end with this one, or with ``close``; the runs can be resumed.

    Args:
        base_url: returns the studio's root URL.
        clock: seconds since the epoch.
        packs, rollouts: stored packs, and runs of rollouts, for the difficulty of tasks.
        trajectories: the pool's, for the behaviour of agents.

    Attributes:
        store: the runs.
    """

    def __init__(
        self,
        settings: Settings,
        base_url: Callable[[], str],
        clock: Callable[[], float],
        packs: PackLibrary,
        rollouts: RunStore,
        trajectories: Trajectories,
    ) -> None:
        self.store = SynthesisStore(settings.synthesis_dir)
        self._settings, self._base_url, self._clock = settings, base_url, clock
        self._packs, self._rollouts, self._trajectories = packs, rollouts, trajectories
        self._supervisors = Supervisors("core.synthesis.worker", settings, base_url)
        self._states: dict[str, tuple[tuple[int, int], State]] = {}
        self._lock = threading.Lock()

    def plan(self, fields: Mapping[str, Any]) -> tuple[SynthesisSettings, dict[str, Any]]:
        """The settings of a run, checked, and what it would cost (``core.synthesis.estimate``); nothing is started.

        Args:
            fields: of ``SynthesisSettings``. ``run`` is its time by default, ``model`` the only one that is served,
                ``skills`` of the skill route the shipped ones.

        Raises:
            InvalidInput: a field is invalid, the model is not clear, or seeds or skills can't be read.
            IsolationMissing: the machine does not have the level of isolation.
        """
        now = self._clock()
        given = {name: value for name, value in fields.items() if value is not None}
        given.setdefault("run", run_name(now, secrets.token_hex(2)))
        given.setdefault("route", PERSONA)
        if given["route"] == SKILL and not given.get("skills"):
            given["skills"] = str(demo_folder() / "skills")
        if not given.get("model"):
            given["model"] = self._only_model()
        settings = SynthesisSettings(**{**given, "created_at": now})
        for field in ("seeds", "skills"):
            if (path := getattr(settings, field)) and not Path(path).is_absolute():
                raise InvalidInput(f"{path} is not absolute", field=field, hint="begin with /")
        choose(settings.isolation)
        if settings.route == PERSONA:
            read_seeds(settings.seeds_folder)
        return settings, estimate(settings)

    def start(
        self, fields: Mapping[str, Any], *, until: str | None = None, prompts: Mapping[str, str] | None = None
    ) -> SynthesisRun:
        """Create a run and work on it, up to the stage ``until``; ``prompts`` are changed ones by name.

        Raises:
            StudioError: as ``plan``; Conflict if there is a run of this name.
        """
        settings, _ = self.plan(fields)
        if until is not None:
            route_of(settings.route).stage(until)
        run = self.store.create(settings, prompts)
        self._work(run, until, {})
        return run

    def resume(self, name: str, *, until: str | None = None, budget: Mapping[str, Any] | None = None) -> SynthesisRun:
        """Go on with a run, up to the stage ``until``; stored answers are not asked for again.

        Args:
            name: of the run.
            until: last stage.
            budget: ``max_calls``, ``max_total_tokens``, ``max_usd`` in place of those of the settings.

        Raises:
            NotFound: there is no such run.
            Conflict: it is in progress.
            InvalidInput: there is no such stage, or the budget is invalid.
        """
        run = self.store.get(name)
        given = {one: value for one, value in (budget or {}).items() if value is not None}
        replace(run.settings, **given)
        if until is not None:
            route_of(run.settings.route).stage(until)
        if self._supervisors.alive(name) or run.in_progress:
            raise Conflict(f"the run {name} is in progress", field="run", hint="wait for its end, or cancel it")
        self._work(run, until, given)
        return run

    def _work(self, run: SynthesisRun, until: str | None, budget: Mapping[str, Any]) -> None:
        options = ["--budget", json.dumps(dict(budget)), *([] if until is None else ["--until", until])]
        self._supervisors.start(run.settings.run, run.folder, options)

    def cancel(self, name: str) -> bool:
        """Have a run stop after the calls in flight; returns whether it was in progress. NotFound: no such run."""
        run = self.store.get(name)
        asked = self._supervisors.ask_to_end(name)
        if asked or run.in_progress:
            run.cancel()
            return True
        return False

    def status(self, run: SynthesisRun) -> dict[str, Any]:
        """Settings and progress; ``cancelling``: it stops after the calls in flight; ``error``: why it failed."""
        name = run.settings.run
        done = progress(run, self.state(run), starting=self._supervisors.alive(name))
        return {
            **run.settings.to_json(),
            "progress": done.to_json(),
            "cancelling": done.in_progress and (run.folder / CANCEL).exists(),
            "error": None if done.in_progress else self._supervisors.error(name, run.folder),
        }

    def state(self, run: SynthesisRun) -> State:
        """The state of a run; it is read again when the log has grown. Callers must not change it."""
        try:
            about = (run.folder / LOG).stat()
            mark = (about.st_size, about.st_mtime_ns)
        except FileNotFoundError:
            mark = (0, 0)
        name = run.settings.run
        with self._lock:
            kept = self._states.pop(name, None)
            if kept is None or kept[0] != mark:
                kept = (mark, run.state())
            self._states[name] = kept
            while len(self._states) > MOST_KEPT:
                del self._states[next(iter(self._states))]
            return kept[1]

    def difficulty(self, run: SynthesisRun) -> dict[str, Difficulty]:
        """Task id -> what rollouts show of it, for the tasks that passed every stage."""
        return difficulty_of(tasks_of(run, self.state(run)), self._rollouts.all(), self._packs)

    def same_behaviour(self, measured: Mapping[str, Difficulty]) -> dict[str, SameAs]:
        """Task id -> the earlier task that agents solve by the same actions; reads their trajectories."""
        return same_behaviour({name: [self._words(uid) for uid in one.solved] for name, one in measured.items()})

    def _words(self, trajectory_uid: str) -> tuple[str, ...]:
        try:
            return words_of(self._trajectories.turns(trajectory_uid))
        except NotFound:
            return ()  # removed from the pool since

    def pack(self, run: SynthesisRun, choice: Choice) -> Pack:
        """The pack of a run with the tasks of the choice.

        Raises:
            InvalidInput: no task is left.
        """
        measured = self.difficulty(run) if choice.needs_rollouts else {}
        same = self.same_behaviour(measured) if choice.distinct_behaviour else {}
        return pack_of(run, choice, state=self.state(run), difficulty=measured, same=same)

    def keep_pack(self, run: SynthesisRun, choice: Choice, name: str = "") -> PackEntry:
        """Store the pack of a run among the packs; ``name``: by default the run's.

        Raises:
            InvalidInput: no task is left.
        """
        made = self.pack(run, choice)
        return self._packs.keep(replace(made, name=name) if name else made, now=self._clock())

    def close(self) -> None:
        """Stop all runs; they can be resumed."""
        self._supervisors.close()

    def _only_model(self) -> str:
        tls = None if self._settings.tls_cert is None else trusting(self._settings.tls_cert)
        with StudioClient(self._base_url(), api_key=self._settings.api_key, tls=tls) as client:
            models = list(dict.fromkeys(one["id"] for one in client.call("GET", "/v1/models", repeat=True)["data"]))
        if len(models) != 1:
            served = ", ".join(models[:10]) if models else "none"
            raise InvalidInput("the model is not clear", field="model", hint=f"name one; served now: {served}")
        return str(models[0])


def state_word(status: Mapping[str, Any]) -> str:
    """``running``, ``stopping``, ``finished``, ``new`` or ``stopped``, from ``SynthesisHost.status``."""
    done = status["progress"]
    if done["in_progress"]:
        return "stopping" if status["cancelling"] else "running"
    return str(done["state"]) if done["state"] in (FINISHED, "new") else "stopped"
