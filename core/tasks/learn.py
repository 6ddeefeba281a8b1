"""Produces the rollouts of a learning run: samples tasks, runs the policy on them, verifies and completes the attempts.

    python -m core.tasks.learn --studio http://127.0.0.1:8100 --out FOLDER [--updates 15 --seed 0 --control shuffle]

The trainer is a program of its own (``examples/train_policy.py``). The two meet only in the studio: this program
produces ``n_tasks × n_rollouts`` attempts for the policy version in force, the trainer fetches them as a leased batch,
updates the weights and syncs them, and the version goes up by one. Progress is printed as one JSON object a line.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from core.client import StudioClient, trusting
from core.errors import StudioError
from core.rewards import Score, score
from core.tasks.demo import DEMO_DATA
from core.tasks.line_agent import MAX_TURNS, run_line_agent
from core.tasks.pack import read_pack
from core.tasks.programs import example_program
from core.tasks.task import Task
from core.types import RUN_KEY

ENGINE = "learn"
MODEL = "learn-policy"
AGENT = "line-agent"
TRAIN_CHANNEL, HELD_OUT_CHANNEL, GREEDY_CHANNEL = "learn", "learn-val", "learn-greedy"
POLICY = DEMO_DATA / "policy"
N_PARALLEL = 16
SYNC_WAIT_S = 300.0
POLL_S = 0.2
"""Time between two questions for the version in force, seconds. Each costs the studio a request."""


@dataclass(frozen=True, slots=True)
class LearnSettings:
    """What a run does.

    Attributes:
        updates: updates of the weights.
        seed: of the tasks drawn, of every sampled token, and of the trainer.
        shuffle_rewards: the trainer permutes the advantages in each group: the control, which only drifts.
        n_tasks, n_rollouts: prompt groups of an update, and attempts of each.
        evaluate_every: held-out tasks are attempted at every such version, and at the first and the last.
        learning_rate: of the trainer.
        max_staleness: versions by which the rollouts of an update may be behind. 0: the next rollouts wait for the
            update. Above 0 they are produced meanwhile, up to this many updates ahead, and held-out tasks are
            attempted at the first and the last version only.
    """

    updates: int = 15
    seed: int = 0
    shuffle_rewards: bool = False
    n_tasks: int = 8
    n_rollouts: int = 8
    evaluate_every: int = 5
    learning_rate: float = 1.2e-4
    max_staleness: int = 0


DEFAULTS = LearnSettings()


@dataclass(frozen=True, slots=True)
class Produced:
    """The rollouts of an update, which the trainer has yet to make: its number from 0, rewards, times (monotonic)."""

    update: int
    rewards: list[float | None]
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt to run: the task, its prompt group, channel, trajectory uid, temperature and sampling seed."""

    task: Task
    prompt_uid: str
    channel: str
    trajectory_uid: str
    temperature: float
    seed: int


class LearnRun:
    """A run against a studio whose engine ``learn`` has the run's first weights.

    Args:
        studio: client of the studio.
        settings: what to do.
        name: short name, unique in the studio; uids begin with it.
        report: called with each progress message, a JSON object with ``event``.
        should_stop: checked before each model call.
    """

    def __init__(
        self,
        studio: StudioClient,
        settings: LearnSettings,
        *,
        name: str,
        tls: ssl.SSLContext | None = None,
        report: Callable[[dict[str, Any]], None] = lambda _: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.settings = settings
        self.name = name
        self._studio = studio
        self._tls = tls
        self._report = report
        self._should_stop = should_stop
        self._train = read_pack(POLICY / "tasks" / "train")
        self._held_out = read_pack(POLICY / "tasks" / "val")
        self._draw = random.Random(f"{settings.seed}/tasks")
        self._order: list[Task] = []
        self._scores: dict[tuple[str, tuple[tuple[str, bytes], ...]], Future[Score]] = {}
        self._lock = threading.Lock()

    def run(self, base_version: int, trainer: subprocess.Popen[bytes]) -> None:
        """Evaluate, then produce rollouts for every update until all are done.

        Raises:
            StudioError: the studio refused a call, or the trainer ended early.
        """
        self.evaluate(base_version, end=True)
        waiting: deque[Produced] = deque()
        for update in range(self.settings.updates):
            began = time.monotonic()
            rewards = self.attempt_all(self.rollouts_of(update, base_version + update))
            waiting.append(Produced(update, rewards, began, time.monotonic()))
            last = update + 1 == self.settings.updates
            while len(waiting) > (0 if last else self.settings.max_staleness):
                if self._should_stop():
                    return
                self._finish(waiting.popleft(), base_version, trainer)

    def _finish(self, produced: Produced, base_version: int, trainer: subprocess.Popen[bytes]) -> None:
        """Wait for the update that is made of these rollouts, report it, and evaluate where that is due."""
        waited = time.monotonic()
        n_done = produced.update + 1
        version = base_version + n_done
        self._wait_for(version, trainer)
        if self._should_stop():
            return
        self._report(
            {
                "event": "update",
                "update": n_done,
                "version": version,
                "reward": _mean(produced.rewards),
                "rollouts_s": round(produced.ended - produced.began, 2),
                "trainer_s": round(time.monotonic() - waited, 2),
            }
        )
        last = n_done == self.settings.updates
        if last or (not self.settings.max_staleness and n_done % self.settings.evaluate_every == 0):
            self.evaluate(version, end=last)

    def evaluate(self, version: int, *, end: bool) -> None:
        """Attempt every held-out task at temperature 1; at an end of the run twice, and once more greedily.

        Sampling seeds are the same for every version, so that a difference between two versions has less noise.
        """
        modes = [(HELD_OUT_CHANNEL, 1.0, 2 if end else 1), *([(GREEDY_CHANNEL, 0.0, 1)] if end else [])]
        for channel, temperature, n_attempts in modes:
            attempts = [
                Attempt(
                    task,
                    f"{self.name}-{task.task_uid}",
                    channel,
                    f"{self.name}-v{version}-{'g' if temperature == 0 else 's'}-{task.task_uid}-{k}",
                    temperature,
                    _seed(self.settings.seed, 0, task.task_uid, k),
                )
                for task in self._held_out
                for k in range(n_attempts)
            ]
            success = _mean(self.attempt_all(attempts))
            if success is not None:
                message = {"event": "evaluation", "version": version, "temperature": temperature, "success": success}
                self._report({**message, "n_attempts": len(attempts)})

    def rollouts_of(self, update: int, version: int) -> list[Attempt]:
        """The attempts of an update. Tasks are drawn without repetition until all were drawn."""
        tasks: list[Task] = []
        while len(tasks) < self.settings.n_tasks:
            if not self._order:
                self._order = self._draw.sample(self._train, len(self._train))
            tasks.append(self._order.pop())
        return [
            Attempt(
                task,
                f"{self.name}-v{version}-{task.task_uid}",
                TRAIN_CHANNEL,
                f"{self.name}-v{version}-{task.task_uid}-{k}",
                1.0,
                _seed(self.settings.seed, update, task.task_uid, k),
            )
            for task in tasks
            for k in range(self.settings.n_rollouts)
        ]

    def attempt_all(self, attempts: Sequence[Attempt]) -> list[float | None]:
        """Run attempts in parallel, then complete them with their rewards in one call; returns the rewards.

        Nothing is completed after a stop: attempts that were interrupted stay open.
        """
        with ThreadPoolExecutor(N_PARALLEL, thread_name_prefix="learn") as threads:
            rewards = list(threads.map(self._attempt, attempts))
        if not self._should_stop():
            uids = [attempt.trajectory_uid for attempt in attempts]
            self._studio.complete_many(dict(zip(uids, rewards, strict=True)))
        return rewards

    def _attempt(self, attempt: Attempt) -> float | None:
        if self._should_stop():
            return None
        task = attempt.task
        session = self._studio.session(
            trajectory_uid=attempt.trajectory_uid,
            prompt_uid=attempt.prompt_uid,
            channel=attempt.channel,
            agent=AGENT,
            metadata={"task": task.task_uid, "seed": attempt.seed, RUN_KEY: self.name, **task.metadata},
        )
        with (
            tempfile.TemporaryDirectory(prefix="claw-learn-") as folder,
            StudioClient(self._studio.base_url, api_key=session.api_key, tls=self._tls) as client,
        ):
            workspace = Path(folder)
            task.write_inputs(workspace)
            run_line_agent(
                client,
                model=MODEL,
                prompt=task.prompt,
                workspace=workspace,
                temperature=attempt.temperature,
                seed=attempt.seed,
                max_turns=MAX_TURNS,
                should_stop=self._should_stop,
            )
            judged = self._judge(task, workspace)
        if judged.error is not None:
            self._report({"event": "check_failed", "task": task.task_uid, "error": judged.error})
        return judged.value

    def _judge(self, task: Task, workspace: Path) -> Score:
        """The score of a workspace.

        Many attempts end alike, and the shipped checks read nothing but the workspace, so each distinct end of a task
        is checked once.
        """
        files = sorted(path for path in workspace.rglob("*") if path.is_file())
        end = (task.task_uid, tuple((str(path.relative_to(workspace)), path.read_bytes()) for path in files))
        with self._lock:
            known = self._scores.get(end)
            first = self._scores[end] = Future() if known is None else known
        if known is None:
            try:
                first.set_result(score(workspace, task.check))
            except BaseException as error:
                first.set_exception(error)
            if first.exception() is not None or first.result().error is not None:
                del self._scores[end]
        return first.result()

    def _wait_for(self, version: int, trainer: subprocess.Popen[bytes]) -> None:
        """Wait until the version, or a later one, is in force."""
        while not self._should_stop():
            ended = trainer.poll()
            if self._studio.policy_state()["version"] >= version:
                return
            if ended is not None:
                raise StudioError(
                    f"the trainer ended with code {ended} before version {version} was in force", hint="see its output"
                )
            time.sleep(POLL_S)


def run_and_train(
    studio: StudioClient,
    settings: LearnSettings,
    folder: Path,
    *,
    tls: ssl.SSLContext | None = None,
    report: Callable[[dict[str, Any]], None] = lambda _: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> None:
    """A run with the reference trainer: the engine ``learn`` loads the warm-started weights as a new policy version.

    Args:
        folder: the trainer's weights and its output are written below it.

    Raises:
        StudioError: the studio refused a call, or the trainer ended early; the message has its last line.
    """
    current = studio.policy_state()["version"]
    base = 0 if current is None else current + 1
    name = f"run-{base}" + ("-control" if settings.shuffle_rewards else "")
    about = {
        "name": name,
        "seed": settings.seed,
        "updates": settings.updates,
        "max_staleness": settings.max_staleness,
        "control": "shuffled rewards" if settings.shuffle_rewards else None,
        "train": TRAIN_CHANNEL,
        "val": HELD_OUT_CHANNEL,
        "greedy": GREEDY_CHANNEL,
    }
    sync = {"path": str(POLICY / "model"), "version": base, "engines": [ENGINE], "metadata": {RUN_KEY: about}}
    studio.call("POST", "/api/v1/policy/sync", sync)
    report({"event": "run", **about, "version": base})
    out = folder / name
    out.mkdir(parents=True, exist_ok=True)
    log = out / "trainer.log"
    with log.open("w") as output:
        trainer = subprocess.Popen(
            trainer_command(studio.base_url, settings, name=name, out=out),
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"},
        )
    try:
        run = LearnRun(studio, settings, name=name, tls=tls, report=report, should_stop=should_stop)
        run.run(base, trainer)
    except StudioError as error:
        if trainer.poll() not in (None, 0):
            error.hint = (log.read_text(errors="replace").strip().splitlines() or ["it printed nothing"])[-1]
        raise
    finally:
        trainer.terminate()
        trainer.wait()


def trainer_command(studio_url: str, settings: LearnSettings, *, name: str, out: Path) -> list[str]:
    """The command line of the reference trainer."""
    return [
        sys.executable,
        str(example_program("train_policy.py")),
        *("--studio", studio_url, "--model", str(POLICY / "model"), "--out", str(out), "--algorithm", "grpo"),
        *("--updates", str(settings.updates), "--lr", str(settings.learning_rate), "--seed", str(settings.seed)),
        *("--groups", str(settings.n_tasks), "--rollouts", str(settings.n_rollouts)),
        *("--max-staleness", str(settings.max_staleness)),
        *("--channel", TRAIN_CHANNEL, "--engine", ENGINE, "--consumer", name),
        *(["--shuffle-rewards"] if settings.shuffle_rewards else []),
    ]


def _mean(rewards: Sequence[float | None]) -> float | None:
    known = [reward for reward in rewards if reward is not None]
    return sum(known) / len(known) if known else None


def _seed(*parts: object) -> int:
    """A sampling seed, below 2**31, from the run's seed and the attempt's place."""
    return random.Random("/".join(map(str, parts))).getrandbits(31)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; prints one JSON object a line. The run stops when stdin ends."""
    parser = argparse.ArgumentParser(description="produce the rollouts of a learning run, and train on them")
    add: Any = parser.add_argument
    add("--studio", required=True, help="root URL of the studio; the key is CLAW_STUDIO_API_KEY")
    add("--out", type=Path, required=True, help="folder for weights and the trainer's output")
    add("--updates", type=int, default=DEFAULTS.updates)
    add("--seed", type=int, default=0)
    add("--evaluate-every", type=int, default=DEFAULTS.evaluate_every)
    add("--learning-rate", type=float, default=DEFAULTS.learning_rate)
    add("--max-staleness", type=int, default=0)
    add("--control", choices=["shuffle"], help="a second run afterwards, with shuffled rewards")
    add("--tls-cert", type=Path, help="certificate of the studio, for https")
    arguments = parser.parse_args(argv)
    stopping = threading.Event()

    def stop_with_stdin() -> None:
        # Not sys.stdin: a thread that waits in it would hold its lock when the interpreter ends.
        while os.read(0, 4096):
            pass
        stopping.set()

    threading.Thread(target=stop_with_stdin, daemon=True).start()
    tls = None if arguments.tls_cert is None else trusting(arguments.tls_cert)
    settings = LearnSettings(
        arguments.updates,
        arguments.seed,
        evaluate_every=arguments.evaluate_every,
        learning_rate=arguments.learning_rate,
        max_staleness=arguments.max_staleness,
    )
    lock = threading.Lock()

    def report(message: dict[str, Any]) -> None:
        with lock:
            print(json.dumps(message), flush=True)

    try:
        with StudioClient(
            arguments.studio, api_key=os.environ.get("CLAW_STUDIO_API_KEY"), tls=tls, timeout_s=SYNC_WAIT_S
        ) as studio:
            for shuffle in (False, True) if arguments.control else (False,):
                one = replace(settings, shuffle_rewards=shuffle)
                run_and_train(studio, one, arguments.out, tls=tls, report=report, should_stop=stopping.is_set)
    except StudioError as error:
        report({"event": "error", "message": error.message, "hint": error.hint})
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
