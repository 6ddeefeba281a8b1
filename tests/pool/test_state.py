"""Effective state after any sequence of writes equals a plain reference model, and a rebuild changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from core.errors import InvalidInput, NotFound
from core.pool import Pool
from core.types import Annotation, Step, View
from tests.effort import settings

STEP_FIELDS = (
    "reward", "quality", "trainable", "tags", "n_notes", "is_last", "call_kind", "channel", "prompt_uid",
    "trajectory_reward", "trajectory_quality", "complete", "correct", "trajectory_correct",
)  # fmt: skip
TRAJECTORY_FIELDS = (
    "reward", "quality", "trainable", "tags", "n_notes", "complete", "outcome", "channel", "prompt_uid", "n_steps",
    "correct",
)  # fmt: skip


@dataclass
class Action:
    annotations: list[Annotation]
    undone: bool = False


@dataclass
class Reference:
    """The rules of the glossary, written as one would say them."""

    steps: list[Step] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def opinions(self, **target: str) -> list[Annotation]:
        ((name, uid),) = target.items()
        return [a for x in self.actions if not x.undone for a in x.annotations if getattr(a, name) == uid]

    def latest(self, kind: str, **target: str) -> Any:
        values = [a.value for a in self.opinions(**target) if a.kind == kind]
        return values[-1] if values else None

    def tags(self, **target: str) -> list[str]:
        on: set[str] = set()
        for a in self.opinions(**target):
            if a.kind == "tag":
                on = on - {a.value[1:]} if a.value.startswith("-") else on | {a.value}
        return sorted(on)

    def notes(self, **target: str) -> int:
        return sum(a.kind == "note" for a in self.opinions(**target))

    def latest_value(self, uid: str, name: str) -> Any:
        values = [e[name] for _, e in self.events if e["trajectory_uid"] == uid and e.get(name) is not None]
        return values[-1] if values else None

    def of(self, uid: str) -> list[Step]:
        return [s for s in self.steps if s.trajectory_uid == uid]

    def complete(self, uid: str) -> bool:
        closed = any(kind == "complete" and e["trajectory_uid"] == uid for kind, e in self.events)
        return closed or any(step.is_last for step in self.of(uid))

    def kind(self, step: Step) -> str:
        family = self.of(step.trajectory_uid)
        if step.call_kind == "main" and not step.tools and any(s.tools for s in family):
            return "auxiliary"
        return step.call_kind

    def step_reward(self, step: Step) -> float | None:
        edited = self.latest("reward", step_uid=step.step_uid)
        return step.reward if edited is None else edited

    def step_trainable(self, step: Step) -> bool:
        own = self.latest("trainable", step_uid=step.step_uid)
        if own is not None:
            return own
        allowed = self.latest("trainable", trajectory_uid=step.trajectory_uid) is not False
        return allowed and self.kind(step) == "main" and step.status == "ok" and step.mismatch is None

    def trajectory(self, uid: str) -> dict[str, Any]:
        family = self.of(uid)
        rewards = [r for r in map(self.step_reward, family) if r is not None]
        reward = self.latest("reward", trajectory_uid=uid)
        if reward is None:
            reward = self.latest_value(uid, "reward")
        if reward is None and rewards:
            reward = sum(rewards)
        trainable = self.latest("trainable", trajectory_uid=uid)
        first = next((s for s in family if s.tools), family[0]) if family else None
        return {
            "reward": reward,
            "quality": self.latest("quality", trajectory_uid=uid),
            "trainable": any(map(self.step_trainable, family)) if trainable is None else trainable,
            "tags": self.tags(trajectory_uid=uid),
            "n_notes": self.notes(trajectory_uid=uid),
            "complete": self.complete(uid),
            "outcome": self.latest_value(uid, "outcome"),
            "channel": self.latest_value(uid, "channel") or (family[0].channel if family else "train"),
            "prompt_uid": self.latest_value(uid, "prompt_uid") or (first.prompt_uid if first else None),
            "n_steps": len(family),
            "correct": self.latest("correct", trajectory_uid=uid),
        }

    def step(self, step: Step) -> dict[str, Any]:
        whole = self.trajectory(step.trajectory_uid)
        mains = [s for s in self.of(step.trajectory_uid) if self.kind(s) == "main" and s.status == "ok"]
        last = max(mains, key=lambda s: (s.step_index, self.steps.index(s)), default=None)
        return {
            "reward": self.step_reward(step),
            "quality": self.latest("quality", step_uid=step.step_uid),
            "trainable": self.step_trainable(step),
            "tags": self.tags(step_uid=step.step_uid),
            "n_notes": self.notes(step_uid=step.step_uid),
            "is_last": step.is_last or (whole["complete"] and step is last),
            "call_kind": self.kind(step),
            "channel": whole["channel"],
            "prompt_uid": whole["prompt_uid"],
            "trajectory_reward": whole["reward"],
            "trajectory_quality": whole["quality"],
            "complete": whole["complete"],
            "correct": self.latest("correct", step_uid=step.step_uid),
            "trajectory_correct": whole["correct"],
        }


UIDS = ("t0", "t1", "t2")
quarters = st.integers(-4, 4).map(lambda n: n / 4)  # sums are exact in any order
opinion = st.one_of(
    st.tuples(st.just("reward"), st.none() | quarters),
    st.tuples(st.just("quality"), st.sampled_from(["good", "bad", "unsure", None])),
    st.tuples(st.just("trainable"), st.sampled_from([True, False, None])),
    st.tuples(st.just("correct"), st.sampled_from([True, False, None])),
    st.tuples(st.just("tag"), st.sampled_from(["x", "-x", "y", "-y"])),
    st.tuples(st.just("note"), st.just("why")),
)
new_step = st.fixed_dictionaries(
    {
        "trajectory_uid": st.sampled_from(UIDS),
        "prompt_uid": st.sampled_from(["p0", "p1"]),
        "step_index": st.integers(0, 3),
        "channel": st.sampled_from(["train", "val"]),
        "reward": st.none() | quarters,
        "status": st.sampled_from(["ok", "ok", "error"]),
        "mismatch": st.sampled_from([None, None, "lengths"]),
        "call_kind": st.sampled_from(["main", "main", "retry"]),
        "tools": st.sampled_from([None, [], [{"type": "function"}]]),
        "is_last": st.just(False) | st.booleans(),
    }
)
event = st.fixed_dictionaries(
    {
        "trajectory_uid": st.sampled_from(UIDS),
        "prompt_uid": st.sampled_from([None, "q"]),
        "channel": st.sampled_from([None, "val"]),
    },
)
opinions = st.lists(st.tuples(opinion, st.integers(0, 9), st.booleans()), min_size=1, max_size=3)
op = st.one_of(
    st.tuples(st.just("append"), st.lists(new_step, min_size=1, max_size=3)),
    st.tuples(st.just("append"), st.lists(new_step, min_size=1, max_size=3)),
    st.tuples(
        st.just("annotate"), st.lists(st.tuples(opinion, st.integers(0, 9), st.booleans()), min_size=1, max_size=3)
    ),
    st.tuples(
        st.just("annotate"), st.lists(st.tuples(opinion, st.integers(0, 9), st.booleans()), min_size=1, max_size=3)
    ),
    st.tuples(st.just("bulk"), st.tuples(opinion, st.sampled_from(UIDS), st.sampled_from(["step", "trajectory"]))),
    st.tuples(st.just("undo"), st.integers(0, 9)),
    st.tuples(st.just("redo"), st.integers(0, 9)),
    st.tuples(st.just("register"), event),
    st.tuples(st.just("complete"), st.tuples(event, st.none() | quarters, st.sampled_from([None, "done"]))),
)


def compare(pool: Pool, reference: Reference) -> None:
    steps = {row["step_uid"]: row for row in pool.steps.page(limit=None).to_pylist()}
    assert set(steps) == {s.step_uid for s in reference.steps}
    for step in reference.steps:
        expected = reference.step(step)
        assert {name: steps[step.step_uid][name] for name in STEP_FIELDS} == expected
    trajectories = {row["trajectory_uid"]: row for row in pool.trajectories.page(limit=None).to_pylist()}
    assert set(trajectories) == {s.trajectory_uid for s in reference.steps}
    known = set(trajectories) | {e["trajectory_uid"] for _, e in reference.events}
    for uid in known:
        row = pool.trajectories.get(uid, tokens=False)
        assert {name: row[name] for name in TRAJECTORY_FIELDS} == reference.trajectory(uid)


@given(st.lists(op, max_size=14))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_sequence_of_writes_equals_the_reference(ops: list[tuple[str, Any]]) -> None:
    pool, reference, uids = Pool.open(":memory:", clock=lambda: 1e9, threads=1), Reference(), []
    for name, value in ops:
        if name == "append":
            steps = [
                Step(step_uid=f"s{len(reference.steps) + i}", created_at=1e9, **facts) for i, facts in enumerate(value)
            ]
            pool.steps.append(steps)
            reference.steps += steps
        elif name == "annotate" and reference.steps:
            annotations = []
            for (kind, what), pick, on_step in value:
                step = reference.steps[pick % len(reference.steps)]
                target = {"step_uid": step.step_uid} if on_step else {"trajectory_uid": step.trajectory_uid}
                annotations.append(Annotation(kind, what, "me", "test", 1e9, **target))
            uids.append(pool.labels.annotate(annotations))
            reference.actions.append(Action(annotations))
        elif name == "bulk":
            (kind, what), owner, target = value
            action, n = pool.labels.annotate_view(
                View({"trajectory_uid": owner}), target, kind, what, author="me", source="test"
            )
            family = reference.of(owner)
            targets = (
                [{"step_uid": s.step_uid} for s in family]
                if target == "step"
                else [{"trajectory_uid": owner}][: len(family)]
            )
            assert n == len(targets)
            uids.append(action)
            reference.actions.append(Action([Annotation(kind, what, "me", "test", 1e9, **t) for t in targets]))
        elif name in ("undo", "redo") and uids:
            pick = value % len(uids)
            getattr(pool.labels, name)(uids[pick])
            reference.actions[pick].undone = name == "undo"
        elif name == "register":
            pool.steps.append([], registrations=[value])
            reference.events.append(("register", value))
        elif name == "complete":
            opinions, reward, outcome = value
            opinions = {**opinions, "reward": reward, "outcome": outcome}
            pool.steps.append([], completions=[opinions])
            reference.events.append(("complete", opinions))
    compare(pool, reference)
    before = (pool.steps.page(order="step_uid", limit=None), pool.trajectories.page(order="trajectory_uid", limit=None))
    pool.integrity.rebuild_state()
    after = (pool.steps.page(order="step_uid", limit=None), pool.trajectories.page(order="trajectory_uid", limit=None))
    assert after[0].equals(before[0])
    assert after[1].equals(before[1])
    pool.close()


@pytest.fixture
def pool() -> Pool:
    made = Pool.open(":memory:", clock=lambda: 1e9)
    made.steps.append([Step("s", "t", "p", 0, 1e9, reward=1.0)])
    return made


def test_nothing_is_stored_when_one_target_is_unknown(pool: Pool) -> None:
    good = Annotation("tag", "x", "me", "test", 1e9, step_uid="s")
    with pytest.raises(NotFound) as raised:
        pool.labels.annotate([good, Annotation("tag", "x", "me", "test", 1e9, trajectory_uid="ghost")])
    assert raised.value.field == "trajectory_uid"
    assert "ghost" in raised.value.message
    assert pool.labels.annotations() == []
    assert pool.labels.actions() == []


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("reward", "1"), ("reward", True), ("reward", float("nan")), ("quality", "great"), ("trainable", 1),
        ("tag", ""), ("tag", "-"), ("note", " "), ("mood", 1),
    ],
)  # fmt: skip
def test_values_that_do_not_fit_their_kind_are_refused(pool: Pool, kind: str, value: Any) -> None:
    with pytest.raises(InvalidInput):
        pool.labels.annotate([Annotation(kind, value, "me", "test", 1e9, step_uid="s")])
    assert pool.labels.annotations() == []


def test_the_original_reward_stays_beside_the_edited_one(pool: Pool) -> None:
    action = pool.labels.annotate([Annotation("reward", 0.0, "me", "test", 1e9, step_uid="s", note="wrong")])
    step = pool.steps.get("s")
    assert (step["reward"], step["original_reward"]) == (0.0, 1.0)
    (opinion,) = pool.labels.annotations(step_uid="s")
    assert (opinion["value"], opinion["note"], opinion["undone"], opinion["action_uid"]) == (
        0.0,
        "wrong",
        False,
        action,
    )
    pool.labels.undo(action)
    assert pool.steps.get("s")["reward"] == 1.0
    assert pool.labels.annotations(step_uid="s")[0]["undone"]
    assert pool.labels.actions()[0]["undone"]


def test_unscored_is_not_zero(pool: Pool) -> None:
    pool.steps.append([Step("u", "t2", "p", 0, 1e9)])
    assert pool.trajectories.get("t2")["reward"] is None
    group = pool.groups.get("p")
    assert (group["n_trajectories"], group["n_scored"], group["reward_mean"]) == (2, 1, 1.0)
    assert group["success_rate"] == 1.0
    with pytest.raises(NotFound):
        pool.labels.undo("act-none")
