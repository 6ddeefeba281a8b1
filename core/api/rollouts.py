"""The rollout routes: start, list, show, cancel and resume runs; attempts with their output and workspace."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from core.api.handling import Call
from core.api.routing import Router
from core.api.schemas import BOOL, INT, INT_OR_NULL, NUM_OR_NULL, OBJ, STR, TEXT_OR_NULL, TIME, array, obj, or_null
from core.api.wire import Flag, Number, WireModel
from core.errors import InvalidInput, NotFound
from core.harnesses import NAMES, REGISTRY, HarnessMissing
from core.rollouts import Attempt, Run
from core.rollouts.diffs import diffs
from core.rollouts.planning import Wish
from core.rollouts.settings import MAX_ATTEMPTS, MAX_WORKERS, SOLVED_ABOVE

routes = Router()

PROGRESS = obj(
    state={"enum": ["running", "finished", "stopped"]}, in_progress=BOOL, n_slots=INT, n_waiting=INT, n_running=INT,
    n_done=INT, outcomes=OBJ, n_retries=INT, n_scored=INT, mean_score=NUM_OR_NULL, eta_s=NUM_OR_NULL,
    mean_s=NUM_OR_NULL,
)  # fmt: skip
RUN = obj(
    run=STR, pack=STR, pack_version=STR, task_ids=array(STR), harness=STR, model=STR, attempts=INT, workers=INT,
    channel=TEXT_OR_NULL, seed=INT, isolation=STR, created_at=TIME, progress=PROGRESS, error=TEXT_OR_NULL,
    retention=or_null(obj(n_workspaces=INT, n_bytes=INT, n_attempts=INT)),
)  # fmt: skip
ATTEMPT = obj(
    run=STR, task_id=STR, harness=STR, number=INT, retry=INT, prompt_uid=STR, trajectory_uid=STR, state=STR,
    outcome=TEXT_OR_NULL, reason=TEXT_OR_NULL, score=NUM_OR_NULL, details=OBJ, isolation=or_null(OBJ),
    wall_s=NUM_OR_NULL, cpu_s=NUM_OR_NULL, memory_bytes=INT_OR_NULL, check_s=NUM_OR_NULL, workspace=TEXT_OR_NULL,
    started_at=TIME, ended_at=TIME,
)  # fmt: skip
FILE_DIFF = obj(path=STR, kind=STR, diff=TEXT_OR_NULL, note=TEXT_OR_NULL)
WHICH = {"task": STR, "attempt": {"type": "integer", "minimum": 0}, "retry": {"type": "integer", "minimum": 0}}
MOST = 2**31 - 1

Words = list[Annotated[str, Field(min_length=1, max_length=4096)]]


class RolloutIn(WireModel):
    """``POST rollouts``. ``pack`` is the absolute path of a pack, or the name or version of a stored one."""

    pack: Annotated[str, Field(min_length=1, max_length=4096)]
    agent: str = Field("demo", description=", ".join(NAMES))
    command: Words = Field([], description="Program and arguments with placeholders, for the agent command")
    readable: Words = Field([], description="Absolute paths of files and folders that the agent may read as well")
    run: str | None = Field(None, description="Name of the run; by default its time")
    attempts: Annotated[int, Field(ge=1, le=MAX_ATTEMPTS, strict=True)] = 1
    workers: Annotated[int, Field(ge=1, le=MAX_WORKERS, strict=True)] | None = Field(
        None, description="Attempts at a time; by default from free memory and the agent's measured cost"
    )
    model: Annotated[str, Field(min_length=1, max_length=512)] | None = Field(
        None, description="By default the only model that the engines serve"
    )
    channel: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    seed: Annotated[int, Field(ge=0, le=MOST, strict=True)] = 0
    isolation: Literal["process", "restricted", "strict"] = "process"
    tasks: Words = Field([], description="Ids of tasks; empty: all")
    split: Literal["train", "val"] | None = None
    time_s: Annotated[Number, Field(gt=0, le=1e6)] | None = Field(None, description="Time limit of the agent, seconds")
    check_time_s: Annotated[Number, Field(gt=0, le=1e6)] | None = None
    memory_mb: Annotated[int, Field(ge=1, le=1 << 24, strict=True)] | None = None
    max_calls: Annotated[int, Field(ge=1, le=MOST, strict=True)] | None = None
    solved_above: Annotated[Number, Field(ge=0, le=1)] = SOLVED_ABOVE
    dry_run: Flag = Field(False, description="Check the request and start nothing")

    def wish(self) -> Wish:
        """The settings that the user asked for."""
        return Wish(**self.model_dump(exclude={"pack", "run", "dry_run"}))


class ResumeIn(WireModel):
    """``POST rollouts/{run}/resume``."""

    workers: Annotated[int, Field(ge=1, le=MAX_WORKERS, strict=True)] | None = None
    retry: list[Literal["lost", "crashed", "refused"]] = Field(
        ["lost"], description="Outcomes whose attempts are made again"
    )


@routes(
    "POST",
    "/rollouts",
    RUN,
    statuses=(404, 409),
    reads_pool=False,
    example={"pack": "/packs/demo", "agent": "demo", "attempts": 8, "dry_run": True},
)
def start(call: Call, body: RolloutIn) -> Any:
    """Start a run of rollouts.

    Every task of the pack is attempted `attempts` times, each in a fresh sandbox whose only reachable address is the
    gateway, and verified by its own check. The prompt group of an attempt is task and agent.
    """
    host = call.deps.rollouts
    if body.dry_run:
        _, settings = host.plan(body.pack, body.wish(), run=body.run)
        nothing = {
            "state": "stopped", "in_progress": False, "n_slots": settings.n_slots, "n_waiting": settings.n_slots,
            "n_running": 0, "n_done": 0, "outcomes": {}, "n_retries": 0, "n_scored": 0, "mean_score": None,
            "eta_s": None, "mean_s": None,
        }  # fmt: skip
        return {**settings.to_json(), "progress": nothing, "error": None, "retention": None}
    return host.status(host.start(body.pack, body.wish(), run=body.run))


@routes("GET", "/rollouts", obj(runs=array(RUN)), reads_pool=False)
def list_runs(call: Call) -> Any:
    """All runs with their progress, newest first."""
    host = call.deps.rollouts
    return {"runs": [host.status(run) for run in host.runs.all()]}


@routes("GET", "/rollouts/{run}", RUN, statuses=(404,), reads_pool=False)
def show(call: Call) -> Any:
    """One run with its progress."""
    return call.deps.rollouts.status(_run(call))


@routes(
    "GET",
    "/rollouts/{run}/attempts",
    obj(attempts=array(ATTEMPT), n_attempts=INT),
    query={"since": {"type": "integer", "minimum": 0, "description": "Leave out so many of the first attempts"}},
    statuses=(404,),
    reads_pool=False,
)
def attempts(call: Call) -> Any:
    """The attempts of a run in order of their beginning, retries included."""
    since = call.int_query("since", 0, low=0, high=MOST)
    begun = _run(call).attempts()
    return {"attempts": [one.to_json() for one in begun[since:]], "n_attempts": len(begun)}


@routes(
    "GET",
    "/rollouts/{run}/attempt",
    obj(
        attempt=ATTEMPT,
        log=TEXT_OR_NULL,
        changes=or_null(array(FILE_DIFF)),
        left_out=OBJ,
        removed=or_null(obj(at=TIME, why=STR)),
    ),
    query=WHICH,
    statuses=(404,),
    reads_pool=False,
)
def attempt(call: Call) -> Any:
    """One attempt: its output, and the files that it changed.

    `changes` is null if the workspace is not stored; `removed` says when and why retention removed it. Without `retry`,
    the newest.
    """
    run, made = _attempt(call)
    output = run.read_log(made)
    changed, left_out, removed = None, {}, None
    workspaces = call.deps.rollouts.workspaces
    if made.workspace is not None and workspaces.has(made.workspace):
        changed = [one.to_json() for one in diffs(workspaces, made.workspace)]
        left_out = dict(workspaces.get(made.workspace).left_out)
    elif made.workspace is not None:
        gone = workspaces.removed().get(made.workspace)
        removed = None if gone is None else {"at": gone.at, "why": gone.why}
    text = None if output is None else output.decode(errors="replace")
    return {"attempt": made.to_json(), "log": text, "changes": changed, "left_out": left_out, "removed": removed}


@routes("POST", "/rollouts/{run}/cancel", RUN, statuses=(404,), reads_pool=False)
def cancel(call: Call) -> Any:
    """Cancel a run.

    Attempts that are under way are lost; what was captured stays. The run can be resumed.
    """
    run = _run(call)
    call.deps.rollouts.cancel(run.settings.run)
    return call.deps.rollouts.status(run)


@routes("POST", "/rollouts/{run}/resume", RUN, statuses=(404, 409), reads_pool=False)
def resume(call: Call, body: ResumeIn) -> Any:
    """Go on with a run that was cancelled or whose supervisor was ended.

    Attempts that were never begun are made, and those that ended with one of the outcomes `retry` are made again.
    """
    host = call.deps.rollouts
    return host.status(host.resume(call.path["run"], workers=body.workers, retry=body.retry))


@routes(
    "GET",
    "/harnesses",
    obj(harnesses=array(obj(name=STR, title=STR, installed=BOOL, why=TEXT_OR_NULL, memory_mb=INT, cpu_s=NUM_OR_NULL))),
    reads_pool=False,
)
def harnesses(call: Call) -> Any:
    """The agents that a run can use, whether they are installed, and what an attempt costs."""
    return {"harnesses": [_described(name) for name in REGISTRY]}


def _described(name: str) -> dict[str, Any]:
    harness = REGISTRY[name]
    try:
        harness.find()
        why = None
    except HarnessMissing as error:
        why = f"{error.message} ({error.hint})"
    return {
        "name": name,
        "title": harness.title,
        "installed": why is None,
        "why": why,
        "memory_mb": harness.memory_mb,
        "cpu_s": harness.cpu_s,
    }


def _run(call: Call) -> Run:
    return call.deps.rollouts.runs.get(call.path["run"])


def _attempt(call: Call) -> tuple[Run, Attempt]:
    run = _run(call)
    task_id = call.query.get("task")
    if task_id is None:
        raise InvalidInput("the task is missing", field="task", hint="?task=ID&attempt=0")
    if task_id not in run.settings.task_ids:
        raise NotFound(f"the run has no task {task_id!r}", field="task")
    number = call.int_query("attempt", 0, low=0, high=MOST)
    retry = call.int_query("retry", 0, low=0, high=MOST) if "retry" in call.query else None
    return run, call.deps.rollouts.attempt(run, task_id, number, retry)
