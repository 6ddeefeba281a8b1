"""The proof that a checker holds: what it must not read, what it must score, and what it must tell apart."""

from __future__ import annotations

from core.synthesis.proof.prove import Mutation, NotProven, Proof, prove
from core.synthesis.proof.solve import Solution, SolutionFailed, solve

__all__ = ["Mutation", "NotProven", "Proof", "Solution", "SolutionFailed", "prove", "solve"]
