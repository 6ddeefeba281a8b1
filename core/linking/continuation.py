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
        m: messages shared with the trajectory, from the first on, up to that call's answer where it is held.
        holds: it holds that call's answer, rewritten at most.
        weak: it shares no beginning; an answer, and the message that was answered, are all that speaks for it.
        likeness: of a rewritten answer, how well it is that call's.
        by_ids: it holds the ids that were drawn for the answer's calls.
    """

    node: Node
    m: int
    holds: bool
    weak: bool = False
    answer_match: int = 0
    by_ids: bool = False


def continuation(links: TrajectoryLinks, call: Call) -> Continuation | None:
    """How a call of unknown identity continues this trajectory; None when it does not.

    A second attempt at the same task shares the prompt, examples and primers included, but no answer sampled here.
    """
    node, m = links.best_talk(call)
    if node is not None and m > node.n_head:
        at, like = _answered(links.nodes, node, call, m)
        if at is not None:
            # Equal prompts after that answer are no evidence: parallel attempts may have the same ones.
            return Continuation(at, at.n_talk + 1, True, answer_match=like, by_ids=_by_ids(at, call, at.n_talk))
        return Continuation(node, m, False)
    for other in reversed(links.nodes):
        shared = shared_messages(other, call)
        place = sampled_at(other, call, shared)
        if place is not None:
            weak = place != shared or shared < other.n_past
            return Continuation(other, m, True, weak, by_ids=_by_ids(other, call, place))
    if node is None or not (like := answer_match(node, call, m)):
        return None
    return Continuation(node, m + 1, True, answer_match=like, by_ids=_by_ids(node, call, m))


def _answered(nodes: Sequence[Node], node: Node, call: Call, m: int) -> tuple[Node | None, int]:
    """The node whose answer, unchanged or rewritten, is the last one in the call; and the similarity.

    Args:
        nodes: of the trajectory.
        node, m: as ``best_talk`` gives them.
    """
    best, likest = None, 0
    for other in (node,) if m > node.n_talk else reversed(nodes):
        if other.talk is None or other.n_talk > m or (best is not None and other.n_talk <= best.n_talk):
            continue
        shared = shared_messages(other, call)
        like = 0 if shared > other.n_talk else answer_match(other, call, shared)
        if shared > other.n_talk or like:
            best, likest = other, like
    return best, likest


def _by_ids(node: Node, call: Call, place: int | None) -> bool:
    if place is None or node.answer_fingerprint is None or place >= len(call.talk_roles):
        return False
    return contains_call_ids(call.messages[call.n_system + place], node.answer_fingerprint)
