"""What a trainer's own reading of an exported file costs, as far as its library is here: seconds and CPU seconds.

Where a trainer is a package that isn't installed, what it reads with is: torch, msgspec, json, pickle, pyarrow.
"""

from __future__ import annotations

import json
import pickle
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any


def _json_lines(path: Path) -> Any:
    with path.open("rb") as file:
        for line in file:
            yield json.loads(line)


def _micro_batches(path: Path) -> Any:
    import msgspec

    fields = [("input_ids", list[int]), ("loss_mask", list[bool]), ("advantages", list[float])]
    fields += [("inference_logprobs", list[float]), ("position_ids", list[int]), ("seq_lens", list[int])]
    fields += [("temperatures", list[float]), ("env_names", list[str]), ("sequence_lengths", list[int])]
    kind = msgspec.defstruct("MicroBatch", fields, array_like=True, gc=False)
    return msgspec.msgpack.Decoder(list[kind]).decode(path.read_bytes())  # type: ignore[valid-type]


def _torch(path: Path) -> Any:
    import torch

    # As slime does: the file is our own, and the reader that trusts none walks its opcodes in Python.
    return torch.load(path, weights_only=False)


def _data_proto(path: Path) -> Any:
    module = ModuleType("verl.protocol")
    module.DataProto = type("DataProto", (), {"from_dict": staticmethod(lambda *given: given)})  # type: ignore[attr-defined]
    sys.modules |= {"verl": ModuleType("verl"), "verl.protocol": module}
    with path.open("rb") as file:
        return pickle.load(file)


def _parquet(path: Path) -> Any:
    import pyarrow.parquet as pq

    return pq.read_table(path)


LOADERS = {
    ".jsonl": ("json.loads by line", _json_lines),
    ".bin": ("msgspec, prime-rl's MicroBatch", _micro_batches),
    ".pt": ("torch.load", _torch),
    ".dp": ("pickle.load, DataProto.from_dict left out", _data_proto),
    ".parquet": ("pyarrow.parquet.read_table", _parquet),
}


def loading(path: Path, n_tokens: int) -> dict[str, Any] | None:
    """Read the file as its trainer does; None for a suffix that only our own code reads."""
    if path.suffix not in LOADERS:
        return None
    how, load = LOADERS[path.suffix]
    if path.suffix in (".pt", ".dp"):
        import torch  # noqa: F401, its import is no part of the reading
    began, cpu = time.perf_counter(), time.process_time()
    read = load(path)
    if path.suffix == ".jsonl":
        for _ in read:
            pass
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {
        "how": how,
        "seconds": round(seconds, 3),
        "cpu_seconds": round(cpu, 3),
        "mtokens_per_s": round(n_tokens / seconds / 1e6, 1),
    }
