"""rLLM: one episode per line, for ``Episode.from_dict``: trajectories of steps with ids, log-probs and advantages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from core.batch.arrays import step_tables
from core.batch.plan import Plan
from core.export.base import Exporter, ExportSource, Progress, Sink, Written


def _steps(pool: ExportSource, trajectory_uid: str, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    whole = {step["step_uid"]: step for step in pool.trajectory(trajectory_uid)["steps"]}
    for row in rows:
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
            "model_output": None,
            "info": {"step_uid": row["step_uid"]},
            # rLLM knows no unscored step; the trajectory's reward is what its estimators read.
            "reward": 0.0 if row["reward"] is None else row["reward"],
            "done": step["is_last"],
            "mc_return": 0.0 if row["return"] is None else row["return"],
            "advantage": row["token_advantages"] if row["advantage"] is None else row["advantage"],
            "weight_version": row["policy_version"],
        }


def write(plan: Plan, pool: ExportSource, sink: Sink, settings: Mapping[str, str], progress: Progress) -> Written:
    """Stream the lines, one trajectory each."""
    n_rows = done = 0
    n_in_group: Counter[int] = Counter()
    for table in step_tables(plan, pool):
        by_trajectory: dict[str, list[dict[str, Any]]] = {}
        for row in table.to_pylist():
            by_trajectory.setdefault(row["trajectory_uid"], []).append(row)
        for uid, rows in by_trajectory.items():
            reward = rows[0]["trajectory_reward"]
            trajectory = {
                "uid": uid,
                "name": "agent",
                "task": rows[0]["prompt_uid"],
                "steps": list(_steps(pool, uid, rows)),
                "reward": reward,
                "info": {},
            }
            episode = {
                "id": f"{rows[0]['prompt_uid']}:{n_in_group[rows[0]['group']]}",
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
    return Written(n_rows, plan.counts["n_tokens"], plan.counts["n_loss_tokens"])


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
)
