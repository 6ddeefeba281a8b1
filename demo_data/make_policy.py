"""Generates ``demo_data/policy/``: the tasks, the tokenizer, and the warm-started model of the learning demo.

    python demo_data/make_policy.py [--seed 0] [--out demo_data/policy]

The model first learns the action language from correct traces, then imitates a log in which most tasks are done with
one typical bad habit per kind. So it can do every task, and mostly does it wrongly. ``scores.json`` has its success
after each stage. It takes about 200 seconds of processor time.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.serving.tokenizer import END_OF_TEXT, END_OF_TURN, TEMPLATE_FILE, TURN_START, ChatTokenizer, load_tokenizer
from core.serving.train_tokenizer import SPLIT
from core.tasks.demo import DEMO_DATA
from core.tasks.line_agent import DONE, MAX_TOKENS, MAX_TURNS, LineFiles

SEED = 0
KINDS = ("copy", "follow", "join", "swap", "rename")
_NAMES = "ant bat bee cat cod cow doe dog eel elk emu fly fox hen jay owl pig ram rat yak"
_WORDS = (
    "ash bay blue box bud clay cork dawn dew dusk east fern fig gold hay ice ink iron ivy jade kelp lake leaf lime "
    "mint moss north oak opal pear pine plum red reed rose rust sage salt sand silk snow teal tin west wine zinc"
)
NAMES, WORDS = _NAMES.split(), _WORDS.split()
SPARE = "tmp"
N_TRAIN = 60
N_HELD_OUT = 60
TEMPLATE = (
    "{%- for message in messages -%}\n"
    "{{- '<|im_start|>' + ('assistant' if message.role == 'assistant' else 'user') + '\\n'"
    " + (message.content or '') + '<|im_end|>' -}}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}\n"
)

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INNER, CONTEXT = 96, 3, 4, 2, 24, 256, 512
BATCH, CLEAN_STEPS, MIXED_STEPS, LEARNING_RATE = 24, 1400, 200, 3e-3
BAD_SHARE = 0.58
"""Share of the log's traces that show the bad habit of their kind."""


@dataclass(frozen=True, slots=True)
class FileTask:
    """One task: its kind, text, initial files, and the files that must exist afterwards, name -> words."""

    kind: str
    prompt: str
    files: dict[str, str]
    expected: dict[str, str]
    good: tuple[str, ...]
    bad: tuple[str, ...]


def draw_task(kind: str, rng: random.Random) -> FileTask:
    """A random task of a kind, with the actions that solve it and those of the kind's bad habit."""
    a, b, c = rng.sample(NAMES, 3)

    def words() -> str:
        return " ".join(rng.sample(WORDS, 2))

    one, two, guess = words(), words(), words()
    match kind:
        case "copy":  # habit: writes without reading
            files = {a: one}
            expected = {a: one, b: one}
            prompt, good = f"copy {a} to {b}", (f"read {a}", f"write {b} {one}")
            bad = (f"write {b} {guess}",)
        case "follow":  # habit: stops at the first hop
            files = {a: c, c: one}
            expected = {**files, b: one}
            prompt, good = f"follow {a} to {b}", (f"read {a}", f"read {c}", f"write {b} {one}")
            bad = (f"read {a}", f"write {b} {c}")
        case "join":  # habit: writes after the first file
            files = {a: one, b: two}
            expected = {**files, c: f"{one} {two}"}
            prompt = f"join {a} {b} to {c}"
            good = (f"read {a}", f"read {b}", f"write {c} {one} {two}")
            bad = (f"read {a}", f"write {c} {one}")
        case "swap":  # habit: overwrites one of the two
            files = {a: one, b: two}
            expected = {a: two, b: one}
            prompt, good = f"swap {a} {b}", (f"move {a} {SPARE}", f"move {b} {a}", f"move {SPARE} {b}")
            bad = (f"move {a} {b}", f"move {b} {a}")
        case _:  # rename; habit: copies, and leaves the old file
            files = {a: one}
            expected = {b: one}
            prompt, good = f"rename {a} to {b}", (f"move {a} {b}",)
            bad = (f"read {a}", f"write {b} {one}")
    return FileTask(kind, prompt, files, expected, (*good, DONE), (*bad, DONE))


class MemoryFiles(LineFiles):
    """The same actions on a dict, so that training data needs no disk. A test compares the two."""

    def __init__(self, files: dict[str, str]) -> None:
        super().__init__(Path())
        self.files = dict(files)

    def call(self, action: str) -> str:
        """As ``LineFiles.call``."""
        match action.split():
            case ["read", name]:
                return f"= {self.files[name]}" if name in self.files else "none"
            case ["write", name, *content] if content:
                self.files[name] = " ".join(content)
                return "ok"
            case ["move", source, target]:
                if source not in self.files:
                    return "none"
                self.files[target] = self.files.pop(source)
                return "ok"
        return "error"


def messages_of(task: FileTask, actions: Sequence[str]) -> list[dict[str, str]]:
    """The chat of one trace; the last message is the last action."""
    files = MemoryFiles(task.files)
    messages = [{"role": "user", "content": task.prompt}]
    for action in actions:
        messages += [{"role": "assistant", "content": action}, {"role": "user", "content": files.call(action)}]
    return messages[:-1]


def write_tasks(out: Path, seed: int) -> None:
    """Write task folders in ClawGym's form: ``train-NNN`` and ``val-NNN``, kinds in turn."""
    rng = random.Random(f"{seed}/tasks")
    shutil.rmtree(out, ignore_errors=True)
    for split, n_tasks in (("train", N_TRAIN), ("val", N_HELD_OUT)):
        for n in range(n_tasks):
            write_task(out / split / f"{split}-{n:03d}", draw_task(KINDS[n % len(KINDS)], rng), split)


CHECK = '''"""Scores a workspace: 1.0 if its files are exactly the expected ones, else 0.0."""

import json
import sys
from pathlib import Path

EXPECTED = {expected}

files = {{path.name: path.read_text().split() for path in Path(sys.argv[1]).iterdir() if path.is_file()}}
files.pop("{spare}", None)
print(json.dumps({{"files_are_right": float(files == {{name: text.split() for name, text in EXPECTED.items()}})}}))
'''
REWARD = """#!/usr/bin/env bash
# Prints the mean of the check's values as the last line.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
python3 "$here/check.py" "${1:-.}" | python3 -c 'import json, sys
values = list(json.load(sys.stdin).values())
print(sum(values) / len(values))'
"""


def write_task(folder: Path, task: FileTask, split: str) -> None:
    """Write one task folder."""
    (folder / "input_files").mkdir(parents=True)
    (folder / "reward").mkdir()
    entry = {
        "task_id": folder.name,
        "user_query": task.prompt,
        "metadata": {"category": task.kind, "split": split, "grading_type": "automated"},
    }
    (folder / "data_entry.json").write_text(json.dumps(entry, indent=2) + "\n")
    for name, text in task.files.items():
        (folder / "input_files" / name).write_text(text + "\n")
    expected = json.dumps(dict(sorted(task.expected.items())))
    (folder / "reward" / "check.py").write_text(CHECK.format(expected=expected, spare=SPARE))
    (folder / "reward" / "reward.sh").write_text(REWARD)
    (folder / "reward" / "reward.sh").chmod(0o755)


def write_tokenizer(out: Path, seed: int) -> ChatTokenizer:
    """Train a byte-level BPE on traces, so that each word of the language is one token."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    rng = random.Random(f"{seed}/tokenizer")
    texts = [
        f"{message['role']}\n{message['content']}"
        for n in range(2000)
        for task in [draw_task(KINDS[n % len(KINDS)], rng)]
        for message in messages_of(task, task.good if n % 2 else task.bad)
    ]
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=1000, initial_alphabet=alphabet, show_progress=False)
    )
    special = (END_OF_TEXT, TURN_START, END_OF_TURN)
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in special])
    tokenizer.save(str(out / "tokenizer.json"), pretty=False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": END_OF_TURN,
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (out / TEMPLATE_FILE).write_text(TEMPLATE)
    return load_tokenizer(out)


def row_of(tokenizer: ChatTokenizer, task: FileTask, actions: Sequence[str]) -> tuple[list[int], list[bool]]:
    """Token ids of a trace, and which of them the model is trained to predict: the actions with their end marks."""
    ids: list[int] = []
    trained: list[bool] = []
    for message in messages_of(task, actions):
        text = tokenizer.render([message], add_generation_prompt=False)
        head = f"{TURN_START}{message['role']}\n"
        n_head = len(tokenizer.encode(head))
        row = tokenizer.encode(text)
        ids += row
        trained += [message["role"] == "assistant" and n >= n_head for n in range(len(row))]
    return ids, trained


def new_model(tokenizer: ChatTokenizer, seed: int) -> Any:
    """A Qwen3 with random weights, 0.34 M parameters."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=tokenizer.n_vocab,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.token_id(END_OF_TURN),
        pad_token_id=tokenizer.token_id(END_OF_TEXT),
        rope_theta=10_000.0,
    )
    return Qwen3ForCausalLM(config)


def imitate(model: Any, tokenizer: ChatTokenizer, rng: random.Random, *, steps: int, bad_share: float) -> None:
    """Train on traces drawn afresh in each step; ``bad_share`` of them show the bad habit.

    Kinds are mixed in every batch: batches of one kind each hurt.
    """
    import torch
    from torch.nn.functional import cross_entropy

    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    warm = 50
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: min(1.0, (n + 1) / warm) * max(0.1, 1 - n / max(1, steps))
    )
    model.train()
    for step in range(steps):
        rows = []
        for _ in range(BATCH):
            task = draw_task(rng.choice(KINDS), rng)
            rows.append(row_of(tokenizer, task, task.bad if rng.random() < bad_share else task.good))
        width = max(len(ids) for ids, _ in rows)
        ids_BT = torch.zeros(BATCH, width, dtype=torch.int64)
        labels_BT = torch.full((BATCH, width), -100)
        seen_BT = torch.zeros(BATCH, width, dtype=torch.int64)
        for n, (ids, trained) in enumerate(rows):
            ids_BT[n, : len(ids)] = torch.tensor(ids)
            labels_BT[n, : len(ids)] = torch.where(torch.tensor(trained), torch.tensor(ids), -100)
            seen_BT[n, : len(ids)] = 1
        logits_BTV = model(input_ids=ids_BT, attention_mask=seen_BT).logits
        loss = cross_entropy(logits_BTV[:, :-1].flatten(0, 1), labels_BT[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            print(f"  step {step + 1} of {steps}: loss {loss.item():.3f}", flush=True)


def success(folder: Path, *, temperature: float, seed: int, n_tasks: int = 300) -> dict[str, float]:
    """Success on fresh tasks with the shipped engine's forward pass, by kind and over all kinds."""
    import torch

    from core.serving.qwen3 import Qwen3

    tokenizer, model, rng = load_tokenizer(folder), Qwen3.load(folder), random.Random(f"{seed}/score")
    tasks = [draw_task(KINDS[n % len(KINDS)], rng) for n in range(n_tasks)]
    draw = torch.Generator().manual_seed(seed)
    worlds = [MemoryFiles(task.files) for task in tasks]
    caches = [model.new_cache() for _ in tasks]
    unread = [tokenizer.encode(tokenizer.render([{"role": "user", "content": task.prompt}])) for task in tasks]
    live = list(range(n_tasks))
    with torch.inference_mode():
        for _ in range(MAX_TURNS):
            if not live:
                break
            said: dict[int, list[int]] = {n: [] for n in live}
            speaking = list(live)
            for _ in range(MAX_TOKENS):
                logits_BV = model.forward([unread[n] for n in speaking], [caches[n] for n in speaking])
                if temperature == 0:
                    chosen = logits_BV.argmax(-1).tolist()
                else:
                    probs_BV = (logits_BV / temperature).softmax(-1)
                    chosen = torch.multinomial(probs_BV, 1, generator=draw)[:, 0].tolist()
                for n, token in zip(speaking, chosen, strict=True):
                    unread[n] = [token]
                    said[n].append(token)
                speaking = [n for n in speaking if said[n][-1] not in tokenizer.end_ids]
                if not speaking:
                    break
            still = []
            for n in live:
                action = tokenizer.decode(said[n])
                if action == DONE or n in speaking:
                    continue
                answer = worlds[n].call(action)
                unread[n] += tokenizer.encode(tokenizer.render([{"role": "user", "content": answer}]))
                still.append(n)
            live = still
    for world in worlds:
        world.files.pop(SPARE, None)
    right = [world.files == task.expected for world, task in zip(worlds, tasks, strict=True)]
    by_kind = {kind: sum(right[n] for n in range(k, n_tasks, len(KINDS))) for k, kind in enumerate(KINDS)}
    return {
        "all": round(sum(right) / n_tasks, 4),
        **{kind: round(n * len(KINDS) / n_tasks, 4) for kind, n in by_kind.items()},
    }


def save(model: Any, folder: Path) -> None:
    """Write weights and configuration; the tokenizer's files stay."""
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "model.safetensors").chmod(0o644)


def make_model(folder: Path, seed: int) -> dict[str, Any]:
    """Train tokenizer and model into ``folder``; returns the scores after each stage."""
    import torch

    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = write_tokenizer(folder, seed)
    model = new_model(tokenizer, seed)
    rng = random.Random(f"{seed}/traces")
    n_parameters = sum(p.numel() for p in model.parameters())
    print(f"{tokenizer.n_vocab} tokens, {n_parameters} parameters")
    report: dict[str, Any] = {"seed": seed, "n_vocab": tokenizer.n_vocab, "n_parameters": n_parameters}
    began = time.process_time()
    stages = (("clean", CLEAN_STEPS, 0.0), ("mixed", MIXED_STEPS, BAD_SHARE))
    for name, steps, bad_share in stages:
        imitate(model, tokenizer, rng, steps=steps, bad_share=bad_share)
        save(model, folder)
        scores = {f"T={t}": success(folder, temperature=t, seed=seed) for t in (1, 0)}
        report[name] = {"steps": steps, "bad_share": bad_share, "success": scores}
        print(f"{name}: {json.dumps(scores)}", flush=True)
    report["processor_s"] = round(time.process_time() - began, 1)
    return report


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="make demo_data/policy")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--out", type=Path, default=DEMO_DATA / "policy")
    arguments = parser.parse_args()
    write_tasks(arguments.out / "tasks", arguments.seed)
    report = make_model(arguments.out / "model", arguments.seed)
    (arguments.out / "scores.json").write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
