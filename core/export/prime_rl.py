"""Exports to prime-rl: micro-batches for its file transport, ``{output_dir}/rollouts/step_{n}/rank_0.bin``.

Rows are packed next-fit under the recipe's token budget; a longer row gets its own micro-batch. Each micro-batch is a
msgpack array in the order of prime-rl's ``MicroBatch`` fields. Temperatures are per token, those of the captured
requests; prime-rl divides logits by them, so a step at 0 or at an unknown temperature is refused.

Log-probs and advantages stand as floats of 32 bits; 0.0 on context, and a whole temperature, as an integer, which
prime-rl's typed decoder reads as the float.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from core.batch.plan import Plan
from core.batch.rows import Rows, training_rows
from core.errors import InvalidInput
from core.export.base import MERGE, Exporter, ExportSource, Progress, Written, merged
from core.export.codes import msgpack_floats, msgpack_ints
from core.export.lines import UNPREDICTED, advantages_of, logprobs_of, n_unpredicted, temperatures_of
from core.export.prefixes import EncodedIds
from core.export.reading import Row, tokens
from core.export.sampled import Coded, Repeated, Responses
from core.export.sink import Piece, Sink

ENV = "claw-studio"
COPY_BYTES = 1 << 20
FALSE, TRUE = 0xC2, 0xC3
"""Booleans of msgpack."""


class _MicroBatch:
    """Rows packed into one micro-batch, encoded."""

    def __init__(self) -> None:
        self.n_tokens = 0
        self._lengths: list[int] = []
        self._streams: tuple[list[Piece], ...] = tuple([] for _ in range(7))

    def add(self, n: int, streams: Sequence[Sequence[Piece]]) -> None:
        """Append a row of ``n`` tokens: ids, mask, advantages, log-probs, positions, temperatures, environments."""
        self.n_tokens += n
        self._lengths.append(n)
        for mine, pieces in zip(self._streams, streams, strict=True):
            mine.extend(pieces)

    def write_to(self, write: Callable[[Piece], Any]) -> None:
        """The fields in the order of prime-rl's ``MicroBatch``."""
        ids, mask, advantages, logprobs, positions, temperatures, environments = self._streams
        lengths = [msgpack_ints(np.array(self._lengths))[0].tobytes()]
        per_token, per_row = self.n_tokens, len(self._lengths)
        write(_array_of(9))
        for n, pieces in (
            (per_token, ids),
            (per_token, mask),
            (per_token, advantages),
            (per_token, logprobs),
            (per_token, positions),
            (per_row, lengths),
            (per_token, temperatures),
            (per_token, environments),
            (per_row, lengths),
        ):
            write(_array_of(n))
            for piece in pieces:
                write(piece)


def _array_of(n: int) -> bytes:
    """The header of a msgpack array of ``n`` values."""
    if n < 1 << 4:
        return bytes([0x90 | n])
    return struct.pack(">BH", 0xDC, n) if n < 1 << 16 else struct.pack(">BI", 0xDD, n)


def _number(value: float) -> bytes:
    """A positive number in msgpack, exactly, in few bytes; typed decoders read an integer as the float."""
    if value.is_integer() and value < 1 << 7:
        return bytes([int(value)])
    return struct.pack(">Bd", 0xCB, value)


def _n_batches(lengths: Iterable[int], budget: int) -> int:
    """Micro-batches of rows of these lengths."""
    n, filled = 1, 0
    for length in lengths:
        if filled and filled + length > budget:
            n, filled = n + 1, 0
        filled += length
    return n


def _checked_temperatures(plan: Plan) -> NDArray[np.float64]:
    """Temperature of each step of the plan, float64 [n]. InvalidInput if one is unknown or 0."""
    values = temperatures_of(plan)
    for wrong, what in ((np.isnan(values), "at an unknown one"), (values <= 0, "greedily, at temperature 0")):
        if wrong.any():
            first = plan.step_uids[int(np.argmax(wrong))]
            raise InvalidInput(
                f"prime-rl divides logits by the temperature; {int(wrong.sum())} steps were sampled {what}: {first}",
                field="recipe.temperature",
                hint="name a temperature in the recipe: others are left out",
            )
    return values


class _Encoder:
    """Encodes rows; keeps constants between parts of a plan."""

    def __init__(self, plan: Plan) -> None:
        self._environment = Repeated(bytes([0xA0 | len(ENV)]) + ENV.encode())
        of_step = _checked_temperatures(plan)
        codes = {value: Repeated(_number(value)) for value in np.unique(of_step).tolist()}
        self._temperatures = [codes[value] for value in of_step.tolist()]

    def rows(self, rows: Rows) -> Iterator[tuple[int, list[Sequence[Piece]]]]:
        """Each row's tokens and its streams, as ``_MicroBatch.add`` takes them."""
        responses, ids = Responses(rows), EncodedIds(rows, msgpack_ints)
        starts = np.repeat(rows.offsets[:-1][rows.row_of_step], rows.n_response)
        # Nothing predicts a row's first token.
        predicted = rows.loss[responses.at] & (responses.at != starts)
        mask = Coded.fixed(np.where(predicted, TRUE, FALSE).astype(np.uint8), 1, bytes([FALSE]))
        advantages, logprobs = (
            Coded(*msgpack_floats(values), _number(0.0))
            for values in (advantages_of(rows, responses), logprobs_of(rows, responses))
        )
        lengths = rows.lengths.tolist()
        positions, ends = msgpack_ints(np.arange(max(lengths)))
        counted, n_bytes = positions.data, [0, *ends.tolist()]
        for i, n in enumerate(lengths):
            yield (
                n,
                [
                    [ids.part(i)],
                    responses.pieces(i, mask),
                    responses.pieces(i, advantages),
                    responses.pieces(i, logprobs),
                    [counted[: n_bytes[n]]],
                    self._of_tokens(rows, i, responses.segments(i)),
                    [self._environment.times(n)],
                ],
            )

    def _of_tokens(self, rows: Rows, i: int, steps: slice) -> list[Piece]:
        """Temperatures: a sampled token's own; context has the next sampled token's."""
        at, pieces = int(rows.offsets[i]), list[Piece]()
        ends = rows.begins[steps] + rows.n_response[steps]
        for step, end in zip(rows.steps[steps].tolist(), ends.tolist(), strict=True):
            pieces.append(self._temperatures[step].times(end - at))
            at = end
        return pieces


def write(plan: Plan, source: ExportSource, sink: Sink, settings: Mapping[str, str], progress: Progress) -> Written:
    """Write the number of micro-batches, then these. If rows are merged, they are spooled until the number is known."""
    budget, encoder = plan.recipe.token_budget, _Encoder(plan)
    n_rows = n_tokens = n_loss = n_batches = n_first = 0
    with tempfile.TemporaryFile() as spool:
        write_out: Callable[[Piece], Any] = spool.write
        if not merged(settings):
            sink.write(struct.pack(">BI", 0xDD, _n_batches(plan.lengths.tolist(), budget)))
            write_out = sink.write
        open_batch = _MicroBatch()
        for rows in training_rows(plan, source, merge=merged(settings)):
            for n, streams in encoder.rows(rows):
                if open_batch.n_tokens and open_batch.n_tokens + n > budget:
                    open_batch.write_to(write_out)
                    n_batches, open_batch = n_batches + 1, _MicroBatch()
                open_batch.add(n, streams)
            n_rows, n_tokens, n_loss = n_rows + len(rows), n_tokens + len(rows.ids), n_loss + int(rows.loss.sum())
            n_first += n_unpredicted(rows)
            progress(rows.done, len(plan.steps))
        open_batch.write_to(write_out)
        if merged(settings):
            # A msgpack array starts with its length.
            sink.write(struct.pack(">BI", 0xDD, n_batches + 1))
            spool.seek(0)
            while piece := spool.read(COPY_BYTES):
                sink.write(piece)
    return Written(n_rows, n_tokens, n_loss - n_first, (UNPREDICTED,) if n_first else ())


def read(data: bytes, settings: Mapping[str, str]) -> Iterator[Row]:
    """The rows of all micro-batches, each with the number of its micro-batch and its temperatures."""
    for number, (ids, mask, advantages, logprobs, _, lengths, temperatures, *_) in enumerate(
        msgspec.msgpack.decode(data)
    ):
        begin = 0
        for n in lengths:
            at = slice(begin, begin + n)
            begin += n
            fields = {"micro_batch": number, "temperature": sorted({float(one) for one in temperatures[at]})}
            yield Row([tokens(ids[at], mask[at], advantages[at], logprobs[at])], fields=fields)


def load_command(name: str) -> str:
    """A command that reads the file with msgspec."""
    return f"python -c \"import msgspec; print(len(msgspec.msgpack.decode(open('{name}', 'rb').read())))\""


EXPORTER = Exporter(
    name="prime_rl",
    title="prime-rl micro-batches (.bin)",
    description="Packed micro-batches for the file transport, rollouts/step_N/rank_0.bin",
    suffix=".bin",
    write=write,
    read=read,
    load_command=load_command,
    choices={"merge": tuple(reversed(MERGE["merge"]))},
)
