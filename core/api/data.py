"""SQL, dataset versions, reward policies, reviewers and upkeep over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

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
from core.api.handling import Call, Handler
from core.api.wire import check
from core.batch.datasets import freeze_version, version_plan
from core.batch.recipe import parse_recipe
from core.batch.redact import texts_of
from core.config import Settings
from core.errors import InvalidInput, StudioError
from core.export import export
from core.ingest.deep import deep_check
from core.pool.agreement import KINDS, LEVELS
from core.pool.redaction.rules import PATTERNS, parse_redaction
from core.pool.upkeep.retention import Retention
from core.pool.upkeep.trash import SEGMENTS
from core.rewards.policy import RULES
from core.trash import empty_trash, list_trash, prune_journal, restore_run
from core.upkeep import backup


def sql_schema(call: Call) -> Any:
    """``GET sql``: what may be asked about."""
    return {"tables": call.deps.pool.sql.schema()}


def sql(call: Call) -> Any:
    """``POST sql``."""
    body = check(SqlIn, call.json())
    found = call.deps.pool.sql.run(body.sql, limit=body.limit, timeout_s=body.timeout_s)
    columns = [[plain(value) for value in column.to_pylist()] for column in found.table.columns]
    return {
        "columns": [{"name": field.name, "type": str(field.type)} for field in found.table.schema],
        "rows": [list(row) for row in zip(*columns, strict=True)],
        "n_rows": len(found.table),
        "truncated": found.truncated,
        "elapsed_s": found.elapsed_s,
    }


def plain(value: Any) -> Any:
    """A value of a query as JSON has it: bytes as hex, exact decimals as numbers, durations and the rest as text."""
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


def datasets(call: Call) -> Any:
    """``GET datasets``."""
    return {"datasets": call.deps.pool.versions.all(), "rules": PATTERNS}


def freeze(call: Call) -> Any:
    """``POST datasets``."""
    body = check(FreezeIn, call.json())
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
    """Tokenizer hash -> hash of the chat template beside it, of the tokenizers at hand."""
    from core.serving.tokenizer import template_hash, tokenizer_hash

    found: dict[str, str] = {}
    for directory in (settings.local_model_dir, *settings.tokenizers.values()):
        try:
            found[tokenizer_hash(directory)] = template_hash(directory)
        except (OSError, StudioError):
            continue  # a folder that is gone has no hash to tell
    return found


def dataset(call: Call) -> Any:
    """``GET datasets/{name}``."""
    return call.deps.pool.versions.get(call.path["name"])


def verify(call: Call) -> Any:
    """``GET datasets/{name}/verify``: whether what is stored still has the hash that it was frozen with."""
    name = call.path["name"]
    return {"name": call.deps.pool.versions.get(name)["name"], "intact": call.deps.pool.versions.verify(name)}


def diff(call: Call) -> Any:
    """``GET datasets/{name}/diff?to=``."""
    if "to" not in call.query:
        raise InvalidInput("name the version to compare with", field="to")
    limit = call.int_query("limit", 1000, low=1, high=100_000)
    return call.deps.pool.versions.diff(call.path["name"], call.query["to"], limit=limit)


def plan_of(call: Call) -> Any:
    """``POST datasets/{name}/plan``."""
    body = check(VersionPlanIn, call.json())
    made = version_plan(call.deps.pool, call.path["name"], body.recipe)
    return {**made.to_json(), "dataset_version": made.dataset_version}


def export_of(call: Call) -> Any:
    """``POST datasets/{name}/export``."""
    body = check(VersionExportIn, call.json())
    made = version_plan(call.deps.pool, call.path["name"], body.recipe)
    result = export(made, call.deps.pool, body.format, body.out or call.deps.settings.export_dir, options=body.options)
    return {
        "path": str(result.path),
        "manifest_path": str(result.manifest_path),
        "n_rows": result.n_rows,
        "n_tokens": result.n_tokens,
        "sha256": result.manifest["sha256"],
    }


def reward_policies(call: Call) -> Any:
    """``GET rewards?channel=``."""
    pool = call.deps.pool
    return {
        "policies": pool.rewards.all(),
        "adopted": pool.rewards.all_adopted(),
        "sources": pool.rewards.sources(channel=call.query.get("channel", "train")),
        "rules": RULES,
    }


def save_policy(call: Call) -> Any:
    """``PUT rewards/{name}``."""
    body = check(RewardPolicyIn, call.json())
    version = call.deps.pool.rewards.save(call.path["name"], body.policy, author=body.author)
    return {"name": call.path["name"], "version": version}


def preview_policy(call: Call) -> Any:
    """``POST rewards/preview``."""
    body = check(RewardPreviewIn, call.json())
    return call.deps.pool.rewards.preview(body.policy, channel=body.channel)


def adopt(call: Call) -> Any:
    """``PUT channels/{channel}/rewards``."""
    body = check(AdoptIn, call.json())
    call.deps.pool.rewards.adopt(call.path["channel"], body.name, body.version, author=body.author)
    return adopted(call)


def adopted(call: Call) -> Any:
    """``GET channels/{channel}/rewards``."""
    channel = call.path["channel"]
    return {"channel": channel, "adopted": call.deps.pool.rewards.adopted(channel)}


def _kind_and_level(call: Call) -> tuple[str, str]:
    kind, level = call.query.get("kind", "quality"), call.query.get("level", "step")
    if kind not in KINDS:
        raise InvalidInput(f"opinions of kind {kind!r} can't be compared", field="kind", hint=", ".join(KINDS))
    if level not in LEVELS:
        raise InvalidInput(f"{level!r} is no level", field="level", hint=", ".join(LEVELS))
    return kind, level


def agreement(call: Call) -> Any:
    """``GET agreement?a=&b=&kind=&level=``; without two names the reviewers that there are."""
    kind, level = _kind_and_level(call)
    reviewers = call.deps.pool.agreement.reviewers(kind, level)
    a, b = call.query.get("a"), call.query.get("b")
    if a is None and b is None:
        return {"reviewers": reviewers, "agreement": None}
    if a is None or b is None:
        raise InvalidInput("name two reviewers", field="b" if b is None else "a")
    return {"reviewers": reviewers, "agreement": call.deps.pool.agreement.between(a, b, kind, level)}


def disagreements(call: Call) -> Any:
    """``GET disagreements?kind=&level=&limit=&offset=``."""
    kind, level = _kind_and_level(call)
    limit = call.int_query("limit", 50, low=1, high=1000)
    offset = call.int_query("offset", 0, low=0, high=10**9)
    return {"disagreements": call.deps.pool.agreement.disagreements(kind, level, limit=limit, offset=offset)}


def make_backup(call: Call) -> Any:
    """``POST backup``."""
    deps, body = call.deps, check(BackupIn, call.json())
    settings = deps.settings
    manifest = backup(deps.pool, settings.journal_dir, body.out, clock=deps.clock, opinions_dir=settings.opinions_dir)
    return {"out": str(body.out), **manifest}


def retention(call: Call) -> Any:
    """``POST retention``: a preview, unless ``apply`` comes with the preview's ``confirm``."""
    deps, body = call.deps, check(RetentionIn, call.json())
    settings, pool = deps.settings, deps.pool
    rule = Retention(body.older_than_days, body.consumed, body.max_bytes, body.channel)
    if not body.apply:
        return {"applied": False, **pool.retention.preview(rule), "segments": [], "run_uid": None}
    if body.confirm is None:
        raise InvalidInput(
            "Deleting needs the confirm of a preview.", field="confirm", hint="Send the same rule without apply first."
        )
    told = pool.retention.apply(rule, author=body.author, confirm=body.confirm)
    where = settings.trash_dir / told["run_uid"] / SEGMENTS
    pruned = prune_journal(pool, settings.journal_dir, where) if body.journal else {"segments": []}
    return {"applied": True, **told, "segments": pruned["segments"], "confirm": None, "expires_at": None}


def trash(call: Call) -> Any:
    """``GET trash``: what can be restored, and the word that empties it."""
    deps = call.deps
    settings = deps.settings
    runs = list_trash(settings.trash_dir, days=settings.trash_days)
    return {"runs": runs, **deps.pool.retention.confirmations.issue(_trash_subject(runs))}


def restore_from_trash(call: Call) -> Any:
    """``POST trash/{run_uid}/restore``."""
    deps, body = call.deps, check(RestoreIn, call.json())
    settings = deps.settings
    uid = call.path["run_uid"]
    return restore_run(deps.pool, settings.journal_dir, settings.trash_dir, uid, author=body.author)


def empty(call: Call) -> Any:
    """``POST trash/empty``: delete for good what ``GET trash`` showed."""
    deps, body = call.deps, check(EmptyIn, call.json())
    settings = deps.settings
    deps.pool.retention.confirmations.check(
        body.confirm, _trash_subject(list_trash(settings.trash_dir, days=settings.trash_days))
    )
    return {"emptied": empty_trash(settings.trash_dir)}


def _trash_subject(runs: list[dict[str, Any]]) -> str:
    return "trash:" + ",".join(run["run_uid"] for run in runs)


def retention_runs(call: Call) -> Any:
    """``GET retention``."""
    return {"runs": call.deps.pool.retention.runs()}


def integrity(call: Call) -> Any:
    """``POST integrity``: every step against its journal record and its hash."""
    settings = call.deps.settings
    return deep_check(call.deps.pool, settings.journal_dir, tokenizers=settings.tokenizers).as_dict()


ROUTES: list[tuple[str, str, Handler]] = [
    ("GET", "/sql", sql_schema),
    ("POST", "/sql", sql),
    ("GET", "/datasets", datasets),
    ("POST", "/datasets", freeze),
    ("GET", "/datasets/{name}", dataset),
    ("GET", "/datasets/{name}/verify", verify),
    ("GET", "/datasets/{name}/diff", diff),
    ("POST", "/datasets/{name}/plan", plan_of),
    ("POST", "/datasets/{name}/export", export_of),
    ("GET", "/rewards", reward_policies),
    ("PUT", "/rewards/{name}", save_policy),
    ("POST", "/rewards/preview", preview_policy),
    ("PUT", "/channels/{channel}/rewards", adopt),
    ("GET", "/channels/{channel}/rewards", adopted),
    ("GET", "/agreement", agreement),
    ("GET", "/disagreements", disagreements),
    ("POST", "/backup", make_backup),
    ("POST", "/retention", retention),
    ("GET", "/retention", retention_runs),
    ("GET", "/trash", trash),
    ("POST", "/trash/empty", empty),
    ("POST", "/trash/{run_uid}/restore", restore_from_trash),
    ("POST", "/integrity", integrity),
]
