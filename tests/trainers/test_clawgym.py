"""ClawGym's own loaders, of its fine-tuning and of its fork of slime, on our files.

The sources are found by ``CLAW_UPSTREAM``, a folder with the git directory ``ClawGym+ClawGym-Agents/repo``.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from core.batch.plan import Plan, plan
from core.batch.recipe import parse_recipe
from core.export import export
from core.serving.tokenizer import ASSETS, load_tokenizer
from core.types import Step, View
from tests.batch.keeping_all import SFT_ALL, keeping_all
from tests.export.conftest import conversation, done
from tests.export.uneven_pool import fill
from tests.left_out import missing

from .running import run

pytestmark = pytest.mark.trainers

REPO = Path(os.environ.get("CLAW_UPSTREAM", "/nonexistent")) / "ClawGym+ClawGym-Agents" / "repo"
SFT_PROGRAM = "SFT/process_scripts/sft_dataset.py"
PYTHON = Path(__file__).parents[2] / ".cache" / "trainers" / "datasets" / "bin" / "python"
TOKENIZER = load_tokenizer()


def source(name: str, out: Path) -> Path:
    """A file or folder of ClawGym's repository."""
    if not REPO.exists():
        pytest.skip("ClawGym's sources are not here, so its loaders were not run: CLAW_UPSTREAM names their folder")
    archive = out / "source.tar"
    with archive.open("wb") as stream:
        subprocess.run(["git", "-C", REPO, "archive", "HEAD", name], stdout=stream, check=True)
    subprocess.run(["tar", "-x", "-f", archive, "-C", out], check=True)
    return out / name


def in_sft(out: Path, *files: tuple[Path, int]) -> list[list[dict[str, Any]]]:
    """Rows of each file, with the loader's ``max_len``; one process for all."""
    program = source(SFT_PROGRAM, out)
    if not PYTHON.exists():
        missing("the trainers' data paths are not installed: .ci/run installs them into .cache/trainers/datasets")
    given = json.dumps([(str(path), max_len) for path, max_len in files])
    command = [PYTHON, Path(__file__).with_name("in_clawgym.py"), "sft", program, ASSETS, given]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    environment["HF_HOME"] = str(out / "hf")
    ran = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr[-4000:]
    rows: list[list[dict[str, Any]]] = json.loads(ran.stdout.splitlines()[-1])
    return rows


def test_clawgym_trains_the_sampled_tokens(pool, tmp_path):
    """Its dataset gives the engine's ids, and a loss on the tokens that the plan's steps sampled, each once.

    Where it encodes a text to other ids, the line says so, and the loss is on the same text. A prompt of max_len - 2
    tokens is dropped.
    """
    talk(pool)
    exact = plan(pool, View({"prompt_uid": "P"}), parse_recipe(SFT_ALL))
    merged, by_step = (export(exact, pool, "clawgym_sft", tmp_path, merge=merge) for merge in ("trajectory", "step"))
    odd, ask, n_long = odd_steps(pool)
    flagged = plan(pool, View({"prompt_uid": ["A", "B"]}), parse_recipe(SFT_ALL))
    result = export(flagged, pool, "clawgym_sft", tmp_path, max_len=str(n_long + 2))
    one, two, three = in_sft(tmp_path, (merged.path, 65536), (by_step.path, 65536), (result.path, n_long + 2))
    assert (len(one), len(two)) == (merged.n_rows, by_step.n_rows) == (3, 5)
    same_tokens(one, merged, exact, pool)
    same_tokens(two, by_step, exact, pool)

    lines = {line["trajectory_uid"]: line for line in map(json.loads, result.path.read_text().splitlines())}
    assert lines["odd"]["input_ids"] == [*ask, *odd] and lines["odd"]["exact"] is False
    assert lines["long"]["prompt"] is None and lines["long"]["prompt_ids_len"] == n_long
    (row,) = three
    on = [row["ids"][i + 1] for i in range(len(row["ids"]) - 1) if row["mask"][i] == 1]
    assert TOKENIZER.decode(on) == "hello world and more", "the loss is on the same text, in the loader's tokens"
    said = json.dumps(result.manifest["differences"])
    assert "1 lines are encoded to other ids" in said and "1 lines have no prompt" in said
    assert result.manifest["n_loss_tokens"] == len(odd)
    assert export(flagged, pool, "clawgym_sft", tmp_path, max_len=str(n_long + 3)).path != result.path


def same_tokens(rows: list[dict[str, Any]], result: Any, made: Plan, pool: Any) -> None:
    lines = [json.loads(line) for line in result.path.read_text().splitlines()]
    assert all(line["exact"] for line in lines)
    sampled = sorted(tuple(pool.steps.get(uid)["response_ids"].tolist()) for uid in made.step_uids)
    trained = []
    for row, line in zip(rows, lines, strict=True):
        ids, mask = row["ids"], row["mask"]
        assert ids[: len(line["input_ids"])] == line["input_ids"]
        assert len(ids) - len(line["input_ids"]) in (0, 2), "a cut answer gets a space and the end token"
        # Its mask is shifted: entry i is the loss of token i + 1.
        on = [ids[i + 1] for i in range(len(ids) - 1) if mask[i] == 1]
        ranges = [line["input_ids"][a : b + 1] for a, b in line["response_ranges"]]
        assert on == [token for part in ranges for token in part] and mask[-1] == 0
        trained += [tuple(part) for part in ranges]
    assert sorted(trained) == sampled
    assert result.manifest["n_loss_tokens"] == sum(map(len, sampled))


def odd_steps(pool: Any) -> tuple[list[int], list[int], int]:
    """Ids that are no encoding of their text, and a long prompt; returns the ids, their prompt, the long length."""
    odd = [*TOKENIZER.encode("hello wor"), *TOKENIZER.encode("ld and more")]
    assert TOKENIZER.encode(TOKENIZER.decode(odd)) != odd
    ask = TOKENIZER.encode("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    long = [*ask, *TOKENIZER.encode("word " * 60)]
    more = {"tokenizer_hash": TOKENIZER.hash}
    steps = [*conversation("odd", "A", [(ask, odd)], **more), *conversation("long", "B", [(long, odd[:2])], **more)]
    pool.steps.append(steps, completions=done("odd", "long", reward=1.0))
    return odd, ask, len(long)


def talk(pool: Any) -> None:
    """Three trajectories of the shipped template: two turns with a tool; one turn; an answer cut at its limit."""

    def encode(messages: list[dict[str, Any]], *, ask: bool) -> list[int]:
        return TOKENIZER.encode(TOKENIZER.render(messages, add_generation_prompt=ask))

    def turn(owner: str, k: int, messages: list[dict[str, Any]], answer: str, before: list[int], end: str) -> Step:
        prompt = before or encode(messages, ask=True)
        sampled = TOKENIZER.encode(f"{answer}{end}")
        return Step(
            f"{owner}.{k}", owner, "P", k, created_at=1_700_000_000.0 + k, token_source="engine", prompt_ids=prompt,
            response_ids=sampled, response_logprobs=[-0.5] * len(sampled), messages=messages, tools=None,
            response_message={"role": "assistant", "content": answer}, tokenizer_hash=TOKENIZER.hash,
            finish_reason="stop" if end else "length", transition="extends" if k else None,
            parent_step_uid=f"{owner}.{k - 1}" if k else None, n_shared_tokens=0,
        )  # fmt: skip

    end = "<|im_end|>"
    ask = [{"role": "system", "content": "be brief – é"}, {"role": "user", "content": "read it\n\n"}]
    first = turn("a", 0, ask, "I read.\n\nNow.", [], end)
    more = [*ask, dict(first.response_message), {"role": "user", "content": "and 漢字?"}]
    between = TOKENIZER.encode("\n<|im_start|>user\nand 漢字?<|im_end|>\n<|im_start|>assistant\n")
    second = turn("a", 1, more, "two characters", [*first.prompt_ids, *first.response_ids, *between], end)
    again = [*more, dict(second.response_message), {"role": "user", "content": "go on"}]
    between = TOKENIZER.encode("\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n")
    third = turn("a", 2, again, "done", [*second.prompt_ids, *second.response_ids, *between], end)
    alone = turn("b", 0, ask, "no file", [], end)
    cut = turn("c", 0, ask, "a long answer that", [], "")
    pool.steps.append([first, second, third, alone, cut], completions=done(*"abc", reward=1.0))


FLAGS = {"reward_key": "score", "rewards_normalization": True, "advantage_estimator": "grpo", "dynamic_history": True}


def in_fork(path: Path, out: Path, **flags: Any) -> dict[str, Any]:
    folder = source("RL/slime/slime", out).parent
    return run("in_clawgym.py", "slime", folder, path, json.dumps({**FLAGS, **flags}))


@pytest.mark.parametrize("merge", ["trajectory", "step"])
def test_a_trajectory_has_one_vote_in_clawgyms_fork(pool, tmp_path, merge):
    """Groups of any size, trajectories of several rows: its advantages are the plan's, token by token."""
    fill(pool, without=("no_logprobs", "singleton"))
    recipe = {**keeping_all("grpo"), "drop_flat_groups": True}
    made = plan(pool, View(), parse_recipe(recipe))
    result = export(made, pool, "slime", tmp_path / "out", merge=merge, credit="trainer", index="trajectory")
    said = json.dumps(result.manifest["differences"])
    assert "--reward-key score --dynamic-history" in said and "--calculate-per-token-loss" in said
    wanted = advantages(made, pool)
    data = in_fork(result.path, tmp_path)
    seen = []
    for i, tokens in enumerate(data["tokens"]):
        n, mask = data["response_lengths"][i], data["loss_masks"][i]
        on = [token for token, one in zip(tokens[-n:], mask, strict=True) if one]
        assert [data["rewards"][i]] * len(on) == pytest.approx([wanted[token] for token in on], rel=1e-5, abs=1e-6)
        seen += on
    assert sorted(seen) == sorted(wanted)
    rows_of = {index: data["sample_indices"].count(index) for index in data["sample_indices"]}
    assert len(rows_of) == len(made.trajectories) and max(rows_of.values()) > 1
    without = in_fork(result.path, tmp_path / "out", dynamic_history=False)
    assert without["rewards"] != pytest.approx(data["rewards"], abs=1e-3), "by row, long trajectories count more"


def advantages(made: Plan, pool: Any) -> dict[int, float]:
    """Each sampled token that can be trained on -> the plan's advantage."""
    numbers = {}
    for uid, advantage in zip(made.step_uids, made.steps["advantage"].to_pylist(), strict=True):
        step = pool.steps.get(uid)
        for k, token in enumerate(step["response_ids"].tolist()):
            if k or len(step["prompt_ids"]):
                numbers[token] = advantage
    return numbers
