"""Looking through everything at once finds what reading every trajectory finds."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from core.batch.redact import Redacted, _trajectory, redact, texts_of
from core.pool import Pool
from core.pool.redaction.rules import NEEDLES, PATTERNS, Redaction, parse_redaction
from core.serving.tokenizer import load_tokenizer
from core.types import Step, View

NOW = 1e9
CLEAN = [
    "plain words",
    "a path /tmp/x",
    "é – ok",
    "sk-short",
    "the password is a secret",
    "hash eyJ",
    "x@y",
    "esc \x1b[0m",
]
LEAKS = [
    "key sk-abcdefghijklmnopqrstuvwx", "AKIAABCDEFGHIJKLMNOP", "mail ann.lee@example.org", "https://kim:hunter22@host/x",
    "PASSWORD = correcthorse", "Bearer abcdefghijklmnopqrstuvwxyz0123", "paſſword: kilometerlang",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----", "eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSMeK",
]  # fmt: skip


def one_of(rng: random.Random, leaks: float) -> str:
    return rng.choice(LEAKS if rng.random() < leaks else CLEAN)


def call(rng: random.Random, leaks: float) -> dict[str, Any]:
    """A tool call whose arguments are JSON, spelled as a model may spell it."""
    arguments = json.dumps({"text": one_of(rng, leaks)})
    if rng.random() < 0.5:
        arguments = arguments.replace("@", "\\u0040").replace("/", "\\/").replace("s", "\\u0073")
    return {"function": {"name": "run", "arguments": arguments}}


def made(rng: random.Random, trajectory: int) -> list[Step]:
    leaks = rng.choice([0, 0, 0.1, 0.5])
    tokenizer = load_tokenizer()
    steps: list[Step] = []
    messages, prompt = [{"role": "user", "content": one_of(rng, leaks)}], tokenizer.encode(one_of(rng, leaks))
    for k in range(3):
        message = {"role": "assistant", "content": one_of(rng, leaks), "tool_calls": [call(rng, leaks)]}
        response = tokenizer.encode(f"{one_of(rng, leaks)} {k}")
        if rng.random() < 0.05:
            response = [*response, 10_000_000]
        known = rng.random() > 0.1
        steps.append(
            Step(
                f"t{trajectory}.{k}", f"t{trajectory}", "p", k, NOW,
                prompt_ids=list(prompt) if rng.random() > 0.1 else None, response_ids=response,
                messages=list(messages) if known else None, response_message=message if rng.random() > 0.1 else None,
                tools=[{"type": "function", "function": {"name": "run", "description": one_of(rng, leaks / 5)}}],
                metadata={"note": one_of(rng, leaks / 5), "n": k},
                tokenizer_hash=rng.choice([tokenizer.hash, tokenizer.hash, tokenizer.hash, None, "another"]),
                parent_step_uid=steps[-1].step_uid if steps and steps[-1].prompt_ids is not None else None,
            )
        )  # fmt: skip
        prompt = [*prompt, *response, *tokenizer.encode(one_of(rng, leaks))]
        messages = [*messages, message, {"role": "tool", "content": one_of(rng, leaks)}]
    return steps


@pytest.fixture(scope="module")
def pool() -> Any:
    rng = random.Random(11)
    opened = Pool.open(":memory:", clock=lambda: NOW)
    opened.steps.append([step for trajectory in range(60) for step in made(rng, trajectory)])
    yield opened
    opened.close()


def read_all(pool: Pool, rules: Redaction, chosen: Callable[[str], bool]) -> Redacted:
    """Every trajectory, one after the other."""
    redacted, text = Redacted(), texts_of(None)
    for owner in sorted(pool.trajectories.uids()):
        steps = [step for step in pool.trajectories.get(owner)["steps"] if chosen(step["step_uid"])]
        known = {step["tokenizer_hash"]: text(step["tokenizer_hash"]) for step in steps}
        _trajectory(redacted, owner, steps, rules, known)
    return redacted


@pytest.mark.parametrize(
    "rules",
    [
        {"rules": ["secrets", "email"]}, {"rules": ["email"], "action": "drop"},
        {"rules": ["secrets"], "unreadable": "keep"},
        {"patterns": {"own": "plain w[a-z]+"}}, {"rules": ["token"], "patterns": {"own": "hash"}},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("part", [False, True])
def test_all_at_once_is_one_by_one(pool: Pool, rules: dict[str, Any], part: bool) -> None:
    wanted = parse_redaction(rules)
    assert wanted is not None
    chosen = (lambda uid: not uid.endswith(".1")) if part else (lambda uid: True)
    members = pool.steps.page(View(), limit=None).select(["step_uid", "trajectory_uid"])
    members = members.filter([chosen(uid) for uid in members["step_uid"].to_pylist()])
    progress: list[tuple[int, int]] = []
    redacted = redact(pool.training, pool.screening, members, wanted, texts_of(None), lambda *at: progress.append(at))
    expected = read_all(pool, wanted, chosen)
    assert redacted.dropped == expected.dropped
    assert redacted.masks == expected.masks
    assert redacted.report() == expected.report()
    assert progress[0][0] > 5 or "patterns" in rules, "some are done with at once"
    assert progress[-1] == (60, 60)


def test_what_has_a_hit_has_the_needle() -> None:
    assert NEEDLES.keys() == PATTERNS.keys()
    for leak in LEAKS:
        rules = [name for name, pattern in PATTERNS.items() if Redaction({name: pattern + "(?#own)"}).spans(leak)]
        assert rules, leak
        for name in rules:
            assert Redaction({name: PATTERNS[name]}).spans(leak), (name, leak)
