"""The main process ends while a gateway process waits for its answer: clients see that the service is unreachable."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from core.client import Unreachable
from core.serving.process import EngineProcess
from core.trainer import Trainer
from tests.conftest import ServeProcess, scripted_engine


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
