"""Runs re-scorings in the background, and adopts or discards their results."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from core.client import StudioClient, trusting
from core.config import Settings
from core.errors import Conflict, InvalidInput, NotFound, StudioError
from core.packs.library import PackLibrary
from core.pool import Pool
from core.rewards import Services
from core.rewards.policy import Missing, combination
from core.rollouts import RunStore, WorkspaceStore
from core.sandbox import parse_level
from core.scoring.attempts import StoredAttempts
from core.scoring.compare import by_trajectory, compare, new_reward, reliability
from core.scoring.judge import GatewayJudge, JudgeSettings, ReplyCache
from core.scoring.rescore import Wanted, rescore
from core.scoring.results import RescoreSettings, RescoreStore, Rescoring
from core.types import Annotation, AnnotationKind, View

log = logging.getLogger(__name__)

LABEL_REQUESTED = "label-requested"
"""Tag of trajectories for which the verifier ``human`` asks for a label."""


class RescoreHost:
    """The re-scorings of a service; each runs in a thread of its own.

    Args:
        settings: of the service.
        pool: trajectories, their rewards and labels.
        base_url: returns the studio's root URL, for judges.
        clock: seconds since the epoch.
    """

    def __init__(self, settings: Settings, pool: Pool, base_url: Callable[[], str], clock: Callable[[], float]) -> None:
        self._settings, self._pool, self._base_url, self._clock = settings, pool, base_url, clock
        self._store = RescoreStore(settings.data_dir / "rescores")
        self._threads: dict[str, threading.Thread] = {}
        self._stops: dict[str, threading.Event] = {}
        self._judges: dict[str, GatewayJudge] = {}
        self._lock = threading.Lock()

    def start(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Create a re-scoring from the fields of ``RescoreSettings`` and run it.

        Raises:
            InvalidInput: a field is invalid.
            Conflict: there is one of this name.
        """
        settings = RescoreSettings(**fields, created_at=self._clock())
        parse_level(settings.isolation)
        if settings.judge is not None:
            judge_settings(settings.judge)
        self._pool.trajectories.count(_view(settings))
        rescoring = self._store.create(settings)
        self._run(rescoring)
        return self.show(settings.name)

    def resume(self, name: str) -> dict[str, Any]:
        """Go on with one that was stopped or interrupted; what has a result is not scored again.

        Raises:
            NotFound: there is none of this name.
            Conflict: it is running.
        """
        self._run(self._store.get(name))
        return self.show(name)

    def _run(self, rescoring: Rescoring) -> None:
        name = rescoring.settings.name
        with self._lock:
            if name in self._threads and self._threads[name].is_alive():
                raise Conflict(f"the re-scoring {name} is running", field="name", hint="stop it first")
            self._stops[name] = threading.Event()
            self._threads[name] = threading.Thread(
                target=self._work, args=(rescoring, self._stops[name]), name=f"rescore {name}", daemon=True
            )
            self._threads[name].start()

    def _work(self, rescoring: Rescoring, stop: threading.Event) -> None:
        settings = rescoring.settings
        try:
            rows = self._pool.trajectories.page(_view(settings), order="started_at asc", limit=None)
            columns = (rows[name].to_pylist() for name in ("trajectory_uid", "reward", "channel"))
            wanted = [Wanted(*row) for row in zip(*columns, strict=True)]
            rescoring.note(n_total=len(wanted) * settings.repeats, error=None)
            kept = StoredAttempts(
                RunStore(self._settings.rollouts_dir),
                WorkspaceStore(self._settings.workspaces_dir),
                PackLibrary(self._settings.packs_dir),
                self._pool.trajectories.get,
            )
            rescore(rescoring, wanted, kept, self._services(rescoring), should_stop=stop.is_set)
        except Exception as error:  # the thread has no caller; the reason is shown with the re-scoring
            log.exception("the re-scoring %s ended", settings.name)
            rescoring.note(error=error.message if isinstance(error, StudioError) else f"{error!r}")
        finally:
            judge = self._judges.get(settings.name)
            if judge is not None and rescoring.folder.is_dir():
                rescoring.note(spending=judge.spending.as_dict())

    def _services(self, rescoring: Rescoring) -> Services:
        settings = rescoring.settings
        judge = None
        if settings.judge is not None:
            tls = None if self._settings.tls_cert is None else trusting(self._settings.tls_cert)
            client = StudioClient(self._base_url(), api_key=self._settings.api_key, tls=tls)
            judge = GatewayJudge(
                client,
                judge_settings(settings.judge),
                trajectory_uid=f"judge-{settings.name}",
                cache=ReplyCache(Path(self._settings.data_dir) / "judge"),
                tls=tls,
            )
            self._judges[settings.name] = judge
        return Services(judge, self._settings.verifier_callbacks, self._request_label)

    def _request_label(self, question: Mapping[str, Any]) -> None:
        uid = question["metadata"].get("trajectory_uid")
        if uid is None:
            raise InvalidInput("the attempt is not known", field="metadata.trajectory_uid")
        self._annotate([(uid, AnnotationKind.TAG, LABEL_REQUESTED)], "rescore", "verifier", question.get("question"))

    def _annotate(self, rows: list[tuple[str, str, Any]], author: str, source: str, note: str | None = None) -> str:
        now = self._clock()
        return self._pool.labels.annotate(
            [Annotation(kind, value, author, source, now, trajectory_uid=uid, note=note) for uid, kind, value in rows],
            label=f"re-scoring by {source}",
        )

    def all(self) -> list[dict[str, Any]]:
        """All re-scorings, newest first, without their results."""
        return [self._about(one) for one in self._store.all()]

    def _about(self, one: Rescoring) -> dict[str, Any]:
        judge = self._judges.get(one.settings.name)
        state = one.state
        return {
            "name": one.settings.name,
            "settings": asdict(one.settings),
            "running": self.running(one.settings.name),
            "n_done": one.n_results,
            "n_total": state.get("n_total"),
            "error": state.get("error"),
            "adopted": state.get("adopted"),
            "spending": state.get("spending") if judge is None else judge.spending.as_dict(),
        }

    def running(self, name: str) -> bool:
        """Whether a re-scoring is in progress."""
        thread = self._threads.get(name)
        return thread is not None and thread.is_alive()

    def show(self, name: str) -> dict[str, Any]:
        """One with ``comparison`` and ``reliability`` of the results so far. NotFound if there is none of this name."""
        rescoring = self._store.get(name)
        # First: when it says that nothing runs any more, the results read after it are all.
        about = self._about(rescoring)
        results = rescoring.results()
        human = self._pool.agreement.people([one.trajectory_uid for one in results])
        return {**about, "comparison": compare(results), "reliability": reliability(results, human)}

    def results(self, name: str, trajectory_uid: str) -> list[dict[str, Any]]:
        """All results of one trajectory, with their reasons."""
        return [asdict(one) for one in by_trajectory(self._store.get(name).results()).get(trajectory_uid, ())]

    def adopt(
        self,
        name: str,
        *,
        author: str = "api",
        combine: str | Mapping[str, float] | None = None,
        code: str = "complete",
        missing: Missing = "unscored",
    ) -> dict[str, Any]:
        """Give the new rewards to the trajectories, and adopt a reward policy with them.

        The rewards are annotations of the source ``rescore:NAME``. In every channel with such a trajectory, the policy
        ``rescore-NAME`` is adopted: these rewards first, then those of all other sources; or, with ``combine``, the
        combination (``core.rewards.policy.combination``) of the source ``code`` with these as the rubric. ``missing``
        says what a trajectory of the channel gets that has only one of both. Adopting another policy, or undoing the
        annotations, brings the earlier rewards back.

        Raises:
            InvalidInput: there is no such combination.
            Conflict: it is running, was adopted before, or has no result with a value.
        """
        rescoring = self._store.get(name)
        if self.running(name):
            raise Conflict(f"the re-scoring {name} is running", hint="wait, or stop it")
        if rescoring.state.get("adopted"):
            raise Conflict(f"the re-scoring {name} was adopted", hint="its policy is among the reward policies")
        grouped = by_trajectory(rescoring.results())
        rewards = {uid: value for uid, ones in grouped.items() if (value := new_reward(ones)) is not None}
        known = self._pool.trajectories.known(list(rewards))
        if not known:
            raise Conflict(f"the re-scoring {name} has no reward", hint="look at its outcomes")
        source = rescoring.settings.source
        combined = None if combine is None else combination(combine, code, source, missing)
        rows: list[tuple[str, str, Any]] = [
            (uid, AnnotationKind.REWARD, value) for uid, value in rewards.items() if uid in known
        ]
        action_uid = self._annotate(rows, author, source)
        channels = sorted({ones[0].channel for uid, ones in grouped.items() if uid in known})
        policies = {}
        for channel in channels:
            others = [one["source"] for one in self._pool.rewards.sources(channel=channel) if one["source"] != source]
            policy = f"rescore-{name}"
            rule = combined or {"rule": "precedence", "sources": [source, *others]}
            version = self._pool.rewards.save(policy, rule, author=author)
            self._pool.rewards.adopt(channel, policy, version, author=author)
            policies[channel] = f"{policy}@{version}"
        rescoring.note(adopted={"at": self._clock(), "author": author, "action_uid": action_uid, "policies": policies})
        return self._about(rescoring)

    def stop(self, name: str) -> None:
        """End one after the scores that run now; it can be resumed. NotFound if there is none of this name."""
        self._store.get(name)
        with self._lock:
            stop, thread = self._stops.get(name), self._threads.get(name)
        if stop is not None and thread is not None:
            stop.set()
            thread.join()

    def discard(self, name: str) -> None:
        """Stop one and remove its results. Adopted rewards stay.

        Raises:
            NotFound: there is none of this name.
        """
        self.stop(name)
        self._store.remove(name)
        self._judges.pop(name, None)

    def close(self) -> None:
        """Stop all."""
        for name in list(self._threads):
            try:
                self.stop(name)
            except NotFound:
                continue


def judge_settings(fields: Mapping[str, Any]) -> JudgeSettings:
    """The settings of a judge from JSON.

    Raises:
        InvalidInput: a field is unknown, or the model is missing.
    """
    try:
        return JudgeSettings(**fields)
    except TypeError as error:
        raise InvalidInput(
            f"the judge's settings are invalid: {error}", field="judge", hint="model, temperature, max_tokens, ..."
        ) from None


def _view(settings: RescoreSettings) -> View:
    return View(dict(settings.view.get("filters") or {}), str(settings.view.get("where") or ""))
