"""verl's ``DataProto`` as a pickle that makes the padded matrices when it is loaded.

The file holds tokens and numbers without padding; the pickle calls numpy and torch to pad them, to join prompts and
responses, and to count masks and positions, and then ``DataProto.from_dict`` of the verl that opens it. Neither verl
nor tensordict is needed to write it. Each tensor has memory of its own: a trainer may change one in place.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.export.padded import Padded
from core.export.sink import Piece, Sink
from core.export.torch_file import pickled

Code = list[Piece]
"""Opcodes that push one value onto the pickle's stack."""

Scores = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Places in the flat matrix [B × R], and the values there."""


def _call(function: str, *arguments: Code) -> Code:
    """``function(*arguments)``; the function by module and name."""
    module, name = function.rsplit(".", 1)
    inside = [piece for code in arguments for piece in code]
    return [f"c{module}\n{name}\n(".encode(), *inside, pickle.TUPLE + pickle.REDUCE]


def _plain(value: Any) -> Code:
    return [pickled(value, protocol=3)]


def _pair(first: Code, second: Code) -> Code:
    return [*first, *second, pickle.TUPLE2]


def _numbers(parts: Sequence[NDArray[Any]], dtype: str) -> Code:
    """A writable array of all ``parts``, one after another, as ``dtype``."""
    stored = parts[0].dtype.newbyteorder("<")
    pieces = [np.ascontiguousarray(part, dtype=stored).view(np.uint8).data for part in parts]
    head = pickle.BINBYTES8 + sum(len(piece) for piece in pieces).to_bytes(8, "little")
    return _call("numpy.array", _call("numpy.frombuffer", [head, *pieces], _plain(stored.str)), _plain(dtype))


def _tensor(array: Code) -> Code:
    return _call("torch.from_numpy", array)


class _Memo:
    """Values that are built once and pushed several times."""

    def __init__(self) -> None:
        self._n = 0

    def keep(self, code: Code) -> tuple[Code, Code]:
        """``code`` that also stores its value in the memo, and the code that pushes it from there."""
        place = bytes([self._n])
        self._n += 1
        return [*code, pickle.BINPUT + place], [pickle.BINGET + place]


def _tensors(padded: Padded, scores: Scores | None) -> dict[str, Code]:
    """The tensors that verl names, [B, ...]; ``scores`` None: the advantages."""
    n, (p, r) = len(padded.step), padded.widths
    memo = _Memo()

    def zeros(width: int, dtype: str) -> Code:
        return _tensor(_call("numpy.zeros", _plain((n, width)), _plain(dtype)))

    def column(values: NDArray[np.int64]) -> Code:
        return _call("numpy.reshape", _numbers([values], "int64"), _plain((n, 1)))

    in_prompt, has_prompt = memo.keep(
        _call("numpy.greater_equal", _call("numpy.arange", _plain(p)), column(p - padded.n_prompt))
    )
    in_response, has_response = memo.keep(
        _call("numpy.less", _call("numpy.arange", _plain(r)), column(padded.n_response))
    )

    def filled(width: int, dtype: str, where: Code, parts: Sequence[NDArray[Any]]) -> Code:
        return _call("torch.masked_scatter", zeros(width, dtype), where, _tensor(_numbers(parts, dtype)))

    prompts, same_prompts = memo.keep(filled(p, "int64", _tensor(in_prompt), padded.prompts))
    responses, same_responses = memo.keep(filled(r, "int64", _tensor(in_response), padded.responses))
    mask, same_mask = memo.keep(filled(r, "int64", _tensor(has_response), padded.loss))
    both = _call("numpy.concatenate", _pair(has_prompt, has_response), _plain(1))
    attention, same_attention = memo.keep(_call("numpy.asarray", both, _plain("int64")))
    counted = _call("numpy.subtract", _call("numpy.cumsum", same_attention, _plain(1)), _plain(1))
    tensors = {
        "prompts": prompts,
        "responses": responses,
        "response_mask": mask,
        "input_ids": _call("torch.cat", _pair(same_prompts, same_responses), _plain(1)),
        "attention_mask": _tensor(attention),
        "position_ids": _tensor(_call("numpy.maximum", counted, _plain(0))),
    }

    def of_loss(parts: Sequence[NDArray[np.float32]]) -> Code:
        return filled(r, "float32", _call("torch.gt", same_mask, _plain(0)), parts)

    if scores is not None:
        at, values = _tensor(_numbers([scores[0]], "int64")), _tensor(_numbers([scores[1]], "float32"))
        flat = _tensor(_call("numpy.zeros", _plain(n * r), _plain("float32")))
        tensors["rm_scores"] = _call(
            "torch.reshape", _call("torch.scatter", flat, _plain(0), at, values), _plain((n, r))
        )
    elif padded.advantages is not None:
        tensors["rm_scores"] = of_loss(padded.advantages)
    if padded.logprobs is not None:
        tensors["rollout_log_probs"] = of_loss(padded.logprobs)
    if padded.advantages is not None:
        tensors["advantages"] = of_loss(padded.advantages)
    return tensors


def write_data_proto(
    sink: Sink,
    padded: Padded,
    scores: Scores | None,
    beside: Mapping[str, NDArray[Any]],
    meta: Mapping[str, Any],
) -> None:
    """A pickle of a ``DataProto``.

    Args:
        sink: the output.
        padded: the rows.
        scores: ``rm_scores``; None: the plan's advantages.
        beside: non-tensor arrays, [B].
        meta: meta information.
    """
    sink.write(pickle.PROTO + b"\x04" + b"cverl.protocol\nDataProto.from_dict\n" + pickle.EMPTY_DICT + pickle.MARK)
    for name, code in _tensors(padded, scores).items():
        sink.write(pickled(name, protocol=3))
        _write(sink, code)
    sink.write(pickle.SETITEMS)
    _write(sink, [*_plain(dict(beside)), *_plain(dict(meta)), pickle.TUPLE3 + pickle.REDUCE + pickle.STOP])


def _write(sink: Sink, pieces: Iterable[Piece]) -> None:
    for piece in pieces:
        sink.write(piece)
