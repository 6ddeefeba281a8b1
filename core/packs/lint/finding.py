"""One finding of the lint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

ERROR, WARNING, NOTE = "error", "warning", "note"
LEVELS = {
    ERROR: "the task can't be scored, or is scored wrongly",
    WARNING: "the score may be wrong, depending on where the check runs",
    NOTE: "worth a look",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding about one task, or about several that belong together.

    Attributes:
        check: name of the lint, such as ``answer_leak``.
        level: a key of ``LEVELS``.
        task_ids: the task; for near-duplicates, both tasks.
        message: one sentence with the place.
        similarity: of near-duplicates, the Jaccard index of their word triples, in [0, 1].
    """

    check: str
    level: str
    task_ids: Sequence[str]
    message: str
    similarity: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """The finding as JSON."""
        known = {} if self.similarity is None else {"similarity": self.similarity}
        return {
            "check": self.check,
            "level": self.level,
            "task_ids": list(self.task_ids),
            "message": self.message,
            **known,
        }
