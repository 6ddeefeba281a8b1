"""Runs Claw-R1's own programs against a gateway, in an environment that has verl (see ``test_upstream.py``).

    python drive.py CHECKOUT GATEWAY_URL TOKENIZER_DIR  < tasks.json  > results.json

Tasks: ``[{"flow": "blackbox" | "single" | "multi", "kwargs": {...}, "sampling_params": {...}}]``. The classes are
theirs, unchanged; what stands here is what their trainer would do around them.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    checkout, gateway_url, tokenizer_dir = sys.argv[1:4]
    sys.path.insert(0, checkout)

    from claw_r1.agent_flow import MultiStepAgentFlow, SingleStepSingleTurnAgentFlow
    from claw_r1.blackbox_agent.gsm8k_agent_flow import BlackBoxGSM8KAgentFlow
    from omegaconf import OmegaConf
    from transformers import PreTrainedTokenizerFast
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap

    class Tokenizer(PreTrainedTokenizerFast):
        """As in transformers 4, for which Claw-R1 was written: a rendered prompt is a list of ids."""

        def apply_chat_template(self, *args: Any, **kwargs: Any) -> Any:
            return super().apply_chat_template(*args, **{"return_dict": False, **kwargs})

    folder = Path(tokenizer_dir)
    tokenizer = Tokenizer(tokenizer_file=str(folder / "tokenizer.json"), eos_token="<|im_end|>")
    tokenizer.chat_template = (folder / "chat_template.jinja").read_text()
    rollout = {"prompt_length": 4096, "response_length": 1024, "max_turns": 3}
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}})
    flows = {
        "blackbox": BlackBoxGSM8KAgentFlow,
        "single": SingleStepSingleTurnAgentFlow,
        "multi": MultiStepAgentFlow,
    }

    async def run() -> list[int]:
        results = []
        for task in json.load(sys.stdin):
            flow = flows[task["flow"]](
                trainer_config=DictConfigWrap(config),
                gateway_url=gateway_url,
                tokenizer=tokenizer,
                processor=None,
                dataset_cls=None,
                dataset_config=OmegaConf.create({}),
            )
            results.append(await flow.run(dict(task["sampling_params"]), **task["kwargs"]))
        return results

    print("RESULTS " + json.dumps(asyncio.run(run())))


main()
