"""Bytes changed, inserted and removed, and by brute force which records that leaves as they were."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st


@dataclass(frozen=True)
class Harm:
    """``how`` (changed, inserted, removed), where, and the new bytes or how many go."""

    how: str
    at: int
    new: bytes
    n_gone: int

    def done_to(self, whole: bytes) -> bytes:
        return whole[: self.at] + self.new + whole[self.at + self.n_gone :]

    def spares(self, begin: int, end: int) -> bool:
        """Whether the bytes from begin to end are still there, together and unchanged."""
        if self.n_gone:
            return end <= self.at or begin >= self.at + self.n_gone
        return end <= self.at or begin >= self.at


def harms(whole: bytes, *, copies: bool = True) -> st.SearchStrategy[Harm]:
    """Any 1 to 64 bytes of a file changed, inserted or removed; new bytes are any, with ``copies`` also the file's."""

    @st.composite
    def draw_one(draw):
        how = draw(st.sampled_from(["changed", "inserted", "removed"]))
        n = draw(st.integers(1, min(64, len(whole))))
        at = draw(st.integers(0, len(whole) - (n if how != "inserted" else 0)))
        if how == "removed":
            return Harm(how, at, b"", n)
        new = draw(st.binary(min_size=n, max_size=n))
        if copies and draw(st.booleans()):
            begin = draw(st.integers(0, len(whole) - n))
            new = whole[begin : begin + n]
        return Harm(how, at, new, n if how == "changed" else 0)

    return draw_one()
