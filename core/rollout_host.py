"""The rollouts of a service: plans and starts runs, each in a supervisor process, and reads their state."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from core.client import StudioClient, trusting
from core.config import Settings
from core.errors import Conflict, InvalidInput, NotFound
from core.packs import Pack, read_pack
from core.packs.library import PackLibrary
from core.rollouts import Attempt, Outcome, Run, RunSettings, RunStore, WorkspaceStore
from core.rollouts.planning import Wish, plan_run
from core.rollouts.progress import progress
from core.rollouts.runner import waiting_slots
from core.rollouts.settings import MAX_WORKERS, run_name
from core.supervisors import STOP_S, Supervisors

log = logging.getLogger(__name__)


class RolloutHost:
    """The runs of a data folder. Supervisors end with this process, or with ``close``; their runs can be resumed.

    Args:
        base_url: returns the studio's root URL.
        clock: seconds since the epoch.

    Attributes:
        packs, runs, workspaces: what is stored.
    """

    def __init__(
        self,
        settings: Settings,
        base_url: Callable[[], str],
        clock: Callable[[], float],
    ) -> None:
        self.packs = PackLibrary(settings.packs_dir)
        self.runs = RunStore(settings.rollouts_dir)
        self.workspaces = WorkspaceStore(settings.workspaces_dir)
        self._settings = settings
        self._base_url = base_url
        self._clock = clock
        self._supervisors = Supervisors("core.rollouts.worker", settings, base_url)
        self._retention: dict[str, dict[str, Any]] = {}

    def pack(self, name: str) -> Pack:
        """A pack: by an absolute path, or a stored one by name or version.

        Raises:
            InvalidInput: the path can't be read as a pack.
            NotFound: no stored pack has this name.
        """
        if not Path(name).is_absolute():
            return self.packs.get(self.packs.find(name).version)
        try:
            return read_pack(Path(name))
        except OSError as error:
            raise InvalidInput(
                f"the pack can't be read: {error}", field="pack", hint="name a folder of tasks"
            ) from error

    def plan(self, pack: str, wish: Wish, *, run: str | None = None) -> tuple[Pack, RunSettings]:
        """The pack and the settings of a run, checked; nothing is started."""
        now = self._clock()
        read = self.pack(pack)
        name = run or run_name(now, secrets.token_hex(2))
        return read, plan_run(wish, read, run=name, pack_path=pack, now=now, models=self._models())

    def start(self, pack: str, wish: Wish, *, run: str | None = None) -> Run:
        """Start a run.

        Raises:
            StudioError: as ``plan``; Conflict if there is a run of this name.
        """
        read, settings = self.plan(pack, wish, run=run)
        self.packs.keep(read, now=self._clock())
        made = self.runs.create(settings)
        self._prune(made)
        self._supervise(made)
        return made

    def resume(self, run: str, *, workers: int | None = None, retry: Sequence[Outcome] = ("lost",)) -> Run:
        """Go on with a run: attempts that are missing, and those that ended with one of the outcomes ``retry``.

        Raises:
            NotFound: there is no such run.
            Conflict: it is in progress, or nothing is left to do.
            InvalidInput: an outcome has a score.
        """
        stored = self.runs.get(run)
        if workers is not None and not 1 <= workers <= MAX_WORKERS:
            raise InvalidInput(f"{workers} workers", field="workers", hint=f"a number from 1 to {MAX_WORKERS}")
        if self._supervisors.alive(run) or stored.in_progress:
            raise Conflict(f"the run {run} is in progress", field="run", hint="wait for its end, or cancel it")
        half_way = any(one.state != "done" for one in stored.attempts())
        if not waiting_slots(stored, retry) and not half_way:
            raise Conflict(
                f"nothing is left to do in {run}", field="run", hint="retry names outcomes: lost, crashed, refused"
            )
        self._supervise(stored, workers=workers, retry=retry)
        return stored

    def cancel(self, run: str, timeout_s: float = STOP_S) -> bool:
        """End a run: attempts that are under way are lost. Returns whether it ran. NotFound if there is no such run."""
        self.runs.get(run)
        return self._supervisors.end(run, timeout_s)

    def status(self, run: Run) -> dict[str, Any]:
        """Settings and progress of a run.

        ``error`` is why its newest supervisor stopped early, or None. ``retention`` is what was removed when this
        process started the run: ``{n_workspaces, n_bytes, n_attempts}``, where ``n_attempts`` have a score that can't
        be made again; None if nothing was.
        """
        uid = run.settings.run
        done = progress(run, starting=self._supervisors.alive(uid))
        error = None if done.in_progress else self._supervisors.error(uid, run.folder)
        retention = self._retention.get(uid)
        return {**run.settings.to_json(), "progress": done.to_json(), "error": error, "retention": retention}

    def attempt(self, run: Run, task_id: str, number: int, retry: int | None = None) -> Attempt:
        """One attempt; ``retry`` None means the newest. NotFound if it was not begun."""
        fitting = [one for one in run.attempts() if one.slot == (task_id, number) and retry in (None, one.retry)]
        if not fitting:
            raise NotFound(f"attempt {number} at {task_id!r} was not begun", field="attempt")
        return max(fitting, key=lambda one: one.retry)

    def close(self) -> None:
        """End all supervisors; their runs can be resumed."""
        self._supervisors.close()

    def _models(self) -> list[str]:
        """The models that the gateway lists now."""
        tls = None if self._settings.tls_cert is None else trusting(self._settings.tls_cert)
        with StudioClient(self._base_url(), api_key=self._settings.api_key, tls=tls) as client:
            return list(dict.fromkeys(one["id"] for one in client.call("GET", "/v1/models", repeat=True)["data"]))

    def _supervise(self, run: Run, *, workers: int | None = None, retry: Sequence[Outcome] = ("lost",)) -> None:
        options = ["--retry", ",".join(retry), *([] if workers is None else ["--workers", str(workers)])]
        self._supervisors.start(run.settings.run, run.folder, options)

    def _prune(self, run: Run) -> None:
        """Apply the retention rule as ``run`` starts, and say what it removed."""
        days, gib = self._settings.workspace_days, self._settings.workspace_gib
        pruned = self.workspaces.prune(
            now=self._clock(),
            older_than_s=None if days is None else days * 86_400,
            max_bytes=None if gib is None else int(gib * (1 << 30)),
        )
        if not pruned.n_workspaces:
            return
        attempts = [one for other in self.runs.all() for one in other.attempts() if one.score is not None]
        n_attempts = sum(one.workspace in pruned.workspaces for one in attempts)
        self._retention[run.settings.run] = {
            "n_workspaces": pruned.n_workspaces,
            "n_bytes": pruned.n_bytes,
            "n_attempts": n_attempts,
        }
        log.warning(
            "retention removed %d final workspaces (%d bytes): %d attempts keep a score that can't be made again",
            pruned.n_workspaces,
            pruned.n_bytes,
            n_attempts,
        )
