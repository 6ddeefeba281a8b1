"""Rows of plans, put in order in memory, beside one SQL statement that joins and sorts; hashes beside packed bytes."""

from __future__ import annotations

import hashlib
import random
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.pool import Pool
from core.pool.cache import planrowscache
from core.pool.query import creditfields
from core.pool.query.planrows import plan_rows
from core.pool.query.views import compile_view, source_sql
from core.pool.state.findings import BIT
from core.pool.store import tablehash
from core.pool.store.database import rows
from core.types import Annotation, Step, View

from .test_columncache import NOW, Story

JOINED = """
WITH t AS (
    SELECT *, min(started_at) OVER (PARTITION BY prompt_uid, channel) AS group_first_at
    FROM trajectory_state WHERE n_steps > 0 AND (?::VARCHAR IS NULL OR channel = ?)
)
SELECT s.step_id, s.step_uid, t.trajectory_uid, s.prompt_uid, s.step_index, s.n_prompt_tokens, s.n_response_tokens,
    s.reward, t.reward AS trajectory_reward, s.quality, t.quality AS trajectory_quality,
    s.trainable, t.complete, s.token_source, s.call_kind, s.policy_version, s.is_last,
    (s.finding_bits & {uncertain}) <> 0 AS uncertain
FROM step_state s JOIN t USING (trajectory_id)
WHERE s.step_id IN (SELECT s.step_id {source})
ORDER BY t.group_first_at, t.prompt_uid, t.started_at, t.trajectory_uid, s.step_index, s.step_id
"""
VIEWS = [View(), View({"step_index": [1, 4]}), View({"quality": "good"}), View(where="trajectory_reward > 0.3")]


def check(pool: Pool) -> int:
    """All views and channels; how many rows were compared."""
    n = 0
    with pool._db.read() as cursor:
        for view in VIEWS:
            for channel in (None, "train", "val", "nobody's"):
                condition = compile_view(view)
                sql = JOINED.format(source=source_sql(condition), uncertain=BIT["uncertain"])
                wanted = rows(cursor, sql, [channel, channel, *condition.parameters])
                assert plan_rows(cursor, view, channel).to_pylist() == wanted
                n += len(wanted)
    return n


@pytest.mark.parametrize("seed", range(6))
def test_rows_are_those_of_a_join_that_sorts(seed: int) -> None:
    """Trajectories arrive interleaved, move to other groups and get labels."""
    rng = random.Random(seed)
    pool = Pool.open(":memory:", clock=lambda: NOW)
    story = Story(pool, rng)
    assert check(pool) == 0
    for _ in range(12):
        story.arrive(at_most=30)
        rng.choice([story.arrive, story.move, story.complete, story.label, story.label_all, story.undo])()
    assert check(pool) > 100
    pool.close()


@pytest.mark.parametrize("at_once", [1, 3, 1000])
def test_hashes_that_are_read_in_parts_are_those_of_each_step(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In plan order, shuffled, with gaps, twice the same step, and none."""
    monkeypatch.setattr(creditfields, "HASHES_AT_ONCE", at_once)
    rng = random.Random(at_once)
    pool = Pool.open(":memory:", clock=lambda: NOW)
    story = Story(pool, rng)
    for _ in range(4):
        story.arrive(at_most=30)
    with pool._db.read() as cursor:
        by_id = dict(cursor.execute("SELECT step_id, facts_hash::VARCHAR FROM steps").fetchall())
        assert len(set(by_id.values())) > 10
        all_ids = sorted(by_id)
        shuffled = rng.sample(all_ids, len(all_ids))
        for ids in (all_ids, shuffled, all_ids[:: len(all_ids) // 4], [*shuffled[:9], *shuffled[:9]], []):
            hashes = creditfields.facts_hashes(cursor, np.array(ids, np.int64))
            assert hashes.to_pylist() == [by_id[step_id] for step_id in ids]
    pool.close()


@pytest.mark.parametrize("seed", range(6))
def test_rows_that_are_kept_are_those_of_a_join_that_sorts(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After any write the rows of a channel are as if they were read anew, and few writes read all of them."""
    rng = random.Random(seed)
    pool = Pool.open(":memory:", clock=lambda: NOW)
    story, read_anew = Story(pool, rng), []
    monkeypatch.setattr(planrowscache, "plan_rows", lambda *given: read_anew.append(given) or plan_rows(*given))
    events = [story.arrive, story.move, story.complete, story.label, story.label_all, story.undo, story.adopt]
    story.arrive(at_most=30)
    sql = JOINED.format(source=source_sql(compile_view(View())), uncertain=BIT["uncertain"])
    for _ in range(25):
        for channel in rng.sample([None, "train"], rng.randint(1, 2)):
            with pool._db.read() as cursor:
                wanted = rows(cursor, sql, [channel, channel])
            assert pool.training.plan_rows(channel=channel).to_pylist() == wanted
            assert pool.training.plan_rows(channel=channel) is pool.training.plan_rows(channel=channel)
        rng.choice(events)()
    assert len(read_anew) < 20
    pool.close()


def test_hashes_of_facts_are_those_of_the_table() -> None:
    """In any order, after steps arrive, after a hash is gone, and after steps are deleted."""
    rng = random.Random(3)
    pool = Pool.open(":memory:", clock=lambda: NOW)
    story = Story(pool, rng)

    def check_all() -> list[str | None]:
        with pool._db.read() as cursor:
            of_step = dict(cursor.execute("SELECT step_id, facts_hash::VARCHAR FROM steps").fetchall())
        step_ids = rng.choices(list(of_step), k=2 * len(of_step))
        for wanted in (step_ids, sorted(of_step), step_ids[:1], []):
            hashes = pool.training.facts_hashes(np.array(wanted, np.int64))
            assert hashes.type == pa.string() and hashes.to_pylist() == [of_step[one] for one in wanted]
        return list(of_step.values())

    for _ in range(4):
        story.arrive(at_most=20)
        story.label()
        assert all(check_all())
    with pool._db.write() as cursor:
        cursor.execute("UPDATE steps SET facts_hash = NULL WHERE step_id = 2")
    assert None in check_all()
    with pool._db.write() as cursor:
        cursor.execute("DELETE FROM steps WHERE step_id IN (2, 3)")
    assert all(check_all())
    story.arrive()
    assert all(check_all())
    pool.close()


def test_a_preview_plans_what_is_not_written() -> None:
    pool = Pool.open(":memory:", clock=lambda: NOW)
    pool.steps.append([Step(f"s{k}", f"t{k % 2}", "p", k, NOW + k) for k in range(6)])
    before = pool.training.plan_rows(channel="train")
    with pool.labels.previewing([Annotation("quality", "bad", "a", "h", NOW, step_uid="s3")]):
        seen = pool.training.plan_rows(channel="train").to_pylist()
    assert [row["step_uid"] for row in seen if row["quality"] == "bad"] == ["s3"]
    assert pool.training.plan_rows(channel="train") is before
    pool.close()


def test_steps_that_arrive_late_come_at_their_place() -> None:
    """Steps of two trajectories in reverse; equal indices follow arrival; the group that began first is first."""
    pool = Pool.open(":memory:", clock=lambda: NOW)
    steps = [
        Step(f"{uid}.{k}.{choice}", uid, group, k, NOW + began + k, channel=channel)
        for uid, group, channel, began in (("b", "p2", "train", 5), ("a", "p1", "val", 3), ("c", "p2", "train", 1))
        for k in (3, 0, 2)
        for choice in (0, 1)
    ]
    pool.steps.append(steps)
    assert check(pool) > 0
    uids = pool.training.plan_rows(channel="train")["step_uid"].to_pylist()
    assert uids == [f"{uid}.{k}.{choice}" for uid in "cb" for k in (0, 2, 3) for choice in (0, 1)]
    pool.close()


VALUES: dict[str, tuple[pa.DataType, Any]] = {
    "number": (pa.int32(), st.integers(-5, 5)),
    "real": (pa.float64(), st.floats(allow_nan=False)),
    "flag": (pa.bool_(), st.booleans()),
    "text": (pa.string(), st.text(max_size=4)),
    "reals": (pa.large_list(pa.float32()), st.lists(st.floats(-2, 2, width=32), max_size=4)),
}


def packed(kind: pa.DataType, values: list[Any]) -> bytes:
    """Validity of all rows, then lengths of all, then values of all, as the stored hashes have them."""
    data = bytes(value is not None for value in values)
    if pa.types.is_large_list(kind):
        data += b"".join(struct.pack("<q", len(value or ())) for value in values)
        return data + packed(kind.value_type, [one for value in values for one in value or ()])
    if pa.types.is_string(kind):
        texts = [(value or "").encode() for value in values]
        return data + b"".join(struct.pack("<q", len(text)) for text in texts) + b"".join(texts)
    if pa.types.is_floating(kind):
        return data + b"".join(struct.pack("<d", value or 0.0 if value != 0 else value) for value in values)
    return data + b"".join(bytes([value or 0]) if pa.types.is_boolean(kind) else struct.pack("<q", value or 0)
                           for value in values)  # fmt: skip


@given(st.data(), st.integers(0, 40), st.integers(1, 9), st.booleans())
def test_a_tables_hash_is_of_these_bytes(data: Any, n: int, at_once: int, as_dictionary: bool) -> None:
    """In any chunks and parts; a dictionary hashes as its texts."""
    columns, wanted = {}, struct.pack("<q", n)
    for name, (kind, values) in sorted(VALUES.items()):
        column = data.draw(st.lists(st.one_of(st.none(), values), min_size=n, max_size=n))
        cut = data.draw(st.integers(0, n))
        chunks = [pa.array(part, kind) for part in (column[:cut], column[cut:])]
        if name == "text" and as_dictionary:
            columns[name] = pa.chunked_array([pa.array(column, kind).dictionary_encode()])
        else:
            columns[name] = pa.chunked_array(chunks, kind)
        wanted += name.encode() + b"\0" + packed(kind, column)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tablehash, "ROWS_AT_ONCE", at_once)
        digest = hashlib.sha256()
        tablehash.update_hash(digest, pa.table(columns))
    assert digest.hexdigest() == hashlib.sha256(wanted).hexdigest()
