"""Exports to rLLM: one episode per line, for ``Episode.from_dict``: steps with ids, log-probs and advantages.

An episode's id is ``{task}:{rollout}``. rLLM groups by the part before the first colon, so colons in the task are
written ``%3A``: ``math:7`` and ``math:8`` stay separate groups.

A step contains ids and log-probs twice: rLLM's Tinker backend reads those of the step, its verl backend those of
``model_output``. The verl backend leaves out steps without ``model_output``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import numpy as np
import orjson
from numpy.typing import NDArray

from core.batch.arrays import SCHEMA
from core.batch.plan import Plan
from core.batch.rows import Rows, training_rows
from core.errors import InvalidInput
from core.export.base import Difference, Exporter, ExportSource, Progress, Written
from core.export.codes import json_numbers
from core.export.prefixes import EncodedIds
from core.export.reading import Row, Tokens, json_lines, others, tokens
from core.export.recompute import bare_rows, one_temperature
from core.export.sampled import Coded, Responses
from core.export.sink import Piece, Sink

PAD_IS_HIDDEN = Difference(
    "rLLM's verl backend masks tokens that have the pad token's id out of attention, sampled ones too",
    "a tokenizer whose pad token the policy never samples",
)
NOT_ITS_OWN = Difference(
    "rLLM's verl backend ends with a TypeError on advantages that rLLM did not compute",
    "rLLM's Tinker backend; or a recipe of grpo with ddof 0, and use_precomputed_advantage=false",
)


COLUMNS = (
    "step_uid",
    "trajectory_uid",
    "prompt_uid",
    "group",
    "reward",
    "trajectory_reward",
    "advantage",
    "return",
    "policy_version",
)


class _Numbers:
    """The JSON lists of some rows; each row is a step."""

    def __init__(self, plan: Plan, rows: Rows) -> None:
        responses = self._responses = Responses(rows)
        lengths = rows.lengths
        # A sampled token needs context, so in a row without a prompt the first token is the prompt.
        self.n_prompt: list[int] = np.maximum(rows.n_prompt, 1).tolist()
        self.lengths: list[int] = lengths.tolist()
        single = np.flatnonzero((rows.n_prompt == 0) & (lengths < 2))
        if len(single):
            raise InvalidInput(
                f"step {plan.step_uids[int(rows.first_step[single[0]])]} has neither a prompt nor a second token: "
                "nothing predicts its only one",
                field="view",
                hint="where: n_prompt_tokens > 0",
            )
        self._ids = EncodedIds(rows, json_numbers)
        scores, advantages = rows.logprobs[responses.at], rows.advantages[responses.at]
        self.known: list[bool] = (np.add.reduceat(~np.isnan(scores), _firsts(rows)) > 0).tolist()
        self._logprobs, self._advantages = (
            Coded(*json_numbers(values.astype(np.float64)), b"null,") for values in (scores, advantages)
        )

    def prompt_ids(self, i: int) -> orjson.Fragment:
        """The tokens before the sampled ones."""
        return _json_list([self._ids.part(i, 0, self.n_prompt[i])])

    def response_ids(self, i: int) -> orjson.Fragment:
        """The sampled tokens."""
        return _json_list([self._ids.part(i, self.n_prompt[i])])

    def logprobs(self, i: int) -> orjson.Fragment:
        """Log-probs of the sampled tokens; empty if all are unknown."""
        return _json_list(self._responses.pieces(i, self._logprobs, self.n_prompt[i]) if self.known[i] else [])

    def advantages(self, i: int) -> orjson.Fragment:
        """Advantages of the sampled tokens."""
        return _json_list(self._responses.pieces(i, self._advantages, self.n_prompt[i]))


def _firsts(rows: Rows) -> NDArray[np.int64]:
    """Index of each row's first token among all sampled tokens. A row is a step and has at least one."""
    firsts: NDArray[np.int64] = np.cumsum(rows.n_response) - rows.n_response
    return firsts


def _json_list(pieces: Sequence[Piece]) -> orjson.Fragment:
    """A JSON list from texts that end with a comma."""
    return orjson.Fragment(b"[" + b"".join(pieces)[:-1] + b"]")


def _steps(
    trajectory: Mapping[str, Any], steps: list[tuple[int, dict[str, Any]]], numbers: _Numbers
) -> Iterator[dict[str, Any]]:
    steps_by_uid = {step["step_uid"]: step for step in trajectory["steps"]}
    for i, row in steps:
        step = steps_by_uid[row["step_uid"]]
        answer = step["response_message"] or {}
        messages = [*(step["messages"] or []), *([answer] if answer else [])]
        prompt_ids, response_ids, logprobs = numbers.prompt_ids(i), numbers.response_ids(i), numbers.logprobs(i)
        yield {
            "prompt_ids": prompt_ids,
            "response_ids": response_ids,
            "logprobs": logprobs,
            "chat_completions": messages,
            "observation": None,
            "thought": answer.get("reasoning_content") or "",
            "action": answer.get("tool_calls"),
            "model_response": answer["content"] if isinstance(answer.get("content"), str) else "",
            "model_output": {
                "prompt_ids": prompt_ids,
                "completion_ids": response_ids,
                "logprobs": logprobs,
                "prompt_length": numbers.n_prompt[i],
                "completion_length": numbers.lengths[i] - numbers.n_prompt[i],
                "finish_reason": step["finish_reason"],
                "weight_version": row["policy_version"],
            },
            "info": {"step_uid": row["step_uid"]},
            # rLLM has no unscored steps; its estimators use the trajectory's reward.
            "reward": 0.0 if row["reward"] is None else row["reward"],
            "done": step["is_last"],
            "mc_return": 0.0 if row["return"] is None else row["return"],
            "advantage": numbers.advantages(i) if row["by_token"] else row["advantage"],
            "weight_version": row["policy_version"],
        }


def _columns(plan: Plan, low: int, high: int) -> list[dict[str, Any]]:
    """``COLUMNS`` of steps ``[low, high)``, and ``by_token``: whether the advantage differs by token."""
    part = plan.steps.slice(low, high - low)
    columns = {
        name: part[name].cast(SCHEMA.field(name).type).to_pylist() if name in part.column_names else [None] * len(part)
        for name in COLUMNS
    }
    by_token = [False] * len(part)
    if "token_advantages" in part.column_names:
        assigned = part["token_advantages"].is_valid().to_pylist()
        by_token = [one is None and known for one, known in zip(columns["advantage"], assigned, strict=True)]
    names = [*COLUMNS, "by_token"]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns.values(), by_token, strict=True)]


def write(plan: Plan, source: ExportSource, sink: Sink, settings: Mapping[str, str], progress: Progress) -> Written:
    """Write the file, one trajectory per line."""
    n_rows = n_unknown = n_bare = 0
    n_in_group: Counter[int] = Counter()
    for part in training_rows(plan, source, merge=False):
        numbers = _Numbers(plan, part)
        n_unknown += numbers.known.count(False)
        n_bare += int((part.n_prompt == 0).sum())
        steps = enumerate(_columns(plan, int(part.first_step[0]), part.done))
        by_trajectory: dict[str, list[tuple[int, dict[str, Any]]]] = {}
        for i, row in steps:
            by_trajectory.setdefault(row["trajectory_uid"], []).append((i, row))
        stored = source.trajectories(list(by_trajectory))
        for (uid, rows), whole in zip(by_trajectory.items(), stored, strict=True):
            first = rows[0][1]
            reward = first["trajectory_reward"]
            trajectory = {
                "uid": uid,
                "name": "agent",
                "task": first["prompt_uid"],
                "steps": list(_steps(whole, rows, numbers)),
                "reward": reward,
                "info": {},
            }
            episode = {
                "id": f"{quote(first['prompt_uid'], safe='')}:{n_in_group[first['group']]}",
                "task": first["prompt_uid"],
                "termination_reason": "unknown",
                "is_correct": reward is not None and reward > 0,
                "trajectories": [trajectory],
                "metrics": {},
                "info": {},
            }
            sink.write(orjson.dumps(episode, option=orjson.OPT_APPEND_NEWLINE))
            n_in_group[first["group"]] += 1
            n_rows += 1
        progress(part.done, len(plan.steps))
    differences: tuple[Difference, ...] = ()
    if n_unknown:
        what = (
            "steps have no log-probs: rLLM's Tinker backend drops their trajectories, its verl backend "
            "takes 0 for them or those of other tokens"
        )
        differences = (Difference.counted(n_unknown, what, "view where: has_logprobs"),)
    return Written(n_rows, plan.counts["n_tokens"], plan.counts["n_loss_tokens"] - n_bare, differences)


def differences(plan: Plan, settings: Mapping[str, str]) -> list[Difference]:
    """Differences between the plan and rLLM's training."""
    common = [PAD_IS_HIDDEN, *bare_rows(plan), *one_temperature(plan, "the sampling parameters' temperature")]
    if plan.level is None:
        return common
    what = "rLLM computes advantages from trajectory rewards (GRPO with ddof 0), and overwrites the plan's"
    return [Difference(what, "rllm.algorithm.use_precomputed_advantage=true"), NOT_ITS_OWN, *common]


def _tokens(step: Mapping[str, Any], number: int) -> Tokens:
    before, n = [0] * len(step["prompt_ids"]), len(step["response_ids"])
    advantage = step["advantage"]
    advantages = [advantage] * n if isinstance(advantage, int | float) else advantage
    return tokens(
        step["prompt_ids"] + step["response_ids"],
        before + [1] * n,
        None if advantages is None else before + advantages,
        before + step["logprobs"] if step["logprobs"] else None,
        name=f"step {number}",
    )


def read(data: bytes, settings: Mapping[str, str]) -> Iterator[Row]:
    """The episodes, each with a token sequence for every step."""
    for episode in json_lines(data):
        (trajectory,) = episode["trajectories"]
        steps = [_tokens(step, number) for number, step in enumerate(trajectory["steps"])]
        fields = {**others(episode, "trajectories"), "uid": trajectory["uid"], "reward": trajectory["reward"]}
        yield Row(steps, fields=fields)


def load_command(name: str) -> str:
    """A command that reads the lines with rLLM, which must be installed."""
    return (
        'python -c "import json; from rllm.types import Episode; '
        f"print(sum(1 for line in open('{name}') if Episode.from_dict(json.loads(line))))\""
    )


EXPORTER = Exporter(
    name="rllm",
    title="rLLM episodes (JSONL)",
    description="Episodes for Episode.from_dict: steps with ids, logprobs, advantage and weight_version",
    suffix=".jsonl",
    write=write,
    read=read,
    load_command=load_command,
    masks_tokens=False,
    differences=differences,
    by_group=True,
)
