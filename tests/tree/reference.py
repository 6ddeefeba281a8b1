"""A slow, obvious trie: one Python dict per token. The independent judge of core.tree."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Node:
    token: int
    depth: int
    owners: set[int] = field(default_factory=set)
    children: dict[int, Node] = field(default_factory=dict)


def trie(sequences: list[list[int]]) -> Node:
    root = Node(-1, -1)
    for owner, sequence in enumerate(sequences):
        node = root
        for depth, token in enumerate(sequence):
            node = node.children.setdefault(token, Node(token, depth))
            node.owners.add(owner)
    return root


def count(node: Node) -> int:
    """Tokens of the trie: every node but the root."""
    return (node.depth >= 0) + sum(count(child) for child in node.children.values())


def compressed(root: Node) -> set[tuple[int, tuple[int, ...], frozenset[int]]]:
    """(depth, tokens, owners) of every maximal stretch with one set of owners."""
    nodes = set()

    def walk(node: Node) -> None:
        depth, tokens, owners = node.depth, [node.token], frozenset(node.owners)
        while len(node.children) == 1:
            (child,) = node.children.values()
            if frozenset(child.owners) != owners:
                break
            node = child
            tokens.append(node.token)
        nodes.add((depth, tuple(tokens), owners))
        for child in node.children.values():
            walk(child)

    for child in root.children.values():
        walk(child)
    return nodes
