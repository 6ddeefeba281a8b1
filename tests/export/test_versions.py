"""Dataset versions: the same bytes now and after later edits, and nothing in them that redaction took out."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.batch.datasets import VersionSource, dry_run, freeze_version, version_plan
from core.batch.plan import Plan, plan
from core.batch.recipe import parse_recipe
from core.batch.redact import redact, texts_of
from core.batch.versions import member_rows
from core.errors import Conflict, InvalidInput, NotFound
from core.export import EXPORTERS, export
from core.pool import Pool
from core.pool.query.members import MemberFilter
from core.pool.redaction.rules import PATTERNS, Redaction, parse_redaction
from core.serving.tokenizer import load_tokenizer, template_hash, tokenizer_hash
from core.types import Annotation, PolicyEvent, PolicyEventKind, Step, View
from tests.batch.keeping_all import SFT_ALL
from tests.effort import settings

from .conftest import T0, conversation, done

ALL = View()
SFT = parse_recipe(SFT_ALL)
GRPO = parse_recipe({"algorithm": "grpo", "max_staleness": 3})


def annotate(pool: Pool, kind: str, value: Any, *, source: str = "human", **target: str) -> str:
    return pool.labels.annotate([Annotation(kind, value, "ann", source, T0, **target)])


def fill(pool: Pool) -> Pool:
    """Two groups of three trajectories, rewards by several sources."""
    uids = [(prompt, k, f"{prompt}{k}") for prompt in "AB" for k in range(3)]
    pool.steps.append(
        [
            step
            for prompt, k, uid in uids
            for step in conversation(
                uid, prompt, [([1, 2], [3, k]), ([4], [5, 6 + (prompt == "B")])], policy_version=2 + k
            )
        ],
        completions=[one for _, k, uid in uids for one in done(uid, reward=float(k == 0))],
        policy_events=[PolicyEvent(4, PolicyEventKind.SYNC_FINISHED, T0)],
    )
    judged = [Annotation("reward", 0.25 * k, "ann", "judge", T0, trajectory_uid=uid) for _, k, uid in uids]
    pool.labels.annotate([*judged, Annotation("tag", "kept", "ann", "human", T0, step_uid="A0.0")])
    return pool


@pytest.fixture
def filled(pool: Pool) -> Pool:
    return fill(pool)


def edit_everything(pool: Pool) -> None:
    """All that can change later, changed."""
    pool.labels.undo(pool.labels.actions(100)[-1]["action_uid"])
    cases: list[tuple[str, Any, str, dict[str, str]]] = [
        ("reward", 9.0, "human", {"trajectory_uid": "A0"}),
        ("reward", -1.0, "judge", {"trajectory_uid": "B1"}),
        ("reward", 5.0, "human", {"step_uid": "A1.0"}),
        ("quality", "bad", "human", {"trajectory_uid": "A1"}),
        ("trainable", False, "human", {"step_uid": "B0.0"}),
        ("tag", "-kept", "human", {"step_uid": "A0.0"}),
    ]
    pool.labels.annotate(
        [Annotation(kind, value, "ann", source, T0, **target) for kind, value, source, target in cases]
    )
    pool.steps.append(
        [
            *conversation("A9", "A", [([1, 2], [3])]),  # a new member of the group
            conversation("A0", "A", [([1, 2], [3, 0]), ([4], [5, 6]), ([7], [8])])[2],  # and of a trajectory
        ],
        completions=done("A9", reward=0.5),
        registrations=[{"kind": "register", "trajectory_uid": "B2", "channel": "val", "prompt_uid": "Z"}],
        policy_events=[PolicyEvent(40, PolicyEventKind.SYNC_FINISHED, T0 + 5)],
    )


def freeze(pool: Pool, name: str, recipe: Any = GRPO, view: View = ALL, **more: Any) -> dict[str, Any]:
    return freeze_version(pool, name, view, recipe, author="ann", **more)


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# clawgym_sft needs the tokenizer of the steps; these name one that does not exist.
FORMATS = sorted(set(EXPORTERS) - {"trl_dpo", "openrlhf", "clawgym_sft"})
RECIPES: list[dict[str, Any]] = [
    {"algorithm": "grpo"},
    {"algorithm": "grpo", "max_staleness": 1},
    {"algorithm": "grpo", "rewards": ["judge", "complete"]},
    {"algorithm": "grpo", "rewards": {"rule": "weighted", "weights": {"judge": 1, "complete": 3}}},
    SFT_ALL,
    {"algorithm": "dpo"},
]


def version_of(format_name: str) -> str:
    return "kto" if format_name == "trl_kto" else "grpo"


@dataclass
class Edited:
    """A pool whose versions were exported twice and planned, and which was edited since."""

    pool: Pool
    exported: dict[str, list[Any]]
    plans: list[Plan]


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edited]:
    folder = tmp_path_factory.mktemp("edited")
    pool = fill(Pool.open(folder / "pool.duckdb", memory="512MB", threads=1, clock=lambda: T0 + 1000))
    for algorithm in ("grpo", "kto"):
        freeze(pool, algorithm, parse_recipe({"algorithm": algorithm, "max_staleness": 3}))
    freeze(pool, "sft", SFT)
    exported: dict[str, list[Any]] = {name: [] for name in FORMATS}
    for out in ("one", "two"):
        made = {version: version_plan(pool, version) for version in ("grpo", "kto")}
        for name in FORMATS:
            exported[name].append(export(made[version_of(name)], pool, name, folder / out))
    plans = [plan(pool, View(), parse_recipe(recipe)) for recipe in RECIPES]
    edit_everything(pool)
    yield Edited(pool, exported, plans)
    pool.close()


@pytest.mark.parametrize("name", FORMATS)
def test_the_same_bytes_twice_and_after_later_edits(name: str, edited: Edited, tmp_path: Path) -> None:
    pool, version = edited.pool, version_of(name)
    first, second = edited.exported[name]
    third = export(version_plan(pool, version), pool, name, tmp_path / "three")
    assert first.n_rows
    assert sha(first.path) == sha(second.path) == sha(third.path)
    assert first.path.name == third.path.name
    reference = json.loads(third.manifest_path.read_text())["dataset_version"]
    assert (reference["name"], reference["content_hash"]) == (version, pool.versions.get(version)["content_hash"])
    changed = plan(pool, View(), parse_recipe({"algorithm": version}))
    assert sha(export(changed, pool, name, tmp_path / "pool").path) != sha(first.path), "the edits do change the pool"


@pytest.mark.parametrize("place", range(len(RECIPES)))
def test_a_version_plans_as_the_pool_did(place: int, edited: Edited) -> None:
    """Frozen with another recipe: any can be applied to what was frozen."""
    before, after = edited.plans[place], version_plan(edited.pool, "sft", RECIPES[place])
    for table in ("steps", "trajectories", "pairs"):
        expected, got = getattr(before, table), getattr(after, table)
        assert (None if expected is None else expected.to_pylist()) == (None if got is None else got.to_pylist())
    assert [e.to_json() for e in before.excluded] == [e.to_json() for e in after.excluded]
    assert before.policy_version == after.policy_version
    assert before.hash != after.hash


def test_a_version_says_what_it_is(filled: Pool) -> None:
    view = View({"prompt_uid": ["A"]}, "step_index >= 0")
    parent = freeze(filled, "v1")
    made = freeze(
        filled, "v2", view=view, parent="v1", note="why", templates={"tok-1": "template-1", "tok-2": "template-2"}
    )
    assert made == filled.versions.get("v2") == filled.versions.get(made["version_uid"])
    assert made["view"] == {"filters": {"prompt_uid": ["A"]}, "where": "step_index >= 0"}
    assert made["recipe"] == GRPO.to_json()
    assert (made["parent"], made["author"], made["note"], made["channel"]) == ("v1", "ann", "why", "train")
    assert (made["n_groups"], made["n_trajectories"], made["n_steps"]) == (1, 3, 6)
    assert made["n_tokens"] == 3 * (4 + 7)
    provenance = made["provenance"]
    assert provenance["tokenizer_hashes"] == {"tok-1": 6}
    assert provenance["template_hashes"] == {"tok-1": "template-1"}
    assert (provenance["policy_version_min"], provenance["policy_version_max"]) == (2, 4)
    assert provenance["sources"] == {"blackbox": 6}
    assert provenance["token_sources"] == {"engine": 6}
    assert [one["name"] for one in filled.versions.all()] == ["v2", "v1"]
    assert parent["content_hash"] != made["content_hash"]
    assert re.fullmatch("[0-9a-f]{64}", made["content_hash"])


def test_the_hash_is_of_the_content(filled: Pool, tmp_path: Path) -> None:
    first = freeze(filled, "v1")
    assert freeze(filled, "same")["content_hash"] == first["content_hash"]
    assert filled.versions.verify("v1")
    annotate(filled, "quality", "good", step_uid="A0.0")
    assert freeze(filled, "other")["content_hash"] != first["content_hash"]
    # Another pool with the same steps, other ids and another order of arrival: the same content.
    other = Pool.open(tmp_path / "other.duckdb", memory="512MB", threads=1, clock=lambda: T0 + 1000)
    other.steps.append(conversation("x", "X", [([1], [2])]))
    order = [(prompt, int(k), f"{prompt}{k}") for prompt, ks in (("B", "210"), ("A", "102")) for k in ks]
    for prompt, k, uid in order:
        steps = conversation(uid, prompt, [([1, 2], [3, k]), ([4], [5, 6 + (prompt == "B")])], policy_version=2 + k)
        other.steps.append(steps, completions=done(uid, reward=float(k == 0)))
    judged = [Annotation("reward", 0.25 * k, "ann", "judge", T0, trajectory_uid=uid) for _, k, uid in order]
    other.labels.annotate([*judged, Annotation("tag", "kept", "ann", "human", T0, step_uid="A0.0")])
    moved = freeze(other, "v1", view=View({"prompt_uid": ["A", "B"]}))
    assert moved["content_hash"] == first["content_hash"]
    other.close()


def _fields(step: Step) -> dict[str, Any]:
    return {name: getattr(step, name) for name in step.__dataclass_fields__}


def test_a_tampered_version_is_found(filled: Pool) -> None:
    freeze(filled, "v1")
    with filled._db.write() as cursor:
        cursor.execute("UPDATE dataset_steps SET reward = 2 WHERE place = 3")
    assert not filled.versions.verify("v1")


def test_names_are_taken_once_and_nothing_is_frozen_of_nothing(filled: Pool) -> None:
    freeze(filled, "v1")
    with pytest.raises(Conflict):
        freeze(filled, "v1")
    with pytest.raises(NotFound):
        freeze(filled, "v2", parent="nobody")
    with pytest.raises(InvalidInput, match="no step"):
        freeze(filled, "v2", view=View({"prompt_uid": "nobody"}))
    with pytest.raises(InvalidInput):
        freeze(filled, "  ")
    with pytest.raises(NotFound):
        version_plan(filled, "v2")
    with pytest.raises(InvalidInput, match="channel"):
        version_plan(filled, "v1", {"channel": "val"})
    with pytest.raises(InvalidInput, match="values"):
        version_plan(filled, "v1", {"algorithm": "step_gae", "value_model": "critic"})
    assert [one["name"] for one in filled.versions.all()] == ["v1"]


def test_the_difference_of_two_versions(filled: Pool) -> None:
    freeze(filled, "v1", view=View({}, "NOT (trajectory_uid = 'B2')"))
    annotate(filled, "reward", 7.0, step_uid="A0.1")
    annotate(filled, "quality", "good", trajectory_uid="A1")
    annotate(filled, "correct", True, step_uid="B0.0")
    freeze(filled, "v2", view=View({}, "NOT (trajectory_uid = 'A2')"))
    diff = filled.versions.diff("v1", "v2")
    assert {k: v for k, v in diff["counts"].items() if k != "by_label"} == {
        "added": 2, "removed": 2, "changed": 4, "same": 4,
    }  # fmt: skip
    assert diff["counts"]["by_label"] == {"reward": 1, "trajectory_quality": 2, "correct": 1}
    by_uid = {row["step_uid"]: row for row in diff["changes"]}
    assert by_uid["A0.1"]["labels"]["reward"] == [None, 7.0]
    assert by_uid["A1.0"]["labels"] == {"trajectory_quality": [None, "good"]}
    assert {uid for uid, row in by_uid.items() if row["change"] == "added"} == {"B2.0", "B2.1"}
    assert {uid for uid, row in by_uid.items() if row["change"] == "removed"} == {"A2.0", "A2.1"}
    assert filled.versions.diff("v1", "v1")["counts"]["same"] == 10
    assert filled.versions.diff("v1", "v2", limit=3)["truncated"]


# Redaction ----------------------------------------------------------------------------------------------------

KEY = "sk-" + "A1b2C3d4" * 4
TOKENIZER = load_tokenizer()
HASH = tokenizer_hash()


def talk(uid: str, prompt: str, turns: list[tuple[str, str]], **fields: Any) -> list[Step]:
    """A conversation in the shipped tokenizer's ids: each turn is (what is said to the model, its answer)."""
    steps: list[Step] = []
    context: list[int] = []
    messages: list[dict[str, Any]] = []
    for k, (said, answer) in enumerate(turns):
        prompt_ids = context + TOKENIZER.encode(f"<|im_start|>user\n{said}<|im_end|>\n<|im_start|>assistant\n")
        response = TOKENIZER.encode(f"{answer}<|im_end|>")
        messages = [*messages, {"role": "user", "content": said}]
        values = {
            "step_uid": f"{uid}.{k}", "trajectory_uid": uid, "prompt_uid": prompt, "step_index": k,
            "created_at": T0 + k, "token_source": "engine", "prompt_ids": prompt_ids, "response_ids": response,
            "response_logprobs": [-0.5] * len(response), "messages": messages,
            "response_message": {"role": "assistant", "content": answer}, "tokenizer_hash": HASH,
            "parent_step_uid": steps[-1].step_uid if k else None, "n_shared_tokens": len(context),
            "n_shared_messages": len(messages) - 1 if k else 0, "transition": "extends" if k else None,
            "policy_version": 2,
        }  # fmt: skip
        steps.append(Step(**{**values, **fields}))
        messages = [*messages, {"role": "assistant", "content": answer}]
        context = prompt_ids + response
    return steps


@pytest.fixture(scope="module")
def leaky(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """A secret said in a task, an address that the model says, and steps where nothing is; frozen in three ways."""
    path = tmp_path_factory.mktemp("leaky") / "pool.duckdb"
    pool = Pool.open(path, memory="512MB", threads=1, clock=lambda: T0 + 1000)
    pool.steps.append(
        talk("t0", "A", [(f"my key is {KEY}, use it", "done é"), ("and now?", "nothing")])
        + talk("t1", "A", [("hello", "write to ann.lee@example.org or bob@example.org today"), ("why?", "because")])
        + talk("t2", "B", [("clean – as it is", "quite"), ("sure?", "sure")])
        + talk("t3", "B", [("also clean", "carol@example.org")], tokenizer_hash="another"),
        completions=done("t0", "t1", "t2", "t3", reward=1.0),
    )
    freeze(pool, "masked", SFT, redaction=parse_redaction(RULES), texts=texts_of(None))
    freeze(pool, "dropped", SFT, redaction=parse_redaction({**RULES, "action": "drop"}), texts=texts_of(None))
    freeze(pool, "unspelled", SFT, redaction=parse_redaction(RULES))
    yield pool
    pool.close()


RULES = {"rules": ["secrets", "email"]}


def text_of(ids: Any) -> str:
    return TOKENIZER.decode(list(ids), skip_special=False)


def test_masked_tokens_keep_their_places_and_lose_their_loss(leaky: Pool, tmp_path: Path) -> None:
    made = leaky.versions.get("masked")
    report = made["redaction"]["report"]
    assert report["n_steps_with_hit"] == {"api_key": 2, "email": 3}
    assert report["n_steps_dropped"] == {"unlocated": 1}, "t3 speaks of an address in ids that nobody can spell"
    assert report["n_steps_masked"] == 4
    assert report["n_tokens_masked"] > 0
    assert made["n_steps"] == 6

    result = export(version_plan(leaky, "masked"), leaky, "trl_sft", tmp_path)
    assert json.loads(result.manifest_path.read_text())["dataset_version"]["redaction"]["report"] == report
    rows = dict(zip(version_plan(leaky, "masked").step_uids, pq.read_table(result.path).to_pylist(), strict=True))
    assert len(rows) == 6
    for uid, row in rows.items():
        step = leaky.steps.get(uid)
        own = [*step["prompt_ids"], *step["response_ids"]]
        assert len(row["input_ids"]) == len(own), "nothing shifts"
        changed = [i for i, (a, b) in enumerate(zip(row["input_ids"], own, strict=True)) if a != b]
        text = text_of(row["input_ids"])
        for rule in PATTERNS.values():
            assert not re.search(rule, text), text
        assert KEY not in text
        n_prompt = len(step["prompt_ids"])
        for i, (label, token) in enumerate(zip(row["labels"], own, strict=True)):
            if i < n_prompt:
                assert label == -100
            elif label != -100:
                assert label == token
                assert i not in changed
        if uid == "t1.0":
            answer = [i for i in range(n_prompt, len(own)) if row["labels"][i] == -100]
            covered = text_of([own[i] for i in answer])
            assert "ann.lee@example.org" in covered
            assert "bob@example.org" in covered
            assert len(answer) < len(own) - n_prompt, "the rest of the answer still trains"
        if uid.startswith("t2"):
            assert not changed


def test_texts_are_replaced_and_log_probs_unknown(leaky: Pool, tmp_path: Path) -> None:
    made = version_plan(leaky, "masked")
    table = {
        row["step_uid"]: row for row in pq.read_table(export(made, leaky, "steps_parquet", tmp_path).path).to_pylist()
    }
    row = table["t1.0"]
    assert json.loads(row["response_message"])["content"] == "write to [redacted:email] or [redacted:email] today"
    unknown = [i for i, value in enumerate(row["response_logprobs"]) if value is None]
    assert unknown
    assert unknown == [i for i, one in enumerate(row["response_mask"]) if not one]
    assert json.loads(table["t0.1"]["messages"])[0]["content"] == "my key is [redacted:api_key], use it"
    assert all(table["t2.0"]["response_mask"])
    conversations = export(made, leaky, "openai_messages", tmp_path).path.read_text()
    everything = conversations + repr(list(table.values()))
    assert KEY not in everything
    assert "example.org" not in everything


def test_formats_without_a_token_mask_refuse(leaky: Pool, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="redacted"):
        export(version_plan(leaky, "masked"), leaky, "rllm", tmp_path)
    assert export(version_plan(leaky, "dropped"), leaky, "rllm", tmp_path).n_rows


@pytest.mark.parametrize("name", sorted(set(EXPORTERS) - {"trl_dpo", "trl_kto", "rllm", "packed_tree", "clawgym_sft"}))
def test_no_format_lets_a_secret_out(name: str, leaky: Pool, tmp_path: Path) -> None:
    recipe = {"algorithm": "grpo", "token_sources": ["engine", "retokenized"]}
    recipe |= {"n_rollouts": 2} if name == "openrlhf" else {}
    made = version_plan(leaky, "masked", recipe)
    try:
        written = export(made, leaky, name, tmp_path)
    except InvalidInput as error:
        assert "unknown" in error.message
        return
    data = written.path.read_bytes()
    assert KEY.encode() not in data
    secret = np.asarray(TOKENIZER.encode(KEY)[2:-2])
    assert secret.astype(np.int32).tobytes() not in data
    assert ",".join(map(str, secret.tolist())).encode() not in data
    assert ", ".join(map(str, secret.tolist())).encode() not in data


def test_steps_that_saw_masked_tokens_are_not_exact(leaky: Pool) -> None:
    made = version_plan(leaky, "masked", {**SFT_ALL, "token_sources": ["engine"]})
    assert set(made.step_uids) == {"t2.0", "t2.1"}
    assert {one.reason: one.n_steps for one in made.excluded}["token_source"] == 4


def test_a_step_with_a_hit_is_dropped_by_choice(leaky: Pool) -> None:
    made = leaky.versions.get("dropped")
    assert made["redaction"]["report"]["n_steps_dropped"] == {"hit": 5}
    assert set(version_plan(leaky, "dropped").step_uids) == {"t2.0", "t2.1"}


def test_without_a_tokenizer_what_has_a_hit_goes(leaky: Pool) -> None:
    made = leaky.versions.get("unspelled")
    assert made["redaction"]["report"]["n_steps_dropped"] == {"unlocated": 5}
    assert made["redaction"]["report"]["n_steps_whose_tokens_were_not_read"] == 7


def test_ids_without_words_are_unreadable(pool: Pool) -> None:
    pool.steps.append(
        talk("t", "A", [("x", "y")], messages=None, response_message=None, tokenizer_hash=None, n_shared_messages=0)
        + talk("u", "A", [("x", "y")])
    )
    assert freeze(pool, "v1", SFT, redaction=parse_redaction(RULES))["n_steps"] == 1
    assert freeze(pool, "v2", SFT, redaction=parse_redaction({**RULES, "unreadable": "keep"}))["n_steps"] == 2


def test_an_answer_of_nothing_but_a_secret_is_left_out(pool: Pool) -> None:
    pool.steps.append(talk("t", "A", [("x", "y")], response_ids=TOKENIZER.encode(KEY), response_logprobs=None))
    pool.steps.append(talk("u", "A", [("x", "y")]))
    made = freeze(pool, "v1", SFT, redaction=parse_redaction(RULES), texts=texts_of(None))
    assert made["redaction"]["report"]["n_steps_dropped"] == {"nothing_left": 1}


def test_the_reader_of_a_version_keeps_what_is_shared_true(leaky: Pool) -> None:
    source = VersionSource(leaky, "masked")
    sequences = source.sequences(["t0.0", "t0.1", "t1.0", "t1.1", "t2.0", "t2.1"])
    for i, (parent, n) in enumerate(zip(sequences.parent.tolist(), sequences.n_shared.tolist(), strict=True)):
        if parent >= 0:
            assert n > 0
            assert sequences.sequence(i)[:n].tolist() == sequences.sequence(parent)[:n].tolist()
    for step in source.trajectory("t1")["steps"]:
        place = ["t0.0", "t0.1", "t1.0", "t1.1"].index(step["step_uid"])
        assert [*step["prompt_ids"], *step["response_ids"]] == sequences.sequence(place).tolist()


# All or nothing -----------------------------------------------------------------------------------------------

FREEZER = """
import sys
from core.pool import Pool
from core.batch.datasets import freeze_version
from core.batch.recipe import parse_recipe
from core.types import View
pool = Pool.open(sys.argv[1], memory="512MB")
k = int(sys.argv[2])
while True:
    print("begin", k, flush=True)
    freeze_version(pool, f"v{k}", View(), parse_recipe({"algorithm": "sft"}), author="a")
    print("done", k, flush=True)
    k += 1
"""


def test_a_killed_freeze_leaves_all_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "pool.duckdb"
    pool = Pool.open(path, memory="512MB")
    pool.steps.append([step for t in range(60) for step in conversation(f"t{t}", f"p{t % 9}", [([1], [2])] * 20)])
    pool.close()
    reported: set[int] = set()
    for k, wait_s in enumerate((0.0, 0.02, 0.06)):
        process = subprocess.Popen(
            [sys.executable, "-c", FREEZER, str(path), str(k * 1000)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline().startswith("begin")
        time.sleep(wait_s)
        os.kill(process.pid, signal.SIGKILL)
        output = process.stdout.read()
        process.wait()
        process.stdout.close()
        reported |= {int(line.split()[1]) for line in output.splitlines() if line.startswith("done")}
        pool = Pool.open(path, memory="512MB")
        names = {one["name"] for one in pool.versions.all()}
        assert {f"v{n}" for n in reported} <= names
        for one in pool.versions.all():
            assert one["n_steps"] == 1200 == len(pool.versions.rows(one["name"]))
            assert pool.versions.verify(one["name"])
        held = pool.sql.run("SELECT count(DISTINCT version_id) AS n FROM dataset_steps").table["n"][0].as_py()
        assert held == len(names)
        pool.close()


def test_rules_are_checked() -> None:
    for wrong in (
        {"rules": ["nothing"]},
        {"patterns": {"x": "("}},
        {"patterns": {"x": "a*"}},
        {"patterns": {"no name!": "a"}},
        {"rules": ["email"], "action": "hide"},
        {"rules": ["email"], "unreadable": "x"},
        {"rules": ["email"], "more": 1},
        {"rules": []},
    ):
        with pytest.raises(InvalidInput):
            parse_redaction(wrong)
    assert parse_redaction(None) is None
    kept = parse_redaction({"rules": ["secrets"], "patterns": {"own": "tea+"}, "action": "drop"})
    assert kept is not None
    assert parse_redaction(kept.to_json()) == kept


def test_secrets_are_recognised() -> None:
    rules = Redaction(PATTERNS)
    for text in (
        KEY,
        "ghp_" + "a1" * 18,
        "AKIAIOSFODNN7EXAMPLE",
        "xoxb-123456789012-abcdef",
        "AIza" + "a" * 35,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
        "Authorization: Bearer abcdefghijklmnopqrstuvwx",
        "postgres://ann:hunter22@db/x",
        "password = 'correct-horse'",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
        "a.b+c@mail.example.co.uk",
    ):
        assert rules.spans(f"x {text} y"), text
        assert rules.clean({"a": [text]}) != {"a": [text]}
    for text in ("def f(x): return x.y", "sk-ip", "user at example", "the secret: tea", "risk-assessment of the plan"):
        assert not rules.spans(text), text
    call = {"function": {"arguments": '{"body": "\\nann@example.org"}'}}
    assert json.loads(rules.clean(call)["function"]["arguments"]) == {"body": "\n[redacted:email]"}
    same = {"a": [{"b": "clean"}]}
    assert rules.clean(same) is same


def test_the_template_of_the_shipped_tokenizer_has_a_hash() -> None:
    assert re.fullmatch("[0-9a-f]{64}", template_hash())


class GivenSteps:
    """A trajectory as the pool gives it, made here."""

    def __init__(self, steps: list[Step]) -> None:
        self.given = steps

    def trajectory(self, trajectory_uid: str, *, tokens: bool = True) -> dict[str, Any]:
        return {"steps": [{**_fields(step), "metadata": {}} for step in self.given]}

    def trajectories_with_hit(self, trajectory_uids: Any, hit: Any, *, may: str | None) -> set[str]:
        texts = [text for step in self.given for text in [*(step.messages or ()), step.response_message]]
        return {"t"} if any(hit(json.dumps(text)) for text in texts) else set()

    def trajectories_with_border_hit(self, trajectory_uids: Any, hit: Any, *, may: str | None) -> set[str]:
        whole = [[json.dumps(m) for m in (*(step.messages or ()), step.response_message)] for step in self.given]
        return {"t"} if any(hit(a, b) for texts in whole for a, b in pairwise(texts)) else set()

    def steps(self, trajectory_uids: Any) -> pa.Table:
        rows = [
            {
                "trajectory_uid": "t", "step_uid": step.step_uid, "tokenizer_hash": step.tokenizer_hash,
                "has_ids": True, "has_messages": step.messages is not None, "has_text": step.messages is not None,
            }
            for step in self.given
        ]  # fmt: skip
        return pa.Table.from_pylist(rows)

    def tokens(self, trajectory_uids: Any) -> Iterator[pa.Table]:
        if trajectory_uids:
            names = {"trajectory_uid": "t", "tokenizer_hash": self.given[0].tokenizer_hash}
            ids = [{"prompt_suffix": list(s.prompt_ids), "response_ids": list(s.response_ids)} for s in self.given]
            yield pa.Table.from_pylist([{**names, **one} for one in ids])


WORDS = st.lists(
    st.sampled_from(["ok ", "é", "x@y.org", KEY, "sk-", "A1b2C3d4" * 3, "@y.org ", "\n", "ann"]), max_size=6
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=4), st.booleans(), st.integers(0, 3))
def test_every_token_of_every_hit_is_masked(turns: list[Any], with_texts: bool, forked: int) -> None:
    pairs = [("".join(a), "".join(b)) for a, b in turns]
    steps = talk("t", "A", pairs)
    if forked < len(steps) - 1:  # a step that nothing goes on from
        steps.append(Step(**{**_fields(talk("t", "A", [*pairs[:forked], ("x@y.org", "no")])[-1]), "step_uid": "fork"}))
    if not with_texts:
        steps = [Step(**{**_fields(step), "messages": None, "response_message": None}) for step in steps]
    rules = parse_redaction(RULES)
    assert rules is not None
    members = pa.table({"step_uid": [step.step_uid for step in steps], "trajectory_uid": ["t"] * len(steps)})
    redacted = redact(GivenSteps(steps), GivenSteps(steps), members, rules, texts_of(None))
    for step in steps:
        ids = [*step.prompt_ids, *step.response_ids]
        pieces = [TOKENIZER.token_bytes[i] for i in ids]
        borders = [sum(map(len, pieces[:i])) for i in range(len(ids) + 1)]
        hit = set()
        text = b"".join(pieces).decode()
        for begin, end, _ in rules.spans(text):
            first, last = len(text[:begin].encode()), len(text[:end].encode())
            hit |= {i for i in range(len(ids)) if borders[i] < last and borders[i + 1] > first}
        starts, ends, _ = redacted.masks.get(step.step_uid, ([], [], 0))
        masked = {i for start, end in zip(starts, ends, strict=True) for i in range(start, end)}
        n_prompt = len(step.prompt_ids)
        if redacted.dropped.get(step.step_uid) == "nothing_left":
            assert set(range(n_prompt, len(ids))) <= hit | masked
        elif redacted.dropped.get(step.step_uid) == "unlocated":
            assert re.search(r"sk-|@|ann$", text), "a secret over two messages, which no tokens hold in one piece"
        else:
            assert hit <= masked
            assert bool(hit) <= (step.step_uid in redacted.masks)
        assert all(0 <= start < end <= len(ids) for start, end in zip(starts, ends, strict=True))


# Rows -----------------------------------------------------------------------------------------------------------


def test_the_rows_of_a_version_are_filtered_sorted_and_counted_as_frozen(filled: Pool) -> None:
    annotate(filled, "reward", 7.0, step_uid="A0.1")
    annotate(filled, "quality", "good", trajectory_uid="A1")
    freeze(filled, "v1")
    annotate(filled, "reward", -3.0, step_uid="A0.1")  # after the freeze: the rows keep theirs
    every = filled.versions.members("v1", limit=1000).to_pylist()
    plan_rows = filled.versions.rows("v1").to_pylist()
    for name in ("step_uid", "trajectory_uid", "reward", "trajectory_reward", "quality", "trainable", "call_kind"):
        assert [row[name] for row in every] == [row[name] for row in plan_rows]
    assert {row["step_uid"]: row["reward"] for row in every}["A0.1"] == 7.0
    keep: dict[str, tuple[MemberFilter, Any]] = {
        "text": (MemberFilter(text="a1"), lambda row: "A1" in (row["trajectory_uid"] + row["step_uid"])),
        "good": (MemberFilter(trajectory_quality="good"), lambda row: row["trajectory_quality"] == "good"),
        "success": (MemberFilter(reward="success"), lambda row: (row["trajectory_reward"] or 0) > 0.5),
        "failure": (MemberFilter(reward="failure"), lambda row: row["trajectory_reward"] in (0.0, 0.25, 0.5)),
        "unscored": (MemberFilter(reward="unscored"), lambda row: row["trajectory_reward"] is None),
        "trainable": (MemberFilter(trainable=False), lambda row: not row["trainable"]),
        "masked": (MemberFilter(masked=True), lambda row: False),
    }
    for name, (chosen, fits) in keep.items():
        wanted = [row["step_uid"] for row in every if fits(row)]
        assert filled.versions.members("v1", chosen, limit=1000)["step_uid"].to_pylist() == wanted, name
        counts = filled.versions.summary("v1", chosen)
        assert counts["n_steps"] == len(wanted), name
        assert counts["n_trajectories"] == len({row["trajectory_uid"] for row in every if fits(row)}), name
    pages = [filled.versions.members("v1", order="reward desc", limit=3, offset=n) for n in range(0, len(every), 3)]
    uids = [uid for page in pages for uid in page["step_uid"].to_pylist()]
    assert uids[0] == "A0.1" and sorted(uids) == sorted(row["step_uid"] for row in every)
    with pytest.raises(InvalidInput, match="order"):
        filled.versions.members("v1", order="nothing")


def test_the_difference_by_label_and_uid_and_its_rewards(filled: Pool) -> None:
    freeze(filled, "v1")
    annotate(filled, "reward", 7.0, step_uid="A0.1")
    annotate(filled, "reward", 5.0, trajectory_uid="A1")
    freeze(filled, "v2")
    whole = filled.versions.diff("v1", "v2")
    before, after = (
        {row["trajectory_uid"]: row["trajectory_reward"] for row in filled.versions.members(name, limit=99).to_pylist()}
        for name in ("v1", "v2")
    )
    known = [[reward for reward in rewards.values() if reward is not None] for rewards in (before, after)]
    assert whole["rewards"]["n_scored"] == [len(known[0]), len(known[1])]
    means = [statistics.fmean(rewards) if rewards else None for rewards in known]
    assert whole["rewards"]["mean"] == [one if one is None else pytest.approx(one) for one in means]
    rose = [uid for uid in before if None not in (before[uid], after[uid]) and after[uid] > before[uid]]
    assert whole["rewards"]["n_rose"] == len(rose) and whole["rewards"]["n_fell"] == 0
    for label, n in whole["counts"]["by_label"].items():
        part = filled.versions.diff("v1", "v2", label=label)
        assert part["n_changes"] == n == len(part["changes"]) and part["counts"] == whole["counts"]
        assert all(label in row["labels"] for row in part["changes"])
    of_one = filled.versions.diff("v1", "v2", text="a1.")
    assert {row["step_uid"] for row in of_one["changes"]} == {
        row["step_uid"] for row in whole["changes"] if "A1." in row["step_uid"]
    }
    assert all(row["trajectory_reward"] == [before["A1"], 5.0] for row in of_one["changes"])
    with pytest.raises(InvalidInput, match="label"):
        filled.versions.diff("v1", "v2", label="nothing")


def test_a_dry_run_lists_every_match_and_stores_nothing(pool: Pool) -> None:
    talks = {
        "t0": [(f"my key is {KEY}, use it", "done"), ("and now?", "ask ann@example.org")],
        "t1": [("write to ann@example.org", "ok"), ("and to bob@example.org", "ok")],
        "t2": [("nothing here", "nothing")],
    }
    pool.steps.append([step for uid, turns in talks.items() for step in talk(uid, "A", turns)])
    rules = parse_redaction({"rules": ["secrets", "email"]})
    assert rules is not None
    before = pool.n_writes
    tried = dry_run(pool, ALL, SFT, rules, texts=texts_of(None))
    assert pool.n_writes == before and pool.versions.all() == []
    # By hand: a step's context has all turns up to its own answer, which the next turn's context has, too.
    texts = {
        (uid, k): " ".join(f"{a} {b}" for a, b in turns[: k + 1])
        for uid, turns in talks.items()
        for k in range(len(turns))
    }
    wanted = {}
    for text in (KEY, "ann@example.org", "bob@example.org"):
        steps = [where for where, whole in texts.items() if text in whole]
        wanted[text] = (len(steps), len({uid for uid, _ in steps}))
    assert {text: (one.n_steps, one.n_trajectories) for (_, text), one in tried.matches.items()} == wanted
    assert tried.matches["api_key", KEY].places == {"prompt"}
    assert tried.matches["email", "ann@example.org"].places == {"prompt", "answer"}
    assert tried.matches["api_key", KEY].step_uid == "t0.0"
    frozen = freeze(pool, "v1", redaction=rules, texts=texts_of(None))
    assert frozen["redaction"]["report"] == tried.report()
    assert KEY not in json.dumps(frozen)
    rows = member_rows(pool, "v1", limit=50).to_pylist()
    assert len(rows) == 5 and not any("@example.org" in row["preview"] for row in rows)
    assert {row["step_uid"]: row["n_masked_tokens"] > 0 for row in rows} == {
        f"{uid}.{k}": any(text in whole for text in wanted) for (uid, k), whole in texts.items()
    }
    assert pool.versions.summary("v1", MemberFilter(masked=False))["n_steps"] == 1
