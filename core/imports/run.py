"""Runs an import: reads files, sends their steps to the service in batches, and reports what was imported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from core.api.wire import StepIn, check
from core.errors import Conflict, InvalidInput
from core.imports.base import ConvertedRecord, Format, Problem, ReadResult
from core.imports.bounds import UNREADABLE, bounded
from core.imports.files import first_record
from core.imports.registry import FORMATS
from core.records import MAX_DEPTH, too_deep

BATCH_STEPS = 200
BATCH_TOKENS = 500_000
MAX_PROBLEMS = 100
"""Maximum number of problems in a report; further ones are only counted."""


class Sink(Protocol):
    """Receives steps, for example ``StudioClient``."""

    def known(self, step_uids: Sequence[str]) -> set[str]:
        """The subset of these steps that is stored already."""
        ...

    def submit(self, steps: Iterable[Mapping[str, Any]]) -> int:
        """Store steps; returns how many were accepted."""
        ...

    def complete(self, trajectory_uid: str, *, reward: float | None = None, outcome: str | None = None) -> None:
        """Complete a trajectory."""
        ...


@dataclass
class Report:
    """The result of an import.

    Attributes:
        formats: file -> its format.
        n_records: records read, including invalid ones.
        n_steps: new steps.
        n_known: steps that were stored already.
        problems: the first records that could not be imported; ``n_problems`` counts all.
    """

    formats: dict[str, str] = field(default_factory=dict)
    n_records: int = 0
    n_steps: int = 0
    n_known: int = 0
    n_problems: int = 0
    problems: list[Problem] = field(default_factory=list)

    def add(self, problem: Problem) -> None:
        """Count a record that was not imported."""
        self.n_problems += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON."""
        return {
            "formats": self.formats,
            "n_records": self.n_records,
            "n_steps": self.n_steps,
            "n_known": self.n_known,
            "n_problems": self.n_problems,
            "problems": [problem.as_dict() for problem in self.problems],
        }


def recognise(path: Path) -> Format:
    """Detect the format of a file. Raises InvalidInput if it is unknown."""
    if not path.is_file():
        raise InvalidInput(f"{path} is not a file", field="path")
    with path.open("rb") as stream:
        binary = stream.read(4) in (b"PAR1", b"SQLi", b"PK\x03\x04")
    try:
        first = None if binary else first_record(path)
        for form in FORMATS.values():
            if form.recognises(path, first):
                return form
    except UNREADABLE as error:
        raise InvalidInput(f"{path.name} can't be read: {error}", field="path") from error
    raise InvalidInput(f"{path.name} has no known format", field="format", hint=f"name it: {', '.join(FORMATS)}")


def run(
    paths: Sequence[Path],
    sink: Sink,
    *,
    format: str | None = None,
    channel: str | None = None,
    agent: str | None = None,
    all_or_nothing: bool = False,
    progress: Callable[[Report], None] = lambda report: None,
) -> Report:
    """Import files. Invalid records are reported with their position and left out.

    Memory is bounded by one batch. To continue an interrupted import, run it again: stored steps are skipped.

    Args:
        format: a name of ``FORMATS``; None detects the format of each file.
        channel, agent: defaults for steps without one.
        all_or_nothing: validate all files before sending anything; import nothing if any record is invalid.
        progress: called after each batch.

    Raises:
        InvalidInput: the format is unknown, or with ``all_or_nothing`` a record is invalid.
    """
    if format is not None and format not in FORMATS:
        raise InvalidInput(f"no format {format!r}", field="format", hint=", ".join(FORMATS))
    chosen = [(path, recognise(path) if format is None else FORMATS[format]) for path in paths]
    defaults = {name: value for name, value in (("channel", channel), ("agent", agent)) if value is not None}
    if all_or_nothing:
        _refuse_problems(chosen, defaults)
    report = Report()
    for path, form in chosen:
        report.formats[str(path)] = form.name
        _import_file(path, form, sink, defaults, report, progress)
    return report


def _refuse_problems(chosen: Sequence[tuple[Path, Format]], defaults: Mapping[str, str]) -> None:
    first: Problem | None = None
    n = 0
    for path, form in chosen:
        for item in _checked(bounded(path, form.read(path)), defaults):
            if isinstance(item, Problem):
                first = first or item
                n += 1
    if first is not None:
        more = f" ({n - 1} more)" if n > 1 else ""
        raise InvalidInput(f"{first.where}: {first.message}{more}", field=first.field, hint="nothing was imported")


def _checked(results: Iterator[ReadResult], defaults: Mapping[str, str]) -> Iterator[ReadResult]:
    """Validate every step; an invalid one becomes a Problem with its position in the file."""
    for item in results:
        if isinstance(item, Problem):
            yield item
            continue
        steps = [{**defaults, **step} for step in item.steps]
        try:
            for step in steps:
                check(StepIn, step)
                if too_deep(step):
                    raise InvalidInput(f"nested more than {MAX_DEPTH} levels deep")
        except InvalidInput as error:
            yield Problem(item.where, error.field, error.message)
            continue
        except RecursionError:
            yield Problem(item.where, None, "nested too deeply")
            continue
        yield ConvertedRecord(item.where, steps, item.rewards)


def _import_file(
    path: Path,
    format: Format,
    sink: Sink,
    defaults: Mapping[str, str],
    report: Report,
    progress: Callable[[Report], None],
) -> None:
    waiting: list[tuple[str, Mapping[str, Any]]] = []
    rewards: dict[str, float] = {}
    n_tokens = 0

    def flush() -> None:
        nonlocal n_tokens
        fresh = _send(waiting, sink, report, pass_over=not format.own_uids)
        for uid in [uid for uid in rewards if uid in fresh]:
            sink.complete(uid, reward=rewards.pop(uid))
        waiting.clear()
        rewards.clear()
        n_tokens = 0
        progress(report)

    for item in _checked(bounded(path, format.read(path)), defaults):
        report.n_records += 1
        if isinstance(item, Problem):
            report.add(item)
            continue
        rewards.update(item.rewards)
        for step in item.steps:
            waiting.append((item.where, step))
            n_tokens += sum(len(step.get(name) or ()) for name in ("prompt_ids", "response_ids"))
        if len(waiting) >= BATCH_STEPS or n_tokens >= BATCH_TOKENS:
            flush()
    flush()


def _send(waiting: Sequence[tuple[str, Mapping[str, Any]]], sink: Sink, report: Report, *, pass_over: bool) -> set[str]:
    """Send steps; returns the trajectories to which some were added.

    With ``pass_over``, steps that are stored already are skipped. If a step conflicts with a stored one, the batch is
    sent again one step at a time.
    """
    if not waiting:
        return set()
    known = sink.known([step["step_uid"] for _, step in waiting])
    report.n_known += len(known)
    fresh = [(where, step) for where, step in waiting if not pass_over or step["step_uid"] not in known]
    if not fresh:
        return set()
    try:
        report.n_steps += sink.submit([step for _, step in fresh])
    except (Conflict, InvalidInput):
        for where, step in fresh:
            try:
                report.n_steps += sink.submit([step])
            except (Conflict, InvalidInput) as error:
                report.add(Problem(where, error.field, error.message))
                known.discard(step["step_uid"])
    if not pass_over:
        report.n_steps -= len(known)
    return {step["trajectory_uid"] for _, step in fresh}
