"""Whether a call of unknown identity continues a trajectory, and how good the evidence is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.linking.calls import Call, contains_call_ids
from core.linking.placement import Node, TrajectoryLinks, answer_match, sampled_at, shared_messages


@dataclass(frozen=True, slots=True)
class Continuation:
    """How well a call continues a trajectory.

    Attributes:
        node: the earlier call that it continues.
        m: number of leading messages shared with the trajectory, that call's answer counted if it is contained.
        has_answer: the call contains that answer, possibly rewritten.
        weak: the beginnings differ; the only evidence is the answer and the message before it.
        answer_match: how well a rewritten answer matches, see ``rewriting_score``.
        by_ids: the call contains the random ids of the answer's tool calls.
    """

    node: Node
    m: int
    has_answer: bool
    weak: bool = False
    answer_match: int = 0
    by_ids: bool = False


def continuation(links: TrajectoryLinks, call: Call) -> Continuation | None:
    """How a call of unknown identity continues this trajectory; None when it does not.

    A second attempt at the same task shares the prompt, examples and primers included, but no sampled answer.
    """
    node, m = links.most_shared(call)
    if node is not None and m > node.n_head:
        answered, match = _answered(links.nodes, node, call, m)
        if answered is not None:
            # Equal prompts after that answer are no evidence: parallel attempts may have the same ones.
            return Continuation(
                answered,
                answered.n_dialogue + 1,
                True,
                answer_match=match,
                by_ids=_by_ids(answered, call, answered.n_dialogue),
            )
        return Continuation(node, m, False)
    for other in reversed(links.nodes):
        shared = shared_messages(other, call)
        place = sampled_at(other, call, shared)
        if place is not None:
            weak = place != shared or shared < other.n_past
            return Continuation(other, m, True, weak, by_ids=_by_ids(other, call, place))
    if node is None or not (match := answer_match(node, call, m)):
        return None
    return Continuation(node, m + 1, True, answer_match=match, by_ids=_by_ids(node, call, m))


def _answered(nodes: Sequence[Node], node: Node, call: Call, m: int) -> tuple[Node | None, int]:
    """The node whose answer, unchanged or rewritten, is the last one in the call, and how well it matches.

    Args:
        nodes: of the trajectory.
        node, m: as ``most_shared`` gives them.
    """
    best, best_match = None, 0
    for other in (node,) if m > node.n_dialogue else reversed(nodes):
        if other.dialogue is None or other.n_dialogue > m or (best is not None and other.n_dialogue <= best.n_dialogue):
            continue
        shared = shared_messages(other, call)
        match = 0 if shared > other.n_dialogue else answer_match(other, call, shared)
        if shared > other.n_dialogue or match:
            best, best_match = other, match
    return best, best_match


def _by_ids(node: Node, call: Call, place: int | None) -> bool:
    if place is None or node.answer_fingerprint is None or place >= len(call.dialogue_roles):
        return False
    return contains_call_ids(call.messages[call.n_system + place], node.answer_fingerprint)
