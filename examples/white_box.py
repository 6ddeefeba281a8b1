"""A white-box producer: an environment loop whose policy samples by token ids, recorded step by step.

    python examples/white_box.py --studio http://127.0.0.1:8100 --episodes 4

The environment has gymnasium's shape and imports nothing of it. The policy asks the studio's engine for tokens
(``POST /generate``); ``RecordedEnvironment`` makes a trajectory of each episode. A turn that nobody scored has no
reward, which is not 0. At the end a user's thumb is given to the last answer.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from typing import Any

from core.client import RecordedEnvironment, Sampled, StudioClient
from core.serving.tokenizer import ASSETS, ChatTokenizer


class Sums:
    """Asks for a sum, and once more when the answer is wrong. Only the last turn is scored."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def reset(self) -> tuple[list[dict[str, str]], dict[str, Any]]:
        """A new sum; ``(observation, info)``."""
        self.a, self.b, self.n_turns = self.random.randint(2, 40), self.random.randint(2, 40), 0
        self.messages = [{"role": "user", "content": f"What is {self.a} + {self.b}? Answer with a number."}]
        return self.messages, {}

    def step(self, action: str) -> tuple[list[dict[str, str]], float | None, bool, bool, dict[str, Any]]:
        """``(observation, reward, terminated, truncated, info)``; the reward is None if unscored."""
        self.n_turns += 1
        numbers = re.findall(r"-?\d+", action)
        right = bool(numbers) and int(numbers[-1]) == self.a + self.b
        self.messages = [*self.messages, {"role": "assistant", "content": action}]
        if right or self.n_turns == 2:
            return self.messages, float(right), True, False, {}
        self.messages = [*self.messages, {"role": "user", "content": "Not quite. Try once more."}]
        return self.messages, None, False, False, {}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Record episodes of an environment.")
    parser.add_argument("--studio", required=True, help="base URL of the studio")
    parser.add_argument("--api-key", help="the studio's key, where one is set")
    parser.add_argument("--episodes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    # The tokenizer of the policy: here the one of the engines that ship.
    tokenizer = ChatTokenizer(ASSETS)
    with StudioClient(arguments.studio, api_key=arguments.api_key) as studio:

        def policy(messages: list[dict[str, str]]) -> Sampled:
            prompt_ids = tokenizer.encode(tokenizer.render(messages, None, add_generation_prompt=True))
            sampled = studio.generate(prompt_ids, max_tokens=64, temperature=1.0)
            text = tokenizer.decode(sampled["token_ids"])
            said = {"messages": messages, "response_message": {"role": "assistant", "content": text}}
            return Sampled(text, prompt_ids, sampled["token_ids"], sampled["log_probs"], said)

        episodes = []
        group = f"sums-{arguments.seed}"
        with RecordedEnvironment(Sums(arguments.seed), lambda: studio.rollout(prompt_uid=group, agent="sums")) as env:
            for _ in range(arguments.episodes):
                observation, _ = env.reset()
                assert env.rollout is not None
                uid, done, reward = env.rollout.trajectory_uid, False, None
                while not done:
                    observation, reward, terminated, truncated, _ = env.step(policy(observation))
                    done = terminated or truncated
                episodes.append({"trajectory_uid": uid, "reward": reward})
        last = studio.trajectory(episodes[-1]["trajectory_uid"])["steps"][-1]["step_uid"]
        studio.feedback("thumbs", "up" if episodes[-1]["reward"] else "down", step_uid=last, author="example")
    print(json.dumps(episodes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
