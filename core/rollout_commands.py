"""The command ``claw-studio rollout``: starts or resumes a run over HTTP and prints attempts as they end."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from core.client import StudioClient
from core.errors import InvalidInput, StudioError
from core.harnesses import NAMES
from core.harnesses.command import words_of
from core.printable import print_json, printable

Connect = Callable[[Path | None], AbstractContextManager[StudioClient]]
"""A client of the service that owns this data folder."""
POLL_S = 0.5


def add_rollout_to(app: typer.Typer, connect: Connect) -> None:
    """Register the command."""

    @app.command()
    def rollout(
        pack: Annotated[str, typer.Argument(help="Folder or file of tasks, or name or version of a stored pack")] = "",
        agent: Annotated[str, typer.Option(help=", ".join(NAMES))] = "demo",
        command: Annotated[
            str, typer.Option(help="Command line with {prompt}, {base_url}, {api_key}, {model}, {workspace}")
        ] = "",
        read: Annotated[
            list[Path] | None, typer.Option(help="File or folder that the agent may read as well; may be repeated")
        ] = None,
        attempts: Annotated[int, typer.Option(min=1, help="Attempts of each task")] = 1,
        workers: Annotated[
            int | None, typer.Option(min=1, help="Attempts at a time; by default from free memory and the agent's cost")
        ] = None,
        model: Annotated[str | None, typer.Option(help="Model; by default the only one that is served")] = None,
        channel: Annotated[str | None, typer.Option(help="Channel of the trajectories")] = None,
        seed: Annotated[int, typer.Option(min=0, help="Attempt n has the seed SEED + n")] = 0,
        isolation: Annotated[str, typer.Option(help="Lowest level: process, restricted, strict")] = "process",
        tasks: Annotated[str, typer.Option(help="Ids of tasks, separated by commas; by default all")] = "",
        split: Annotated[str | None, typer.Option(help="Only tasks of this split: train or val")] = None,
        time_s: Annotated[float | None, typer.Option("--time", help="Time limit of the agent, seconds")] = None,
        check_time_s: Annotated[
            float | None, typer.Option("--check-time", help="Time limit of the check, seconds")
        ] = None,
        memory_mb: Annotated[
            int | None, typer.Option("--memory", min=1, help="Memory limit of an attempt, MiB")
        ] = None,
        max_calls: Annotated[int | None, typer.Option(min=1, help="Most model calls of an attempt")] = None,
        solved_above: Annotated[
            float | None, typer.Option(min=0, max=1, help="An attempt is solved if its score is above this; 0.5")
        ] = None,
        name: Annotated[str | None, typer.Option(help="Name of the run; by default its time")] = None,
        resume: Annotated[str | None, typer.Option(help="Go on with this run instead of starting one")] = None,
        retry: Annotated[
            str, typer.Option(help="With --resume: outcomes to make again: lost, crashed, refused")
        ] = "lost",
        data: Annotated[Path | None, typer.Option("--data", help="Data folder: journal, pool, exports")] = None,
        json_: Annotated[bool, typer.Option("--json", help="One JSON object per attempt, then the run")] = False,
    ) -> None:
        """Let an agent attempt every task of a pack in sandboxes, and score it. Ctrl-C cancels; --resume goes on.

        Exit code 1 if the run stopped before its end.
        """
        if resume is None and not pack:
            raise InvalidInput("no pack is named", field="pack", hint="claw-studio rollout FOLDER --agent demo")
        if resume is not None:
            path, body = f"/api/v1/rollouts/{quote(resume, safe='')}/resume", _resume_body(workers, retry)
        else:
            wish = {
                "agent": "command" if command and agent == "demo" else agent, "command": words_of(command, Path()),
                "readable": [os.path.normpath(one.absolute()) for one in read or ()],
                "attempts": attempts, "workers": workers, "model": model, "channel": channel, "seed": seed,
                "isolation": isolation, "tasks": _names(tasks), "split": split, "time_s": time_s,
                "check_time_s": check_time_s, "memory_mb": memory_mb, "max_calls": max_calls, "run": name,
                **({} if solved_above is None else {"solved_above": solved_above}),
            }  # fmt: skip
            path, body = "/api/v1/rollouts", {"pack": _place(pack), **wish}
        with connect(data) as client:
            run = client.call("POST", path, body)
            uid = run["run"]
            if not json_:
                begun = f"{len(run['task_ids'])} tasks × {run['attempts']} attempts, {run['workers']} at a time"
                text = f"run {uid}: {run['pack']} with {run['harness']} and {run['model']}; {begun}"
                print(printable(text), flush=True)
                if run["retention"]:
                    print(retention_text(run["retention"]))
            try:
                for attempt in ended_attempts(client, uid):
                    print_json(attempt) if json_ else print(printable(attempt_text(attempt)), flush=True)
            except KeyboardInterrupt:
                client.call("POST", f"/api/v1/rollouts/{quote(uid, safe='')}/cancel")
                print(f"cancelled; claw-studio rollout --resume {uid} goes on", file=sys.stderr)
            run = client.call("GET", f"/api/v1/rollouts/{quote(uid, safe='')}", repeat=True)
        print_json(run) if json_ else print(printable(run_text(run)))
        if run["error"]:
            raise StudioError(run["error"], hint=f"claw-studio rollout --resume {uid}")
        raise typer.Exit(0 if run["progress"]["state"] == "finished" else 1)


def ended_attempts(client: StudioClient, run: str) -> Iterator[dict[str, Any]]:
    """The attempts of a run as they end, until the run does. Those that had ended before are left out."""
    path = f"/api/v1/rollouts/{quote(run, safe='')}"
    shown = {_key(one) for one in client.call("GET", f"{path}/attempts", repeat=True)["attempts"] if _is_done(one)}
    while True:
        in_progress = client.call("GET", path, repeat=True)["progress"]["in_progress"]
        for attempt in client.call("GET", f"{path}/attempts", repeat=True)["attempts"]:
            if _is_done(attempt) and _key(attempt) not in shown:
                shown.add(_key(attempt))
                yield attempt
        if not in_progress:
            return
        time.sleep(POLL_S)


def attempt_text(attempt: dict[str, Any]) -> str:
    """An attempt as one line."""
    score = "unscored" if attempt["score"] is None else f"score {attempt['score']:.3g}"
    took = "" if attempt["wall_s"] is None else f", {attempt['wall_s']:.1f} s"
    reason = f" ({attempt['reason']})" if attempt["reason"] else ""
    return f"  {attempt['task_id']} #{attempt['number']}: {attempt['outcome']}, {score}{took}{reason}"


def run_text(run: dict[str, Any]) -> str:
    """A run as one line."""
    done = run["progress"]
    outcomes = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in done["outcomes"].items()) or "nothing ended"
    mean = "unscored" if done["mean_score"] is None else f"mean score {done['mean_score']:.3f} of {done['n_scored']}"
    return f"run {run['run']} {done['state']}: {done['n_done']} of {done['n_slots']} attempts; {outcomes}; {mean}"


def retention_text(removed: dict[str, Any]) -> str:
    """What retention removed when a run started, as one line."""
    size = f"{removed['n_bytes'] / (1 << 20):.1f} MiB"
    return (
        f"retention removed {removed['n_workspaces']} final workspaces ({size}); {removed['n_attempts']} attempts keep "
        "a score that can't be made again (settings workspace_days, workspace_gib)"
    )


def _key(attempt: dict[str, Any]) -> tuple[str, int, int]:
    return attempt["task_id"], attempt["number"], attempt["retry"]


def _is_done(attempt: dict[str, Any]) -> bool:
    return bool(attempt["state"] == "done")


def _place(pack: str) -> str:
    """The absolute path of what exists; else a stored pack's name."""
    path = Path(pack)
    return str(path.absolute()) if path.exists() else pack


def _names(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]


def _resume_body(workers: int | None, retry: str) -> dict[str, Any]:
    return {"workers": workers, "retry": _names(retry)}
