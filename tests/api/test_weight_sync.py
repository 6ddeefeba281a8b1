"""Weight syncs through the studio with real engines: what loads, what is checked, and what stays after a failure."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import httpx
import pytest

from core.client import StudioClient
from core.config import Settings
from core.errors import EngineError, InvalidInput, NotFound
from core.service import Service
from core.serving.model import make_model
from core.serving.process import EngineProcess
from core.trainer import Trainer
from tests.conftest import eventually, scripted_engine
from tests.left_out import only_in_ci


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two versions of a policy."""
    folder = tmp_path_factory.mktemp("weights")
    return [make_model(folder / f"version-{seed}", seed=seed) for seed in range(2)]


@pytest.fixture(scope="module")
def local(weights: list[Path]) -> Iterator[EngineProcess]:
    with EngineProcess.start(
        "local", args=["--model-dir", weights[0], "--threads", "1"], startup_timeout_s=300
    ) as engine:
        yield engine.wait_ready()


class Hook(BaseHTTPRequestHandler):
    """A user's weights hook, which answers with the version that the test sets."""

    received: ClassVar[list[dict[str, Any]]] = []
    answer: ClassVar[dict[str, Any]] = {}

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Hook.received.append(body)
        raw = json.dumps(Hook.answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: object) -> None:
        pass


def reported(base_url: str | None) -> tuple[int, str]:
    """Version and folder that a local engine reports."""
    state = httpx.get(f"{str(base_url).removesuffix('/v1')}/policy_version", timeout=120).json()
    return state["policy_version"], state["path"]


def refuses(base_url: str) -> bool:
    """Whether nothing listens at the address."""
    parts = urlsplit(base_url)
    with socket.socket() as connection:
        return connection.connect_ex((parts.hostname, parts.port)) != 0


def ask(studio: StudioClient) -> dict[str, Any]:
    body = {"model": "policy", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
    answer: dict[str, Any] = studio.call("POST", "/v1/chat/completions", body)
    return answer


def test_a_failure_leaves_the_version_before_in_every_engine(
    local: EngineProcess, weights: list[Path], tmp_path: Path
) -> None:
    script = {"model": "scripted-1", "default": {"reply": {"content": "yes"}}}
    with scripted_engine(tmp_path, script) as scripted:
        engine = f"{local.base_url},{scripted.wait_ready().base_url}"
        service = Service.open(Settings(data_dir=tmp_path / "data", port=0, engine=engine))
        with closing(service), Trainer(service.base_url, "t") as trainer:
            done = trainer.sync_weights(weights[0], 3, engines=["engine"])
            assert [(one["name"], one["checked"]) for one in done["engines"]] == [("engine", True)]
            assert trainer.version == 3 and reported(local.base_url) == (3, str(weights[0]))
            # The replica, which comes second, can't load weights.
            with pytest.raises(EngineError, match=r"'engine-2'.*version 3 stays in force"):
                trainer.sync_weights(weights[1], 4)
            assert trainer.version == 3 and reported(local.base_url) == (3, str(weights[0]))
            state = trainer.client.policy_state()
            assert not state["syncing"] and "'engine-2'" in state["history"][-1]["metadata"]["failed"]
            with pytest.raises(EngineError, match=r"'engine' did not load version 5: .*no model in.*stays in force"):
                trainer.sync_weights(tmp_path / "nothing", 5, engines=["engine"])
            with pytest.raises(NotFound, match="no engine 'other'"):
                trainer.sync_weights(weights[1], 4, engines=["other"])
            with pytest.raises(InvalidInput):
                trainer.client.call("POST", "/api/v1/policy/sync", {"path": "relative", "version": 1})
            assert trainer.version == 3
            # Nothing is held back.
            ask(trainer.client)


def test_a_hook_loads_weights_and_must_name_the_version(
    local: EngineProcess, weights: list[Path], tmp_path: Path
) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hook = f"http://127.0.0.1:{server.server_port}/load"
    settings = Settings(data_dir=tmp_path / "data", port=0, engine=str(local.base_url), engine_weights_hook=hook)
    with closing(Service.open(settings)) as service, Trainer(service.base_url, "t") as trainer:
        Hook.answer = {"policy_version": 7}
        assert trainer.sync_weights(weights[1], 7)["engines"][0]["checked"]
        assert Hook.received[-1] == {"path": str(weights[1]), "policy_version": 7, "engine": "engine"}
        for answer, message in (
            ({"policy_version": 7}, "reports version 7"),
            ({}, "did not answer with a policy_vers"),
        ):
            Hook.answer = answer
            with pytest.raises(EngineError, match=rf"'engine'.*{message}"):
                trainer.sync_weights(weights[0], 8)
        assert trainer.version == 7
    server.shutdown()
    server.server_close()


@only_in_ci("starts engines with weights five times")
def test_an_embedded_engine_starts_again_with_the_weights_in_force(weights: list[Path], tmp_path: Path) -> None:
    """After a kill of the engine, and after a restart of the studio; a deleted folder is named."""
    model = make_model(tmp_path / "later", seed=2)
    settings = Settings(
        data_dir=tmp_path / "data",
        port=0,
        local_model_dir=weights[0],
        local_threads=1,
        local_context=64,
        policy_sync_timeout_s=600,
    )
    with closing(Service.open(settings)) as service, Trainer(service.base_url, "t") as trainer:
        trainer.sync_weights(model, 1)
        before = service.local_engine.ensure()
        card = httpx.get(f"{before}/models", timeout=60).json()["data"][0]
        assert card["max_model_len"] == 64
        assert service.local_engine.pid is not None
        os.kill(service.local_engine.pid, signal.SIGKILL)
        # A call that reaches the engine before it has ended would fail with it. Its main thread is a zombie while
        # others still hold its sockets, so what shows the end is a refused connection.
        eventually(lambda: refuses(str(before)))
        ask(trainer.client)
        after = service.local_engine.ensure()
        assert after != before and reported(after) == (1, str(model))
    with closing(Service.open(settings)) as service, Trainer(service.base_url, "t") as trainer:
        assert trainer.version == 1
        ask(trainer.client)
        assert reported(service.local_engine.ensure()) == (1, str(model))
        step = eventually(lambda: next(iter(trainer.client.steps("policy_version = 1", order="created_at desc")), None))
        assert step["policy_version"] == 1
        service.local_engine.stop()
        model.rename(tmp_path / "elsewhere")
        with pytest.raises(EngineError, match="weights of version 1 are gone"):
            service.local_engine.ensure()
