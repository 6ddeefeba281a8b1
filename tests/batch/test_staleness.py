"""Staleness is one number: what pages list and filter by is what the plan drops by."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from core.batch.datasets import freeze_version, version_plan
from core.batch.plan import plan
from core.batch.recipe import parse_recipe
from core.pool import Pool
from core.types import PolicyEvent, View
from tests.batch.keeping_all import SFT_ALL
from tests.effort import settings

from .conftest import T0, done, rollout

EVENTS = st.lists(
    st.tuples(st.integers(0, 9), st.sampled_from(["registered", "sync_started", "sync_finished"]), st.integers(0, 3)),
    max_size=4,
)
ROLLOUTS = st.lists(st.tuples(st.sampled_from(["train", "val"]), st.none() | st.integers(0, 9)), min_size=1, max_size=5)


def in_force(events: list[Any], versions: list[int | None]) -> int | None:
    """The definition, by hand: the last reported that is not a sync under way, else the channel's newest."""
    reported = [(at, number, version) for number, (version, event, at) in enumerate(events) if event != "sync_started"]
    if reported:
        return max(reported)[2]
    return max((version for version in versions if version is not None), default=None)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ROLLOUTS, EVENTS, st.integers(0, 4), st.integers(1, 5))
def test_what_pages_show_as_stale_is_what_the_plan_drops(
    rollouts: list[Any], events: list[Any], most: int, n_seen: int
) -> None:
    pool = Pool.open(":memory:", clock=lambda: T0)
    try:
        for n, (channel, version) in enumerate(rollouts):
            made = rollout(f"t{n}", f"g{n}", at=n, policy_version=version, channel=channel)
            pool.steps.append(made, completions=done(f"t{n}", reward=1.0))
        pool.steps.append([], policy_events=[PolicyEvent(v, kind, T0 + at) for v, kind, at in events])
        counted = in_force(events, [version for channel, version in rollouts if channel == "train"])
        # A view that leaves some out: the newest version of the channel counts, not that of the view.
        seen = [n for n, (channel, _) in enumerate(rollouts) if channel == "train"][:n_seen]
        view = View({"trajectory_uid": [f"t{n}" for n in seen] or ["none"], "channel": "train"})
        by_hand = {f"t{n}": None if None in (counted, rollouts[n][1]) else counted - rollouts[n][1] for n in seen}
        listed = {row["trajectory_uid"]: row["staleness"] for row in pool.steps.page(view, limit=None).to_pylist()}
        assert listed == by_hand
        fresh = {uid for uid, behind in by_hand.items() if behind is not None and behind <= most}
        recipe = parse_recipe({**SFT_ALL, "max_staleness": most})
        planned = plan(pool, view, recipe)
        assert planned.policy_version == counted
        # A version that nobody knows in a channel without one stays: there is nothing to count from.
        known = {f"t{n}" for n in seen if rollouts[n][1] is not None}
        assert set(planned.trajectories["trajectory_uid"].to_pylist()) == (known if counted is None else fresh)
        within = View({**view.filters, "staleness": [None, most]})
        assert set(pool.steps.page(within, limit=None)["trajectory_uid"].to_pylist()) == fresh
        ready = View({**view.filters, "ready": {"max_staleness": most}})
        assert set(pool.steps.page(ready, limit=None)["trajectory_uid"].to_pylist()) == fresh
        if events and seen:
            freeze_version(pool, "v", view, parse_recipe(SFT_ALL), author="ann")
            frozen = version_plan(pool, "v", recipe.to_json())
            if any(event != "sync_started" for _, event, _ in events):
                assert frozen.policy_version == counted
    finally:
        pool.close()
