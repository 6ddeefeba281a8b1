"""The main process ends while a gateway process has calls in flight, or waits for the main process itself."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from core.client import Unreachable
from core.serving.process import EngineProcess
from core.trainer import Trainer
from core.workers.worker import STOP_TIMEOUT_S
from tests.conftest import ServeProcess, eventually, scripted_engine

CALL = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


def test_a_sync_whose_studio_is_killed_can_be_tried_again(serve: Callable[..., ServeProcess], tmp_path: Path) -> None:
    """``Unreachable`` is what trainers try again after; any other error ends them."""
    victims: list[int] = []

    class Hook(BaseHTTPRequestHandler):
        """Kills the studio that asks it to load weights."""

        def do_POST(self) -> None:
            os.kill(victims[0], signal.SIGKILL)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    engine: EngineProcess
    with scripted_engine(tmp_path, {"model": "m", "default": {"reply": {"content": "yes"}}}) as engine:
        env = {
            "CLAW_STUDIO_GATEWAYS": "1",
            "CLAW_STUDIO_ENGINE_WEIGHTS_HOOK": f"http://127.0.0.1:{server.server_port}/load",
        }
        studio = serve(str(engine.wait_ready().base_url), env=env)
        victims.append(studio.process.pid)
        with Trainer(studio.base_url, "t") as trainer, pytest.raises(Unreachable):
            trainer.sync_weights(tmp_path, 1)
    server.shutdown()
    server.server_close()


def test_a_studio_starts_again_while_a_call_of_the_one_before_is_in_flight(
    serve: Callable[..., ServeProcess], tmp_path: Path
) -> None:
    """The old gateway process finishes its call and holds its journal meanwhile; the answer is in the new pool."""
    engine: EngineProcess
    script = {"model": "m", "default": {"reply": {"content": "after a while"}, "delay_s": 5}}
    with scripted_engine(tmp_path, script) as engine, ThreadPoolExecutor(1) as threads:
        url, env = str(engine.wait_ready().base_url), {"CLAW_STUDIO_GATEWAYS": "1"}
        studio = serve(url, env=env)
        call = threads.submit(httpx.post, f"{studio.base_url}/v1/chat/completions", json=CALL, timeout=60)
        eventually(lambda: in_flight(studio))
        studio.kill()
        again = serve(url, env=env)
        answer = call.result().json()["choices"][0]["message"]["content"]
        steps = eventually(lambda: again.http.get("/api/v1/steps").json()["steps"])
        captured = again.http.get(f"/api/v1/steps/{steps[0]['step_uid']}").json()
    assert answer == "after a while"
    assert captured["response_message"]["content"] == answer


def test_a_call_that_waits_for_the_embedded_engine_fails_when_the_studio_is_killed(
    serve: Callable[..., ServeProcess], tmp_path: Path
) -> None:
    studio = serve("local", env={"CLAW_STUDIO_GATEWAYS": "1"})
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(httpx.post, f"{studio.base_url}/v1/chat/completions", json=CALL, timeout=60)
        eventually(lambda: in_flight(studio))
        studio.kill()
        killed_at = time.monotonic()
        assert call.result().status_code >= 500
    assert time.monotonic() - killed_at < STOP_TIMEOUT_S / 2


def in_flight(studio: ServeProcess) -> bool:
    return "claw_calls_in_flight 1" in studio.http.get("/metrics").text
