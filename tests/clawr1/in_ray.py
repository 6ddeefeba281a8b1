"""Uses a ``data_pool`` actor as Claw-R1's trainers do, in an environment that has Ray (see ``test_data_pool.py``).

    python in_ray.py MODE ORDERS RESULTS [TOKENIZER_DIR]

MODE ``own``: Claw-R1's actor; ``hooked``: what its name gives with our setup hook; ``recorded``: with the hook, and a
training backend that gives back the steps. ORDERS is JSON, a list of ``[method, arguments]``; an order ``wait`` ends
when the call of the order before has ended. RESULTS gets a pickle of plain values, one for each order.
"""

from __future__ import annotations

import json
import pickle
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ray

PROMPT, RESPONSE = 24, 16


class Recorder:
    """A training backend that keeps the steps as they are."""

    def convert(self, steps: list[Any]) -> list[dict[str, Any]]:
        return [asdict(step) for step in steps]


def verl_backend(tokenizer_dir: str) -> Any:
    from claw_r1.data_pool import VerlBackend
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=f"{tokenizer_dir}/tokenizer.json", eos_token="<|im_end|>")
    tokenizer.pad_token = "<|im_end|>"
    return VerlBackend(tokenizer=tokenizer, prompt_length=PROMPT, response_length=RESPONSE)


def plain(value: Any) -> Any:
    """A DataProto as names, dtypes and values."""
    if not hasattr(value, "non_tensor_batch"):
        return value
    tensors = {name: value.batch[name].numpy() for name in value.batch.keys()}  # noqa: SIM118
    return {"batch": tensors, "non_tensor_batch": dict(value.non_tensor_batch), "meta_info": dict(value.meta_info)}


@ray.remote(num_cpus=0)
class Trainer:
    """In a worker process, like Claw-R1's own: it makes the pool by the name that Claw-R1 imports."""

    def make(self, mode: str, tokenizer_dir: str) -> str:
        from types import SimpleNamespace

        from claw_r1.data_pool import DataPool

        if mode == "recorded":
            config: Any = SimpleNamespace(n_rollouts=3)
            backend: Any = Recorder()
        else:
            from claw_r1.data_pool import DataPoolConfig

            config, backend = DataPoolConfig(n_rollouts=3), verl_backend(tokenizer_dir)
        self.pool = DataPool.options(name="data_pool", num_cpus=0).remote(config, backend, max_queue_size=None)
        return str(ray.get(self.pool.get_statistics.remote())["shutdown"])

    def run(self, orders: list[Any], mode: str) -> list[Any]:
        pool = ray.get_actor("data_pool")
        results: list[Any] = []
        begun: dict[int, Any] = {}
        for at, (method, arguments) in enumerate(orders):
            arguments = dict(arguments)
            if "steps" in arguments:
                arguments["steps"] = [self._step(step, mode) for step in arguments["steps"]]
            if method == "begin":
                begun[at] = pool.fetch_batch.remote(**arguments)
                results.append(ray.wait([begun[at]], timeout=3.0)[0] == [])
            elif method == "end":
                results.append(plain(ray.get(begun.pop(min(begun)), timeout=60)))
            else:
                results.append(plain(ray.get(getattr(pool, method).remote(**arguments), timeout=60)))
        return results

    def _step(self, fields: dict[str, Any], mode: str) -> Any:
        if mode == "recorded":
            from core.cluster.data_pool import Step
        else:
            from claw_r1.data_pool import Step
        return Step(**fields)


def main() -> None:
    mode, orders, results = sys.argv[1:4]
    tokenizer_dir = sys.argv[4] if len(sys.argv) > 4 else ""
    hook = {} if mode == "own" else {"worker_process_setup_hook": "core.cluster.claw_r1.setup"}
    local: dict[str, Any] = {"address": "local", "include_dashboard": False, "log_to_driver": False}
    ray.init(**local, num_cpus=2, object_store_memory=80 << 20, namespace="claw_r1_async", runtime_env=hook)
    trainer = Trainer.remote()
    ray.get(trainer.make.remote(mode, tokenizer_dir))
    done = ray.get(trainer.run.remote(json.loads(Path(orders).read_text()), mode))
    Path(results).write_bytes(pickle.dumps(done))
    ray.shutdown()


if __name__ == "__main__":
    main()
