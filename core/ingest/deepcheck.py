"""Compares every step with its journal record and its own hash, for ``claw-studio doctor --deep``.

Two checks for each step. Does the stored step have its content hash? And does the journal's record, parsed again, give
the same hash? The first finds corruption in the pool, the second in either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from core.checked import checked
from core.errors import StudioError
from core.ingest.drafts import draft_of_wire, drafts_of_call
from core.ingest.fields import StepsFields
from core.ingest.retokenize import Retokenizer
from core.journal import Record, damages, read_segment
from core.pool import Pool
from core.pool.upkeep.integrity import Stored, producer_content_hash
from core.records import parse
from core.types import Step

SHOWN = 1000
"""Mismatches that are listed; all are counted."""

Progress = Callable[[str, int, int], None]
"""Called with (stage, done, in all)."""


@dataclass(slots=True)
class DeepReport:
    """The result of a deep check.

    Attributes:
        n_steps: steps of the pool.
        n_against_journal: of these, compared with their record.
        n_without_record: of these, without a record to compare: the segment was deleted, or they never had one.
        missing: segments that are missing though steps refer to them: ``{segment, n_steps}``.
        damages: places of the journal where records should be and are not: ``{segment, offset, next_offset, reason}``.
        n_mismatches: steps of which something is wrong.
        mismatches: the first ones: ``{step_uid, what}``.
        versions: dataset versions: ``{name, intact}``.
    """

    n_steps: int = 0
    n_against_journal: int = 0
    n_without_record: int = 0
    missing: list[dict[str, Any]] = field(default_factory=list)
    damages: list[dict[str, Any]] = field(default_factory=list)
    n_mismatches: int = 0
    mismatches: list[dict[str, str]] = field(default_factory=list)
    versions: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Nothing is wrong."""
        return not (self.n_mismatches or self.missing or self.damages) and all(
            version["intact"] for version in self.versions
        )

    def note(self, step_uid: str, what: str) -> None:
        """Count a mismatch."""
        self.n_mismatches += 1
        if len(self.mismatches) < SHOWN:
            self.mismatches.append({"step_uid": step_uid, "what": what})

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"ok": self.ok, **asdict(self)}


def deep_check(
    pool: Pool, journal_dir: Path, *, tokenizers: Mapping[str, Path] | None = None, progress: Progress | None = None
) -> DeepReport:
    """Read everything once. May run while the studio does: steps that arrive meanwhile are left for the next time."""
    report = DeepReport()
    retokenizer = Retokenizer(tokenizers or {})
    segments = pool.integrity.journal_segments()
    for done, segment in enumerate(segments, 1):
        stored = pool.integrity.steps_of_segment(segment)
        report.n_steps += len(stored)
        if segment is None or not (journal_dir / segment).exists():
            report.n_without_record += len(stored)
            if segment is not None and stored:
                report.missing.append({"segment": segment, "n_steps": len(stored)})
        else:
            _against_journal(report, stored, journal_dir, segment, retokenizer)
        if progress is not None:
            progress("journal", done, len(segments))
    for one in damages(journal_dir):
        entry = {"segment": one.segment, "offset": one.offset, "next_offset": one.next_offset, "reason": one.reason}
        report.damages.append(entry)
    trajectories = pool.trajectories.uids()
    for done, uid in enumerate(trajectories, 1):
        for step_uid, what in pool.integrity.damaged_steps(uid):
            report.note(step_uid, what)
        if progress is not None:
            progress("pool", done, len(trajectories))
    report.versions = [
        {"name": version["name"], "intact": pool.versions.verify(version["version_uid"])}
        for version in pool.versions.all()
    ]
    return report


def _against_journal(
    report: DeepReport, stored: Sequence[Stored], journal_dir: Path, segment: str, retokenizer: Retokenizer
) -> None:
    by_offset: dict[int, list[Stored]] = {}
    for one in stored:
        by_offset.setdefault(one.journal_offset, []).append(one)
    for offset, record in _records_at(journal_dir, segment, sorted(by_offset)):
        expected = by_offset[offset]
        if record is None:
            for one in expected:
                report.note(one.step_uid, f"its record at {segment}:{offset} is damaged or gone")
            continue
        try:
            steps = {step.step_uid: step for step in _steps_of(record)}
        except (StudioError, KeyError, TypeError, ValueError) as error:
            for one in expected:
                report.note(one.step_uid, f"its record at {segment}:{offset} can't be read: {error}")
            continue
        for one in expected:
            report.n_against_journal += 1
            step = steps.get(one.step_uid)
            if step is None:
                report.note(one.step_uid, f"the record at {segment}:{offset} is not about it")
                continue
            step = replace(retokenizer.fill(step), trajectory_uid=one.trajectory_uid)
            if producer_content_hash(step) != one.content_hash:
                report.note(one.step_uid, f"its record at {segment}:{offset} differs from the pool")


def _records_at(journal_dir: Path, segment: str, offsets: Sequence[int]) -> Iterator[tuple[int, Record | None]]:
    """The record at each offset, ascending; None where there is no whole record. Reads the segment once."""
    remaining = deque(offsets)
    for record in read_segment(journal_dir, segment, remaining[0] if remaining else 0):
        while remaining and remaining[0] < record.offset:
            yield remaining.popleft(), None
        if remaining and remaining[0] == record.offset:
            yield remaining.popleft(), record
        if not remaining:
            return
    for offset in remaining:
        yield offset, None


def _steps_of(record: Record) -> list[Step]:
    fields = parse(record.payload)
    if fields["kind"] == "call":
        return list(drafts_of_call(fields, record.segment, record.offset))
    steps = checked(StepsFields, fields)
    return [draft_of_wire(step, steps.at, record.segment, record.offset) for step in steps.steps]
