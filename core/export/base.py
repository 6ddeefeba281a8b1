"""The base of exporters, and the function that writes every format to disk.

A file is written under a temporary name, synced, and renamed. An interrupted export leaves no file under the final
name. The manifest is written last, so a file with a manifest is complete.
"""

from __future__ import annotations

import hashlib
import io
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import orjson
import pyarrow as pa

from core.batch.edits import n_edited_answers
from core.batch.layout import TokenReader
from core.batch.plan import Plan
from core.batch.versions import VersionSource
from core.credit.sft import DEFAULT_MIN_REWARD
from core.durable import sync_folder
from core.errors import InvalidInput, NoRoom, is_full
from core.export.reading import Read
from core.export.sink import Sink
from core.pool.redaction.rules import Redaction
from core.tree.sequences import Sequences

MANIFEST_VERSION = 2
TOKENIZER_SAMPLE = 64
SAMPLE_TOKENS = 300_000
WRITTEN_BY_PEOPLE = ("dataset_version", "view", "recipe", "funnel", "excluded")
"""Parts of a manifest with text written by people, which is redacted."""
PACKAGES = ("claw-studio", "numpy", "pyarrow", "duckdb")

Progress = Callable[[int, int], None]
"""Called with (steps written, total steps). Raising from it cancels the export; no file is left."""


class ExportSource(TokenReader, Protocol):
    """The data source of exporters: ``pool.training``, or a dataset version."""

    def credit_fields(self, step_uids: Any, fields: Sequence[str]) -> pa.Table:
        """Facts of these steps by column (``core.pool.query.creditfields``), one row per step in the order given."""
        ...

    def trajectory(self, trajectory_uid: str, *, tokens: bool = True) -> dict[str, Any]:
        """A trajectory with its steps in order, including messages and tools."""
        ...

    def trajectories(self, trajectory_uids: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Several of them, each once, as ``trajectory`` gives them with tokens, in the order given."""
        ...


class ExportPool(Protocol):
    """The part of a pool that exporters read."""

    @property
    def training(self) -> ExportSource:
        """Tokens and texts as stored, without a version's redaction."""
        ...


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between the plan and what a trainer does with its export, and the setting that prevents it.

    Attributes:
        what: description in one line, with the number of rows or groups if known.
        flag: the setting of the trainer, recipe or format that prevents it; None if there is none.
        n: the number that ``what`` begins with, if parts of an export count it each for itself.
    """

    what: str
    flag: str | None = None
    n: int | None = None

    @classmethod
    def counted(cls, n: int, rest: str, flag: str | None = None) -> Difference:
        """A difference of ``n`` rows, steps or tokens; ``rest`` follows the number."""
        return cls(f"{n:,} {rest}", flag, n)

    def to_json(self) -> dict[str, str | None]:
        """The difference as JSON."""
        return {"what": self.what, "flag": self.flag}


def combined(differences: Iterable[Difference]) -> list[Difference]:
    """The differences of all parts of an export, each once: counts are added. Sorted by text."""
    sums: dict[tuple[str, str | None], int | None] = {}
    for one in differences:
        rest = one.what if one.n is None else one.what.removeprefix(f"{one.n:,} ")
        before = sums.get((rest, one.flag))
        sums[rest, one.flag] = one.n if before is None or one.n is None else before + one.n
    return [
        Difference(rest, flag) if n is None else Difference.counted(n, rest, flag)
        for (rest, flag), n in sorted(sums.items(), key=lambda item: item[0][0])
    ]


@dataclass(frozen=True, slots=True)
class Written:
    """Counts of a written file.

    Attributes:
        n_rows: rows of the file.
        n_tokens: token ids in it, including context.
        n_loss_tokens: tokens that are in the loss.
        differences: differences from the plan that are known only after the rows are written.
    """

    n_rows: int
    n_tokens: int
    n_loss_tokens: int
    differences: tuple[Difference, ...] = ()


MERGE: Mapping[str, tuple[str, ...]] = {"merge": ("step", "trajectory")}
"""Option of formats with training rows (``core.batch.rows``): one row per step, or merged where token ids match."""


def merged(settings: Mapping[str, str]) -> bool:
    """Whether the option ``merge`` is ``trajectory``."""
    return settings["merge"] == "trajectory"


def loader(program: str) -> Mapping[str, Callable[[str], bytes]]:
    """The ``beside`` attribute for a program of ``core/export/loaders``."""
    return {program: lambda _: (resources.files("core.export") / "loaders" / program).read_bytes()}


Write = Callable[[Plan, ExportSource, Sink, Mapping[str, str], Progress], Written]
Differences = Callable[[Plan, Mapping[str, str]], Sequence[Difference]]


def no_differences(plan: Plan, settings: Mapping[str, str]) -> Sequence[Difference]:
    """No differences."""
    return ()


@dataclass(frozen=True, slots=True)
class Exporter:
    """An entry of the registry.

    Attributes:
        name: its name in calls.
        title: its name on pages.
        description: its trainer and its content.
        suffix: file name extension.
        write: streams the plan to a sink.
        read: the rows of a file as its trainer reads them, for previews.
        load_command: returns a shell command that loads the file, to be run in its folder.
        choices: options and their allowed values; the first is the default.
        values: options of any text, such as a folder: name -> default. ``write`` checks them.
        beside: additional files, such as the program that loads the export: name -> function from the export's file
            name to the content.
        texts: whether it has messages instead of token ids, so that steps without ids can be exported.
        masks_tokens: whether it can exclude single sampled tokens from the loss. If not, redacted versions are refused.
        differences: differences between the plan and the trainer, from the plan and the checked options, without
            reading tokens. Pages show them before the export; the manifest lists them with those of ``Written``.
        imitates: whether its trainer learns every row as a good answer, whatever its reward (supervised fine-tuning).
        by_group: whether a row depends on its prompt group alone, and the rows are in plan order. Parts of a plan that
            are whole groups can then be written apart and joined (``core.export.joining``).
    """

    name: str
    title: str
    description: str
    suffix: str
    write: Write
    read: Read
    load_command: Callable[[str], str]
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict)
    beside: Mapping[str, Callable[[str], bytes]] = field(default_factory=dict)
    texts: bool = False
    masks_tokens: bool = True
    differences: Differences = no_differences
    imitates: bool = False
    by_group: bool = False

    def deviations(self, plan: Plan, settings: Mapping[str, str]) -> list[Difference]:
        """What is known before the export: a recipe that does not suit the format, edits, then ``differences``."""
        return [*unsuited(self, plan), *edited_answers(plan), *self.differences(plan, settings)]

    def settings(self, requested: Mapping[str, Any]) -> dict[str, str]:
        """Check options and add defaults. InvalidInput names the invalid option."""
        for name, value in requested.items():
            if name in self.values and isinstance(value, str):
                continue
            if name not in self.choices:
                known = ", ".join([*self.choices, *self.values]) or "none"
                raise InvalidInput(
                    f"{self.name} has no option {name!r}", field=f"options.{name}", hint=f"options: {known}"
                )
            if value not in self.choices[name]:
                raise InvalidInput(
                    f"{name} is {value!r}", field=f"options.{name}", hint=f"one of {', '.join(self.choices[name])}"
                )
        chosen = {name: str(requested.get(name, values[0])) for name, values in self.choices.items()}
        return chosen | {name: str(requested.get(name, value)) for name, value in self.values.items()}

    def marks(self, settings: Mapping[str, str]) -> list[str]:
        """Parts of a file's name that tell exports of one plan with other options apart."""
        chosen = [settings[name] for name, values in self.choices.items() if settings[name] != values[0]]
        named = {name: settings[name] for name, value in self.values.items() if settings[name] != value}
        digest = hashlib.sha256(orjson.dumps(named, option=orjson.OPT_SORT_KEYS)).hexdigest()[:8]
        return [*chosen, digest] if named else chosen


def unsuited(exporter: Exporter, plan: Plan) -> list[Difference]:
    """Whether a format for supervised fine-tuning gets a plan that an RL algorithm made: it would imitate failures."""
    if not exporter.imitates or plan.recipe.estimator.imitates:
        return []
    rewards = plan.trajectories["reward"].to_pylist()
    n_failed = sum(reward is not None and reward < DEFAULT_MIN_REWARD for reward in rewards)
    n_unknown = sum(reward is None for reward in rewards)
    named = [f"{n_failed:,} have a reward below {DEFAULT_MIN_REWARD:g}"] if n_failed else []
    named += [f"{n_unknown:,} have no reward"] if n_unknown else []
    counts = " and ".join(named) or "none failed"
    return [
        Difference(
            f"{exporter.title} trains on every row as a good answer and ignores advantages. The recipe is for "
            f"{plan.recipe.estimator.title}: of its {len(rewards):,} trajectories {counts}",
            "The algorithm SFT with min_reward",
        )
    ]


def edited_answers(plan: Plan) -> list[Difference]:
    """How many answers were edited by people, so that no reader of the file takes their tokens for sampled ones."""
    n = n_edited_answers(plan)
    if not n:
        return []
    what = "1 answer was" if n == 1 else f"{n:,} answers were"
    return [
        Difference(
            f"{what} edited by people: their tokens are the edited text in the chat template, and were not sampled",
            "options.edits: without",
        )
    ]


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The written files and their counts. ``manifest`` is the manifest's content."""

    path: Path
    manifest_path: Path
    n_rows: int
    n_tokens: int
    manifest: dict[str, Any]


def run_export(
    exporter: Exporter,
    plan: Plan,
    pool: ExportPool,
    out_dir: Path,
    *,
    progress: Progress | None,
    clock: Callable[[], float] = time.time,
    options: Mapping[str, Any],
) -> ExportResult:
    """Write a plan in one format: data file, then manifest. An existing complete export of the plan is returned.

    Raises:
        InvalidInput: the plan is empty, an option is invalid, or the folder can't be written.
    """
    settings, source = exporter.settings(options), source_of(plan, pool)
    reading = checked_source(exporter, plan, pool)
    path = export_path(exporter, plan, out_dir, settings)
    if (done := finished(path, plan)) is not None:
        return done
    with naming("make", out_dir):
        out_dir.mkdir(parents=True, exist_ok=True)
    with naming("write to", out_dir), atomic(path) as file, Sink(file) as sink:
        written = exporter.write(plan, reading, sink, settings, progress or no_progress)
    return write_manifest(exporter, plan, path, sink, written, settings, plan_head(plan, source), clock)


def export_path(exporter: Exporter, plan: Plan, out_dir: Path, settings: Mapping[str, str]) -> Path:
    """The file of a plan in one format with these options."""
    return out_dir / ("-".join([exporter.name, *exporter.marks(settings), plan.hash[:12]]) + exporter.suffix)


def manifest_path_of(path: Path) -> Path:
    """The manifest of an exported file."""
    return path.with_name(path.name + ".manifest.json")


def plan_head(plan: Plan, source: ExportSource) -> dict[str, Any]:
    """The fields of a manifest that are the same in every format; redacted if the version is."""
    head = {
        "plan": {"uid": plan.uid, "hash": plan.hash},
        "dataset_version": plan.dataset_version,
        "view": plan.view_json(),
        "recipe": plan.recipe.to_json(),
        "policy_version": plan.policy_version,
        "counts": plan.counts,
        "funnel": plan.funnel_json(),
        "excluded": [reason.to_json() for reason in plan.excluded],
        "tokenizers": tokenizers_of(plan, source),
    }
    if isinstance(source, VersionSource) and source.redaction is not None:
        head |= {name: _without_hits(head[name], source.redaction) for name in WRITTEN_BY_PEOPLE}
    return head


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that decide an export's bytes."""
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


def write_manifest(
    exporter: Exporter,
    plan: Plan,
    path: Path,
    sink: Sink,
    written: Written,
    settings: Mapping[str, str],
    head: Mapping[str, Any],
    clock: Callable[[], float],
) -> ExportResult:
    """Write what stands beside a complete file: the format's programs, then the manifest. ``head``: ``plan_head``."""
    for name, content in exporter.beside.items():
        with naming("write to", path.parent), atomic(path.parent / name) as file:
            file.write(content(path.name))
    differences = [*exporter.deviations(plan, settings), *combined(written.differences)]
    manifest = {
        "manifest_version": MANIFEST_VERSION,
        "format": exporter.name,
        "options": dict(settings),
        "file": path.name,
        "sha256": sink.sha256,
        "n_bytes": sink.n_bytes,
        "n_rows": written.n_rows,
        "n_tokens": written.n_tokens,
        "n_loss_tokens": written.n_loss_tokens,
        "differences": [one.to_json() for one in differences],
        **head,
        "versions": versions(),
        "created_at": datetime.fromtimestamp(clock(), UTC).isoformat(),
        "load_command": exporter.load_command(path.name),
    }
    manifest_path = manifest_path_of(path)
    with naming("write to", path.parent), atomic(manifest_path) as file:
        file.write(orjson.dumps(manifest, option=orjson.OPT_INDENT_2, default=str))
    return ExportResult(path, manifest_path, written.n_rows, written.n_tokens, manifest)


def checked_source(exporter: Exporter, plan: Plan, pool: ExportPool) -> ExportSource:
    """The source that a format reads a plan from.

    Raises:
        InvalidInput: the plan is empty, or has steps without the token ids that the format needs.
    """
    if not len(plan.steps):
        worst = max(plan.excluded, key=lambda reason: reason.n_steps, default=None)
        hint = "no step matches view and channel" if worst is None else f"{worst.n_steps} steps: {worst.label}"
        if worst is not None and worst.reason == "no_tokens" and exporter.texts:
            hint += "; to export only texts, add 'none' to the recipe's token_sources"
        raise InvalidInput("the plan has no steps", field="view", hint=hint)
    n_without = int((plan.steps["n_response_tokens"].to_numpy() == 0).sum())
    if n_without and not exporter.texts:
        raise InvalidInput(
            f"{n_without} steps have no token ids, which {exporter.name} needs",
            field="recipe.token_sources",
            hint="remove 'none' from the recipe's token_sources, or choose a text format",
        )
    source = source_of(plan, pool)
    return source if exporter.masks_tokens else _WithoutMasks(source, exporter.name)


def _without_hits(value: Any, rules: Redaction) -> Any:
    """JSON with redaction applied to its texts and keys; numbers are counts and unchanged."""
    if isinstance(value, str):
        return rules.clean(value)
    if isinstance(value, dict):
        kept = {name: value[name] for name in ("redaction",) if name in value}
        return {rules.clean(str(name)): _without_hits(item, rules) for name, item in value.items()} | kept
    return [_without_hits(item, rules) for item in value] if isinstance(value, list | tuple) else value


class _WithoutMasks:
    """A source for a format that can't leave single sampled tokens out of the loss."""

    def __init__(self, source: ExportSource, name: str) -> None:
        self._source, self._name = source, name

    def sequences(self, step_uids: Sequence[str]) -> Sequences:
        """The source's. InvalidInput if a token must not be in a loss: redacted by a version, or by the producer."""
        sequences = self._source.sequences(step_uids)
        if sequences.masked is not None and sequences.masked.any():
            raise InvalidInput(
                f"{self._name} can't leave single tokens out of the loss, and some are redacted",
                field="format",
                hint="freeze with the redaction action 'drop', or choose another format",
            )
        return sequences

    def trajectory(self, trajectory_uid: str, *, tokens: bool = True) -> dict[str, Any]:
        """The source's."""
        return self._source.trajectory(trajectory_uid, tokens=tokens)

    def trajectories(self, trajectory_uids: Sequence[str]) -> Iterator[dict[str, Any]]:
        """The source's."""
        return self._source.trajectories(trajectory_uids)

    def credit_fields(self, step_uids: Any, fields: Sequence[str]) -> pa.Table:
        """The source's."""
        return self._source.credit_fields(step_uids, fields)


def finished(path: Path, plan: Plan) -> ExportResult | None:
    """The existing complete export of the same plan, if any. Facts never change, so a new one would be identical."""
    manifest_path = manifest_path_of(path)
    try:
        manifest = orjson.loads(manifest_path.read_bytes())
        same = manifest["plan"]["hash"] == plan.hash and manifest["manifest_version"] == MANIFEST_VERSION
        if not same or path.stat().st_size != manifest["n_bytes"]:
            return None
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != manifest["sha256"]:
                return None
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
        return None
    return ExportResult(path, manifest_path, manifest["n_rows"], manifest["n_tokens"], manifest)


def source_of(plan: Plan, pool: ExportPool) -> ExportSource:
    """The source of a plan's tokens and texts. For a dataset version it is the version, which applies redaction."""
    return pool.training if plan.dataset_version is None else plan.reader


def estimate_bytes(exporter: Exporter, plan: Plan, pool: ExportPool, options: Mapping[str, Any]) -> int | None:
    """Estimated file size in bytes: the first trajectories are written to a null sink, and scaled by tokens.

    None if a part of the plan can't be written alone (pairs).
    """
    if plan.pairs is not None or not len(plan.steps):
        return None
    tokens = np.cumsum(plan.trajectories["n_tokens"].to_numpy())
    n = int(np.searchsorted(tokens, SAMPLE_TOKENS)) + 1
    sample = plan.part(range(min(n, len(tokens))))
    with Sink(io.BytesIO()) as sink:
        exporter.write(sample, source_of(plan, pool), sink, exporter.settings(options), no_progress)
    return int(sink.n_bytes * int(tokens[-1]) / int(sample.lengths.sum()))


def tokenizers_of(plan: Plan, source: ExportSource) -> dict[str, Any]:
    """Distinct tokenizer hashes of the plan's steps, from at most ``TOKENIZER_SAMPLE`` evenly spread trajectories.

    ``hashes`` contains None if a step's tokenizer is unknown; ``n_trajectories_read`` is the sample's size.
    """
    n = len(plan.trajectories)
    chosen = np.arange(0, n, -(-n // TOKENIZER_SAMPLE))
    steps = plan.steps["step_uid"].filter(pa.array(np.isin(plan.steps["trajectory"].to_numpy(), chosen)))
    column = source.credit_fields(steps.combine_chunks(), ["tokenizer_hash"])["tokenizer_hash"]
    hashes = set(column.unique().to_pylist())
    return {"hashes": sorted(hashes, key=lambda one: (one is None, one)), "n_trajectories_read": len(chosen)}


def no_progress(done: int, total: int) -> None:
    """The default progress callback: does nothing."""


@contextmanager
def naming(what: str, folder: Path) -> Iterator[None]:
    """Convert OSError to NoRoom if the disk is full, else to InvalidInput; both name the folder."""
    try:
        yield
    except OSError as error:
        refused = NoRoom if is_full(error) else InvalidInput
        raise refused(
            f"can't {what} {folder}: {error.strerror or error}", field="out", hint="name another folder or free space"
        ) from error


@contextmanager
def atomic(path: Path) -> Iterator[BinaryIO]:
    """Write a file atomically: it appears under ``path`` only when complete."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
