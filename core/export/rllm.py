"""rLLM: one episode per line, for ``Episode.from_dict``: trajectories of steps with ids, log-probs and advantages.

An episode's id is ``{task}:{rollout}``, and rLLM groups by what stands before the first colon: in the task it is
written ``%3A``, so that ``math:7`` and ``math:8`` stay two groups.

Ids and log-probs stand in a step twice: rLLM's Tinker backend reads the step's own, its verl backend those of
``model_output``, and leaves a step without one out of the batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import orjson

from core.batch.arrays import step_tables
from core.batch.plan import Plan
from core.errors import InvalidInput
from core.export.base import Difference, Exporter, ExportSource, Progress, Sink, Written
from core.export.recompute import bare_rows, one_temperature

PAD_IS_HIDDEN = Difference(
    "rLLM's verl backend masks tokens that have the pad token's id out of attention, sampled ones too",
    "a tokenizer whose pad token the policy never samples",
)
NOT_ITS_OWN = Difference(
    "rLLM's verl backend ends with a TypeError on advantages that rLLM did not compute",
    "rLLM's Tinker backend; or a recipe of grpo with ddof 0, and use_precomputed_advantage=false",
)


def _predicted(row: dict[str, Any]) -> dict[str, Any]:
    """The step with something before each sampled token: without a prompt, its first token is the prompt."""
    if row["prompt_ids"]:
        return row
    if len(row["response_ids"]) < 2:
        raise InvalidInput(
            f"step {row['step_uid']} has neither a prompt nor a second token: nothing predicts its only one",
            field="view",
            hint="where: n_prompt_tokens > 0",
        )
    by_token = ("response_ids", "response_logprobs", "token_advantages")
    rest = {name: row[name][1:] for name in by_token if row.get(name) is not None}
    return {**row, **rest, "prompt_ids": row["response_ids"][:1]}


def _steps(source: ExportSource, trajectory_uid: str, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    whole = {step["step_uid"]: step for step in source.trajectory(trajectory_uid)["steps"]}
    for row in map(_predicted, rows):
        step = whole[row["step_uid"]]
        answer = step["response_message"] or {}
        messages = [*(step["messages"] or []), *([answer] if answer else [])]
        yield {
            "prompt_ids": row["prompt_ids"],
            "response_ids": row["response_ids"],
            "logprobs": row["response_logprobs"] or [],
            "chat_completions": messages,
            "observation": None,
            "thought": answer.get("reasoning_content") or "",
            "action": answer.get("tool_calls"),
            "model_response": answer["content"] if isinstance(answer.get("content"), str) else "",
            "model_output": {
                "prompt_ids": row["prompt_ids"],
                "completion_ids": row["response_ids"],
                "logprobs": row["response_logprobs"] or [],
                "prompt_length": len(row["prompt_ids"]),
                "completion_length": len(row["response_ids"]),
                "finish_reason": step["finish_reason"],
                "weight_version": row["policy_version"],
            },
            "info": {"step_uid": row["step_uid"]},
            # rLLM knows no unscored step; the trajectory's reward is what its estimators read.
            "reward": 0.0 if row["reward"] is None else row["reward"],
            "done": step["is_last"],
            "mc_return": 0.0 if row["return"] is None else row["return"],
            "advantage": row["token_advantages"] if row["advantage"] is None else row["advantage"],
            "weight_version": row["policy_version"],
        }


def write(plan: Plan, source: ExportSource, sink: Sink, settings: Mapping[str, str], progress: Progress) -> Written:
    """Stream the lines, one trajectory each."""
    n_rows = done = n_unknown = n_bare = 0
    n_in_group: Counter[int] = Counter()
    for table in step_tables(plan, source):
        by_trajectory: dict[str, list[dict[str, Any]]] = {}
        for row in table.to_pylist():
            by_trajectory.setdefault(row["trajectory_uid"], []).append(row)
        for uid, rows in by_trajectory.items():
            n_unknown += sum(row["response_logprobs"] is None for row in rows)
            n_bare += sum(not row["prompt_ids"] for row in rows)
            reward = rows[0]["trajectory_reward"]
            trajectory = {
                "uid": uid,
                "name": "agent",
                "task": rows[0]["prompt_uid"],
                "steps": list(_steps(source, uid, rows)),
                "reward": reward,
                "info": {},
            }
            episode = {
                "id": f"{quote(rows[0]['prompt_uid'], safe='')}:{n_in_group[rows[0]['group']]}",
                "task": rows[0]["prompt_uid"],
                "termination_reason": "unknown",
                "is_correct": reward is not None and reward > 0,
                "trajectories": [trajectory],
                "metrics": {},
                "info": {},
            }
            sink.write(orjson.dumps(episode, option=orjson.OPT_APPEND_NEWLINE))
            n_in_group[rows[0]["group"]] += 1
            n_rows += 1
        done += len(table)
        progress(done, len(plan.steps))
    differences: tuple[Difference, ...] = ()
    if n_unknown:
        what = (
            f"{n_unknown} steps have no log-probs: rLLM's Tinker backend drops their trajectories, its verl backend "
            "takes 0 for them or those of other tokens"
        )
        differences = (Difference(what, "view where: has_logprobs"),)
    return Written(n_rows, plan.counts["n_tokens"], plan.counts["n_loss_tokens"] - n_bare, differences)


def differences(plan: Plan, settings: Mapping[str, str]) -> list[Difference]:
    """What rLLM makes of it otherwise than the plan."""
    common = [PAD_IS_HIDDEN, *bare_rows(plan), *one_temperature(plan, "the sampling parameters' temperature")]
    if plan.level is None:
        return common
    what = "rLLM computes advantages from trajectory rewards (GRPO with ddof 0), and overwrites the plan's"
    return [Difference(what, "rllm.algorithm.use_precomputed_advantage=true"), NOT_ITS_OWN, *common]


def load_command(name: str) -> str:
    """Reads the lines as rLLM does, in an environment that has it."""
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
    load_command=load_command,
    masks_tokens=False,
    differences=differences,
)
