"""Encoders of arrays against the standard library, msgspec, orjson and torch, over any rows."""

from __future__ import annotations

import io
import json
import pickle
import struct
import sys
import types
import zipfile

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.batch.rows import Rows
from core.errors import InvalidInput
from core.export.codes import json_numbers, msgpack_floats, msgpack_ints, pickle_floats, pickle_ints
from core.export.data_proto import write_data_proto
from core.export.padded import Padded
from core.export.prefixes import EncodedIds
from core.export.prime_rl import _array_of, _n_batches, _number
from core.export.sampled import Coded, Repeated, Responses
from core.export.sink import BATCH_BYTES, LARGE_BYTES, SYNC_BYTES, Sink
from core.export.torch_file import Tensors, TorchFile, pickled

EDGES = [0, 1, 127, 128, 255, 256, 65535, 65536, 151_935, 2**31 - 1]
ids_of = st.one_of(st.sampled_from(EDGES), st.integers(0, 2**31 - 1))
floats_of = st.floats(width=32, allow_nan=False, allow_infinity=False)


def written(fill) -> io.BytesIO:
    """The file that ``fill`` writes into a sink."""
    file = io.BytesIO()
    with Sink(file) as sink:
        fill(sink)
    file.seek(0)
    return file


def slices(data, ends):
    return [bytes(part) for part in np.split(data, ends[:-1])] if len(ends) else []


@given(st.lists(ids_of))
def test_integers_are_what_the_libraries_write(values):
    array = np.array(values, dtype=np.int32)
    assert slices(*pickle_ints(array)) == [pickle.dumps(value, protocol=2)[2:-1] for value in values]
    assert slices(*msgpack_ints(array)) == [msgspec.msgpack.encode(value) for value in values]
    assert slices(*json_numbers(array)) == [json.dumps(value).encode() + b"," for value in values]


@given(st.lists(st.integers(-(2**31), -1), min_size=1))
def test_negative_integers(values):
    array = np.array(values, dtype=np.int32)
    assert slices(*pickle_ints(array)) == [pickle.dumps(value, protocol=2)[2:-1] for value in values]
    with pytest.raises(InvalidInput, match="token id"):
        msgpack_ints(array)


@given(st.lists(floats_of))
def test_floats_are_read_as_they_were(values):
    array = np.array(values, dtype=np.float32)
    codes = pickle_floats(array).tobytes()
    assert [codes[at : at + 9] for at in range(0, len(codes), 9)] == [pickle.dumps(one, 2)[2:-1] for one in values]
    data, ends = msgpack_floats(array)
    assert len(ends) == len(values)
    read = msgspec.msgpack.decode(_array_of(len(values)) + data.tobytes(), type=list[float])
    assert struct.pack(f"{len(read)}d", *read) == struct.pack(f"{len(values)}d", *values), "bit for bit, -0.0 too"
    assert [np.float32(float(part[:-1])) for part in slices(*json_numbers(array))] == values


@given(st.floats(min_value=2**-40, allow_infinity=False))
def test_a_temperature_is_exact(value):
    assert msgspec.msgpack.decode(_number(value), type=float) == value


@given(st.integers(0, 1 << 32 - 1), st.lists(st.integers(1, 20), max_size=30), st.integers(1, 30))
def test_counts_of_msgpack_arrays_and_of_batches(n, lengths, budget):
    assert msgspec.msgpack.encode([0] * (n % 70_000))[: len(_array_of(n % 70_000))] == _array_of(n % 70_000)
    batches = [[]]
    for length in lengths:
        if batches[-1] and sum(batches[-1]) + length > budget:
            batches.append([])
        batches[-1].append(length)
    assert _n_batches(lengths, budget) == len(batches)


@st.composite
def any_rows(draw):
    """(Rows, its ids by row, by row its (loss, value) per token): prefixes of earlier rows, several responses each."""
    ids, tokens, steps, begins, n_response, parent, n_shared, n_prompt = [], [], [], [], [], [], [], []
    for i in range(draw(st.integers(1, 5))):
        above = draw(st.integers(-1, i - 1))
        shared = draw(st.integers(0, len(ids[above]))) if above >= 0 else 0
        row = [*(ids[above][:shared] if above >= 0 else []), *draw(st.lists(ids_of, min_size=1, max_size=6))]
        offset, at, sampled = sum(map(len, ids)), draw(st.integers(0, len(row) - 1)), [None] * len(row)
        n_prompt.append(at)
        while at < len(row):
            n = draw(st.integers(1, len(row) - at))
            begins.append(offset + at)
            n_response.append(n)
            steps.append(len(steps))
            for place in range(at, at + n):
                sampled[place] = (draw(st.booleans()), draw(floats_of))
            at += n + draw(st.integers(0, 2))
        ids.append(row)
        tokens.append(sampled)
        parent.append(above)
        n_shared.append(shared)
    flat = [one for row in tokens for one in row]
    whole = lambda values: np.array(values, dtype=np.int64)  # noqa: E731
    rows = Rows(
        ids=np.array([one for row in ids for one in row], dtype=np.int32),
        offsets=whole([0, *np.cumsum([len(row) for row in ids])]),
        loss=np.array([one is not None and one[0] for one in flat]),
        logprobs=np.array([np.nan if one is None else one[1] for one in flat], dtype=np.float32),
        advantages=np.array([np.nan if one is None else one[1] for one in flat], dtype=np.float32),
        n_prompt=whole(n_prompt), first_step=whole(range(len(ids))), last_step=whole(range(len(ids))),
        trajectory=whole(range(len(ids))), group=whole(range(len(ids))), steps=whole(steps), begins=whole(begins),
        n_response=whole(n_response), parent=whole(parent), n_shared=whole(n_shared), done=len(ids),
    )  # fmt: skip
    return rows, ids, tokens


@given(any_rows(), st.data())
def test_shared_ids_are_the_same_bytes(made, data):
    rows, ids, _ = made
    for encode, plain in (
        (pickle_ints, lambda one: pickle.dumps(one, 2)[2:-1]),
        (msgpack_ints, msgspec.msgpack.encode),
        (json_numbers, lambda one: b"%d," % one),
    ):
        encoded = EncodedIds(rows, encode)
        for i, row in enumerate(ids):
            begin = data.draw(st.integers(0, len(row)))
            end = data.draw(st.integers(begin, len(row)))
            assert bytes(encoded.part(i)) == b"".join(map(plain, row))
            assert bytes(encoded.part(i, begin, end)) == b"".join(map(plain, row[begin:end]))


@given(any_rows(), st.data())
def test_numbers_of_sampled_tokens_between_constants(made, data):
    rows, _, tokens = made
    responses = Responses(rows)
    variable = Coded(*json_numbers(responses.where_loss(rows, rows.logprobs)), b"0.0,")
    fixed = Coded.fixed(pickle_floats(responses.where_loss(rows, rows.logprobs)), 9, pickled(0.0))
    for i, row in enumerate(tokens):
        values = [float(one[1]) if one is not None and one[0] else 0.0 for one in row]
        begin = data.draw(st.integers(0, len(row)))
        text = b"".join(responses.pieces(i, variable, begin))
        assert [np.float32(float(one)) for one in text.split(b",")[:-1]] == values[begin:]
        opcodes = b"".join(responses.pieces(i, fixed, begin))
        assert opcodes == b"".join(pickle.dumps(one, 2)[2:-1] for one in values[begin:])


def test_a_constant_any_number_of_times():
    constant = Repeated(b"abc")
    assert [bytes(constant.times(n)) for n in (0, 2, 5000)] == [b"abc" * n for n in (0, 2, 5000)]


@given(st.lists(st.lists(floats_of, min_size=1, max_size=20), max_size=5))
def test_the_container_is_read_by_torch_and_by_zip(lists):
    import torch

    def fill(sink):
        file = TorchFile(sink)
        tensors = Tensors(file)
        codes = [tensors.add("Float", (1, len(values)), [np.array(values, "<f4").tobytes()]) for values in lists]
        file.record("data.pkl", [pickle.PROTO + b"\x02" + pickle.EMPTY_LIST + pickle.MARK, *codes, b"e."])
        file.finish()

    file = written(fill)
    assert zipfile.ZipFile(file).testzip() is None
    file.seek(0)
    read = torch.load(file, weights_only=True)
    assert [one.tolist() for one in read] == [[values] for values in lists]
    reference = io.BytesIO()
    torch.save([torch.tensor([values]) for values in lists], reference)
    reference.seek(0)
    for ours, theirs in zip(read, torch.load(reference), strict=True):
        assert (ours.dtype, ours.shape, ours.stride(), ours.requires_grad) == (
            theirs.dtype, theirs.shape, theirs.stride(), theirs.requires_grad
        )  # fmt: skip
        assert ours.untyped_storage().nbytes() == theirs.untyped_storage().nbytes(), "no tensor shares memory"


@given(any_rows(), st.booleans(), st.booleans())
def test_a_data_proto_is_padded_when_it_is_loaded(made, known, scored):
    rows, ids, tokens = made
    n_prompt, n_response = rows.n_prompt, rows.lengths - rows.n_prompt
    p, r, n = int(n_prompt.max()), int(n_response.max()), len(ids)
    cut = [(row[:at], row[at:], kinds[at:]) for row, kinds, at in zip(ids, tokens, n_prompt.tolist(), strict=True)]
    loss = [[int(one is not None and one[0]) for one in kinds] for _, _, kinds in cut]
    numbers = [float(one[1]) for _, _, kinds in cut for one in kinds if one is not None and one[0]]
    flat = [np.array(numbers, np.float32)]
    padded = Padded(
        n_prompt=n_prompt, n_response=n_response,
        prompts=[np.array([one for prompt, _, _ in cut for one in prompt], np.int32)],
        responses=[np.array(response, np.int32) for _, response, _ in cut],
        loss=[np.array([one for row in loss for one in row], np.uint8)],
        logprobs=flat if known else None, advantages=flat, share_at=np.zeros(0, np.int64), shares=None,
        last=n_response - 1, step=rows.last_step, unknown=(),
    )  # fmt: skip
    scores = (padded.last_at, np.arange(n, dtype=np.float32)) if scored else None
    beside = {"uids": np.array([f"s{i}" for i in range(n)], dtype=object), "step_indices": np.arange(n, dtype=np.int32)}
    file = written(lambda sink: write_data_proto(sink, padded, scores, beside, {"plan": "x", "timing": {}}))

    class DataProto:
        @staticmethod
        def from_dict(*given):
            return given

    module = types.ModuleType("verl.protocol")
    module.DataProto = DataProto
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "verl", types.ModuleType("verl"))
        patch.setitem(sys.modules, "verl.protocol", module)
        tensors, read_beside, meta = pickle.load(file)
    assert meta == {"plan": "x", "timing": {}} and read_beside["step_indices"].dtype == np.int32
    assert {name: values.tolist() for name, values in read_beside.items()} == {
        name: values.tolist() for name, values in beside.items()
    }
    left = [([0] * (p - len(one)) + list(one), [0] * (p - len(one)) + [1] * len(one)) for one, _, _ in cut]
    right = [(list(one) + [0] * (r - len(one)), [1] * len(one) + [0] * (r - len(one))) for _, one, _ in cut]
    sampled = [row + [0] * (r - len(row)) for row in loss]
    following = iter(np.float32(numbers).tolist())
    by_token = [[next(following) if one else 0.0 for one in row] for row in sampled]
    at_last = [[float(i) if j == n_response[i] - 1 else 0.0 for j in range(r)] for i in range(n)]
    attention = [a[1] + b[1] for a, b in zip(left, right, strict=True)]
    expected = {
        "prompts": [one[0] for one in left],
        "responses": [one[0] for one in right],
        "response_mask": sampled,
        "input_ids": [a[0] + b[0] for a, b in zip(left, right, strict=True)],
        "attention_mask": attention,
        "position_ids": [[max(sum(row[: j + 1]) - 1, 0) for j in range(p + r)] for row in attention],
        "rm_scores": at_last if scored else by_token,
        **({"rollout_log_probs": by_token} if known else {}),
        "advantages": by_token,
    }
    assert {name: one.tolist() for name, one in tensors.items()} == expected
    assert list(tensors) == list(expected)
    kinds = {
        str(one.dtype) for name, one in tensors.items() if name in ("rm_scores", "advantages", "rollout_log_probs")
    }
    assert kinds == {"torch.float32"} and tensors["position_ids"].dtype == tensors["prompts"].dtype
    assert len({one.untyped_storage().data_ptr() for one in tensors.values() if one.numel()}) == sum(
        1 for one in tensors.values() if one.numel()
    ), "no tensor shares memory"


def test_a_sink_hashes_and_writes_in_order_and_tells_of_errors():
    import hashlib

    pieces = [bytes([i % 256]) * (BATCH_BYTES // 3 + i) for i in range(20)]
    file = written(lambda sink: [sink.write(piece) for piece in pieces])
    assert file.read() == b"".join(pieces)
    file = io.BytesIO()
    with Sink(file) as sink:
        for piece in pieces:
            sink.write(piece)
        assert sink.sha256 == hashlib.sha256(b"".join(pieces)).hexdigest()
        assert sink.n_bytes == sum(map(len, pieces))

    class Full(io.BytesIO):
        def write(self, data):
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"), Sink(Full()) as sink:
        for piece in pieces:
            sink.write(piece)


def test_a_large_file_is_what_was_written_into_its_sink(tmp_path):
    """Pieces of all sizes, through the calls that begin to write to the disk while the file grows."""
    import hashlib

    rng = np.random.default_rng(0)
    sizes = [1, LARGE_BYTES - 1, LARGE_BYTES, 7, BATCH_BYTES, 0, SYNC_BYTES, 3, SYNC_BYTES // 2, SYNC_BYTES]
    pieces = [rng.bytes(size) for size in sizes]
    path = tmp_path / "large"
    with path.open("wb") as file, Sink(file) as sink:
        for number, piece in enumerate(pieces):
            sink.write(memoryview(piece) if number % 2 else piece)
    whole = b"".join(pieces)
    assert path.read_bytes() == whole
    assert sink.sha256 == hashlib.sha256(whole).hexdigest()
