"""Details of a prefix tree: its branch points, its drift, and the text and steps of one node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import streamlit as st
from numpy.typing import NDArray

from core.batch.plan import Plan
from core.pool.edits import captured_uids
from core.tree.build import PackedTree
from core.tree.drift import DRIFTS, node_of_turn, unshared_tokens
from core.tree.nodes import TreeNodes
from core.tree.sequences import Sequences
from core.types import View
from studio import state
from studio.charts.tree import step_order
from studio.kit.figures import facts as fact_list
from studio.kit.figures import section
from studio.kit.format import caption_html, count, escape_markdown
from studio.widgets.steps.token_texts import UNKNOWN_TOKENIZER, TokenTexts, texts_for

MIXED_TOKENIZERS = TokenTexts(None, "ids only: these steps are of different tokenizers")
NODE_TEXT_TOKENS = 4000
NODE_STEPS = 500
FILTER_UIDS = 100
FORK_BRANCHES = 3
FIRST_CHARS = 14
HOVER_STEPS = 200
HOVER_TRAJECTORIES = 3


def step_facts(plan: Plan, index: NDArray[np.int64]) -> dict[str, dict[str, Any]]:
    """Values that colour each of these steps of the plan: trajectory reward, advantage, policy version."""
    names = (
        "step_uid",
        "trajectory_uid",
        "prompt_uid",
        "step_index",
        "trajectory_reward",
        "advantage",
        "policy_version",
    )
    rows = plan.steps.select(list(names)).take(pa.array(index)).to_pylist()
    return {
        row["step_uid"]: {
            "trajectory_uid": row["trajectory_uid"],
            "prompt_uid": row["prompt_uid"],
            "step_index": row["step_index"],
            "reward": row["trajectory_reward"],
            "advantage": row["advantage"],
            "policy": row["policy_version"],
        }
        for row in rows
    }


def shared_tokenizer(sequences: Sequences) -> TokenTexts:
    """The tokenizer of all these steps, determined from a step per model and engine; none when they differ."""
    if not sequences.step_uids:
        return UNKNOWN_TOKENIZER
    service = state.service()
    edits = service.pool.edits.named(sequences.step_uids)
    rows = service.pool.steps.page(View({"step_uid": captured_uids(sequences.step_uids, edits)}), limit=None)
    makers = zip(rows["model"].to_pylist(), rows["engine"].to_pylist(), strict=True)
    examples = dict(zip(makers, rows["step_uid"].to_pylist(), strict=True)).values()
    candidates = [texts_for(service.pool.steps.get(uid), service.settings) for uid in examples]
    if any(texts.tokenizer is not candidates[0].tokenizer for texts in candidates):
        return MIXED_TOKENIZERS
    return candidates[0]


def branch_points(tree: PackedTree, nodes: TreeNodes, texts: TokenTexts) -> None:
    """Draw the branch points with the most sequences."""
    children = np.bincount(nodes.parent[nodes.parent >= 0], minlength=len(nodes))
    forks = np.flatnonzero(children > 1)
    forks = forks[np.argsort(-nodes.n_owners[forks], kind="stable")][:12]
    if not len(forks):
        st.caption("No branches: each sequence continues the one before.")
        return
    st.caption("Branch points, most shared first")
    for fork in forks.tolist():
        at = int(nodes.depth[fork] + nodes.length[fork])
        firsts = tree.tokens[nodes.start[np.flatnonzero(nodes.parent == fork)]].tolist()
        vocab = texts.vocab(firsts)
        ways = [_quoted(vocab[token][0]) if token in vocab else f"id `{token}`" for token in firsts]
        more = f" +{len(ways) - FORK_BRANCHES}" if len(ways) > FORK_BRANCHES else ""
        if st.button(
            f"after **{at:,}** tokens, {int(nodes.n_owners[fork])} steps: {' or '.join(ways[:FORK_BRANCHES])}{more}",
            key=f"fork-{fork}",
            help=f"{int(nodes.n_owners[fork])} steps share their first {at:,} tokens; the next token differs: "
            + ", ".join(f"`{token}`" for token in firsts[:FORK_BRANCHES]),
            width="stretch",
        ):
            state.set_query(node=fork)
            st.rerun()


def _quoted(text: str) -> str:
    """A token's text, shortened, quoted and escaped for Markdown."""
    shown = repr(text if len(text) <= FIRST_CHARS else text[:FIRST_CHARS] + "…")[1:-1]
    return "‘" + "".join(f"\\{c}" if c in "\\`*_[]$<>:|~#" else c for c in shown) + "’"


@dataclass(frozen=True, slots=True)
class Drift:
    """A step that shares fewer tokens with the step before it than if it only appended."""

    step_uid: str
    transition: str
    lost: int
    node: int


def drifts(
    tree: PackedTree, nodes: TreeNodes, sequences: Sequences, facts: Mapping[str, dict[str, Any]]
) -> list[Drift]:
    """Steps whose prompt was re-encoded or whose tail was replaced, most tokens lost first."""
    uids = sequences.step_uids
    rows = state.service().pool.steps.page(View({"step_uid": list(uids), "transition": sorted(DRIFTS)}), limit=None)
    transitions = dict(zip(rows["step_uid"].to_pylist(), rows["transition"].to_pylist(), strict=True))
    before: dict[str, int] = {}
    previous = np.full(len(uids), -1, dtype=np.int64)
    for i in sorted(range(len(uids)), key=lambda i: facts[uids[i]]["step_index"]):
        trajectory = facts[uids[i]]["trajectory_uid"]
        if uids[i] in transitions:
            previous[i] = before.get(trajectory, -1)
        before[trajectory] = i
    lost = unshared_tokens(sequences, previous)
    row_of = {int(member): row for row, member in enumerate(tree.members)}
    drifted = [
        Drift(uids[i], transitions[uids[i]], int(lost[i]), node_of_turn(tree, nodes, row_of[i], shared))
        for i in np.flatnonzero(lost > 0).tolist()
        for shared in [int(sequences.lengths[previous[i]] - lost[i])]
    ]
    return sorted(drifted, key=lambda drift: -drift.lost)


def drift_by_node(drifted: Sequence[Drift]) -> dict[int, int]:
    """Tokens lost by the steps that branch at each node."""
    total: dict[int, int] = {}
    for drift in drifted:
        if drift.node >= 0:
            total[drift.node] = total.get(drift.node, 0) + drift.lost
    return total


def drift_list(drifted: Sequence[Drift], facts: Mapping[str, dict[str, Any]]) -> None:
    """Draw the tokens lost by drift, and the steps that lose most."""
    if not drifted:
        return
    section("Drift", f"{count(sum(one.lost for one in drifted))} tokens of sharing lost in {count(len(drifted))} steps")
    for one in drifted[:8]:
        fact = facts[one.step_uid]
        what = "re-encoded" if one.transition == "realigned" else "tail replaced"
        trajectory = escape_markdown(fact["trajectory_uid"])
        if st.button(
            f"**{one.lost:,}** tokens · step {fact['step_index']} of {trajectory} · {what}",
            key=f"drift-{one.step_uid}",
            help="Tokens of the step before that this step's prompt doesn't begin with",
            width="stretch",
        ):
            state.set_query(node=max(one.node, 0))
            st.rerun()


def node_panel(
    tree: PackedTree,
    nodes: TreeNodes,
    sequences: Sequences,
    node: int,
    texts: TokenTexts,
    facts: Mapping[str, dict[str, Any]],
) -> None:
    """A node's text, and the steps that pass through it."""
    start, length = int(nodes.start[node]), int(nodes.length[node])
    order = step_order(tree, nodes, sequences)
    owners = order[int(nodes.owner_first[node]) : int(nodes.owner_stop[node])]
    section(f"Node {node}", f"{count(length)} tokens from position {count(int(nodes.depth[node]))}")
    fact_list(
        [
            ("shared by", f"{count(len(owners))} of {count(len(order))} steps"),
            ("saves", f"{count(length * (len(owners) - 1))} tokens"),
            ("trajectories", count(len({facts[uid]["trajectory_uid"] for uid in owners}))),
        ]
    )
    ids = tree.tokens[start : start + length].tolist()
    text = texts.decode(ids[:NODE_TEXT_TOKENS])
    st.code(
        text if text is not None else " ".join(map(str, ids[:NODE_TEXT_TOKENS])),
        language=None,
        height=210,
        wrap_lines=True,
    )
    if length > NODE_TEXT_TOKENS:
        st.caption(f"The first {NODE_TEXT_TOKENS:,} of {length:,} tokens; the full text is in Inspect.")
    st.html(caption_html(texts.why))
    if st.button("Filter Inspect by these steps", icon=":material/filter_alt:", width="stretch", key="node-filter"):
        state.goto("inspect", **state.view_to_query(owners_view(owners, facts)), level="steps")
    rows = [
        {
            "step_uid": uid,
            "step": facts[uid]["step_index"],
            "trajectory": facts[uid]["trajectory_uid"],
            "reward": facts[uid]["reward"],
            "advantage": facts[uid]["advantage"],
        }
        for uid in owners[:NODE_STEPS]
    ]
    config = st.column_config
    event = st.dataframe(
        rows,
        hide_index=True,
        height=200,
        row_height=29,
        column_order=("trajectory", "step", "reward", "advantage"),
        column_config={
            "trajectory": config.TextColumn("Trajectory", width=112),
            "step": config.NumberColumn("#", width=34),
            "reward": config.NumberColumn("Reward", width=56, format="%.3g"),
            "advantage": config.NumberColumn("Advantage", width=72, format="%+.2f"),
        },
        on_select="rerun",
        selection_mode="single-cell",
        key=f"owners-{_tree_name(tree)}-{node}",
    )
    cells = event["selection"]["cells"]
    if cells:
        row = rows[cells[0][0]]
        state.goto("inspect", trajectory=row["trajectory"], step=row["step_uid"], tab="tokens")


def owners_view(owners: Sequence[str], facts: Mapping[str, dict[str, Any]]) -> View:
    """A filter for the owners of a node: the steps, or, when too many for a URL, their trajectories or groups."""
    if len(owners) <= FILTER_UIDS:
        return View({"step_uid": list(owners)})
    trajectories = list(dict.fromkeys(facts[uid]["trajectory_uid"] for uid in owners))
    if len(trajectories) <= FILTER_UIDS:
        return View({"trajectory_uid": trajectories})
    return View({"prompt_uid": list(dict.fromkeys(facts[uid]["prompt_uid"] for uid in owners))})


def _tree_name(tree: PackedTree) -> str:
    """A short name of a tree for widget keys."""
    return f"{tree.n_packed}-{len(tree.members)}"


def owner_line(order: Sequence[str], nodes: TreeNodes, node: int, facts: Mapping[str, dict[str, Any]]) -> str:
    """The owners of a node as one line for its tooltip: step indices by trajectory."""
    owners = order[int(nodes.owner_first[node]) : int(nodes.owner_stop[node])]
    steps: dict[str, list[int]] = {}
    for uid in owners[:HOVER_STEPS]:
        steps.setdefault(facts[uid]["trajectory_uid"], []).append(facts[uid]["step_index"])
    named = [f"{_numbers(indices)} of {uid}" for uid, indices in list(steps.items())[:HOVER_TRAJECTORIES]]
    if len(owners) == 1:
        return f"step {named[0]}"
    n = len(steps)
    if len(owners) > HOVER_STEPS or n > HOVER_TRAJECTORIES:
        of = "" if len(owners) > HOVER_STEPS else f" of {n} trajectories"
        return f"{len(owners)} steps{of}: {', '.join(named)}, …"
    return f"{len(owners)} steps: {', '.join(named)}"


def _numbers(indices: Sequence[int]) -> str:
    """Step indices as text, consecutive ones joined: ``0–4, 7``."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ", ".join(f"{a}–{b}" if b > a else str(a) for a, b in runs)
