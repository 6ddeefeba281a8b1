"""The runs of a data folder: ``synthesis/RUN/`` has the settings, the prompts, the log of calls and rows."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from core.durable import sync_folder
from core.errors import Conflict, InvalidInput, NotFound
from core.journal.lock import is_held
from core.synthesis.log import LOCK, LOG, LogWriter, read_log
from core.synthesis.rows import DECISIONS, DONE, Row
from core.synthesis.settings import UID, SynthesisSettings, parse_settings
from core.synthesis.state import DECISION, RERUN, ROW, State
from core.synthesis.templates import Template, changed, read_templates, shipped

SETTINGS = "run.json"
PROMPTS = "prompts"
CANCEL = "cancel"


@dataclass(frozen=True)
class SynthesisRun:
    """One run: its settings and its folder."""

    settings: SynthesisSettings
    folder: Path

    def state(self) -> State:
        """The state, from the log."""
        return State(read_log(self.folder / LOG)[0])

    def templates(self) -> dict[str, Template]:
        """The prompts of this run as they are now; a file that was removed has its shipped text."""
        return {**shipped(), **read_templates(self.folder / PROMPTS)}

    def write_prompt(self, name: str, text: str | None) -> Template:
        """Change a prompt of this run, from the next work on; None brings the shipped text back.

        Raises:
            InvalidInput: there is no such prompt, it is empty, or it has an unknown place.
        """
        made = _shipped(name) if text is None else changed({name: text})[name]
        _write(self.folder / PROMPTS / f"{name}.txt", made.text.encode())
        return made

    @property
    def in_progress(self) -> bool:
        """Whether some process works on it."""
        return is_held(self.folder, LOCK.removesuffix(".lock"))

    def writer(self) -> LogWriter:
        """The writer of its log. AlreadyOwned if another process works on it."""
        return LogWriter(self.folder)

    def cancel(self) -> None:
        """Ask the process that works on it to stop after the calls in flight."""
        (self.folder / CANCEL).touch()

    def decide(self, stage: str, key: str, decision: str | None) -> None:
        """Accept or reject a row; None takes the decision back.

        Raises:
            InvalidInput: there is no such decision, or a row without a product is accepted.
            NotFound: there is no such row.
        """
        row = self._row(stage, key)
        if decision is not None and decision not in DECISIONS:
            raise InvalidInput(f"there is no decision {decision!r}", field="decision", hint=", ".join(DECISIONS))
        if decision == "accepted" and row.product is None:
            raise InvalidInput(
                f"{key} of {stage} has no product: {row.reason}", field="key", hint="edit it, or run it again"
            )
        self._append({"kind": DECISION, "stage": stage, "key": key, "decision": decision})

    def edit(self, stage: str, key: str, product: Mapping[str, Any], *, now: float) -> None:
        """Replace a row's product; later stages then work on the row, and make theirs again.

        Raises:
            NotFound: there is no such row.
        """
        row = self._row(stage, key)
        edited = Row(
            stage, key, DONE, dict(product), based_on=row.based_on, generation=row.generation, edited=True, at=now
        )
        self._append({"kind": ROW, "row": edited.to_json()})

    def rerun(self, stage: str, key: str | None = None) -> None:
        """Have a row, or all rows of a stage, made again when the run goes on, with new answers.

        Decisions about these rows are taken back.

        Raises:
            NotFound: there is no such row.
        """
        if key is not None:
            self._row(stage, key)
        self._append({"kind": RERUN, "stage": stage, "key": key})

    def _row(self, stage: str, key: str) -> Row:
        row = self.state().rows.get((stage, key))
        if row is None:
            raise NotFound(f"the stage {stage} has no row {key!r}", field="key", hint="show lists stages and rows")
        return row

    def _append(self, record: Mapping[str, Any]) -> None:
        with self.writer() as writer:
            writer.write(record)


class SynthesisStore:
    """The runs below ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def create(self, settings: SynthesisSettings, prompts: Mapping[str, str] | None = None) -> SynthesisRun:
        """Create a run with the shipped prompts, or those in ``prompts`` by name; it is on disk when this returns.

        Raises:
            Conflict: there is a run of this name.
            InvalidInput: there is no such prompt, it is empty, or it has an unknown place.
        """
        templates = {**shipped(), **changed(prompts or {})}
        folder = self.folder / settings.run
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            raise Conflict(f"there is a run {settings.run}", field="run", hint="choose another name") from None
        (folder / PROMPTS).mkdir()
        for template in templates.values():
            _write(folder / PROMPTS / f"{template.name}.txt", template.text.encode())
        # Last: a folder without settings is no run.
        _write(folder / SETTINGS, orjson.dumps(settings.to_json(), option=orjson.OPT_INDENT_2))
        sync_folder(folder.parent)
        return SynthesisRun(settings, folder)

    def get(self, run: str) -> SynthesisRun:
        """One run by its uid.

        Raises:
            NotFound: there is no such run.
        """
        folder = self.folder / run
        path = folder / SETTINGS
        if not UID.fullmatch(run) or not path.is_file():
            raise NotFound(f"no run {run!r}", field="run", hint="claw-studio synthesise list shows them")
        return SynthesisRun(parse_settings(orjson.loads(path.read_bytes())), folder)

    def all(self) -> list[SynthesisRun]:
        """All runs, newest first. A folder without valid settings is left out."""
        runs = []
        with contextlib.suppress(FileNotFoundError):
            for path in self.folder.iterdir():
                with contextlib.suppress(NotFound, InvalidInput, ValueError):
                    runs.append(self.get(path.name))
        return sorted(runs, key=lambda one: (one.settings.created_at, one.settings.run), reverse=True)


def _shipped(name: str) -> Template:
    templates = shipped()
    if name not in templates:
        raise InvalidInput(f"there is no prompt {name!r}", field="prompts", hint=", ".join(sorted(templates)))
    return templates[name]


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)
