"""The protocol that plans and exporters read from: the pool's part ``training``, or a dataset version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from core.batch.layout import TokenReader
from core.pool.edits import Edit
from core.pool.versions import Versions
from core.types import View


class PlanSource(TokenReader, Protocol):
    """Reads candidates and the data of chosen steps: ``pool.training`` or a ``VersionSource``."""

    def plan_rows(self, view: View, *, channel: str) -> pa.Table:
        """One row per candidate step in plan order, at least ``candidates.COLUMNS``."""
        ...

    def credit_fields(self, step_uids: Any, fields: Sequence[str]) -> pa.Table:
        """Producers' fields of these steps, for estimators that need them."""
        ...

    def step_fields(self, step_ids: np.ndarray, fields: Sequence[str]) -> pa.Table:
        """``credit_fields`` of candidates (int64 [n], ``step_id`` of ``plan_rows``), in the order given."""
        ...

    def facts_hashes(self, step_ids: np.ndarray) -> pa.ChunkedArray:
        """A hash of the exported facts of each of these steps (int64 [n], ``step_id`` of ``plan_rows``), string [n]."""
        ...

    def version_in_force(self, channel: str) -> int | None:
        """The policy version that staleness counts from (``core.pool.state.policyversion``); None: unknown."""
        ...

    def trajectory_rewards(self, policy: Any, *, channel: str) -> pa.Table:
        """(trajectory_uid, reward) of the trajectories that a reward policy (``core.pool.rewards.Spec``) scores."""
        ...

    def edits(self) -> list[Edit]:
        """The edited answers that count, at most one per step."""
        ...

    def step_values(self, step_uids: Any, model: str) -> pa.Array:
        """A critic's stored values of these steps, float64 [n], null where it has none."""
        ...

    def trajectory(self, trajectory_uid: str, *, tokens: bool = True) -> dict[str, Any]:
        """A trajectory, or that of a reference to an edit, with its steps in order, messages and tools included."""
        ...

    def trajectories(self, trajectory_uids: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Several of them, each once, as ``trajectory`` gives them with tokens, in the order given."""
        ...


class PlanPool(Protocol):
    """The parts of a pool that plans are made from."""

    @property
    def training(self) -> PlanSource:
        """The pool as it is now."""
        ...

    @property
    def versions(self) -> Versions:
        """Dataset versions, for recipes that name one."""
        ...
