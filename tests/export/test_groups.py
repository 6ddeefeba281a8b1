"""Packed trees and statistics per group, against the sequences and a dictionary trie of every group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from core.batch.plan import Plan, plan
from core.batch.recipe import parse_recipe
from core.errors import InvalidInput
from core.export import export
from core.export.group_trees import read_trees
from core.export.packed_tree import read_rows
from core.pool import Pool
from core.tree.mask import visible
from core.types import View
from tests.batch.keeping_all import SFT_ALL

from .conftest import conversation, done
from .uneven_pool import T0, fill

BUDGET = 60
"""Tokens of a tree: less than some groups' trees, more than the longest step."""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    path = tmp_path_factory.mktemp("groups") / "pool.duckdb"
    pool = Pool.open(path, memory="512MB", threads=1, clock=lambda: T0 + 1000)
    # Equal sequences, one that is the beginning of another, and one that shares nothing.
    for name, turns in {"same.a": [([1, 2], [3])], "same.b": [([1, 2], [3])], "same.c": [([1], [2])]}.items():
        pool.steps.append(conversation(name, "same", turns), completions=done(name, reward=1.0))
    pool.steps.append(conversation("same.d", "same", [([9, 9], [8])]), completions=done("same.d", reward=0.0))
    yield fill(pool)
    pool.close()


def plan_of(pool: Pool, **fields: Any) -> Plan:
    return plan(pool, View(), parse_recipe({**SFT_ALL, "token_budget": BUDGET, **fields}))


def sequences_of(made: Plan) -> dict[str, dict[str, list[int]]]:
    """By group, by step: all tokens."""
    groups: dict[str, dict[str, list[int]]] = {}
    read = made.reader.sequences(made.step_uids)
    for i, (uid, group) in enumerate(zip(made.step_uids, made.steps["prompt_uid"].to_pylist(), strict=True)):
        groups.setdefault(group, {})[uid] = read.ids[read.offsets[i] : read.offsets[i + 1]].tolist()
    return groups


class Trie:
    """One node per token."""

    def __init__(self, sequences: list[list[int]]) -> None:
        self.root: dict[int, Any] = {}
        self.ends: set[int] = set()
        for sequence in sequences:
            node = self.root
            for token in sequence:
                node = node.setdefault(token, {})
            self.ends.add(id(node))

    def runs(self) -> list[dict[str, Any]]:
        """Runs of tokens that exactly the same sequences have: tokens, children, depth in runs and in tokens."""
        runs = []

        def follow(node: dict[int, Any], level: int, depth: int) -> None:
            for child in node.values():
                n, end = 1, child
                while len(end) == 1 and id(end) not in self.ends:
                    end, n = next(iter(end.values())), n + 1
                pairs = sum(range(depth + 1, depth + n + 1))
                runs.append({"n": n, "children": len(end), "level": level, "pairs": pairs})
                follow(end, level + 1, depth + n)

        follow(self.root, 1, 0)
        return runs


def common(sequences: list[list[int]]) -> int:
    n = 0
    while all(len(one) > n for one in sequences) and len({one[n] for one in sequences}) == 1:
        n += 1
    return n


def test_statistics_are_those_of_a_trie(filled: Pool, tmp_path: Path) -> None:
    made = plan_of(filled)
    result = export(made, filled, "group_statistics", tmp_path)
    read = duckdb.execute("SELECT * FROM read_parquet(?)", [str(result.path)])
    names = [column[0] for column in read.description]
    rows = {row[0]: dict(zip(names, row, strict=True)) for row in read.fetchall()}
    groups = sequences_of(made)
    assert list(rows) == list(groups), "in plan order"
    for uid, steps in groups.items():
        sequences, row = list(steps.values()), rows[uid]
        runs = Trie(sequences).runs()
        n_tokens, unique = sum(map(len, sequences)), sum(run["n"] for run in runs)
        assert {name: row[name] for name in row.keys() - {"prompt_uid", "n_packed_tokens", "n_trees"}} == {
            "group": list(groups).index(uid),
            "n_trajectories": len({one.rsplit(".", 1)[0] for one in steps}) if uid != "same" else 4,
            "n_steps": len(steps),
            "n_tokens": n_tokens,
            "n_response_tokens": row["n_response_tokens"],
            "n_unique_tokens": unique,
            "token_ratio": unique / n_tokens,
            "attention_pairs": sum(run["pairs"] for run in runs),
            "attention_pairs_separate": sum(len(one) * (len(one) + 1) // 2 for one in sequences),
            "n_nodes": len(runs),
            "n_branches": sum(run["children"] > 1 for run in runs),
            "n_leaves": sum(run["children"] == 0 for run in runs),
            "n_shared_by_all": common(sequences),
            "longest": max(map(len, sequences)),
            "deepest": max(run["level"] for run in runs),
        }
    assert sum(row["n_response_tokens"] for row in rows.values()) == made.counts["n_tokens"] - sum(
        made.steps["n_prompt_tokens"].to_pylist()
    )
    trees = list(read_trees(export(made, filled, "group_trees", tmp_path).path))
    for uid, row in rows.items():
        own = [tree for group, tree, _, _ in trees if group == uid]
        assert (row["n_trees"], row["n_packed_tokens"]) == (len(own), sum(tree.n_packed for tree in own))
    assert max(row["n_trees"] for row in rows.values()) > 1, "a group is cut"


def test_trees_hold_each_sequence_once_and_its_terms(filled: Pool, tmp_path: Path) -> None:
    made = plan_of(filled, algorithm="grpo", options={})
    groups = sequences_of(made)
    # Beside the rows of the whole plan, whose parts are the same trees.
    whole = {
        (uid, int(target)): (float(advantage), float(old), float(weight))
        for _, terms, uids in read_rows(export(made, filled, "packed_tree", tmp_path).path)
        for uid, target, advantage, old, weight in zip(
            [uids[i] for i in terms.step], terms.target, terms.advantage, terms.old_logp, terms.weight, strict=True
        )
    }
    seen: dict[str, list[int]] = {}
    n_terms = 0
    for group, tree, terms, uids in read_trees(export(made, filled, "group_trees", tmp_path).path):
        assert tree.n_packed <= BUDGET and tree.n_original == sum(len(groups[group][uid]) for uid in uids)
        for member, uid in enumerate(uids):
            assert uid in groups[group]
            path = tree.path(member)
            seen[uid] = tree.tokens[path].tolist()
            # A token sees the tokens before it in its own sequence, and no others.
            for at, position in enumerate(path.tolist()):
                sees = np.flatnonzero(visible(tree.end, np.array([position]), np.arange(tree.n_packed)))
                assert sees.tolist() == path[: at + 1].tolist()
        for i, step in enumerate(terms.step.tolist()):
            uid, target = uids[step], int(terms.target[i])
            path = tree.path(step).tolist()
            at = path.index(int(terms.target_pos[i]))
            assert tree.tokens[terms.target_pos[i]] == target and path[at - 1] == terms.packed_pos[i]
            found = (float(terms.advantage[i]), float(terms.old_logp[i]), float(terms.weight[i]))
            np.testing.assert_array_equal(found, whole[uid, target])
            n_terms += 1
    assert seen == {uid: ids for steps in groups.values() for uid, ids in steps.items()}
    assert n_terms == len(whole), "the ids that are sampled in a step are all different"


def test_a_step_that_no_tree_holds_is_refused(filled: Pool, tmp_path: Path) -> None:
    made = plan_of(filled)
    object.__setattr__(made, "recipe", parse_recipe({**SFT_ALL, "token_budget": 2}))
    with pytest.raises(InvalidInput, match="longer than a row"):
        export(made, filled, "group_trees", tmp_path)
