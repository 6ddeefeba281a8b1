"""The Learn page for anybody's trainer: curves, tiles, updates and the comparison from what is in the pool."""

from __future__ import annotations

import re

from core.batch.learning import first_difference, turns, updates
from core.client import StudioClient


def attempt(
    studio: StudioClient, version: int, channel: str, group: int, k: int, actions: list[str], reward: float
) -> None:
    """One attempt of a white-box producer: a step per action."""
    messages = [{"role": "user", "content": f"task {group}"}]
    prompt = [1, group]
    with studio.rollout(
        prompt_uid=f"{channel}-{group}",
        trajectory_uid=f"{channel}-{version}-{group}-{k}",
        channel=channel,
        policy_version=version,
    ) as rollout:
        for place, action in enumerate(actions):
            answer = [10 + place, 20 + k]
            rollout.step(
                prompt_ids=prompt,
                response_ids=answer,
                response_logprobs=[-0.5, -0.5],
                messages=messages,
                response_message={"role": "assistant", "content": action},
            )
            messages = [*messages, {"role": "assistant", "content": action}, {"role": "user", "content": f"r{place}"}]
            prompt = [*prompt, *answer, 5]
        rollout.reward = reward


def trained(base_url: str, first: int = 0) -> None:
    """Two versions of a user's own trainer: it acknowledges a batch with metrics and reports the next version.

    ``first`` is the version that it begins with: not below one that the pool already has.
    """
    with StudioClient(base_url) as studio:
        studio.policy(first)
        for version in (first, first + 1):
            for group in range(2):
                for k in range(2):
                    attempt(studio, version, "train", group, k, ["a", "b"], float((group + k) % 2))
                attempt(
                    studio,
                    version,
                    "val",
                    group,
                    0,
                    ["look", "wrong" if version == first else "right"],
                    float(version > first),
                )
            if version == first:
                recipe = {"algorithm": "grpo", "n_rollouts": 2, "batch_size": 2}
                wanted = {"consumer": "mine", "recipe": recipe, "view": {"filters": {"channel": "train"}}}
                batch = studio.call("POST", "/api/v1/batches/fetch", wanted)["batch_uid"]
                body = {"consumer": "mine", "update": 1, "metrics": {"entropy": 0.25, "seconds_train": 1.5}}
                studio.call("POST", f"/api/v1/batches/{batch}/ack", body)
                studio.policy(first + 1, "sync_started")
                studio.policy(first + 1, "sync_finished")


def test_without_a_version_the_page_offers_the_demo(service, open_page):
    page = open_page("learn")
    assert page.failures == []
    assert "Watch a policy learn" in [button.label for button in page.app.button]


def test_any_trainer_gets_the_page(service, open_page):
    trained(service.base_url)
    page = open_page("learn")
    assert page.failures == []
    figures = dict(re.findall(r'<div class="l">(.*?)</div><div class="v">(.*?)</div>', page.html))
    assert figures["Reward now"] == "100.0 %"
    assert figures["At the start"] == "0.0 %"
    assert figures["Gain"] == "+100.0"
    assert page.html.count('class="cs-tiles"') == 1
    assert len(re.findall(r'aria-label="reward', page.html)) == 4
    assert page.html.count('class="turn differs"') == 2


def test_updates_and_turns(service):
    trained(service.base_url)
    (made,) = updates(service.pool, "train")
    assert (made.consumer, made.version, made.update, made.metrics) == ("mine", 0, 1, {"entropy": 0.25})
    assert made.stages["train"] == 1.5
    assert set(made.stages) == {"rollouts", "lease", "train"}
    assert made.seconds == sum(made.stages.values())
    before, after = turns(service.pool, "val-0-0-0"), turns(service.pool, "val-1-0-0")
    assert [(turn.action, turn.result) for turn in before] == [("look", "r0"), ("wrong", None)]
    assert first_difference(before, after) == 1
    assert first_difference(before, before) is None
    assert first_difference(before, before[:1]) == 1


def test_the_curves_over_http(service):
    trained(service.base_url)
    with StudioClient(service.base_url) as studio:
        answer = studio.call("GET", "/api/v1/learning")
    drawn = {(curve["channel"], point["version"]): point for curve in answer["curves"] for point in curve["points"]}
    assert {key: point["mean"] for key, point in drawn.items()} == {
        ("train", 0): 0.5, ("train", 1): 0.5, ("val", 0): 0.0, ("val", 1): 1.0,
    }  # fmt: skip
    assert drawn["val", 1]["n_trajectories"] == 2
    assert [one["batch_uid"] for one in answer["updates"]]
    assert answer["demo"]["running"] is False
