"""The synthesis routes: start, show, cancel and resume runs; rows and prompts of their stages; difficulty; the pack."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Annotated, Any, Literal

from pydantic import Field

from core.api.handling import Call
from core.api.packs import PACK
from core.api.routing import Router
from core.api.schemas import BOOL, INT, INT_OR_NULL, NUM, NUM_OR_NULL, OBJ, STR, TEXT_OR_NULL, TIME, array, obj, or_null
from core.api.wire import Flag, Number, WireModel
from core.errors import InvalidInput, NotFound
from core.packs.library import PackEntry
from core.synthesis import Choice, SynthesisRun, SynthesisSettings
from core.synthesis.listing import listed
from core.synthesis.routes import route_of
from core.synthesis.rows import ACCEPTED, REJECTED
from core.synthesis.templates import shipped

routes = Router()

MOST = 2**31 - 1
MOST_ROWS = 1000
MAX_WORKERS = 64
STAGE = obj(
    stage=STR, title=STR, n_done=INT, n_failed=INT, n_accepted=INT, n_rejected=INT, n_waiting=INT, mean_s=NUM_OR_NULL
)
PROGRESS = obj(
    state=STR, in_progress=BOOL, stages=array(STAGE), n_ready=INT, n_calls=INT, n_tokens=INT, cost_usd=NUM,
    n_unpriced=INT, eta_s=NUM_OR_NULL,
)  # fmt: skip
RUN = obj(
    run=STR, route=STR, model=STR, n_tasks=INT, created_at=TIME, progress=PROGRESS, cancelling=BOOL, error=TEXT_OR_NULL
)
ESTIMATE = obj(calls=array(INT), tokens=array(INT), usd=or_null(array(NUM)), stages=array(OBJ))
STARTED = obj(**RUN["properties"], estimate=ESTIMATE)
ROW = obj(
    row=STR, state=STR, decision=TEXT_OR_NULL, passes=BOOL, waiting=BOOL, reason=TEXT_OR_NULL, text=TEXT_OR_NULL,
    edited=BOOL, transient=BOOL, models=array(STR), n_calls=INT, cost_usd=NUM_OR_NULL, wall_s=NUM, at=TIME,
    similarity=NUM_OR_NULL, nearest=TEXT_OR_NULL, mutation_score=NUM_OR_NULL, flakiness=NUM_OR_NULL,
    solution_score=NUM_OR_NULL, n_answers=INT_OR_NULL,
)  # fmt: skip
WHOLE_ROW = obj(stage=STR, key=STR, state=STR, product=or_null(OBJ), reason=TEXT_OR_NULL, decision=TEXT_OR_NULL)
PROMPT = obj(name=STR, text=STR, sha256=STR, changed=BOOL, places=array(STR))
TASK = obj(
    task_id=STR, n_scored=INT, n_solved=INT, solve_rate=NUM_OR_NULL, by_model=OBJ, same_as=TEXT_OR_NULL,
    same_share=NUM_OR_NULL,
)  # fmt: skip
Name = Annotated[str, Field(min_length=1, max_length=512)]
Words = Annotated[str, Field(max_length=4096)]
Budget = Annotated[int, Field(ge=1, le=2**53, strict=True)] | None
Share = Annotated[Number, Field(ge=0, le=1)]


class SynthesisIn(WireModel):
    """``POST synthesis``: the settings of a run (``core.synthesis.settings``)."""

    run: Annotated[str, Field(min_length=1, max_length=100)] | None = Field(None, description="By default its time")
    route: Literal["persona", "skill"] = "persona"
    model: Name | None = Field(None, description="Writes tasks and checkers; by default the only model that is served")
    n_tasks: Annotated[int, Field(ge=1, le=100_000, strict=True)] = 10
    judge_model: Words = Field("", description="By default the model")
    solver_model: Words = Field("", description="Writes reference solutions; by default the model")
    embedding_model: Words = Field("", description="Its vectors are compared for novelty; empty: TF-IDF of words")
    seeds: Words = Field("", description="Folder of seed lists; empty: the shipped ones")
    skills: Words = Field("", description="Folder of skill folders, for the skill route; empty: the shipped ones")
    seed: Annotated[int, Field(ge=0, le=MOST, strict=True)] = 0
    workers: Annotated[int, Field(ge=1, le=MAX_WORKERS, strict=True)] = 4
    n_operations: Annotated[int, Field(ge=1, le=100, strict=True)] = 3
    n_supporting: Annotated[int, Field(ge=0, le=100, strict=True)] = 1
    temperature: Annotated[Number, Field(ge=0, le=100)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=1 << 24, strict=True)] = 8192
    timeout_s: Annotated[Number, Field(gt=0, le=1e6)] = 300.0
    max_calls: Budget = None
    max_total_tokens: Budget = None
    max_usd: Annotated[Number, Field(gt=0, le=1e9)] | None = None
    novelty: Share = 0.90
    repair_rounds: Annotated[int, Field(ge=0, le=20, strict=True)] = 3
    n_runs: Annotated[int, Field(ge=1, le=1000, strict=True)] = 10
    n_mutants: Annotated[int, Field(ge=1, le=1000, strict=True)] = 8
    min_mutation_score: Share = 0.5
    min_difficulty: Annotated[int, Field(ge=0, le=5, strict=True)] = 0
    check_time_s: Annotated[Number, Field(gt=0, le=1e6)] = 60.0
    isolation: Literal["process", "restricted", "strict"] = "process"
    prompts: dict[str, str] = Field(default_factory=dict, description="Changed prompts by name")
    until: Name | None = Field(None, description="Stop after this stage, to look at its rows")
    dry_run: Flag = Field(False, description="Only estimate calls, tokens and money")


class SynthesisResumeIn(WireModel):
    """``POST synthesis/{run}/resume``."""

    until: Name | None = Field(None, description="Stop after this stage")
    max_calls: Budget = None
    max_total_tokens: Budget = None
    max_usd: Annotated[Number, Field(gt=0, le=1e9)] | None = None


class SynthesisRowIn(WireModel):
    """``POST synthesis/{run}/row``."""

    stage: Name
    row: Name | None = Field(None, description="null with rerun: all rows of the stage")
    action: Literal["accept", "reject", "undo", "edit", "rerun"]
    product: dict[str, Any] | None = Field(None, description="For edit: the new product")


class SynthesisPromptIn(WireModel):
    """``PUT synthesis/{run}/prompts/{name}``."""

    text: Annotated[str, Field(min_length=1, max_length=1 << 18)] | None = Field(
        description="null: the shipped text again"
    )


class SynthesisPackIn(WireModel):
    """``POST synthesis/{run}/pack``."""

    name: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(None, description="By default the run's")
    min_mutation_score: Share = 0.0
    max_flakiness: Share = 1.0
    min_difficulty: Annotated[Number, Field(ge=0, le=5)] = 0.0
    min_solve_rate: Share = Field(0.0, description="Of the scored attempts of all rollouts")
    max_solve_rate: Share = 1.0
    distinct_behaviour: Flag = Field(False, description="Without tasks that are solved by the same actions")
    dry_run: Flag = Field(False, description="Choose the tasks and store nothing")

    def choice(self) -> Choice:
        """Which tasks."""
        return Choice(**{one.name: getattr(self, one.name) for one in fields(Choice)})


@routes(
    "POST",
    "/synthesis",
    STARTED,
    statuses=(409,),
    reads_pool=False,
    example={"route": "persona", "model": "demo-1", "n_tasks": 20, "max_calls": 200, "dry_run": True},
)
def start(call: Call, body: SynthesisIn) -> Any:
    """Start a run of the synthesis: models write tasks with checkers.

    The estimate is from assumed lengths of prompts and answers.
    """
    host = call.deps.synthesis
    given = body.model_dump(exclude={"prompts", "until", "dry_run"})
    settings, cost = host.plan(given)
    if body.dry_run:
        return {**_planned(settings), "estimate": cost}
    run = host.start({**given, "run": settings.run}, until=body.until, prompts=body.prompts)
    return {**host.status(run), "estimate": cost}


@routes("GET", "/synthesis", obj(runs=array(RUN)), reads_pool=False)
def list_runs(call: Call) -> Any:
    """All runs of the synthesis with their progress, newest first."""
    host = call.deps.synthesis
    return {"runs": [host.status(run) for run in host.store.all()]}


@routes("GET", "/synthesis/{run}", RUN, statuses=(404,), reads_pool=False)
def show(call: Call) -> Any:
    """One run of the synthesis: settings, rows by stage, calls, money, time left."""
    return call.deps.synthesis.status(_run(call))


@routes(
    "GET",
    "/synthesis/{run}/rows",
    obj(rows=array(ROW), n_rows=INT),
    query={
        "stage": STR,
        "state": {**STR, "enum": ["done", "failed"]},
        "limit": {"type": "integer", "minimum": 1, "maximum": MOST_ROWS},
        "offset": {"type": "integer", "minimum": 0},
    },
    statuses=(404,),
    reads_pool=False,
)
def rows(call: Call) -> Any:
    """Rows of a stage: what was made, why it failed, what was measured.

    `passes` says whether later stages work on the row, `waiting` whether it is made when the run goes on.
    """
    run = _run(call)
    made = listed(route_of(run.settings.route), _stage(call, run), call.deps.synthesis.state(run))
    wanted = call.query.get("state")
    if wanted not in (None, "done", "failed"):
        raise InvalidInput(f"{wanted!r} is no state", field="state", hint="done or failed")
    made = [one for one in made if wanted in (None, one["state"])]
    limit = call.int_query("limit", 100, low=1, high=MOST_ROWS)
    offset = call.int_query("offset", 0, low=0, high=MOST)
    return {"rows": made[offset : offset + limit], "n_rows": len(made)}


@routes("GET", "/synthesis/{run}/row", WHOLE_ROW, query={"stage": STR, "row": STR}, statuses=(404,), reads_pool=False)
def row(call: Call) -> Any:
    """One row with its product: the task, the verdict, or the checker with its proof."""
    return _whole(call, _run(call), call.query.get("stage", ""), call.query.get("row", ""))


@routes("POST", "/synthesis/{run}/row", obj(done=BOOL), statuses=(404, 409), reads_pool=False)
def decide(call: Call, body: SynthesisRowIn) -> Any:
    """Accept, reject, edit or rerun a row.

    Later stages follow when the run goes on. It is refused while the run is in progress. `undo` takes a decision back.
    """
    run = _run(call)
    route_of(run.settings.route).stage(body.stage)
    if body.action == "rerun":
        run.rerun(body.stage, body.row)
        return {"done": True}
    if body.row is None:
        raise InvalidInput("the row is missing", field="row", hint="GET rows lists them")
    if body.action == "edit":
        if body.product is None:
            raise InvalidInput("the product is missing", field="product", hint="GET row shows the present one")
        run.edit(body.stage, body.row, body.product, now=call.deps.clock())
    else:
        run.decide(body.stage, body.row, {"accept": ACCEPTED, "reject": REJECTED, "undo": None}[body.action])
    return {"done": True}


@routes("GET", "/synthesis/{run}/prompts", obj(prompts=array(PROMPT)), statuses=(404,), reads_pool=False)
def prompts(call: Call) -> Any:
    """The prompts of a run; `places` are the names that a text may have in double braces."""
    known = shipped()
    made = _run(call).templates()
    return {
        "prompts": [
            {
                "name": name,
                "text": one.text,
                "sha256": one.sha256,
                "changed": one.sha256 != known[name].sha256,
                "places": sorted(known[name].places),
            }
            for name, one in made.items()
            if name in known
        ]
    }


@routes(
    "PUT", "/synthesis/{run}/prompts/{name}", obj(name=STR, sha256=STR, changed=BOOL), statuses=(404,), reads_pool=False
)
def put_prompt(call: Call, body: SynthesisPromptIn) -> Any:
    """Change a prompt of a run, from the next start or resumption on. Rows that were made stay as they are."""
    template = _run(call).write_prompt(call.path["name"], body.text)
    changed = template.sha256 != shipped()[template.name].sha256
    return {"name": template.name, "sha256": template.sha256, "changed": changed}


@routes("POST", "/synthesis/{run}/cancel", RUN, statuses=(404,), reads_pool=False)
def cancel(call: Call) -> Any:
    """Stop a run after the calls in flight; their answers are stored."""
    run = _run(call)
    call.deps.synthesis.cancel(run.settings.run)
    return call.deps.synthesis.status(run)


@routes("POST", "/synthesis/{run}/resume", RUN, statuses=(404, 409), reads_pool=False)
def resume(call: Call, body: SynthesisResumeIn) -> Any:
    """Go on with a run. Stored answers are not asked for again.

    A budget here replaces that of the run, and counts the calls from its beginning.
    """
    host = call.deps.synthesis
    budget = body.model_dump(exclude={"until"})
    return host.status(host.resume(call.path["run"], until=body.until, budget=budget))


@routes("GET", "/synthesis/{run}/difficulty", obj(tasks=array(TASK)), statuses=(404,))
def difficulty(call: Call) -> Any:
    """What rollouts show of the tasks that passed every stage: solve rates, and tasks solved by the same actions.

    Attempts of all runs at the same content count, if they have a score.
    """
    host = call.deps.synthesis
    measured = host.difficulty(_run(call))
    same = host.same_behaviour(measured)
    return {
        "tasks": [
            {
                "task_id": name,
                **one.to_json(),
                "same_as": same[name].task_id if name in same else None,
                "same_share": same[name].share if name in same else None,
            }
            for name, one in measured.items()
        ]
    }


@routes("POST", "/synthesis/{run}/pack", obj(**PACK["properties"], task_ids=array(STR)), statuses=(404,))
def pack(call: Call, body: SynthesisPackIn) -> Any:
    """Store the tasks that passed every stage as a pack, chosen by what was measured.

    A task without a measurement passes only filters that are off.
    """
    host, run = call.deps.synthesis, _run(call)
    if body.dry_run:
        made = host.pack(run, body.choice())
        entry = PackEntry(made.version, body.name or made.name, made.format, len(made.tasks), call.deps.clock())
    else:
        entry = host.keep_pack(run, body.choice(), body.name or "")
        made = call.deps.rollouts.packs.get(entry.version)
    return {**asdict(entry), "task_ids": [one.task_id for one in made.tasks]}


def _planned(settings: SynthesisSettings) -> dict[str, Any]:
    """What ``RUN`` has of a run that was not begun."""
    nothing = {
        "state": "new", "in_progress": False, "stages": [], "n_ready": 0, "n_calls": 0, "n_tokens": 0, "cost_usd": 0.0,
        "n_unpriced": 0, "eta_s": None,
    }  # fmt: skip
    return {**settings.to_json(), "progress": nothing, "cancelling": False, "error": None}


def _run(call: Call) -> SynthesisRun:
    return call.deps.synthesis.store.get(call.path["run"])


def _stage(call: Call, run: SynthesisRun) -> str:
    names = [one.name for one in route_of(run.settings.route).stages]
    stage = call.query.get("stage", "")
    if stage not in names:
        raise InvalidInput(f"there is no stage {stage!r}", field="stage", hint=", ".join(names))
    return stage


def _whole(call: Call, run: SynthesisRun, stage: str, key: str) -> dict[str, Any]:
    _stage(call, run)
    state = call.deps.synthesis.state(run)
    stored = state.rows.get((stage, key))
    if stored is None:
        raise NotFound(f"the stage {stage} has no row {key!r}", field="row", hint="GET rows lists them")
    return {**stored.to_json(), "decision": state.decisions.get((stage, key))}
