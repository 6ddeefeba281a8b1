"""Novelty by the vectors of an engine that really embeds, through the gateway: none is asked for twice."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from core.client import StudioClient
from core.config import Settings
from core.service import Service
from core.synthesis import SynthesisSettings, SynthesisStore, work
from core.synthesis.engines import gateway_embed, gateway_engines
from core.synthesis.estimate import estimate
from tests.conftest import scripted_engine
from tests.synthesis.tasks import WRITE, rule, seeds, task

MEANING = {"sales": (1.0, 0.0, 0.25), "revenue": (0.97, 0.0, 0.3), "garden": (0.0, 2.0, 0.0)}
QUESTIONS = [
    "Add up the sales of the shop into out/a.json",
    "Total all revenue that came in; file it under out/b.json",
    "Which garden needs water? Say so in out/c.json",
]


class Embedder(BaseHTTPRequestHandler):
    """The embeddings API of an engine: a vector for the meaning of a text, in reverse order with its index."""

    def do_GET(self):
        self.send({"object": "list", "data": [{"id": "embed-1", "object": "model"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if not self.path.endswith("/embeddings"):
            self.send_error(404)
            return
        self.server.asked.append(body["input"])
        vectors = [next(v for word, v in MEANING.items() if word in text) for text in body["input"]]
        data = [{"object": "embedding", "index": n, "embedding": v} for n, v in enumerate(vectors)]
        self.send({"data": data[::-1], "model": body["model"], "usage": {"prompt_tokens": 7, "total_tokens": 7}})

    def send(self, content):
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def embedder():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Embedder)
    server.asked = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def studio(tmp_path, embedder):
    """A service with two engines: one that writes tasks, one that embeds."""
    answers = [rule(task(name, question=text), WRITE, times=1) for name, text in zip("ABC", QUESTIONS, strict=True)]
    with scripted_engine(tmp_path, {"rules": answers}) as engine:
        settings = Settings(data_dir=tmp_path / "data", port=0, engine=str(engine.base_url))
        service = Service.open(settings)
        try:
            service.engines.add("embedder", f"http://127.0.0.1:{embedder.server_port}/v1", models=["embed-1"])
            with StudioClient(service.base_url) as client:
                yield client
        finally:
            service.close()


def test_equal_meaning_in_other_words_is_found(tmp_path, studio, embedder):
    settings = SynthesisSettings(
        "e", "persona", "scripted-1", 3, 1.0, workers=1, embedding_model="embed-1", seeds=str(seeds(tmp_path / "seeds"))
    )
    run = SynthesisStore(tmp_path / "synthesis").create(settings)
    parts = gateway_engines(settings, studio), gateway_embed(settings, studio)
    assert work(run, parts[0], embed=parts[1], until="dedup") == "stopped after dedup"
    first, second, third = run.state().of_stage("dedup")
    a, b = (np.asarray(MEANING[word]) for word in ("sales", "revenue"))
    cosine = float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    assert second.product["similarity"] == pytest.approx(cosine, abs=1e-5) and cosine > 0.99
    assert second.reason == f"near-duplicate of r00000: cosine {cosine:.3f}"
    assert (first.reason, third.reason, third.product["vectors"]) == (None, None, "embed-1")
    n_asked, n_calls = len(embedder.asked), run.state().n_calls
    assert (n_asked, n_calls, run.state().n_tokens >= 7) == (1, 4, True)
    assert work(run, parts[0], embed=parts[1], until="dedup") == "stopped after dedup"
    assert (len(embedder.asked), run.state().n_calls) == (1, 4), "stored vectors are not asked for again"
    dedup = next(one for one in estimate(settings)["stages"] if one["stage"] == "dedup")
    assert (dedup["model"], dedup["least_calls"]) == ("embed-1", 1)


def test_an_engine_without_embeddings_stops_the_run(tmp_path, studio):
    settings = SynthesisSettings(
        "f", "persona", "scripted-1", 1, 1.0, embedding_model="scripted-1", seeds=str(seeds(tmp_path / "seeds"))
    )
    run = SynthesisStore(tmp_path / "synthesis").create(settings)
    parts = gateway_engines(settings, studio), gateway_embed(settings, studio)
    end = work(run, parts[0], embed=parts[1])
    assert end.startswith("the model scripted-1 gives no embeddings: ")
    assert run.state().end == end
