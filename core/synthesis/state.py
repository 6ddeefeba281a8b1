"""The state of a run, from its log: newest rows, stored answers, decisions and reruns."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from core.rewards.services import Reply
from core.synthesis.rows import ACCEPTED, DONE, REJECTED, Row, parse_row

CALL, ROW, DECISION, RERUN = "call", "row", "decision", "rerun"
EMBEDDING, BEGIN, END = "embedding", "begin", "end"


class State:
    """What the records of a log add up to. Thread-safe.

    Attributes:
        rows: (stage, key) -> newest row.
        decisions: (stage, key) -> ``accepted`` or ``rejected``.
        calls: id of a call -> its stored answer; failed calls have none.
        vectors: key of a text -> its vector, float32 as bytes (``core.synthesis.embedding``).
        n_calls, n_tokens, cost_usd: of all calls, failed ones and those for vectors included.
        n_unpriced: calls whose price is not known.
        end: why the last work on the run ended; None if it has not, or was killed.
    """

    def __init__(self, records: Iterable[Mapping[str, Any]] = ()) -> None:
        self.rows: dict[tuple[str, str], Row] = {}
        self.decisions: dict[tuple[str, str], str] = {}
        self.calls: dict[str, Reply] = {}
        self.vectors: dict[str, bytes] = {}
        self.n_calls, self.n_tokens, self.cost_usd, self.n_unpriced = 0, 0, 0.0, 0
        self.end: str | None = None
        self._generations: dict[tuple[str, str | None], int] = {}
        self._lock = threading.Lock()
        for record in records:
            self.apply(record)

    def apply(self, record: Mapping[str, Any]) -> None:
        """Add one record."""
        with self._lock:
            kind = record.get("kind")
            if kind == CALL:
                self._apply_call(record)
            elif kind == EMBEDDING:
                self.n_calls += 1
                self.vectors |= {key: base64.b64decode(one) for key, one in record["vectors"].items()}
                self._spend(record.get("n_tokens"), record.get("cost_usd"))
            elif kind == ROW:
                row = parse_row(record["row"])
                self.rows[row.stage, row.key] = row
            elif kind == DECISION:
                place = (record["stage"], record["key"])
                if record["decision"] is None:
                    self.decisions.pop(place, None)
                else:
                    self.decisions[place] = record["decision"]
            elif kind == RERUN:
                at = (record["stage"], record["key"])
                self._generations[at] = self._generations.get(at, 0) + 1
                # A decision is about a product that is now replaced.
                for place in [one for one in self.decisions if one[0] == at[0] and at[1] in (None, one[1])]:
                    del self.decisions[place]
            elif kind == BEGIN:
                self.end = None
            elif kind == END:
                self.end = record["reason"]

    def _apply_call(self, record: Mapping[str, Any]) -> None:
        self.n_calls += 1
        answer = record.get("reply")
        if answer is None:
            return
        reply = Reply(**answer)
        self.calls[record["id"]] = reply
        self._spend((reply.n_prompt_tokens or 0) + (reply.n_response_tokens or 0), reply.cost_usd)

    def _spend(self, n_tokens: int | None, cost_usd: float | None) -> None:
        self.n_tokens += n_tokens or 0
        self.cost_usd += cost_usd or 0.0
        self.n_unpriced += cost_usd is None

    def generation(self, stage: str, key: str) -> int:
        """How often a person asked for this row, or for its stage, again."""
        return self._generations.get((stage, None), 0) + self._generations.get((stage, key), 0)

    def current(self, stage: str, key: str) -> Row | None:
        """The newest row, unless a person asked for it again since."""
        row = self.rows.get((stage, key))
        return None if row is None or row.generation < self.generation(stage, key) else row

    def passes(self, stage: str, key: str) -> bool:
        """Whether later stages work on this row."""
        row, decision = self.current(stage, key), self.decisions.get((stage, key))
        if row is None or row.product is None or decision == REJECTED:
            return False
        return decision == ACCEPTED or row.state == DONE

    def of_stage(self, stage: str) -> list[Row]:
        """The newest rows of a stage, in order of their keys."""
        return [row for (name, _), row in sorted(self.rows.items()) if name == stage]
