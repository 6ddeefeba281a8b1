"""The routes for SQL, dataset versions, reward policies, reviewer agreement, backup, retention and trash."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from core.api.data_wire import (
    AdoptIn,
    BackupIn,
    EmptyIn,
    FreezeIn,
    RestoreIn,
    RetentionIn,
    RewardPolicyIn,
    RewardPreviewIn,
    SqlIn,
    VersionExportIn,
    VersionPlanIn,
)
from core.api.handling import Call
from core.api.routing import Router
from core.api.schemas import (
    ANY,
    BOOL,
    INT,
    LIMIT,
    NUM,
    NUM_OR_NULL,
    OBJ,
    STR,
    TEXT_OR_NULL,
    TIME,
    TOTALS,
    array,
    bounded_integer,
    obj,
    or_null,
)
from core.backup import backup
from core.batch.datasets import freeze_version, version_plan
from core.batch.recipe import parse_recipe
from core.batch.redact import texts_of
from core.config import Settings
from core.errors import InvalidInput, StudioError
from core.export import export
from core.ingest.deepcheck import deep_check
from core.pool.agreement import KINDS, LEVELS
from core.pool.redaction.rules import PATTERNS, parse_redaction
from core.pool.upkeep.retention import Retention
from core.pool.upkeep.trashedruns import SEGMENTS
from core.rewards.policy import RULES
from core.trash import empty_trash, list_trash, prune_journal, restore_run

routes = Router()

VERSION: Final = obj(
    name=STR, version_uid=STR, content_hash=STR, parent=TEXT_OR_NULL, channel=STR, view=OBJ, recipe=OBJ,
    redaction=or_null(OBJ), provenance=OBJ, n_groups=INT, n_trajectories=INT, n_steps=INT, n_tokens=INT, author=STR,
    note=TEXT_OR_NULL, created_at=TIME,
)  # fmt: skip
KIND: Final = {"enum": list(KINDS)}
LEVEL: Final = {"enum": list(LEVELS)}


@routes("GET", "/sql", obj(tables=array(obj(table=STR, doc=STR, columns=array(obj(name=STR, type=STR, doc=STR))))))
def sql_schema(call: Call) -> Any:
    """Tables and columns that SQL can read."""
    return {"tables": call.deps.pool.sql.schema()}


@routes(
    "POST",
    "/sql",
    obj(columns=array(obj(name=STR, type=STR)), rows=array(array(ANY)), n_rows=INT, truncated=BOOL, elapsed_s=NUM),
    statuses=(409,),
    example={"sql": "SELECT channel, count(*) AS n FROM step_state GROUP BY channel"},
)
def sql(call: Call, body: SqlIn) -> Any:
    """Run one SELECT.

    Access to files, the network and settings, writes, and unbounded joins are refused. Rows, bytes, memory and time are
    limited.
    """
    result = call.deps.pool.sql.run(body.sql, limit=body.limit, timeout_s=body.timeout_s)
    columns = [[plain(value) for value in column.to_pylist()] for column in result.table.columns]
    return {
        "columns": [{"name": field.name, "type": str(field.type)} for field in result.table.schema],
        "rows": [list(row) for row in zip(*columns, strict=True)],
        "n_rows": len(result.table),
        "truncated": result.truncated,
        "elapsed_s": result.elapsed_s,
    }


def plain(value: Any) -> Any:
    """Convert a query's value to JSON: bytes to hex, decimals to numbers, durations and other types to text."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() and abs(value) < 2**63 else float(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, timedelta):
        return str(value)
    if (
        value is None
        or isinstance(value, str | bool | float | datetime)
        or (isinstance(value, int) and abs(value) < 2**63)
    ):
        return value
    return str(value)


@routes("GET", "/datasets", obj(datasets=array(VERSION), rules=OBJ))
def datasets(call: Call) -> Any:
    """Dataset versions, newest first, and the built-in redaction rules."""
    return {"datasets": call.deps.pool.versions.all(), "rules": PATTERNS}


@routes(
    "POST",
    "/datasets",
    VERSION,
    statuses=(404, 409),
    example={"name": "math-1", "recipe": {"algorithm": "sft"}, "redaction": {"rules": ["secrets", "email"]}},
)
def freeze(call: Call, body: FreezeIn) -> Any:
    """Freeze a view as a named version."""
    directory = call.deps.settings.local_model_dir
    return freeze_version(
        call.deps.pool,
        body.name,
        body.view.view(),
        parse_recipe(body.recipe),
        author=body.author,
        parent=body.parent,
        note=body.note,
        redaction=None if body.redaction is None else parse_redaction(body.redaction.model_dump()),
        texts=texts_of(directory),
        templates=templates(call.deps.settings),
    )


def templates(settings: Settings) -> dict[str, str]:
    """Tokenizer hash -> hash of the chat template in the same folder, for the configured tokenizers."""
    from core.serving.tokenizer import template_hash, tokenizer_hash

    hashes: dict[str, str] = {}
    for directory in (settings.local_model_dir, *settings.tokenizers.values()):
        try:
            hashes[tokenizer_hash(directory)] = template_hash(directory)
        except (OSError, StudioError):
            continue  # the folder or a file in it is missing
    return hashes


@routes("GET", "/datasets/{name}", VERSION, statuses=(404,))
def dataset(call: Call) -> Any:
    """One dataset version."""
    return call.deps.pool.versions.get(call.path["name"])


@routes("GET", "/datasets/{name}/verify", obj(name=STR, intact=BOOL), statuses=(404,))
def verify(call: Call) -> Any:
    """Whether a version still has its hash."""
    name = call.path["name"]
    return {"name": call.deps.pool.versions.get(name)["name"], "intact": call.deps.pool.versions.verify(name)}


@routes(
    "GET",
    "/datasets/{name}/diff",
    obj(a=STR, b=STR, counts=OBJ, changes=array(OBJ), truncated=BOOL),
    query={"to": STR, "limit": bounded_integer(1, 100_000)},
    statuses=(404,),
)
def diff(call: Call) -> Any:
    """Changes to another version."""
    if "to" not in call.query:
        raise InvalidInput("name the version to compare with", field="to")
    limit = call.int_query("limit", 1000, low=1, high=100_000)
    return call.deps.pool.versions.diff(call.path["name"], call.query["to"], limit=limit)


@routes(
    "POST",
    "/datasets/{name}/plan",
    obj(totals=TOTALS, groups=array(OBJ), excluded=array(obj(reason=STR)), dataset_version=OBJ),
    statuses=(404,),
)
def plan_of(call: Call, body: VersionPlanIn) -> Any:
    """The plan of a version with its frozen recipe or another."""
    plan = version_plan(call.deps.pool, call.path["name"], body.recipe)
    return {**plan.to_json(), "dataset_version": plan.dataset_version}


@routes(
    "POST",
    "/datasets/{name}/export",
    obj(path=STR, manifest_path=STR, n_rows=INT, n_tokens=INT, sha256=STR),
    statuses=(404, 409),
)
def export_of(call: Call, body: VersionExportIn) -> Any:
    """Write a version to files on the service's machine: the same bytes each time."""
    plan = version_plan(call.deps.pool, call.path["name"], body.recipe)
    result = export(plan, call.deps.pool, body.format, body.out or call.deps.settings.export_dir, options=body.options)
    return {
        "path": str(result.path),
        "manifest_path": str(result.manifest_path),
        "n_rows": result.n_rows,
        "n_tokens": result.n_tokens,
        "sha256": result.manifest["sha256"],
    }


@routes("GET", "/rewards", obj(policies=array(OBJ), adopted=OBJ, sources=array(OBJ), rules=OBJ), query={"channel": STR})
def reward_policies(call: Call) -> Any:
    """Reward policies, which are adopted, and the sources of rewards in a channel."""
    pool = call.deps.pool
    return {
        "policies": pool.rewards.all(),
        "adopted": pool.rewards.all_adopted(),
        "sources": pool.rewards.sources(channel=call.query.get("channel", "train")),
        "rules": RULES,
    }


@routes("PUT", "/rewards/{name}", obj(name=STR, version=INT))
def save_policy(call: Call, body: RewardPolicyIn) -> Any:
    """Save a new version of a reward policy."""
    version = call.deps.pool.rewards.save(call.path["name"], body.policy, author=body.author)
    return {"name": call.path["name"], "version": version}


@routes(
    "POST",
    "/rewards/preview",
    obj(policy=OBJ, channel=STR, counts=OBJ, histogram=array(OBJ), changes=array(OBJ)),
    statuses=(404,),
    example={"policy": {"rule": "precedence", "sources": ["human", "verifier"]}},
)
def preview_policy(call: Call, body: RewardPreviewIn) -> Any:
    """Preview the changes of a reward policy."""
    return call.deps.pool.rewards.preview(body.policy, channel=body.channel)


@routes("PUT", "/channels/{channel}/rewards", obj(channel=STR, adopted=ANY), statuses=(404,))
def adopt(call: Call, body: AdoptIn) -> Any:
    """Adopt a reward policy for a channel."""
    call.deps.pool.rewards.adopt(call.path["channel"], body.name, body.version, author=body.author)
    return adopted(call)


@routes("GET", "/channels/{channel}/rewards", obj(channel=STR, adopted=ANY))
def adopted(call: Call) -> Any:
    """The reward policy of a channel."""
    channel = call.path["channel"]
    return {"channel": channel, "adopted": call.deps.pool.rewards.adopted(channel)}


def _kind_and_level(call: Call) -> tuple[str, str]:
    kind, level = call.query.get("kind", "quality"), call.query.get("level", "step")
    if kind not in KINDS:
        raise InvalidInput(f"opinions of kind {kind!r} can't be compared", field="kind", hint=", ".join(KINDS))
    if level not in LEVELS:
        raise InvalidInput(f"{level!r} is not a level", field="level", hint=", ".join(LEVELS))
    return kind, level


@routes(
    "GET",
    "/agreement",
    obj(
        reviewers=array(obj(author=STR, n=INT)),
        agreement=or_null(obj(n=INT, n_agree=INT, percent=NUM_OR_NULL, kappa=NUM_OR_NULL, labels=array(STR))),
    ),
    query={"a": STR, "b": STR, "kind": KIND, "level": LEVEL},
)
def agreement(call: Call) -> Any:
    """Agreement of two reviewers.

    Without names, lists the reviewers.
    """
    kind, level = _kind_and_level(call)
    reviewers = call.deps.pool.agreement.reviewers(kind, level)
    a, b = call.query.get("a"), call.query.get("b")
    if a is None and b is None:
        return {"reviewers": reviewers, "agreement": None}
    if a is None or b is None:
        raise InvalidInput("name two reviewers", field="b" if b is None else "a")
    return {"reviewers": reviewers, "agreement": call.deps.pool.agreement.between(a, b, kind, level)}


@routes(
    "GET",
    "/disagreements",
    obj(disagreements=array(obj(step_uid=TEXT_OR_NULL, trajectory_uid=STR, opinions=array(OBJ)))),
    query={"kind": KIND, "level": LEVEL, "limit": LIMIT, "offset": bounded_integer(0, 10**9)},
)
def disagreements(call: Call) -> Any:
    """Items that reviewers label differently, newest first."""
    kind, level = _kind_and_level(call)
    limit = call.int_query("limit", 50, low=1, high=1000)
    offset = call.int_query("offset", 0, low=0, high=10**9)
    return {"disagreements": call.deps.pool.agreement.disagreements(kind, level, limit=limit, offset=offset)}


@routes(
    "POST",
    "/backup",
    obj(out=STR, created_at=STR, n_steps=INT, positions=OBJ, damaged=array(STR), files=OBJ),
    statuses=(409,),
)
def make_backup(call: Call, body: BackupIn) -> Any:
    """Back up the data folder while it is in use. Exports, models and the judges' cache are left out.

    `damaged` names files that were damaged already; they are copied as they are.
    """
    deps, settings = call.deps, call.deps.settings
    manifest = backup(
        deps.pool,
        settings.journal_dir,
        body.out,
        clock=deps.clock,
        opinions_dir=settings.opinions_dir,
        data_dir=settings.data_dir,
    )
    return {"out": str(body.out), **manifest}


@routes(
    "POST",
    "/retention",
    obj(
        applied=BOOL,
        n_trajectories=INT,
        n_steps=INT,
        n_tokens=INT,
        n_bytes=INT,
        oldest=TIME,
        newest=TIME,
        n_kept_in_version=INT,
        n_kept_leased=INT,
        n_kept_recent=INT,
        segments=array(STR),
        confirm=TEXT_OR_NULL,
        expires_at=TIME,
        run_uid=TEXT_OR_NULL,
    ),
    statuses=(409,),
    example={"older_than_days": 90},
)
def retention(call: Call, body: RetentionIn) -> Any:
    """Preview the deletion of old, consumed or excess trajectories; with apply, delete them.

    Deleting needs the ``confirm`` of a preview. Only trajectories that meet all given conditions are deleted.
    Trajectories that are in a dataset version, leased, or newer than an hour are kept.
    """
    settings, pool = call.deps.settings, call.deps.pool
    rule = Retention(body.older_than_days, body.consumed, body.max_bytes, body.channel)
    if not body.apply:
        return {"applied": False, **pool.retention.preview(rule), "segments": [], "run_uid": None}
    if body.confirm is None:
        raise InvalidInput(
            "Deleting needs the confirm of a preview.", field="confirm", hint="Send the same rule without apply first."
        )
    applied = pool.retention.apply(rule, author=body.author, confirm=body.confirm)
    where = settings.trash_dir / applied["run_uid"] / SEGMENTS
    pruned = prune_journal(pool, settings.journal_dir, where) if body.journal else {"segments": []}
    return {"applied": True, **applied, "segments": pruned["segments"], "confirm": None, "expires_at": None}


@routes("GET", "/trash", obj(runs=array(OBJ), confirm=STR, expires_at=TIME))
def trash(call: Call) -> Any:
    """Retention runs that can be restored, newest first, and the confirm value for emptying the trash."""
    deps = call.deps
    settings = deps.settings
    runs = list_trash(settings.trash_dir, days=settings.trash_days)
    return {"runs": runs, **deps.pool.retention.confirmations.issue(_trash_subject(runs))}


@routes(
    "POST", "/trash/{run_uid}/restore", obj(run_uid=STR, n_trajectories=INT, segments=array(STR)), statuses=(404, 409)
)
def restore_from_trash(call: Call, body: RestoreIn) -> Any:
    """Restore a retention run."""
    deps, settings = call.deps, call.deps.settings
    uid = call.path["run_uid"]
    return restore_run(deps.pool, settings.journal_dir, settings.trash_dir, uid, author=body.author)


@routes("POST", "/trash/empty", obj(emptied=array(STR)), statuses=(409,))
def empty(call: Call, body: EmptyIn) -> Any:
    """Permanently delete the runs listed by GET trash."""
    deps, settings = call.deps, call.deps.settings
    deps.pool.retention.confirmations.check(
        body.confirm, _trash_subject(list_trash(settings.trash_dir, days=settings.trash_days))
    )
    return {"emptied": empty_trash(settings.trash_dir)}


def _trash_subject(runs: list[dict[str, Any]]) -> str:
    return "trash:" + ",".join(run["run_uid"] for run in runs)


@routes("GET", "/retention", obj(runs=array(OBJ)))
def retention_runs(call: Call) -> Any:
    """Retention runs, newest first."""
    return {"runs": call.deps.pool.retention.runs()}


@routes(
    "POST",
    "/integrity",
    obj(
        ok=BOOL,
        n_steps=INT,
        n_against_journal=INT,
        n_without_record=INT,
        n_mismatches=INT,
        mismatches=array(obj(step_uid=STR, what=STR)),
        versions=array(obj(name=STR, intact=BOOL)),
    ),
)
def integrity(call: Call) -> Any:
    """Compare every step with its journal record and its hash."""
    settings = call.deps.settings
    return deep_check(call.deps.pool, settings.journal_dir, tokenizers=settings.tokenizers).as_dict()
