"""Workloads and peers of the tree benchmarks. Peers run unchanged; missing ones are skipped and named."""

from __future__ import annotations

import ast
import importlib.util
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from core.tree.sequences import Sequences

VOCABULARY = 151_936
MIRRORS = Path(os.environ.get("CLAW_BENCH_PEERS", Path(__file__).resolve().parents[3] / ".mirror"))
CLAW_R1 = ("AgentR1+Claw-R1", "prefix-tree-merge", "claw_r1/tree_utils/prefix_tree.py")
AREAL = ("inclusionAI+AReaL", "HEAD", "areal/models/tree_attn/tree.py")


def agent_groups(groups: int, rollouts: int, steps: int, prompt: int, response: int, observation: int) -> Sequences:
    """Steps of ``groups`` × ``rollouts`` trajectories, each step's prompt the step before it and an observation.

    Drawn group by group into one array; ``parent`` and ``n_shared`` are set, as in data from the pool.
    """
    rng = np.random.default_rng(0)
    turn = response + observation
    lengths = np.tile(prompt + turn * np.arange(steps, dtype=np.int64) + response, groups * rollouts)
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
    ids = np.empty(offsets[-1], dtype=np.int32)
    at = 0
    for _ in range(groups):
        task = rng.integers(0, VOCABULARY, prompt, dtype=np.int32)
        for _ in range(rollouts):
            whole = np.concatenate([task, rng.integers(0, VOCABULARY, turn * steps, dtype=np.int32)])
            for _ in range(steps):
                ids[offsets[at] : offsets[at + 1]] = whole[: lengths[at]]
                at += 1
    number = np.arange(len(lengths), dtype=np.int64)
    parent = np.where(number % steps == 0, -1, number - 1)
    return Sequences(
        ids=ids,
        offsets=offsets,
        n_prompt=lengths - response,
        logprobs=None,
        step_uids=[f"s{i}" for i in range(len(lengths))],
        parent=parent,
        n_shared=np.where(parent >= 0, lengths[parent], 0),
    )


def without_deltas(sequences: Sequences) -> Sequences:
    """The same tokens, with nothing known about who leads whom."""
    return replace(sequences, parent=None, n_shared=None)


def published(peer: tuple[str, str, str]) -> str | None:
    """Source text of a peer's file in its repository, read with git; None where the repository isn't here."""
    name, ref, path = peer
    folder = MIRRORS / name
    for git in [folder, *folder.glob("*")] if folder.exists() else []:
        done = subprocess.run(
            ["git", "-C", str(git), "show", f"{ref}:{path}"], capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            return done.stdout
    return None


def claw_r1_tree() -> Any:
    """Claw-R1's ``PrefixTree`` class, or None."""
    text = published(CLAW_R1)
    if text is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "claw_r1_prefix_tree.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
    return module.PrefixTree


def areal_planner() -> Callable[[list[list[int]], int], list[int]] | None:
    """AReaL's greedy planner without its compression of the tries: sequences, budget -> tokens of each tree."""
    text = published(AREAL)
    if text is None:
        return None
    wanted = {"_BuildNode", "_count_additional_nodes", "_insert_sequence", "_greedy_build_tries"}
    nodes = [node for node in ast.parse(text).body if getattr(node, "name", None) in wanted]
    space: dict[str, Any] = {"Any": Any, "TrieNode": object, "_extract_sequences": list, "_compress_trie": id}
    for node in nodes:
        node.decorator_list = []
    header = ast.parse("from __future__ import annotations").body
    exec(compile(ast.Module(body=[*header, *nodes], type_ignores=[]), "areal_tree", "exec"), space)
    return lambda sequences, budget: space["_greedy_build_tries"](sequences, budget)[1]


def trl_samples(sequences: Sequences, group: np.ndarray | None = None) -> list[dict[str, Any]]:
    """What TRL's planner and packer read of a sample."""
    import torch

    made = []
    for i in range(len(sequences)):
        ids = torch.from_numpy(sequences.sequence(i))
        mask = torch.zeros(len(ids), dtype=torch.long)
        mask[int(sequences.n_prompt[i]) :] = 1
        made.append(
            {
                "input_ids": ids,
                "completion_mask": mask,
                "old_log_probs": torch.zeros(len(ids)),
                "advantage": 0.5,
                "group_id": 0 if group is None else int(group[i]),
            }
        )
    return made


def dict_trie(lists: list[list[int]]) -> int:
    """The obvious way: one dict entry per distinct prefix. Returns the number of packed tokens."""
    root: dict[int, Any] = {}
    n = 0
    for ids in lists:
        node = root
        for token in ids:
            below = node.get(token)
            if below is None:
                below = node[token] = {}
                n += 1
            node = below
    return n


def timed(run: Callable[[], Any], repeat: int = 1) -> float:
    """Best of ``repeat`` runs, seconds."""
    times = []
    for _ in range(repeat):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times)


def machine(*packages: str) -> dict[str, Any]:
    """Where and with what this ran."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if "model name" in line]
    return {
        "cpu": names[0] if names else platform.processor(),
        "n_cores": os.cpu_count(),
        "system": platform.system(),
        "load_at_start": os.getloadavg()[0],
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
    }
