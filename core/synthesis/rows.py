"""Rows: what a stage made of one task, why it failed, and what a person decided about it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import orjson

DONE, FAILED = "done", "failed"
ACCEPTED, REJECTED = "accepted", "rejected"
DECISIONS = {
    ACCEPTED: "the row goes on, also where its stage refused it",
    REJECTED: "the row goes no further, also where its stage made it",
}


class Failed(Exception):
    """Raised by a stage for a row that goes no further.

    Attributes:
        reason: why, as one sentence.
        product: what was made, if there is something to look at; then a person can accept the row.
        transient: the engine failed; the row is made again when the run is resumed.
    """

    def __init__(self, reason: str, product: Mapping[str, Any] | None = None, *, transient: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.product, self.transient = reason, product, transient


@dataclass(frozen=True, slots=True)
class Row:
    """What a stage made of one task.

    Attributes:
        stage: name of the stage.
        key: name of the row in its route, such as ``r00003`` or the name of a skill.
        state: ``done`` or ``failed``.
        product: what was made, as JSON; None if nothing.
        reason: why it failed; None if it did not.
        based_on: SHA-256 of the products that it was made from; empty where nothing comes before.
        generation: how often a person asked for it again.
        edited: a person wrote the product.
        transient: the engine failed; the row is made again when the run is resumed.
        prompts: name of each prompt that was used -> its SHA-256.
        models: the models that answered.
        n_calls: calls that it took.
        cost_usd: their price in US dollars; None if a part of it is unknown.
        wall_s: duration in seconds.
        at: seconds since the epoch.
    """

    stage: str
    key: str
    state: str
    product: Mapping[str, Any] | None
    reason: str | None = None
    based_on: str = ""
    generation: int = 0
    edited: bool = False
    transient: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    models: tuple[str, ...] = ()
    n_calls: int = 0
    cost_usd: float | None = 0.0
    wall_s: float = 0.0
    at: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self)


_FIELDS = frozenset(one.name for one in fields(Row))


def parse_row(data: Mapping[str, Any]) -> Row:
    """A row from ``Row.to_json``. TypeError if a field is missing."""
    values = {name: value for name, value in data.items() if name in _FIELDS}
    return Row(**{**values, "models": tuple(values.get("models") or ())})


def digest(value: Any) -> str:
    """SHA-256 of a JSON value, 64 hex digits."""
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()
