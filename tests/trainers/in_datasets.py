"""Run by the interpreter of .cache/trainers/datasets (test_datasets.py): ``in_datasets.py TRAINER FILE SETTINGS``.

Each function loads the file with the trainer's own code, and lets its own code make what it trains on. Prints one JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from stub_packages import stub
from stubs import stub_missing


class Settings(SimpleNamespace):
    """Options of a trainer, None where a test says nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def openrlhf(path: str, options: Any) -> Any:
    """Its executor loading, its experiences, its advantages and its loss."""
    stub("ray", "vllm", "pylatexenc", "deepspeed", "flash_attn", "peft", "torchdata", "ring_flash_attn")
    import torch
    from openrlhf.models.loss import PolicyLoss
    from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
    from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
    from openrlhf.trainer.ray.vllm_engine import _load_agent_executor

    os.environ["CLAW_REPLAY"] = path
    executor = _load_agent_executor(str(Path(path).with_name("openrlhf_replay.py")))
    executor.replay.write_prompts(str(Path(path).with_name("prompts.jsonl")))
    n = options["n_samples"]

    async def generated(prompt: str) -> list[Any]:
        requested = (
            executor.execute(
                prompt=prompt, label="", sampling_params=None, max_length=options["max_len"], hf_tokenizer=None,
                llm_engine=None, images=None,
            )
            for _ in range(n)
        )  # fmt: skip
        return await asyncio.gather(*requested)

    lines = Path(path).with_name("prompts.jsonl").read_text().splitlines()
    responses = [one for line in lines for one in asyncio.run(generated(json.loads(line)["input"]))]
    generator = object.__new__(SamplesGenerator)
    made = [generator._process_response_into_experience(one, max_len=options["max_len"]) for one in responses]
    for place, one in enumerate(made):
        one.index, one.kl = [place], torch.zeros_like(one.action_mask, dtype=torch.float32)
    maker = object.__new__(RemoteExperienceMaker)
    algo = Settings(advantage=Settings(estimator=options["estimator"], gamma=1.0, no_std_norm=False))
    rollout = Settings(n_samples_per_prompt=n)
    args = Settings(algo=algo, rollout=rollout, reward=Settings(), data=Settings(max_len=options["max_len"]))
    maker.strategy, maker.kl_ctl = SimpleNamespace(args=args), SimpleNamespace(value=0.0)
    maker.advantage_estimator = options["estimator"]
    rows = []
    for response, one in zip(responses, maker.compute_advantages_and_returns(made), strict=True):
        mask = one.action_mask.bool()
        loss = PolicyLoss()(
            one.rollout_log_probs + 0.1, one.rollout_log_probs, one.advantages, action_mask=one.action_mask
        )
        rows.append(
            {
                "uid": response["trajectory_uid"],
                "sampled": one.sequences[:, 1:][mask].tolist(),
                "logprobs": one.rollout_log_probs[mask].tolist(),
                "advantages": one.advantages[mask].tolist(),
                "truncated": bool(one.truncated.item()),
                "loss": float(loss[0] if isinstance(loss, tuple) else loss),
            }
        )
    return rows


def dealt(rows: Any, n_ranks: int, batch_size: int) -> list[list[int]]:
    """Places of the rows that each rank is given, by Accelerate, which both trainers leave it to."""
    from accelerate.data_loader import BatchSamplerShard
    from torch.utils.data import BatchSampler, SequentialSampler

    batches = BatchSampler(SequentialSampler(rows), batch_size, drop_last=False)
    shards = (BatchSamplerShard(batches, num_processes=n_ranks, process_index=rank) for rank in range(n_ranks))
    return [[place for batch in shard for place in batch] for shard in shards]


def axolotl(path: str, options: Any) -> Any:
    """Its wrapper of tokenized data, its length filter and a collator."""
    stub("numba", "peft", "posthog")
    from axolotl.utils.data.utils import handle_long_seq_in_dataset
    from axolotl.utils.data.wrappers import get_dataset_wrapper
    from axolotl.utils.dict import DictDefault
    from datasets import load_dataset

    cache = str(Path(path).with_suffix(".cache"))
    data = load_dataset("json", data_files=path, split="train", cache_dir=cache)
    cfg = DictDefault({"dataset_processes": 1, "dataset_num_proc": 1, "min_sample_len": 2})
    wrapped, _ = get_dataset_wrapper(DictDefault({"path": path, "type": ""}), None, cfg, "", data)
    kept = handle_long_seq_in_dataset(wrapped, options["sequence_len"], cfg)
    rows = [{"ids": row["input_ids"], "sampled": [label for label in row["labels"] if label != -100]} for row in kept]
    return {"rows": rows, "ranks": dealt(kept, 2, 2)}


def weights(path: str, options: Any) -> Any:
    """Axolotl's chat template strategy, told that a message's weight says whether it is trained on."""
    stub("numba", "peft", "posthog")
    from axolotl.prompt_strategies.chat_template import load
    from axolotl.utils.dict import DictDefault
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(options["tokenizer"])
    settings = {"message_field_training": "weight", "chat_template": "tokenizer_default", "field_messages": "messages"}
    settings |= {"message_property_mappings": {"role": "role", "content": "content"}}
    strategy = load(tokenizer, DictDefault({"sequence_len": 4096, "train_on_inputs": False}), settings)
    rows = []
    for line in Path(path).read_text().splitlines():
        made = strategy.tokenize_prompt(json.loads(line))
        trained = [label for label in made["labels"] if label != -100]
        rows.append({"text": tokenizer.decode(made["input_ids"]), "trained": tokenizer.decode(trained)})
    return rows


def llama_factory(path: str, options: Any) -> Any:
    """Its registry, its alignment, its template and its supervised processor."""
    os.environ["DISABLE_VERSION_CHECK"] = "1"
    stub("peft", "torchaudio", "omegaconf")
    from llamafactory.data.loader import _load_single_dataset
    from llamafactory.data.parser import get_dataset_list
    from llamafactory.data.processor.supervised import SupervisedDatasetProcessor
    from llamafactory.data.template import get_template_and_fix_tokenizer
    from llamafactory.hparams import DataArguments, ModelArguments
    from transformers import AutoTokenizer, Seq2SeqTrainingArguments

    folder = str(Path(path).parent)
    data_args = DataArguments(
        template=options["template"], dataset="claw_studio", dataset_dir=folder, mask_history=True, cutoff_len=100_000,
        overwrite_cache=True, preprocessing_num_workers=None,
    )  # fmt: skip
    model_args = ModelArguments(model_name_or_path=options["tokenizer"], cache_dir=folder)
    training_args = Seq2SeqTrainingArguments(output_dir=folder, use_cpu=True, report_to=[])
    (attributes,) = get_dataset_list(["claw_studio"], folder)
    aligned = _load_single_dataset(attributes, model_args, data_args, training_args)
    tokenizer = AutoTokenizer.from_pretrained(options["tokenizer"])
    template = get_template_and_fix_tokenizer(tokenizer, data_args)
    processor = SupervisedDatasetProcessor(template=template, tokenizer=tokenizer, processor=None, data_args=data_args)
    made = processor.preprocess_dataset(aligned[:])
    rows = [
        {
            "prompt": aligned[i]["_prompt"],
            "response": aligned[i]["_response"],
            "system": aligned[i]["_system"],
            "text": tokenizer.decode(made["input_ids"][i]),
            "trained": tokenizer.decode([label for label in made["labels"][i] if label != -100]),
        }
        for i in range(len(aligned))
    ]
    return {"rows": rows, "ranks": dealt(aligned, 2, 1)}


def tinker(path: str, options: Any) -> Any:
    """The program beside the file, and the cookbook's own datums of the same trajectories."""
    stub("blobfile")
    sys.path.insert(0, str(Path(path).parent))
    import tinker as package
    import tinker_datums
    import torch
    from tinker_cookbook.completers import TokensWithLogprobs
    from tinker_cookbook.rl.data_processing import trajectory_to_data
    from tinker_cookbook.rl.types import Trajectory, Transition

    def plain(datum: Any) -> Any:
        fields = {name: torch.tensor(value.data).tolist() for name, value in datum.loss_fn_inputs.items()}
        return {"input": datum.model_input.to_ints(), **fields}

    theirs = []
    for trajectory in options["trajectories"]:
        steps = [
            Transition(
                ob=package.ModelInput.from_ints(step["prompt_ids"]),
                ac=TokensWithLogprobs(tokens=step["response_ids"], maybe_logprobs=step["logprobs"]),
                reward=0.0,
                episode_done=i == len(trajectory["steps"]) - 1,
            )
            for i, step in enumerate(trajectory["steps"])
        ]
        whole = Trajectory(transitions=steps, final_ob=package.ModelInput.empty())
        theirs += trajectory_to_data(whole, trajectory["advantage"])
    ours = list(tinker_datums.datums(path))
    return {"ours": [plain(datum) for datum in ours], "theirs": [plain(datum) for datum in theirs]}


def rllm(path: str, options: Any) -> Any:
    """Its episodes, its groups, and the datums that its Tinker backend trains on."""
    stub("blobfile")
    sys.path.insert(0, options["source"])
    stub_missing("rllm")
    from rllm.trainer.algorithms.config import AlgorithmConfig, rLLMAdvantageEstimator
    from rllm.trainer.algorithms.transform import _build_trajectory_groups
    from rllm.trainer.tinker.transform import transform_trajectory_groups_to_datums
    from rllm.types import Episode

    groups = _build_trajectory_groups(
        [Episode.from_dict(json.loads(line)) for line in Path(path).read_text().splitlines()]
    )
    algorithm = AlgorithmConfig(estimator=rLLMAdvantageEstimator.GRPO, use_precomputed_advantage=True)
    datums, metrics = transform_trajectory_groups_to_datums(groups, algorithm)
    rows = []
    for datum in datums:
        fields = {name: value.data for name, value in datum.loss_fn_inputs.items()}
        on = [i for i, mask in enumerate(fields["mask"]) if mask]
        rows.append(
            {
                "context": datum.model_input.to_ints()[: on[0] + 1],
                "ids": [fields["target_tokens"][i] for i in on],
                "advantages": [fields["advantages"][i] for i in on],
                "logprobs": [fields["logprobs"][i] for i in on],
            }
        )
    return {"rows": rows, "dropped": metrics["batch/dropped_malformed_sequences"]}


def prime_rl(path: str, options: Any) -> Any:
    """Its file transport, its tensors and its loss."""
    for folder in ("src", "packages/prime-rl-configs/src"):
        sys.path.insert(0, str(Path(options["source"]) / folder))
    stub(
        "zmq", "wandb", "vllm", "verifiers", "renderers", "tomli_w", "pydantic_config", "torchtitan", "ring_flash_attn"
    )
    import torch
    from prime_rl.trainer.rl.data import DataLoader
    from prime_rl.trainer.rl.loss import LossInputs, default_loss_fn
    from prime_rl.transports.rollouts.filesystem import FileSystemMicroBatchReceiver

    receiver = FileSystemMicroBatchReceiver(Path(path), data_rank=0, current_step=0)
    assert receiver.can_receive(), receiver._get_micro_batch_path()
    config = SimpleNamespace(dppo_mask_low=0.2, dppo_mask_high=0.2, adv_tau=1.0, kl_tau=0.0)
    rows = []
    for micro_batch in receiver.receive():
        made = DataLoader._micro_batch_to_tensor(object.__new__(DataLoader), micro_batch)
        parts = {
            name: made[name].squeeze(0).split(made["sequence_lengths"])
            for name in ("input_ids", "loss_mask", "advantages", "inference_logprobs", "temperatures", "position_ids")
        }
        for row in zip(*parts.values(), strict=True):
            one = dict(zip(parts, row, strict=True))
            inputs = LossInputs(
                trainer_logprobs=one["inference_logprobs"] + 0.01, inference_logprobs=one["inference_logprobs"],
                ref_logprobs=None, advantages=one["advantages"], loss_mask=one["loss_mask"],
            )  # fmt: skip
            values = {name: value.tolist() for name, value in one.items()}
            rows.append({**values, "loss": default_loss_fn(inputs, config).loss.item()})
        assert torch.isfinite(1 / made["temperatures"]).all()
    return rows


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](sys.argv[2], json.loads(sys.argv[3]))))
