"""Where trainers' code is, and how a test runs it on our files."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.left_out import missing

VERL = Path(__file__).parents[2] / ".cache" / "trainers" / "verl"
PYTHON = VERL / "bin" / "python"
VERSION = "0.9.1"


def verl_python() -> Path:
    """verl's interpreter, in which the other trainers' code runs as well; the test is left out where there is none."""
    if not PYTHON.exists():
        missing("verl is not installed, so no trainer's own code was run: .ci/run installs it into .cache/trainers")
    code = "import importlib.metadata as m; print(m.version('verl'))"
    assert subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == VERSION
    return PYTHON


def upstream(*names: str, package: str | None = None) -> Path:
    """The folder that holds a trainer's source.

    Args:
        names: what ``CLAW_UPSTREAM`` may call its checkout.
        package: what to look for among the packages of verl's environment first.
    """
    for packages in VERL.glob("lib/python*/site-packages"):
        if package is not None and (packages / package).is_dir():
            return packages
    root = os.environ.get("CLAW_UPSTREAM")
    for name in names:
        if root is not None and (Path(root) / name).is_dir():
            return Path(root) / name
    pytest.skip(f"CLAW_UPSTREAM names no folder with {names[0]}")


def run(program: str, *arguments: Any, **environment: str) -> dict[str, Any]:
    """What a program of this folder prints last, run by verl's interpreter."""
    ran = subprocess.run(
        [verl_python(), Path(__file__).with_name(program), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "TORCHDYNAMO_DISABLE": "1", "CUDA_VISIBLE_DEVICES": "", **environment},
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    report: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return report


def run_processes(program: Path, n_processes: int, *arguments: Any, python: Path | None = None) -> None:
    """Run a program of this folder in one process or as ranks that gloo joins, under our own interpreter or another."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ran: list[subprocess.Popen[str]] = []
    for rank in range(n_processes):
        environment = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(n_processes)}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        environment |= {"LOCAL_WORLD_SIZE": str(n_processes), "CUDA_VISIBLE_DEVICES": ""}
        environment |= {"ACCELERATE_USE_CPU": "true", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
        environment |= {} if python is None else {"PYTHONPATH": ""}
        if n_processes == 1:
            for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE"):
                environment.pop(name)
        command = [python or sys.executable, program, *map(str, arguments)]
        ran.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    for process in ran:
        out, _ = process.communicate(timeout=280)
        assert process.returncode == 0, out[-4000:]


def seen_by(out: Path, n_processes: int) -> list[dict[str, Any]]:
    """What ``watching.Watched`` wrote in each process: ``n`` processes and, a batch each, ``seen`` rows and loss."""
    return [json.loads((out / f"seen-{rank}.json").read_text()) for rank in range(n_processes)]


def watched_loss_is_the_mean_over_tokens(ranks: list[dict[str, Any]], model_dir: Path) -> None:
    """Each step's loss, averaged over the ranks, is that of a plain forward pass over every trained token of them."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    for parts in zip(*(one["seen"] for one in ranks), strict=True):
        lost: list[float] = []
        for row in (row for part in parts for row in part["rows"]):
            with torch.no_grad():
                scores = torch.log_softmax(model(input_ids=torch.tensor([row["ids"]])).logits[0], dim=-1)
            lost += [-scores[at - 1, row["ids"][at]].item() for at in row["at"]]
        loss = sum(part["loss"] for part in parts) / len(ranks)
        assert loss == pytest.approx(sum(lost) / len(lost), rel=1e-4), "the mean over tokens of all processes"
