"""Reading of exported files: their rows as the trainers see them.

Each exporter has a function that turns the bytes of its file into ``Row`` objects, in the file's order. It reads only
what the file holds. Pickles are read without running code: only the functions in ``_ALLOWED`` can be called, numpy's
in place of torch's.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import ArrayLike, NDArray

from core.credit.types import Bools
from core.tree.sequences import Float32, Int32

IGNORE = -100
"""The label of tokens without loss in PyTorch's cross entropy."""


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """One token sequence of a row: n tokens.

    Attributes:
        ids: int32 [n].
        loss: bool [n], whether the trainer's loss has the token as a target.
        advantages: float32 [n], NaN where ``loss`` is False; None: the file has none.
        logprobs: float32 [n], log μ(token) in nats, NaN where ``loss`` is False; None: the file has none.
        name: ``chosen`` or ``rejected`` in a pair, the step's name in a row of several sequences; else empty.
    """

    ids: Int32
    loss: Bools
    advantages: Float32 | None = None
    logprobs: Float32 | None = None
    name: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One row of a file.

    Attributes:
        tokens: its token sequences; empty in text formats.
        messages: its messages; None in token formats.
        trained: for each message whether it is in the loss.
        fields: the row's other values by name.
    """

    tokens: Sequence[Tokens] = ()
    messages: Sequence[Mapping[str, Any]] | None = None
    trained: Sequence[bool] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)


Read = Callable[[bytes, Mapping[str, str]], Iterator[Row]]
"""(the file's bytes, the checked options) -> its rows."""


def tokens(
    ids: ArrayLike,
    loss: ArrayLike,
    advantages: ArrayLike | None = None,
    logprobs: ArrayLike | None = None,
    *,
    name: str = "",
) -> Tokens:
    """``Tokens`` from lists or arrays of equal length; values outside the loss become NaN.

    >>> tokens([1, 2], [0, 1], [0.0, 0.5]).advantages
    array([nan, 0.5], dtype=float32)
    """
    mask = np.asarray(loss).astype(np.bool_)

    def where_loss(values: ArrayLike | None) -> Float32 | None:
        return None if values is None else np.where(mask, np.asarray(values, dtype=np.float32), np.float32(np.nan))

    return Tokens(np.asarray(ids, dtype=np.int32), mask, where_loss(advantages), where_loss(logprobs), name)


def labelled(row: Mapping[str, Any]) -> Row:
    """A row with ``input_ids`` and ``labels``: each label is predicted by the token before it, so the first is not."""
    loss = np.asarray(row["labels"]) != IGNORE
    loss[:1] = False
    return Row([tokens(row["input_ids"], loss)], fields=others(row, "input_ids", "labels", "attention_mask"))


def constant(value: float | None, n: int) -> Float32 | None:
    """The same number for n tokens: float32 [n]; None stays None."""
    return None if value is None else np.full(n, value, dtype=np.float32)


def others(row: Mapping[str, Any], *shown: str) -> dict[str, Any]:
    """The fields of a row that are not shown as tokens or messages."""
    return {name: value for name, value in row.items() if name not in shown}


def parquet_rows(data: bytes) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet file, one row group in memory at a time."""
    file = pq.ParquetFile(pa.BufferReader(data))
    for number in range(file.num_row_groups):
        yield from file.read_row_group(number).to_pylist()


def json_lines(data: bytes) -> Iterator[Any]:
    """The objects of a JSON-lines file."""
    return (orjson.loads(line) for line in data.splitlines() if line)


def torch_file(data: bytes) -> Any:
    """The value in a file of ``torch.save``; tensors as arrays."""
    archive = zipfile.ZipFile(io.BytesIO(data))
    return _Reader(archive.read("archive/data.pkl"), archive).load()


def plain_pickle(data: bytes) -> Any:
    """The value in a pickle; tensors as arrays, a ``DataProto`` as (tensors, other arrays, meta information)."""
    return _Reader(data, None).load()


class _Reader(pickle.Unpickler):
    """Reads a pickle whose functions are all in ``_ALLOWED``."""

    def __init__(self, data: bytes, archive: zipfile.ZipFile | None) -> None:
        super().__init__(io.BytesIO(data))
        self._archive = archive

    def find_class(self, module: str, name: str) -> Any:
        """The function of this name, or numpy's in place of torch's. UnpicklingError: it is not in ``_ALLOWED``."""
        try:
            return _ALLOWED[f"{module}.{name}"]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} is not a part of export files") from None

    def persistent_load(self, pid: Any) -> Any:
        """The elements of a tensor's storage."""
        _, dtype, key, *_ = pid
        assert self._archive is not None
        return np.frombuffer(self._archive.read(f"archive/data/{key}"), dtype)


def _tensor(storage: NDArray[Any], offset: int, size: tuple[int, ...], *_: Any) -> NDArray[Any]:
    """``torch._utils._rebuild_tensor_v2`` of a contiguous tensor."""
    n = int(np.prod(size, dtype=np.int64))
    return storage[offset : offset + n].reshape(size)


def _masked_scatter(into: NDArray[Any], mask: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
    out = into.copy()
    out[mask] = values[: int(mask.sum())]
    return out


def _scatter(into: NDArray[Any], axis: int, at: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
    out = into.copy()
    np.put_along_axis(out, at, values, axis)
    return out


_ALLOWED: dict[str, Any] = {
    "collections.OrderedDict": OrderedDict,
    "torch.IntStorage": np.dtype("<i4"),
    "torch.FloatStorage": np.dtype("<f4"),
    "torch.BoolStorage": np.dtype("?"),
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch.from_numpy": np.asarray,
    "torch.masked_scatter": _masked_scatter,
    "torch.scatter": _scatter,
    "torch.cat": np.concatenate,
    "torch.gt": np.greater,
    "torch.reshape": np.reshape,
    "verl.protocol.DataProto.from_dict": lambda *parts: parts,
    "numpy.ndarray": np.ndarray,
    "numpy.dtype": np.dtype,
    **{
        f"numpy.{name}": getattr(np, name)
        for name in (
            "arange",
            "array",
            "asarray",
            "concatenate",
            "cumsum",
            "frombuffer",
            "greater_equal",
            "less",
            "maximum",
            "reshape",
            "subtract",
            "zeros",
        )
    },
    # Arrays of texts are pickled by numpy itself; the function's module changed its name with numpy 2.
    **{f"numpy.{module}.multiarray._reconstruct": np.zeros(0).__reduce__()[0] for module in ("core", "_core")},
}
"""What a pickle may call, by its full name."""
