"""What a finished run gives to training, compared with what is computed from its scores and texts alone."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from core.batch.plan import plan
from core.batch.recipe import parse_recipe
from core.client import StudioClient
from core.rollouts import Attempt
from core.service import Service
from core.serving.tokenizer import ASSETS
from core.types import View

ANSWER = re.compile(r"<\|im_start\|>assistant\n(.*?<\|im_end\|>)", re.DOTALL)
"""A sampled answer in the text of the shipped chat template: from behind its head to its end token."""


def check_grpo_plan(service: Service, attempts: Sequence[Attempt]) -> None:
    """Groups with equal scores leave the funnel; the others have GRPO's advantages."""
    of_group: dict[str, dict[str, float]] = defaultdict(dict)
    for one in attempts:
        assert one.score is not None
        of_group[one.prompt_uid][one.trajectory_uid] = one.score
    flat = {uid for uid, scores in of_group.items() if len(set(scores.values())) == 1}
    recipe = parse_recipe({"algorithm": "grpo", "n_rollouts": 8, "drop_flat_groups": True})
    made = plan(service.pool, View(), recipe)
    stages = {reason: (n_groups, n_trajectories) for reason, n_groups, n_trajectories, _ in made.remaining}
    assert next(iter(stages.values())) == (8, 64)
    assert stages["no_spread"] == (8 - len(flat), 64 - 8 * len(flat))
    assert sum(one.n_trajectories for one in made.excluded) == 8 * len(flat)
    expected = {}
    for uid in of_group.keys() - flat:
        scores = np.array(list(of_group[uid].values()))
        advantages = (scores - scores.mean()) / (scores.std(ddof=1) + 1e-6)
        expected |= dict(zip(of_group[uid], advantages.tolist(), strict=True))
    planned = {row["trajectory_uid"]: row["advantage"] for row in made.trajectories.to_pylist()}
    assert planned == pytest.approx(expected)


def check_sft_file(service: Service, attempts: Sequence[Attempt]) -> None:
    """One line for each success, with a loss on the assistant's answers and on nothing else.

    The reference encodes the line's text with the tokenizer's own library, and finds the answers in the text.
    """
    from tokenizers import Tokenizer

    with StudioClient(service.base_url) as client:
        answer = client.call("POST", "/api/v1/exports", {"format": "clawgym_sft", "recipe": {"algorithm": "sft"}})
    lines = [json.loads(line) for line in Path(answer["path"]).read_text(encoding="utf-8").splitlines()]
    successes = {one.trajectory_uid for one in attempts if one.score is not None and one.score >= 0.5}
    assert {line["trajectory_uid"] for line in lines} == successes and len(lines) == len(successes)
    tokenizer = Tokenizer.from_file(str(ASSETS / "tokenizer.json"))
    for line in lines:
        text = line["prompt"] + line["response"]
        encoded = tokenizer.encode(text, add_special_tokens=False)
        assert line["exact"] and encoded.ids == line["input_ids"]
        answers = [match.span(1) for match in ANSWER.finditer(text)]
        trained = {n for first, last in line["response_ranges"] for n in range(first, last + 1)}
        inside = {
            n for n, (begin, end) in enumerate(encoded.offsets) if any(a <= begin and end <= b for a, b in answers)
        }
        assert len(answers) == len(line["response_ranges"]) > 0
        assert trained == inside
