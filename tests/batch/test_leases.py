from __future__ import annotations

import itertools
import threading

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from core.batch.leases import Fetch, Leases
from core.batch.plan import plan
from core.batch.recipe import parse_recipe
from core.batch.serialize import deserialize_plan, serialize_plan
from core.errors import Conflict, InvalidInput, NotFound
from core.pool import Pool
from core.types import Annotation, View
from tests.effort import settings

from .conftest import T0, done, rollout

GRPO = {"algorithm": "grpo", "n_rollouts": 2, "batch_size": 1}


class Clock:
    def __init__(self, now: float = T0 + 1000) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def pool(tmp_path, clock):
    opened = Pool.open(tmp_path / "pool.duckdb", memory="512MB", threads=1, clock=clock)
    yield opened
    opened.close()


@pytest.fixture
def leases(pool, clock):
    number = itertools.count(1)
    return Leases(pool, clock, lambda: f"b{next(number)}", lambda _: 7)


def fill(pool, groups, *, n=2, start=0):
    for number, group in enumerate(groups):
        uids = [f"{group}-{k}" for k in range(start, start + n)]
        steps = [step for k, uid in enumerate(uids) for step in rollout(uid, group, at=number * 100 + k)]
        completions = [event for k, uid in enumerate(uids) for event in done(uid, reward=float(k % 2))]
        pool.steps.append(steps, completions=completions)


def groups_of(leased):
    return [group.prompt_uid for group in leased.plan.groups]


def ask(consumer="a", **fields):
    return Fetch(consumer, **{"recipe": GRPO, **fields})


def test_a_lease_holds_its_groups_until_it_is_released(pool, leases):
    fill(pool, ["A", "B"])
    first, second = leases.fetch(ask("a")), leases.fetch(ask("b"))
    assert (groups_of(first), groups_of(second)) == (["A"], ["B"])
    third = leases.fetch(ask("a"))
    assert third.batch is None and third.missing == "0 of 1 prompt groups are ready"
    assert {one.reason: one.n_groups for one in third.plan.excluded} == {"in_use": 2}
    pool.batches.finish(first.batch["batch_uid"], "released", consumer="a")
    assert groups_of(leases.fetch(ask("b"))) == ["A"]


def test_what_was_consumed_never_comes_again_unless_the_recipe_says_so(pool, leases):
    fill(pool, ["A"])
    pool.batches.finish(leases.fetch(ask()).batch["batch_uid"], "acked", update=1)
    assert leases.fetch(ask()).batch is None
    twice = {**GRPO, "max_uses": 2}
    again = leases.fetch(ask(recipe=twice))
    pool.batches.finish(again.batch["batch_uid"], "acked", update=2)
    assert leases.fetch(ask(recipe=twice)).batch is None
    assert groups_of(leases.fetch(ask(recipe={**GRPO, "max_uses": None}))) == ["A"]
    history = pool.consumption.of_step("A-0.0")
    assert [(one["state"], one["update_index"], one["policy_version"]) for one in history] == [
        ("acked", 1, 7), ("acked", 2, 7), ("leased", None, 7),
    ]  # fmt: skip


def test_new_rollouts_of_a_consumed_prompt_are_a_new_group(pool, leases):
    fill(pool, ["A"])
    pool.batches.finish(leases.fetch(ask()).batch["batch_uid"], "acked")
    fill(pool, ["A"], start=2)
    again = leases.fetch(ask())
    assert [one.trajectory_uid for one in again.plan.groups[0].trajectories] == ["A-2", "A-3"]


def test_shared_consumers_get_the_same_groups_each_once(pool, leases):
    fill(pool, ["A"])
    a, b = leases.fetch(ask("a", shared=True)), leases.fetch(ask("b", shared=True))
    assert groups_of(a) == groups_of(b) == ["A"]
    assert leases.fetch(ask("a", shared=True)).batch is None
    assert leases.fetch(ask("c")).batch is None


def test_an_expired_lease_returns_and_a_late_word_counts_while_nobody_else_was_served(pool, leases, clock):
    fill(pool, ["A"])
    late = leases.fetch(ask("a", lease_s=60))
    clock.now += 61
    assert pool.batches.expire() == [late.batch["batch_uid"]]
    assert pool.batches.finish(late.batch["batch_uid"], "acked")["state"] == "acked"

    fill(pool, ["B"])
    lost = leases.fetch(ask("a", lease_s=60))
    clock.now += 61
    taken = leases.fetch(ask("b"))
    assert groups_of(lost) == groups_of(taken) == ["B"]
    with pytest.raises(Conflict, match="handed out again"):
        pool.batches.finish(lost.batch["batch_uid"], "acked")
    with pytest.raises(Conflict, match="expired, so it can't be released"):
        pool.batches.finish(lost.batch["batch_uid"], "released")
    assert [event["event"] for event in pool.batches.get(lost.batch["batch_uid"])["events"]] == ["leased", "expired"]


def test_renewing_moves_the_end(pool, leases, clock):
    fill(pool, ["A"])
    uid = leases.fetch(ask(lease_s=60)).batch["batch_uid"]
    assert pool.batches.next_expiry() == clock.now + 60
    pool.batches.renew(uid, clock.now + 600, consumer="a")
    clock.now += 61
    assert pool.batches.expire() == []
    with pytest.raises(Conflict, match="belongs to 'a'"):
        pool.batches.renew(uid, clock.now + 600, consumer="b")


def test_a_retried_request_gets_the_same_batch(pool, leases, clock):
    fill(pool, ["A", "B"])
    first = leases.fetch(ask(request_id="r1"))
    again = leases.fetch(ask(request_id="r1"))
    assert again.repeated and again.batch["batch_uid"] == first.batch["batch_uid"]
    assert again.plan.hash == first.plan.hash and again.plan.steps.equals(first.plan.steps)
    assert groups_of(leases.fetch(ask(request_id="r2"))) == ["B"]
    assert leases.fetch(ask("b", request_id="r1")).batch is None
    clock.now += 10_000
    renewed = leases.fetch(ask(request_id="r1"))
    assert not renewed.repeated and renewed.batch["batch_uid"] != first.batch["batch_uid"]


def test_repeating_a_word_changes_nothing_and_contradicting_it_is_refused(pool, leases):
    fill(pool, ["A"])
    uid = leases.fetch(ask()).batch["batch_uid"]
    pool.batches.finish(uid, "acked", update=3, metrics={"loss": 0.5})
    assert pool.batches.finish(uid, "acked", update=9, metrics={"loss": 0.7})["update_index"] == 3
    assert [one["value"] for one in pool.batches.metrics(uid)] == [0.5]
    with pytest.raises(Conflict, match="acked, so it can't be released"):
        pool.batches.finish(uid, "released")
    with pytest.raises(NotFound):
        pool.batches.finish("nothing", "acked")


def test_metrics_join_steps_of_the_batch_only(pool, leases):
    fill(pool, ["A", "B"])
    uid = leases.fetch(ask()).batch["batch_uid"]
    with pytest.raises(InvalidInput, match=r"'B-0\.0' is not in this batch") as caught:
        pool.batches.finish(uid, "acked", metrics={"loss": 1.0}, steps=[("A-0.0", {"kl": 0.1}), ("B-0.0", {"kl": 0.2})])
    assert caught.value.field == "steps.1.step_uid"
    assert pool.batches.get(uid)["state"] == "leased" and pool.batches.metrics(uid) == []
    pool.batches.add_metrics(uid, 4, {"loss": 1.0, "grad_norm": None}, [("A-0.0", {"kl": 0.1})])
    assert [(one["name"], one["value"], one["update_index"]) for one in pool.batches.metrics(uid)] == [
        ("loss", 1.0, 4), ("grad_norm", None, 4),
    ]  # fmt: skip
    assert [(one["step_uid"], one["value"]) for one in pool.batches.metrics(uid, of_steps=True)] == [("A-0.0", 0.1)]


def test_a_channels_active_recipe_is_what_the_next_fetch_uses(pool, leases):
    fill(pool, ["A", "B", "C"])
    pool.recipes.save("main", GRPO)
    pool.recipes.activate("train", "main")
    first = leases.fetch(Fetch("a"))
    assert (first.batch["recipe_name"], first.batch["recipe_version"]) == ("main", 1)
    assert pool.recipes.save("main", {**GRPO, "batch_size": 2}) == 2
    assert pool.recipes.save("main", {**GRPO, "batch_size": 2}) == 2
    second = leases.fetch(Fetch("a"))
    assert (second.batch["recipe_version"], groups_of(second)) == (2, ["B", "C"])
    pool.recipes.activate("train", None)
    assert leases.fetch(Fetch("a")).chosen.name is None
    with pytest.raises(NotFound, match="version 9 of recipe 'main'"):
        pool.recipes.activate("train", "main", 9)


def test_a_stored_plan_comes_back_as_it_was(pool, leases):
    fill(pool, ["A", "B"])
    for recipe in (GRPO, {"algorithm": "reinforce_plus_plus"}, {"algorithm": "dpo"}, {"algorithm": "kto"}):
        made = plan(pool, View(where="step_index >= 0"), parse_recipe(recipe))
        back = deserialize_plan(serialize_plan(made), pool)
        assert back.to_json() == made.to_json()
        assert back.steps.equals(made.steps) and back.trajectories.equals(made.trajectories)
    held = leases.fetch(ask())
    before = leases.plan_of(held.batch["batch_uid"]).to_json()
    pool.labels.annotate([Annotation("quality", "bad", "me", "test", T0, trajectory_uid="A-0")])
    assert leases.plan_of(held.batch["batch_uid"]).to_json() == before == held.plan.to_json()


words = st.lists(
    st.tuples(
        st.sampled_from(["fetch", "fetch", "ack", "release", "wait", "late"]),
        st.sampled_from(["a", "b", "c"]),
        st.integers(0, 5),
    ),
    max_size=25,
)


TWO_LATE = [
    ("fetch", "a", 0),
    ("wait", "a", 0),
    ("fetch", "b", 0),
    ("wait", "b", 0),
    ("late", "a", 0),
    ("late", "b", 0),
]


@given(words)
@example(TWO_LATE)
@settings(max_examples=25, deadline=None)
def test_no_group_is_held_twice_and_none_is_lost(tmp_path_factory, words):
    """Any order of fetches, words and expiries: a plain model of who may hold what agrees with the pool."""
    clock, number = Clock(), itertools.count(1)
    opened = Pool.open(tmp_path_factory.mktemp("leases") / "pool.duckdb", memory="512MB", threads=1, clock=clock)
    try:
        fill(opened, ["A", "B", "C"])
        leases = Leases(opened, clock, lambda: f"b{next(number)}", lambda _: None)
        held: dict[str, tuple[str, str, float]] = {}
        gone: dict[str, tuple[str, str]] = {}
        consumed: set[str] = set()
        for word, consumer, pick in words:
            clock.now += 1
            if word == "wait":
                clock.now += 100
            for uid in [uid for uid, (_, _, end) in held.items() if end <= clock.now]:
                owner, group, _ = held.pop(uid)
                gone[uid] = (owner, group)
            free = [g for g in "ABC" if g not in consumed and g not in {group for _, group, _ in held.values()}]
            if word == "fetch":
                leased = leases.fetch(ask(consumer, lease_s=50))
                assert groups_of(leased) == free[:1]
                if leased.batch is not None:
                    held[leased.batch["batch_uid"]] = (consumer, free[0], clock.now + 50)
            elif word in ("ack", "release") and held:
                uid = sorted(held)[pick % len(held)]
                owner, group, _ = held.pop(uid)
                opened.batches.finish(uid, "acked" if word == "ack" else "released", consumer=owner)
                if word == "ack":
                    consumed.add(group)
            elif word == "late" and gone:
                opened.batches.expire()
                uid = sorted(gone)[pick % len(gone)]
                owner, group = gone.pop(uid)
                if group in free:
                    opened.batches.finish(uid, "acked", consumer=owner)
                    consumed.add(group)
                else:
                    with pytest.raises(Conflict):
                        opened.batches.finish(uid, "acked", consumer=owner)
        acked = [one for one in opened.batches.newest() if one["state"] == "acked"]
        assert len(acked) == len(consumed)
    finally:
        opened.close()


def test_consumers_in_threads_share_nothing(pool, leases):
    names = [f"g{k:02d}" for k in range(12)]
    fill(pool, names)
    got: dict[str, list[str]] = {"a": [], "b": [], "c": []}

    def work(consumer):
        while (leased := leases.fetch(ask(consumer))).batch is not None:
            got[consumer] += groups_of(leased)
            pool.batches.finish(leased.batch["batch_uid"], "acked", consumer=consumer)

    threads = [threading.Thread(target=work, args=(name,)) for name in got]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(itertools.chain(*got.values())) == names
