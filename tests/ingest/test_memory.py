"""What ingest keeps of trajectories is bounded by what it really takes, as tracemalloc measures it."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from core.gateway.engines.stream_trials import _MAX_MODELS, StreamTrials
from core.ingest.contents import read_record
from core.ingest.linker import Linker
from core.ingest.reader import RecordReader
from core.journal import Record

N = 1500


class NoTrajectories:
    """A pool's trajectories, of which there are none."""

    def known(self, uids: list[str]) -> set[str]:
        return set()

    def get_many(self, uids: list[str]) -> list[dict[str, object]]:
        return []

    def open_inferred(self, limit: int) -> list[str]:
        return []


def record(number: int, n_messages: int, n_chars: int, n_ids: int) -> bytes:
    """A call of a trajectory of its own, as the gateway writes it."""
    messages = [{"role": "user", "content": f"{number}.{n} " + "x" * n_chars} for n in range(n_messages - 1)]
    answer = {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": f"Answer {number}"}, "token_ids": [1, 2]}],
        "prompt_token_ids": list(range(number, number + n_ids)),
    }
    identity = {"trajectory_uid": f"t-{number}", "prompt_uid": None, "channel": "train", "source": "blackbox"}
    identity |= {"agent": None, "identity_source": "header", "metadata": {}}
    body = {"kind": "call", "v": 1, "at": 1.0, "step_uid": f"s{number}", "started_at": 1.0, "finished_at": 1.0}
    body |= {"identity": identity, "dialect": "chat", "engine": "e", "engine_kind": "openai", "model": "m"}
    body |= {"stream": False, "stream_mode": "none", "client_headers": {}, "http_status": 200, "error": None}
    body["request"] = {"model": "m", "messages": [{"role": "system", "content": "You are terse."}, *messages]}
    body |= {"engine_added": [], "dropped_fields": [], "response": answer, "retry_count": 0}
    return json.dumps(body, separators=(",", ":")).encode()


def taken(act: Callable[[], object]) -> int:
    """Bytes that are still allocated when it has ended."""
    gc.collect()
    tracemalloc.start()
    try:
        kept = act()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] + 0 * id(kept)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("n_messages", "n_chars", "n_ids"), [(2, 10, 40), (2, 10, 500), (6, 1000, 500), (40, 100, 40)])
def test_what_is_kept_of_a_trajectory_is_what_is_counted(n_messages: int, n_chars: int, n_ids: int) -> None:
    reader, linker = RecordReader(max_bytes=1 << 40), Linker(NoTrajectories(), max_bytes=1 << 40)  # type: ignore[arg-type]
    records = [record(number, n_messages, n_chars, n_ids) for number in range(N)]

    def read(payloads: list[bytes]) -> None:
        for number, payload in enumerate(payloads):
            _, drafts = read_record(Record("w0-00000001.seg", number, number + 1, payload), reader)
            linker.preload(drafts)
            for draft in drafts:
                linker.place(draft)
            linker.batch_committed()

    read(records[:10])
    counted = -(reader._held + linker._held)
    really = taken(lambda: read(records[10:]))
    counted += reader._held + linker._held
    # Messages that both hold stand in one of the two counts; hashes of messages are bounded by their number.
    assert really <= 1.25 * counted, f"{really / N:.0f} bytes each, {counted / N:.0f} counted"


def test_a_reader_keeps_no_more_trajectories_than_its_bound() -> None:
    """Also of trajectories of which there is next to nothing to keep."""
    reader = RecordReader(max_bytes=100_000)

    def odd() -> Iterator[bytes]:
        for number in range(5000):
            yield record(number, 2, 10, 40).replace(b'"messages":[', b'"messages": [')

    for payload in odd():
        reader.parse(payload)
    assert len(reader._entries) < 200


def test_models_that_are_tried_out_are_bounded() -> None:
    streams = StreamTrials("e", None, lambda: 0.0)  # type: ignore[arg-type]
    streams._trials = {(f"m{number}", "chat"): (1, 0.0) for number in range(_MAX_MODELS)}
    answer = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}]}
    streams.start_trial("one more", "chat", answer, None)  # type: ignore[arg-type]
    assert len(streams._trials) == _MAX_MODELS
