"""Old and new rewards and the reliability of verifiers, beside numpy and a count by hand; results on disk."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import Conflict, InvalidInput, NotFound
from core.scoring.attempts import payload_of
from core.scoring.compare import compare, reliability
from core.scoring.results import RESULTS, RescoreSettings, RescoreStore, Result

REWARDS = st.none() | st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])


@given(st.lists(st.tuples(REWARDS, st.lists(REWARDS, min_size=1, max_size=3)), max_size=12))
def test_a_comparison_equals_a_count_by_hand(rows):
    results = [
        Result(f"t{i}", k, old, value, "scored" if value is not None else "crashed")
        for i, (old, values) in enumerate(rows)
        for k, value in enumerate(values)
    ]
    made = compare(reversed(results))
    pairs = []
    for old, values in rows:
        known = [value for value in values if value is not None]
        pairs.append((old, float(np.mean(known)) if known else None))
    both = [(old, new) for old, new in pairs if old is not None and new is not None]
    assert (made["n"], made["n_both"]) == (len(rows), len(both))
    assert made["n_newly_scored"] == sum(old is None and new is not None for old, new in pairs)
    assert made["n_no_longer_scored"] == sum(old is not None and new is None for old, new in pairs)
    assert made["n_now_solved"] == sum(old <= 0.5 < new for old, new in both)
    assert made["n_no_longer_solved"] == sum(new <= 0.5 < old for old, new in both)
    assert len(made["changes"]) == sum(old != new for old, new in pairs)
    if both:
        assert made["mean_difference"] == pytest.approx(np.mean([abs(old - new) for old, new in both]))
        assert made["agreement"] == pytest.approx(np.mean([(old > 0.5) == (new > 0.5) for old, new in both]))
        sizes = [abs(one["old"] - one["new"]) for one in made["changes"] if None not in (one["old"], one["new"])]
        assert sizes == sorted(sizes, reverse=True)
    else:
        assert made["mean_old"] is made["agreement"] is None


@given(
    st.lists(st.lists(REWARDS, min_size=1, max_size=4), max_size=8),
    st.lists(st.none() | st.sampled_from([0.0, 1.0]), min_size=8, max_size=8),
)
def test_reliability_equals_numpy(rows, labels):
    results = [
        Result(f"t{i}", k, None, value, "scored" if value is not None else "missing")
        for i, values in enumerate(rows)
        for k, value in enumerate(values)
    ]
    human = {f"t{i}": label for i, label in enumerate(labels) if label is not None}
    made = reliability(results, human)
    known = [[value for value in values if value is not None] for values in rows]
    repeated = [values for values in known if len(values) > 1]
    assert made["n"] == len(repeated)
    assert made["n_failed"] == sum(value is None for values in rows for value in values)
    assert made["n_unstable"] == sum(len(set(values)) > 1 for values in repeated)
    assert made["n_flipping"] == sum(len({value > 0.5 for value in values}) > 1 for values in repeated)
    if repeated:
        assert made["mean_variance"] == pytest.approx(np.mean([np.var(values, ddof=1) for values in repeated]))
    compared = [(np.mean(values), labels[i]) for i, values in enumerate(known) if values and labels[i] is not None]
    assert made["human"]["n"] == len(compared)
    assert made["human"]["n_disagree"] == sum((mean > 0.5) != (label > 0.5) for mean, label in compared)


def test_results_survive_a_cut_line(tmp_path):
    store = RescoreStore(tmp_path / "rescores")
    one = store.create(RescoreSettings("a.b-1", 1.0, repeats=2))
    results = [Result("t", k, 0.5, 1.0, "scored", details={"k": "ü\ud800"}) for k in range(2)]
    one.append(results[0])
    path = one.folder / RESULTS
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    again = RescoreStore(tmp_path / "rescores").get("a.b-1")
    assert len(again.results()) == 1
    again.repair()
    again.append(results[1])
    assert [(r.repeat, r.value) for r in again.results()] == [(0, 1.0), (1, 1.0)]
    assert again.settings == one.settings
    with pytest.raises(Conflict):
        store.create(RescoreSettings("a.b-1", 1.0))
    store.remove("a.b-1")
    assert store.all() == []
    for name, error in itertools.product(("", "..", "../x", "no"), (NotFound,)):
        with pytest.raises(error):
            store.get(name)


@pytest.mark.parametrize("fields", [{"name": "../x"}, {"repeats": 0}, {"verifier": "other"}])
def test_wrong_settings_are_refused(fields):
    with pytest.raises(InvalidInput):
        RescoreSettings(**{"name": "a", "created_at": 1.0, **fields})


def test_the_payload_is_the_last_answered_main_call():
    def step(text, **fields):
        messages = [{"role": "user", "content": "q"}]
        answer = {"role": "assistant", "content": text}
        return {"call_kind": "main", "status": "ok", "messages": messages, "response_message": answer, **fields}

    steps = [step("first"), step("last"), step("title", call_kind="auxiliary"), step(None, status="failed")]
    payload = payload_of({"trajectory_uid": "t", "prompt_uid": "p", "steps": steps})
    assert payload["final_message"] == "last"
    assert [one["content"] for one in payload["transcript"]] == ["q", "last"]
    assert payload_of({"trajectory_uid": "t", "steps": []})["final_message"] is None
