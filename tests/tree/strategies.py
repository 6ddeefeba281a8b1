"""Sequences that share prefixes in every awkward way: duplicates, prefixes of others, empty ones."""

from __future__ import annotations

from hypothesis import strategies as st

from core.tree.sequences import Sequences

tokens = st.one_of(st.integers(0, 2), st.sampled_from([255, 256, 65536, 2**31 - 1]))


@st.composite
def token_lists(draw, max_size: int = 8, min_size: int = 0) -> list[list[int]]:
    """Each new list is fresh, a copy, a prefix, an extension, or a branch off an earlier one."""
    made: list[list[int]] = []
    for _ in range(draw(st.integers(min_size, max_size))):
        fresh = draw(st.lists(tokens, max_size=6))
        if made and draw(st.booleans()):
            base = draw(st.sampled_from(made))
            made.append(base[: draw(st.integers(0, len(base)))] + fresh)
        else:
            made.append(fresh)
    return made


@st.composite
def sequences(draw, max_size: int = 8, min_size: int = 0) -> Sequences:
    lists = draw(token_lists(max_size=max_size, min_size=min_size))
    cuts = [draw(st.integers(0, len(one))) for one in lists]
    return Sequences.from_lists(
        [one[:c] for one, c in zip(lists, cuts, strict=True)],
        [one[c:] for one, c in zip(lists, cuts, strict=True)],
    )
