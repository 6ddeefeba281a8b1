"""Text search against looking through every message by hand, again after each write: what is kept never goes stale."""

from __future__ import annotations

import random
import re
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from core.pool import Pool
from core.pool.cache.cache import FEW_STEPS
from core.pool.query import bloomfile, textsearch
from core.pool.query.facets import count_by_sql
from core.pool.query.textsearch import HOLDS_TEXT, MAX_ANSWERS, TextSearch, pattern_of
from core.pool.query.trigrambloom import MAX_SEARCHED, WINDOW, TrigramBloom, hashes_of
from core.pool.upkeep.retention import Retention
from core.types import Annotation, Step, View
from tests.effort import settings

NOW = 1e9
WORDS = ("alpha", "Beta", 'say "x"\n', "Ünder", "a%b", "")
texts = st.sampled_from(["alpha", "ALPH", "beta", '"x"', "\n", "ünd", "%", "a_b", "role", "zeta", "y\\"])
step = st.tuples(st.lists(st.sampled_from(WORDS), max_size=3), st.sampled_from(WORDS), st.integers(0, 2))


def holds(message: dict[str, Any], text: str) -> bool:
    """As the filter says: the text stands in the message, keys and all; case is ignored."""
    spelled = [message["role"], "role", "content", message["content"]]
    return any(text.lower() in part.lower() for part in spelled)


@given(
    st.lists(st.lists(step, min_size=1, max_size=4), min_size=1, max_size=4), st.lists(texts, min_size=1, max_size=3)
)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_search_finds_what_reading_finds_before_and_after_writes(
    batches: list[list[tuple[list[str], str, int]]], wanted: list[str]
) -> None:
    pool = Pool.open(":memory:", clock=lambda: NOW, threads=1)
    made: list[Step] = []
    for batch in batches:
        fresh = []
        for prompt, answer, owner in batch:
            parent = next((s for s in reversed([*made, *fresh]) if s.trajectory_uid == f"t{owner}"), None)
            before = [*(parent.messages or ()), parent.response_message] if parent else []
            fresh.append(
                Step(
                    f"s{len(made) + len(fresh)}", f"t{owner}", "p", len(before), NOW,
                    messages=[*before, *({"role": "user", "content": word} for word in prompt)],
                    response_message={"role": "assistant", "content": answer},
                    parent_step_uid=parent.step_uid if parent else None, n_shared_messages=len(before),
                )
            )  # fmt: skip
        pool.steps.append(fresh)
        made += fresh
        for text in wanted:
            view = View({"text": text})
            expected = {
                s.step_uid
                for s in made
                if any(holds(m, text) for m in [*(s.messages or ())[s.n_shared_messages :], s.response_message])
            }
            assert set(pool.steps.page(view, limit=None)["step_uid"].to_pylist()) == expected
            assert pool.steps.count(view) == len(expected)
            with pool._db.read() as cursor:  # the filter by itself, as the plain condition has it
                assert sum(n for _, n in count_by_sql(cursor, view, ["source"], 9)["source"]) == len(expected)
    pool.close()


def test_few_texts_are_kept_and_labels_reach_them_all() -> None:
    pool = Pool.open(":memory:", clock=lambda: NOW)
    pool.steps.append(
        [Step(f"s{i}", "t", "p", i, NOW, messages=[{"role": "user", "content": f"word{i}"}]) for i in range(20)]
    )
    for i in range(20):
        assert pool.steps.page(View({"text": f"word{i}"}))["step_uid"].to_pylist()[-1] == f"s{i}"
    assert len(pool.cache.texts._known) == MAX_ANSWERS
    view = View({"text": "word1", "quality": "good"})
    pool.labels.annotate([Annotation("quality", "good", "a", "h", NOW, step_uid=f"s{i}") for i in (1, 5, 12)])
    assert set(pool.steps.page(view)["step_uid"].to_pylist()) == {"s1", "s12"}
    assert pool.stats.facets(view, ["quality", "channel"]) == {"quality": [("good", 2)], "channel": [("train", 2)]}
    assert pool.trajectories.count(view) == pool.groups.count(view) == 1
    assert len(pool.training.plan_rows(view, channel=None)) == 2
    _, n = pool.labels.annotate_view(view, "step", "tag", "x", author="a", source="h")
    assert n == 2
    pool.close()


LETTERS = "aAbBkK\u212asS\u017f1_ éÉß\u1e9e中文\u0130\u0131{:"


def held(bodies: list[str], text: str) -> list[int]:
    """Places of the bodies that DuckDB's own match finds it in."""
    with duckdb.connect() as connection:
        connection.register("bodies", pa.table({"place": range(len(bodies)), "body": bodies}))
        sql = f"SELECT place FROM bodies WHERE {HOLDS_TEXT.format(body='body')}"
        return [row[0] for row in connection.execute(sql, [pattern_of(text)]).fetchall()]


@given(st.lists(st.text(LETTERS, min_size=1, max_size=30), min_size=1, max_size=8), st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_signs_never_leave_out_what_holds_a_text(bodies: list[str], data: st.DataObject) -> None:
    body = data.draw(st.sampled_from(bodies))
    begin = data.draw(st.integers(0, len(body) - 1))
    part = body[begin : begin + data.draw(st.integers(1, 12))]
    text = data.draw(st.sampled_from([part, part.upper(), part.lower(), part.swapcase(), part.casefold()]))
    for place in held(bodies, text):
        signs = TrigramBloom.of(np.arange(1), pa.chunked_array([[bodies[place]]]))
        assert 0 in signs.windows(hashes_of(text))


def test_windows_name_every_message_a_text_stands_in() -> None:
    rng = random.Random(0)
    words = ["".join(rng.choices("etaoinshr", k=6)) for _ in range(400)]
    sizes = [3, 40, 900, 5000, 3 * WINDOW, 10, 2 * WINDOW + 1]
    bodies = [" ".join(rng.choices(words, k=rng.choice(sizes) // 7 + 1)) for _ in range(120)]
    ids = np.cumsum([rng.randint(1, 5) for _ in bodies])
    signs = TrigramBloom.of(ids, pa.chunked_array([bodies[:50], bodies[50:]]))
    everything = "".join(bodies)
    cuts = [rng.randrange(len(everything) - 400) for _ in range(150)]
    cuts += [
        k * WINDOW - back for k in range(1, len(everything) // WINDOW) for back in (0, 1, 2, 3, MAX_SEARCHED - 1, 200)
    ]
    for cut in cuts:
        text = everything[cut : cut + rng.choice([3, 4, 6, 30, MAX_SEARCHED, MAX_SEARCHED + 1, 390])]
        windows = signs.windows(hashes_of(text.upper()))
        named = {int(i) for k in windows for i in ids if signs.firsts[k] <= i <= signs.firsts[k + 1]}
        assert {int(i) for i, body in zip(ids, bodies, strict=True) if text in body} <= named
    assert signs.windows(hashes_of("zzqqzz")).size == 0
    assert signs.last == ids[-1]


def steps_by_scan(steps: list[Step], text: str) -> set[str]:
    """Steps that say it, by Python's own match."""
    pattern = re.compile(re.escape(text), re.IGNORECASE)
    return {
        step.step_uid
        for step in steps
        if any(pattern.search(message["content"]) for message in [*(step.messages or ()), step.response_message or {}])
    }


def test_a_prepared_search_says_what_reading_says_beside_arrivals_and_retention() -> None:
    rng = random.Random(1)
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 9))) for _ in range(2000)]
    now = [NOW]
    pool = Pool.open(":memory:", clock=lambda: now[0], threads=1)

    def say(first: int, last: int) -> list[Step]:
        made = []
        for i in range(first, last):
            text = " ".join(rng.choices(words, k=rng.choice([5, 60, 300])))
            if i % 100 == 7:
                text += f" Needle{i:04d} Wörter \u017ftill 30\u212a"
            made.append(
                Step(
                    f"s{i}", f"t{i // 50}", "p", i, now[0], messages=[{"role": "user", "content": text}],
                    response_message={"role": "assistant", "content": f"Answer {i} " + rng.choice(words)},
                )
            )  # fmt: skip
        pool.steps.append(made)
        return made

    def searched(text: str) -> set[str]:
        return set(pool.steps.page(View({"text": text}), limit=None)["step_uid"].to_pylist())

    steps = say(0, 700)
    now[0] += 10 * 86_400
    steps += say(700, 1200)
    next_step, pool._writer.next["step_id"] = pool._writer.next["step_id"], FEW_STEPS
    pool.cache.warm()  # as the service does, of a big pool
    pool._writer.next["step_id"] = next_step
    assert not pool.cache.prepare_search()
    search: TextSearch = pool.cache.texts
    assert 1000 < search._blooms[-1].last <= 2400
    assert 0 < search.n_bytes < 1 << 22
    for text in ("needle0107", "NEEDLE0", "WÖRTER", "still", "30k", "answer 11", "zzqqzz", "rh", "eta", "needle12"):
        assert searched(text) == steps_by_scan(steps, text), text
    steps += say(1200, 1300)  # beyond all signs
    for text in ("needle12", "zzqqzz", "eta", "needle0107", "answer 1299"):
        assert searched(text) == steps_by_scan(steps, text), text
    assert pool.retention.apply(Retention(older_than_days=5), author="a")["n_steps"] == 700
    while pool.cache.prepare_search():
        pass
    for text in ("needle0", "needle0107", "answer 7", "still"):
        assert searched(text) == steps_by_scan(steps[700:], text), text
    fresh = TextSearch()  # made from a table that has lost its first messages
    with pool._db.read() as cursor:
        while fresh.prepare(cursor):
            pass
        assert {f"s{i - 1}" for i in fresh.steps(cursor, "needle").to_pydict()["step_id"]} == steps_by_scan(
            steps[700:], "needle"
        )
    pool.close()


@pytest.mark.parametrize("full", [False, True], ids=["on disk", "disk full"])
def test_a_search_with_filters_on_disk_finds_what_reading_finds(tmp_path, monkeypatch, caplog, full: bool) -> None:
    rng = random.Random(2)
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 9))) for _ in range(3000)]
    pool = Pool.open(tmp_path / "pool.duckdb", threads=1)
    steps = [
        Step(
            f"s{i}", f"t{i // 50}", "p", i, NOW,
            messages=[{"role": "user", "content": " ".join(rng.choices(words, k=600)) + f" Needle{i % 97:04d}"}],
            response_message={"role": "assistant", "content": f"Answer {i}"},
        )
        for i in range(1500)
    ]  # fmt: skip
    pool.steps.append(steps)
    monkeypatch.setattr(textsearch, "MERGED_BYTES", 100_000)
    monkeypatch.setattr(textsearch, "AT_ONCE", 300_000)
    monkeypatch.setattr(textsearch, "STEPS_AT_ONCE", 400)
    if full:
        monkeypatch.setattr(bloomfile, "SPARE_BYTES", 1 << 60)
    while pool.cache.prepare_search():
        pass
    search: TextSearch = pool.cache.texts
    assert search._blooms[-1].last > 2500
    assert search._step_messages.step_id == 1200
    assert ("stays in memory" in caplog.text) == full
    on_disk = [isinstance(each.bits, np.memmap) for each in search._blooms]
    assert on_disk.count(True) >= 3 and search.n_bytes < 200_000 if not full else not any(on_disk)
    for text in ("needle0013", "NEEDLE0096", "answer 11", "zzqqzz", words[5], f"{words[7]} {words[9]}"):
        found = pool.steps.page(View({"text": text}), limit=None)["step_uid"].to_pylist()
        assert set(found) == steps_by_scan(steps, text), text
    assert not list(tmp_path.glob("tmp*"))
    pool.close()
