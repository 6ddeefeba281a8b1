"""Runs the demo agent on one of the demo tasks, against a studio or any server with the chat API.

    # through a studio: a session is minted, the attempt is checked, the reward reported
    python examples/demo_agent.py --studio http://127.0.0.1:8100 --model local --task demo-sum-column

    # against any server, with a URL and a key
    python examples/demo_agent.py --base-url http://127.0.0.1:8000/v1 --api-key KEY --model NAME --task demo-sum-column

The loop itself is core/tasks/demo_agent.py: one file without ties to the studio, made to be copied.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from core.client import StudioClient
from core.rewards import score
from core.tasks.demo_agent import run_agent
from core.tasks.demo_tasks import demo_tasks
from core.tasks.rollout import run_rollout


def main(argv: list[str] | None = None) -> int:
    tasks = {task.task_uid: task for task in demo_tasks()}
    parser = argparse.ArgumentParser(description="Run the demo agent once.")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--studio", help="root of a studio, http://host:port")
    where.add_argument("--base-url", help="base URL of any chat API, with /v1")
    parser.add_argument("--api-key", help="key of the server, where it asks for one")
    parser.add_argument("--model", required=True)
    parser.add_argument("--task", choices=tasks, default="demo-sum-column")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-turns", type=int, default=10)
    parser.add_argument("--max-tokens", type=int)
    args = parser.parse_args(argv)
    task = tasks[args.task]

    if args.studio is not None:
        studio = StudioClient(args.studio, api_key=args.api_key)
        rollout = run_rollout(
            studio,
            task,
            model=args.model,
            seed=args.seed,
            max_turns=args.max_turns,
            max_tokens=args.max_tokens,
        )
        reward = None if rollout.score is None else rollout.score.value
        report = {
            "trajectory_uid": rollout.trajectory_uid,
            "outcome": rollout.outcome,
            "n_turns": rollout.n_turns,
            "reward": reward,
            "error": rollout.error,
        }
    else:
        with tempfile.TemporaryDirectory() as folder:
            task.write_inputs(Path(folder))
            result = run_agent(
                base_url=args.base_url,
                api_key=args.api_key or "none",
                model=args.model,
                prompt=task.prompt,
                workspace=Path(folder),
                seed=args.seed,
                max_turns=args.max_turns,
                max_tokens=args.max_tokens,
            )
            reward = score(Path(folder), task.check).value
        report = {"outcome": result.outcome, "n_turns": result.n_turns, "reward": reward, "error": None}
    print(json.dumps(report))
    return 0 if report["error"] is None else 1


if __name__ == "__main__":
    sys.exit(main())
