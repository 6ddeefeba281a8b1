"""The candidate steps of a plan, in plan order: steps are read as they lie, and put in order by their trajectories."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from core.pool.query.reads import explained
from core.pool.query.views import compile_view, source_sql
from core.pool.state.findings import BIT
from core.pool.store.database import Cursor, arrow, in_list
from core.types import View

_TRAJECTORIES = """
WITH grouped AS (
    SELECT trajectory_id, trajectory_uid, prompt_uid, reward, quality, complete, started_at,
        min(started_at) OVER (PARTITION BY prompt_uid, channel) AS group_first_at
    FROM trajectory_state WHERE n_steps > 0 AND ($channel IS NULL OR channel = $channel)
)
SELECT trajectory_id, trajectory_uid, prompt_uid, reward AS trajectory_reward, quality AS trajectory_quality, complete
FROM grouped ORDER BY group_first_at, prompt_uid, started_at, trajectory_uid
"""
_NAMES = ("quality", "token_source", "call_kind")
"""Text columns of few values. Read as an ENUM they come as dictionaries, without ten million texts."""
_STEPS = """
SELECT s.step_id, s.trajectory_id, s.step_uid, s.step_index, s.n_prompt_tokens, s.n_response_tokens,
    s.reward, s.trainable, s.policy_version, s.is_last, (s.finding_bits & {uncertain}) <> 0 AS uncertain, {names}
FROM step_state s{chosen}
"""
_COLUMNS = (
    "step_id", "step_uid", "trajectory_uid", "prompt_uid", "step_index", "n_prompt_tokens", "n_response_tokens",
    "reward", "trajectory_reward", "quality", "trajectory_quality", "trainable", "complete", "token_source",
    "call_kind", "policy_version", "is_last", "uncertain",
)  # fmt: skip


def planned_trajectories(cursor: Cursor, channel: str | None) -> pa.Table:
    """The trajectories of a channel (None: all) that have steps, in the order plans are made in."""
    return arrow(cursor, _TRAJECTORIES.replace("$channel", "?::VARCHAR"), [channel, channel]).combine_chunks()


def plan_rows(cursor: Cursor, view: View, channel: str | None) -> pa.Table:
    """One row per step of the view in a channel (None: all), in the order plans are made in.

    Texts that many steps share are dictionaries.
    """
    trajectories = planned_trajectories(cursor, channel)
    condition = compile_view(view)
    everything = condition.sql == "TRUE"
    chosen = "" if everything else f"\nSEMI JOIN (SELECT s.step_id {source_sql(condition)}) v ON v.step_id = s.step_id"
    parameters = list(condition.parameters)
    if channel is not None:
        chosen += "\nSEMI JOIN (SELECT trajectory_id FROM trajectory_state WHERE channel = ?) USING (trajectory_id)"
        parameters.append(channel)
    with explained(view):
        steps = _steps(cursor, chosen, parameters)
    return _in_order(steps, trajectories)


def rows_of_trajectories(cursor: Cursor, trajectories: pa.Table) -> pa.Table:
    """The rows of ``plan_rows`` of these trajectories: some of ``planned_trajectories``, in its order."""
    with in_list(cursor, "s.trajectory_id", trajectories["trajectory_id"].to_numpy()) as (condition, bound):
        steps = _steps(cursor, f"\nWHERE {condition}", bound)
    return _in_order(steps, trajectories)


def _steps(cursor: Cursor, chosen: str, parameters: list[Any]) -> pa.Table:
    names = ", ".join(_as_enum(cursor, name) for name in _NAMES)
    return arrow(cursor, _STEPS.format(uncertain=BIT["uncertain"], names=names, chosen=chosen), parameters)


def _in_order(steps: pa.Table, trajectories: pa.Table) -> pa.Table:
    place, order = _placed(steps, trajectories["trajectory_id"].to_numpy())
    if order is not None:
        steps, place = steps.take(pa.array(order)), place[order]
    owner = pa.array(place)
    columns = {name: steps[name] for name in steps.column_names if name != "trajectory_id"}
    for name in ("trajectory_uid", "prompt_uid", "trajectory_quality"):
        texts = trajectories[name].combine_chunks().dictionary_encode()
        columns[name] = pa.DictionaryArray.from_arrays(texts.indices.take(owner), texts.dictionary)
    for name in ("trajectory_reward", "complete"):
        columns[name] = trajectories[name].combine_chunks().take(owner)
    return pa.table({name: columns[name] for name in _COLUMNS})


def _as_enum(cursor: Cursor, name: str) -> str:
    """The SQL of a text column as an ENUM of the values that it has."""
    values = cursor.execute(f"SELECT DISTINCT {name} FROM step_state WHERE {name} IS NOT NULL ORDER BY ALL").fetchall()
    if not values:
        return f"NULL::VARCHAR AS {name}"
    quoted = ", ".join("'" + value.replace("'", "''") + "'" for (value,) in values)
    return f"s.{name}::ENUM({quoted}) AS {name}"


def _placed(steps: pa.Table, trajectory_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """The place of each step's trajectory, int32 [n], -1: not wanted; and the wanted rows in plan order.

    The rows are None where all are wanted and lie in plan order.
    """
    of_step = steps["trajectory_id"].to_numpy()
    places = np.full(int(max(of_step.max(initial=0), trajectory_ids.max(initial=0))) + 1, -1, np.int32)
    places[trajectory_ids] = np.arange(trajectory_ids.size, dtype=np.int32)
    place = places[of_step]
    step_index, step_ids = steps["step_index"].to_numpy(), steps["step_id"].to_numpy()
    # Both fit into 32 bits, so one number orders trajectories and the steps in them.
    key = place.astype(np.int64) << 32
    key += step_index.astype(np.int64) + (1 << 31)
    if not np.all(step_ids[1:] > step_ids[:-1]):
        rows = np.lexsort((step_ids, key))
    elif not np.all(key[1:] >= key[:-1]):
        rows = np.argsort(key, kind="stable")
    elif place.size and place[0] < 0:
        rows = np.arange(place.size)
    else:
        return place, None
    return place, rows[int((place < 0).sum()) :]
