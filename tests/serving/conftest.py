from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from core.serving.process import EngineProcess
from tests.conftest import eventually
from tests.serving.serving_client import Client

# Before torch is loaded: threads that spin starve each other where several processes share two cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from core.serving.model import make_model

    return make_model(tmp_path_factory.mktemp("engine") / "model", seed=0)


@pytest.fixture(scope="session")
def record_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("record") / "sampled.jsonl"


@pytest.fixture(scope="session")
def local(model_dir: Path, record_path: Path) -> Iterator[Client]:
    with EngineProcess.start("local", args=["--model-dir", model_dir, "--record", record_path]) as process:
        client = Client(process)
        yield client
        client.close()


@pytest.fixture(scope="session")
def recorded(record_path: Path) -> Callable[[str], list[dict[str, Any]]]:
    def read(request_id: str, n: int = 1) -> list[dict[str, Any]]:
        """The request's ``n`` choices; the engine writes them after its answer has left."""

        def rows_of_request() -> list[dict[str, Any]] | None:
            lines = [json.loads(line) for line in record_path.read_text().splitlines()]
            rows = [line for line in lines if line["request_id"] == request_id]
            return rows if len(rows) >= n else None

        return sorted(eventually(rows_of_request), key=lambda line: line["choice_index"])

    return read


@pytest.fixture(scope="session")
def scripted() -> Iterator[Client]:
    with EngineProcess.start("scripted") as process:
        client = Client(process)
        yield client
        client.close()


@pytest.fixture(scope="session")
def plain_logprobs(model_dir: Path) -> Callable[..., list[float]]:
    """Log-probs of a response by transformers' own forward pass over the whole sequence."""
    import torch
    from transformers import Qwen3ForCausalLM

    loaded: dict[Path, Any] = {}

    def compute(prompt_ids: list[int], response_ids: list[int], directory: Path = model_dir) -> list[float]:
        if directory not in loaded:
            loaded[directory] = Qwen3ForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        ids = torch.tensor([prompt_ids + response_ids])
        with torch.inference_mode():
            logprobs = loaded[directory](ids).logits[0].log_softmax(-1)
        rows = logprobs[len(prompt_ids) - 1 : -1]
        return rows.gather(1, torch.tensor(response_ids)[:, None])[:, 0].tolist()

    return compute
