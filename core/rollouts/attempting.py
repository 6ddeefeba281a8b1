"""One attempt, from its session key to its completed trajectory.

Each state is on disk before the next begins: begun, workspace stored, result known, trajectory complete. What a killed
supervisor leaves is therefore known exactly (``core.rollouts.runner`` continues from it).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from core.client import Session, StudioClient, Unreachable
from core.errors import NotFound, StudioError
from core.harnesses import KEY_PLACE, Harness, Job, Program
from core.packs.model import PackTask
from core.rewards import Score
from core.rollouts.attempt import Attempt, Outcome, uid_part
from core.rollouts.log import AttemptWriter
from core.rollouts.runs import Run
from core.rollouts.verifying import await_ingest, n_answered, needs_payload, payload_of, verify
from core.rollouts.workspaces import WorkspaceStore
from core.sandbox import Ended, Limits, Probed, Sandbox

KEY_MARGIN_S = 120.0
"""How long a session key is valid beyond the agent's time limit, seconds."""
CANCELLED = "the run was cancelled"
MAX_REASON = 500
MAX_DETAILS = 64 << 10
LIMIT_REASONS = {
    "out_of_memory": "the agent exceeded its memory limit",
    "disk_full": "the agent exceeded its limit of disk space or files",
}


@dataclass(frozen=True)
class Place:
    """What all attempts of a run share.

    Attributes:
        run: the run.
        tasks: task id -> task.
        harness, program: the agent.
        layer: how it is isolated.
        studio: client with the admin key.
        workspaces: where final workspaces are stored.
        writer: the run's attempts log.
        clock: seconds since the epoch.
        should_stop: whether the run is being cancelled.
        entrance: host and port at which agents reach the gateway; None: at the address that a session names.
    """

    run: Run
    tasks: Mapping[str, PackTask]
    harness: Harness
    program: Program
    layer: Probed
    studio: StudioClient
    workspaces: WorkspaceStore
    writer: AttemptWriter
    clock: Callable[[], float]
    should_stop: Callable[[], bool]
    entrance: tuple[str, int] | None = None

    def write(self, attempt: Attempt) -> Attempt:
        """Store the attempt's state; it is on disk when this returns."""
        self.writer.write(attempt)
        return attempt


def new_attempt(place: Place, task_id: str, number: int, retry: int) -> Attempt:
    """A new attempt. Its trajectory's uid names run, task and attempt."""
    settings = place.run.settings
    name = f"{settings.run}:{uid_part(task_id)}:{number}"
    return Attempt(
        run=settings.run,
        pack=settings.pack,
        pack_version=settings.pack_version,
        task_id=task_id,
        harness=place.harness.name,
        number=number,
        retry=retry,
        trajectory_uid=name if retry == 0 else f"{name}:{retry}",
        isolation=place.layer.isolation.as_dict(),
        started_at=place.clock(),
    )


def make_attempt(place: Place, attempt: Attempt) -> Attempt:
    """Run the agent, verify its workspace, and complete the trajectory; returns the attempt's last state.

    Raises:
        Unreachable: the studio is gone. The log says how far the attempt was.
        OSError: log or workspace could not be written.
    """
    task = place.tasks[attempt.task_id]
    place.write(attempt)
    if task.image is not None:
        why = f"the task needs the container image {task.image}, and containers are not supported"
        return place.write(ended(place, attempt, "refused", why, state="done"))
    try:
        session = place.studio.session(
            trajectory_uid=attempt.trajectory_uid,
            prompt_uid=attempt.prompt_uid,
            channel=place.run.settings.channel,
            agent=attempt.harness,
            metadata=metadata_of(attempt),
            expires_in_s=time_limit(place, task) + KEY_MARGIN_S,
            **({} if place.run.settings.max_calls is None else {"max_calls": place.run.settings.max_calls}),
        )
    except Unreachable:
        raise
    except StudioError as error:
        why = f"the studio refused a session: {error.message}"
        return place.write(ended(place, attempt, "refused", why, state="done"))
    try:
        attempt = _in_sandbox(place, attempt, task, session)
    finally:
        with contextlib.suppress(StudioError):
            place.studio.revoke(session.key_id)
    return complete(place, attempt)


def complete(place: Place, attempt: Attempt) -> Attempt:
    """Complete the trajectory of an attempt whose result is stored, and say so in the log."""
    # Without a session there is no trajectory.
    with contextlib.suppress(NotFound):
        place.studio.complete(attempt.trajectory_uid, reward=attempt.score, outcome=attempt.outcome)
    return place.write(replace(attempt, state="done"))


def ended(
    place: Place, attempt: Attempt, outcome: Outcome, reason: str | None = None, *, state: Any = "reporting"
) -> Attempt:
    """The attempt with its outcome."""
    short = None if reason is None else reason[:MAX_REASON]
    return replace(attempt, state=state, outcome=outcome, reason=short, ended_at=place.clock())


def metadata_of(attempt: Attempt) -> dict[str, Any]:
    """Metadata of the session, and so of every step of the trajectory."""
    return {
        "run": attempt.run,
        "pack": attempt.pack,
        "pack_version": attempt.pack_version,
        "task": attempt.task_id,
        "attempt": attempt.number,
        "retry": attempt.retry,
        "harness": attempt.harness,
        "isolation": None if attempt.isolation is None else attempt.isolation["level"],
    }


def time_limit(place: Place, task: PackTask) -> float:
    """Time limit of the agent, seconds: the run's, else the task's, else the harness's."""
    return place.run.settings.time_s or task.timeout_s or place.harness.time_s


def _in_sandbox(place: Place, attempt: Attempt, task: PackTask, session: Session) -> Attempt:
    """Agent and check; the attempt with its result, which is on disk."""
    settings = place.run.settings
    memory = place.harness.memory_limit if settings.memory_mb is None else settings.memory_mb << 20
    limits = Limits(time_s=time_limit(place, task), memory_bytes=memory)
    url = urlsplit(session.anthropic_base_url)
    gateway = place.entrance or (url.hostname or "127.0.0.1", url.port or 80)
    with contextlib.ExitStack() as opened:
        try:
            box = place.layer.sandbox(gateway=gateway, readable=place.program.readable, limits=limits)
            sandbox: Sandbox = opened.enter_context(box)
            result = _run_agent(place, attempt, task, session, sandbox, limits)
        except OSError as error:
            return place.write(ended(place, attempt, "lost", f"the sandbox could not be started: {error}"))
        attempt = replace(attempt, wall_s=round(result.wall_s, 3), cpu_s=_rounded(result.cpu_s))
        attempt = replace(attempt, memory_bytes=result.memory_bytes)
        attempt = replace(attempt, log=place.run.write_log(attempt, log_text(result, session.api_key)))
        if result.end == "stopped":
            return place.write(ended(place, attempt, "lost", CANCELLED))
        digest = place.workspaces.put(sandbox.workspace, task.input_files)
        attempt = place.write(replace(attempt, state="verifying", workspace=digest))
        failure = failure_of(result)
        if failure is not None:
            return place.write(ended(place, attempt, "crashed", failure))
        return place.write(_verified(place, attempt, task, sandbox, timed_out=result.end == "timed_out"))


def _run_agent(
    place: Place, attempt: Attempt, task: PackTask, session: Session, sandbox: Sandbox, limits: Limits
) -> Ended:
    assert sandbox.gateway is not None
    host, port = sandbox.gateway
    job = Job(
        prompt=task.query,
        root=f"http://{f'[{host}]' if ':' in host else host}:{port}",
        api_key=session.api_key,
        model=place.run.settings.model,
        workspace=sandbox.workspace,
        home=sandbox.home,
        seed=place.run.settings.seed + attempt.number,
        time_s=limits.time_s,
    )
    start = place.harness.start(place.program, job)
    sandbox.put({path: one.content for path, one in task.input_files.items()})
    for path, one in task.input_files.items():
        if one.executable:
            (sandbox.workspace / path).chmod(0o755)
    sandbox.put_home({path: text.encode() for path, text in start.home.items()})
    return sandbox.run(start.command, env=start.env, stdin=start.stdin, should_stop=place.should_stop)


def _verified(place: Place, attempt: Attempt, task: PackTask, sandbox: Sandbox, *, timed_out: bool) -> Attempt:
    """The attempt with its score. An agent without an answered call did nothing that could be scored."""
    begin = time.monotonic()
    payload: dict[str, Any] = {}
    if needs_payload(task):
        await_ingest(place.studio, begin)
        payload = payload_of(place.studio, attempt.trajectory_uid)
    judged = verify(task, sandbox.workspace, place.run.settings, payload, place.should_stop)
    if judged.value is None and place.should_stop():
        return ended(place, attempt, "lost", CANCELLED)
    attempt = replace(attempt, check_s=round(time.monotonic() - begin, 3), details=details_of(judged))
    if judged.value is None:
        outcome: Outcome = "refused" if judged.outcome == "refused" else "crashed"
        return ended(place, attempt, outcome, f"check: {judged.error}")
    solved = judged.value > place.run.settings.solved_above
    if not solved and not n_answered(place.studio, attempt.trajectory_uid):
        await_ingest(place.studio, begin)
        if not n_answered(place.studio, attempt.trajectory_uid):
            return ended(place, attempt, "crashed", "the agent made no model call that was answered")
    attempt = replace(attempt, score=judged.value)
    if timed_out:
        return ended(place, attempt, "timed_out", f"ended after {attempt.wall_s:.0f} s")
    return ended(place, attempt, "solved" if solved else "failed")


def failure_of(result: Ended) -> str | None:
    """Why an agent's end is no attempt that can be scored; None if it is one."""
    if result.end in LIMIT_REASONS:
        return LIMIT_REASONS[result.end]
    if result.end == "exited" and result.returncode != 0:
        lines = result.stderr.decode(errors="replace").strip().splitlines()
        last = f": {lines[-1].strip()}" if lines else ""
        return f"the agent ended with code {result.returncode}{last}"
    return None


def details_of(judged: Score) -> dict[str, Any]:
    """The verifier's details and environment as they are stored with the attempt; large ones are left out."""
    details = {**dict(judged.details), "environment": dict(judged.environment)}
    if len(repr(details)) > MAX_DETAILS:
        return {"left_out": f"the verifier's details have more than {MAX_DETAILS} characters"}
    return details


def log_text(result: Ended, api_key: str) -> bytes:
    """Output and errors of the agent, without its key."""
    parts = [result.stdout]
    if result.stderr:
        parts += [b"" if not result.stdout or result.stdout.endswith(b"\n") else b"\n", b"--- stderr ---\n"]
        parts.append(result.stderr)
    code = f"\n--- {result.end.replace('_', ' ')}, code {result.returncode}, {result.wall_s:.1f} s ---\n"
    return b"".join([*parts, code.encode()]).replace(api_key.encode(), KEY_PLACE.encode())


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
