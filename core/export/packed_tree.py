"""Exports packed prefix trees as safetensors: each packed row of the plan with its loss terms.

Every array of ``core.tree.build.PackedTree`` and ``core.tree.terms.LossTerms`` is stored concatenated over all rows;
``NAME.rows`` (int64 [n_rows + 1]) has the offsets of the rows. ``step_uids`` are JSON bytes. A term's ``step`` and a
row's ``members`` index the steps of the row, ``steps`` (int64) maps those to all steps. ``row_ranks`` (int64 [n_rows])
assigns rows to the recipe's ranks, with equal numbers and nearly equal work. The metadata have the denominators of the
batch's loss, so that splitting the batch over micro-batches or ranks does not change the loss.

``read_rows`` reads the rows as the same objects::

    for row, terms, uids in read_rows(path, rank=torch.distributed.get_rank()):
        use_tree_attention(model, "cascade")
        scores = token_scores(model, packed_hidden(model, row), terms)
        batch_loss("ppo_clip", scores.logp, terms, totals).backward()
"""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from core.batch.plan import Plan
from core.errors import InvalidInput
from core.export.base import Exporter, ExportSource, Progress, Written
from core.export.reading import Row, tokens
from core.export.sink import Sink
from core.tree.build import PackedTree
from core.tree.sequences import Int64, ragged_index
from core.tree.terms import POLICIES, Denominators, LossTerms, loss_terms

VERSION = "1"
TREE = (
    "tokens",
    "position_ids",
    "end",
    "members",
    "run_offsets",
    "run_start",
    "run_length",
    "order",
    "lcp",
    "novel_start",
)
TERMS = ("packed_pos", "target_pos", "target", "old_logp", "advantage", "weight", "step_weight", "step")
ARRAYS = {name: f"tree.{name}" for name in TREE} | {name: f"terms.{name}" for name in TERMS} | {"steps": "steps"}
_DTYPES = {
    "<i4": "I32", "<i8": "I64", "<f4": "F32", "<f8": "F64", "|u1": "U8",
}  # fmt: skip
COPY_BYTES = 1 << 20


class _Column:
    """One array that is being written: its bytes in a temporary file, its row offsets in memory."""

    def __init__(self, spool: BinaryIO) -> None:
        self.spool = spool
        self.dtype = ""
        self.rows = [0]

    def add(self, values: NDArray[Any]) -> None:
        self.dtype = values.dtype.str
        self.spool.write(np.ascontiguousarray(values).tobytes())
        self.rows.append(self.rows[-1] + len(values))


def advantages_of(plan: Plan, places: Int64) -> dict[str, NDArray[np.float32]]:
    """The argument ``advantages`` or ``token_advantages`` of ``loss_terms``, for the steps at these indices."""
    steps = plan.steps.take(pa.array(places))
    if "token_advantages" in plan.steps.column_names:
        flat = steps["token_advantages"].combine_chunks().flatten()
        return {"token_advantages": flat.to_numpy(zero_copy_only=False).astype(np.float32)}
    return {"advantages": steps["advantage"].cast(pa.float64()).to_numpy().astype(np.float32)}


def write(plan: Plan, source: ExportSource, sink: Sink, settings: Mapping[str, str], progress: Progress) -> Written:
    """Write the rows to temporary files, then header and arrays. InvalidInput if a step exceeds the token budget."""
    layout = plan.layout
    if len(layout.over_budget):
        uid = plan.step_uids[int(layout.over_budget[0])]
        raise InvalidInput(f"step {uid} alone is longer than a row", field="recipe.token_budget")
    n_terms = n_tokens = done = 0
    weight, uids = 0.0, []
    with ExitStack() as open_files:
        columns = {name: _Column(open_files.enter_context(tempfile.TemporaryFile())) for name in ARRAYS.values()}
        for index, parts in enumerate(layout.rows):
            row, sequences = layout.row(source, index)
            places = np.concatenate([part.order for part in parts]).astype(np.int64)
            terms = loss_terms(row, sequences, policy=settings["terms"], **advantages_of(plan, places))
            for name in TREE:
                columns[ARRAYS[name]].add(getattr(row, name))
            for name in TERMS:
                columns[ARRAYS[name]].add(getattr(terms, name))
            columns["steps"].add(places)
            n_terms, n_tokens, done = n_terms + len(terms), n_tokens + row.n_packed, done + len(places)
            weight += float(terms.weight.sum())
            uids.append(len(np.unique(terms.step)))
            progress(done, len(plan.steps))
        head = {
            "format": "claw-studio packed tree",
            "version": VERSION,
            "plan": plan.hash,
            "terms": settings["terms"],
            "denominator_weight": repr(weight),
            "denominator_steps": str(sum(uids)),
            "token_budget": str(layout.token_budget),
            "n_ranks": str(len(layout.dealt.ranks)),
        }
        _write_safetensors(sink, columns, layout.row_ranks, orjson.dumps(plan.step_uids), head)
    return Written(len(layout.rows), n_tokens, n_terms)


def _write_safetensors(
    sink: Sink, columns: Mapping[str, _Column], ranks: Int64, uids: bytes, metadata: Mapping[str, str]
) -> None:
    """Write header length, header and arrays. Arrays of 8-byte items come first, so that all are aligned."""
    arrays: list[tuple[str, str, int, Any]] = []
    for name, column in columns.items():
        arrays.append((name, column.dtype, column.rows[-1], column.spool))
        arrays.append((f"{name}.rows", "<i8", len(column.rows), np.array(column.rows, dtype=np.int64).tobytes()))
    arrays.append(("row_ranks", "<i8", len(ranks), ranks.astype("<i8").tobytes()))
    arrays.append(("step_uids", "|u1", len(uids), uids))
    arrays.sort(key=lambda array: -np.dtype(array[1]).itemsize)
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for name, dtype, n, _ in arrays:
        end = at + n * np.dtype(dtype).itemsize
        header[name] = {"dtype": _DTYPES[dtype], "shape": [n], "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    sink.write(struct.pack("<Q", len(text)))
    sink.write(text)
    for _, _, _, source in arrays:
        if isinstance(source, bytes):
            sink.write(source)
            continue
        source.seek(0)
        while piece := source.read(COPY_BYTES):
            sink.write(piece)


def read_totals(path: Path | str) -> Denominators:
    """The denominators of the batch's loss."""
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    return Denominators(float(metadata["denominator_weight"]), int(metadata["denominator_steps"]))


def read_rows(path: Path | str, *, rank: int | None = None) -> Iterator[tuple[PackedTree, LossTerms, list[str]]]:
    """Yield (row, its loss terms, the uids that ``terms.step`` indexes) of all rows, or of the rows of one rank.

    The number of rows per rank differs by at most one. A rank with one row less must still take part in collectives,
    with a loss of zero.

    Raises:
        InvalidInput: the file has no such rank.
    """
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        uids: list[str] = orjson.loads(file.get_tensor("step_uids").tobytes())
        borders = {name: file.get_tensor(f"{key}.rows") for name, key in ARRAYS.items()}
        slices = {name: file.get_slice(key) for name, key in ARRAYS.items()}
        n_ranks = int(file.metadata()["n_ranks"])
        if rank is not None and not 0 <= rank < n_ranks:
            raise InvalidInput(
                f"no rank {rank}: the file has {n_ranks} ranks",
                field="rank",
                hint="set n_ranks in the recipe and export again",
            )
        ranks = file.get_tensor("row_ranks")
        for i in range(len(ranks)) if rank is None else np.flatnonzero(ranks == rank).tolist():
            part = {name: slices[name][int(borders[name][i]) : int(borders[name][i + 1])] for name in ARRAYS}
            row = PackedTree(**{name: part[name] for name in TREE}, n_original=n_original_of(part))
            terms = LossTerms(**{name: part[name] for name in TERMS})
            yield row, terms, [uids[place] for place in part["steps"].tolist()]


def n_original_of(part: Mapping[str, NDArray[Any]]) -> int:
    """Tokens of all members, shared ones counted once per member."""
    offsets = part["run_offsets"]
    runs = ragged_index(offsets[:-1], np.diff(offsets))
    return int(part["run_length"][runs].sum())


def read(data: bytes, settings: Mapping[str, str]) -> Iterator[Row]:
    """The packed rows, each with the token sequences of its steps."""
    with tempfile.NamedTemporaryFile(suffix=EXPORTER.suffix) as file:
        file.write(data)
        file.flush()
        for row, terms, uids in read_rows(file.name):
            yield row_of(row, terms, uids)


def row_of(row: PackedTree, terms: LossTerms, uids: Sequence[str]) -> Row:
    """A packed row as the token sequences of its steps; ``uids`` are indexed by ``members`` and ``terms.step``."""
    path, ends = row.restore_index(), np.cumsum(_lengths(row))
    sequences = []
    for member, begin, end in zip(row.members.tolist(), [0, *ends[:-1].tolist()], ends.tolist(), strict=True):
        at, own = path[begin:end], terms.step == member
        place = np.searchsorted(at, terms.target_pos[own])
        mask = np.zeros(len(at), dtype=np.bool_)
        advantages, scores = (np.full(len(at), np.nan, dtype=np.float32) for _ in range(2))
        mask[place], advantages[place], scores[place] = True, terms.advantage[own], terms.old_logp[own]
        sequences.append(tokens(row.tokens[at], mask, advantages, scores, name=uids[member]))
    return Row(sequences, fields={"packed tokens": row.n_packed, "tokens before sharing": row.n_original})


def _lengths(row: PackedTree) -> NDArray[np.int64]:
    """Tokens of each member: int64 [m]."""
    lengths: NDArray[np.int64] = np.add.reduceat(row.run_length.astype(np.int64), row.run_offsets[:-1])
    return lengths


def load_command(name: str) -> str:
    """A command that reads the rows with this package."""
    return (
        'python -c "from core.export.packed_tree import read_rows; '
        f"print(sum(1 for _ in read_rows('{name}')))\"  # rows and loss terms for core.tree; see its docstring"
    )


EXPORTER = Exporter(
    name="packed_tree",
    title="Packed trees (safetensors)",
    description="The plan's packed rows: each shared prefix once, positions, visibility, loss terms with old log-probs "
    "and advantages; read with core.export.packed_tree.read_rows",
    suffix=".safetensors",
    write=write,
    read=read,
    load_command=load_command,
    choices={"terms": tuple(POLICIES)},
)
