"""Dataset versions: freezing a view with its labels, and planning from what was frozen.

``freeze_version`` writes one; ``version_plan`` is the one plan function over it, so pages, API and exporters read a
version as they read the pool. Mutable values come from the version, immutable ones from the pool; both are redacted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from core.batch.plan import Plan, PlanPool, narrowed, plan
from core.batch.recipe import Recipe, parse_recipe
from core.batch.redact import Progress, Redacted, TokenTexts, no_texts, redact
from core.batch.versions import VersionSource
from core.errors import InvalidInput
from core.pool.edits import Edit
from core.pool.redaction.rules import Redaction
from core.pool.redaction.screening import Screening
from core.pool.rewards import RewardPolicies
from core.pool.versions import MASK_COLUMNS
from core.types import View

__all__ = ["VersionSource", "dry_run", "freeze_version", "version_plan"]


class FreezePool(PlanPool, Protocol):
    """The parts of a pool that a version is frozen from."""

    @property
    def rewards(self) -> RewardPolicies: ...
    @property
    def screening(self) -> Screening: ...


def freeze_version(
    pool: FreezePool,
    name: str,
    view: View,
    recipe: Recipe,
    *,
    author: str,
    parent: str | None = None,
    note: str | None = None,
    redaction: Redaction | None = None,
    texts: TokenTexts = no_texts,
    templates: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Freeze the steps of a view in the recipe's channel under a name; from one snapshot, completely or not at all.

    Args:
        pool: the pool.
        name: of the version; taken names are refused.
        view, recipe: what to freeze, and the default recipe of its plans.
        author, note: stored with the version.
        parent: name of the version that this one follows.
        redaction: what is removed from it.
        texts: how token ids are spelled, for redaction.
        templates: tokenizer hash -> hash of the chat template that goes with it, where known.
        progress: called while redaction goes through the trajectories, when the snapshot is read, before the version
            is written and before it is committed. What it raises ends the freeze, and nothing is stored.

    Returns:
        the version: name, version_uid, content_hash, counts, view, recipe, redaction, provenance.
    """
    if recipe.dataset is not None:
        raise InvalidInput("A version is frozen from the pool, not from another.", field="recipe.dataset")
    if recipe.view is not None:
        view, recipe = narrowed(view, recipe.view), recipe.model_copy(update={"view": None})
    if recipe.rewards is not None:
        # A policy of this name may get a new version later, so its present rule is frozen.
        recipe = recipe.model_copy(update={"rewards": pool.rewards.resolve(recipe.rewards)})
    snapshot = pool.versions.snapshot(view, channel=recipe.channel, value_model=recipe.value_model)
    members, edits, redaction_head = snapshot.rows, snapshot.edits, None
    report_progress = progress or _no_progress
    n_trajectories = pc.count_distinct(members["trajectory_id"]).as_py()
    report_progress(0, n_trajectories)
    if redaction is not None:
        redacted = redact(pool.training, pool.screening, members, redaction, texts, progress)
        members = _redacted(members, redacted)
        edits = [one for one in edits if _is_clean(pool, one, redacted, redaction)]
        n_left_out = len(snapshot.edits) - len(edits)
        report = redacted.report() | ({"n_edits_left_out": n_left_out} if n_left_out else {})
        redaction_head = {**redaction.to_json(), "report": report}
    head = {
        "name": name,
        "parent": parent,
        "channel": recipe.channel,
        "view": view,
        "recipe": recipe.to_json(),
        "redaction": redaction_head,
        "provenance": {
            **provenance(members, templates or {}),
            "reward_policy": recipe.rewards or pool.rewards.adopted(recipe.channel),
        },
        "policy_events": snapshot.policy_events,
        "value_model": recipe.value_model,
        "author": author,
        "note": note,
    }
    report_progress(n_trajectories, n_trajectories)
    return pool.versions.store(
        head,
        members,
        snapshot.source_rewards,
        snapshot.values,
        edits,
        before_commit=lambda: report_progress(n_trajectories, n_trajectories),
    )


def _no_progress(done: int, total: int) -> None:
    """Nobody follows."""


def dry_run(
    pool: FreezePool,
    view: View,
    recipe: Recipe,
    redaction: Redaction,
    *,
    texts: TokenTexts = no_texts,
    progress: Progress | None = None,
) -> Redacted:
    """What ``freeze_version`` with these arguments would mask and drop, and every text that a rule matched.

    Nothing is stored. The matches hold what redaction is to remove: show them only to people who may read the pool.
    """
    if recipe.view is not None:
        view = narrowed(view, recipe.view)
    members = pool.versions.snapshot(view, channel=recipe.channel).rows
    return redact(pool.training, pool.screening, members, redaction, texts, progress)


def _is_clean(pool: FreezePool, edit: Edit, redacted: Redacted, rules: Redaction) -> bool:
    """Whether redaction finds nothing in an edited step: tokens of an edited answer can't be masked one by one."""
    if edit.step_uid in redacted.dropped or edit.step_uid in redacted.masks:
        return False
    step = pool.training.trajectory(str(edit.edit_uid))["steps"][0]
    texts = [edit.text, dict(edit.message), step["messages"], step["tools"], step["metadata"]]
    return bool(rules.clean(texts) == texts)


def _redacted(members: pa.Table, redacted: Redacted) -> pa.Table:
    if redacted.dropped:
        gone = pa.array(sorted(redacted.dropped), pa.string())
        members = members.filter(pc.invert(pc.is_in(members["step_uid"], gone)))
    masks = [redacted.masks.get(uid, (None, None, None)) for uid in members["step_uid"].to_pylist()]
    kinds = (pa.list_(pa.int32()), pa.list_(pa.int32()), pa.int32())
    for place, (column, kind) in enumerate(zip(MASK_COLUMNS, kinds, strict=True)):
        members = members.append_column(column, pa.array([mask[place] for mask in masks], kind))
    return members


def provenance(members: pa.Table, templates: Mapping[str, str]) -> dict[str, Any]:
    """A version's provenance: hashes, range of policy versions, steps by source, token source, model and agent."""

    def counted(name: str) -> dict[str, int]:
        counts = Counter(members[name].to_pylist())
        named = {"unknown" if key is None else str(key): n for key, n in counts.items()}
        return dict(sorted(named.items()))

    hashes = counted("tokenizer_hash")
    newest = pc.max(pc.coalesce(members["policy_version_end"], members["policy_version"])).as_py()
    return {
        "tokenizer_hashes": hashes,
        "template_hashes": {key: templates[key] for key in hashes if key in templates},
        "policy_version_min": pc.min(members["policy_version"]).as_py(),
        "policy_version_max": newest,
        **{f"{name}s": counted(name) for name in ("source", "token_source", "model", "agent")},
        "n_scored": int(pc.sum(pc.is_valid(members["trajectory_reward"])).as_py() or 0),
        "n_trainable": int(pc.sum(members["trainable"]).as_py() or 0),
    }


def version_plan(pool: PlanPool, name: str, recipe: Mapping[str, Any] | None = None) -> Plan:
    """The plan of a version, by the recipe that it was frozen with, or by another.

    The same version and recipe give the same plan, whatever happens in the pool; its hash covers the version's content.
    """
    wanted = pool.versions.get(name)["recipe"] if recipe is None else recipe
    return plan(pool, View(), parse_recipe({**wanted, "dataset": name}))
