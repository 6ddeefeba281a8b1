from __future__ import annotations

import socket
import threading
import time

import pytest
from starlette.responses import JSONResponse

from core.errors import EngineError, InvalidInput
from core.gateway.engines.registry import EngineSet
from core.ingest.drafts import drafts_of_call
from core.tokens import extract_tokens
from tests.gateway.upstream import Upstream, chat_answer


def findings(gateway):
    return gateway.engines.status()[0]["findings"]


def strict(*unknown):
    """An engine that refuses the given keys, as strict servers do, and then answers without ids."""

    def reply(seen):
        for name in unknown:
            if name in seen.body:
                return JSONResponse({"error": {"message": f"unknown key {name}"}}, status_code=422)
        answer = chat_answer()
        del answer["prompt_token_ids"]
        for choice in answer["choices"]:
            del choice["token_ids"]
            if "logprobs" not in seen.body:
                choice["logprobs"] = None
        return answer

    return reply


def test_what_the_engine_knows_is_found_out_once(gateway, upstream):
    gateway.chat()
    gateway.chat()
    assert len(upstream.seen) == 2
    assert findings(gateway)["models"] == ["policy"]
    assert findings(gateway)["flavour"] == "vllm"
    assert findings(gateway)["chat"] == {
        "requested": ["return_token_ids", "logprobs"],
        "refused": [],
        "token_ids": True,
        "prompt_token_ids": True,
        "logprobs": True,
    }


@pytest.mark.parametrize(
    ("unknown", "left", "source"),
    [(("return_token_ids",), ["logprobs"], "bytes"), (("return_token_ids", "logprobs"), [], "none")],
)
def test_an_engine_that_refuses_unknown_keys_is_asked_for_less(gateway, upstream, unknown, left, source):
    upstream.reply = strict(*unknown)
    assert gateway.chat().status_code == 200
    assert len(upstream.seen) == 1 + len(unknown)
    assert gateway.chat().status_code == 200
    assert len(upstream.seen) == 2 + len(unknown)
    first, second = gateway.records()
    assert first["engine_added"] == second["engine_added"] == left
    assert extract_tokens(first["response"], 0, "chat").token_source == source
    assert findings(gateway)["chat"]["refused"] == sorted(unknown)


def test_a_refusal_that_tells_the_kind_does_not_cost_the_call(make_gateway, upstream):
    """transformers serve, its model list out of order: what it is turns out in the midst of the first call."""
    upstream.models = []
    refused = JSONResponse({"detail": "Unexpected fields in the request: {'return_token_ids'}"}, status_code=422)
    strict_reply = strict("return_token_ids")
    upstream.reply = lambda seen: refused if "return_token_ids" in seen.body else strict_reply(seen)
    gateway = make_gateway(upstream)
    assert [gateway.chat().status_code for _ in range(2)] == [200, 200]
    assert findings(gateway)["flavour"] == "transformers"
    assert upstream.last.body.keys() == {"model", "messages"}


def test_a_bad_request_teaches_nothing_about_the_engine(gateway, upstream):
    upstream.reply = JSONResponse({"error": {"message": "messages: too short"}}, status_code=400)
    assert gateway.chat().status_code == 400
    upstream.reply = chat_answer()
    assert gateway.chat().status_code == 200
    assert upstream.last.body["return_token_ids"] is True


def test_one_request_that_can_not_have_log_probs_does_not_cost_the_others(gateway, upstream):
    gateway.chat()
    upstream.reply = strict("logprobs")
    assert gateway.chat().status_code == 200
    upstream.reply = chat_answer()
    gateway.chat()
    assert gateway.records()[-1]["engine_added"] == ["return_token_ids", "logprobs"]


def test_an_sglang_engine_is_asked_its_way(make_gateway, upstream, monkeypatch):
    async def models(request):
        return JSONResponse({"data": [{"id": "policy", "owned_by": "sglang"}]})

    sglang = Upstream()
    monkeypatch.setattr(sglang, "_models", models)
    sglang.start()
    answer = chat_answer()
    (choice,) = answer["choices"]
    choice["meta_info"] = {"output_token_logprobs": [[-0.5, token, None] for token in choice.pop("token_ids")]}
    choice["logprobs"] = None
    choice["prompt_token_ids"] = answer.pop("prompt_token_ids")
    sglang.reply = answer
    gateway = make_gateway(sglang)
    response = gateway.chat().json()
    assert sglang.last.body["return_meta_info"] is True
    assert set(response["choices"][0]) == {"index", "message", "finish_reason", "logprobs"}
    tokens = extract_tokens(gateway.records()[0]["response"], 0, "chat")
    assert (tokens.prompt_ids, tokens.response_ids) == ([1, 2, 3, 4], [7, 8, 9])
    assert tokens.response_logprobs == [-0.5] * 3
    sglang.stop()


@pytest.mark.parametrize("version", ["0.12.11", None])
def test_ollama_is_known_by_its_own_address(make_gateway, stopping, version):
    """It lists owners of models, as others do; its log-probs name tokens by text and bytes, never by id."""
    entries = [
        {"token": text, "logprob": -0.5, "bytes": list(text.encode()), "top_logprobs": []} for text in ("he", "y")
    ]
    message = {"role": "assistant", "content": "hey", "reasoning": "hm"}
    reply = {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "qwen3:0.6b",
        "choices": [{"index": 0, "message": message, "logprobs": {"content": entries}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6},
    }  # fmt: skip
    engine = Upstream(reply=reply, ollama=version, owner="library", models=["qwen3:0.6b", "b"]).start()
    gateway = make_gateway(engine)
    answer = gateway.chat(model="qwen3:0.6b", stream=True)
    assert '"reasoning":"hm"' in answer.text
    (status,) = gateway.engines.status()
    assert (status["findings"]["flavour"], status["findings"].get("version")) == (
        ("ollama", version) if version else ("library", None)
    )
    assert status["findings"]["chat"] == {
        "requested": ["return_token_ids", "logprobs"], "refused": [],
        "token_ids": False, "prompt_token_ids": False, "logprobs": True,
    }  # fmt: skip
    (record,) = gateway.records()
    assert record["stream_mode"] == "whole"
    (step,) = drafts_of_call(record, "s", 0)
    assert (step.token_source, step.response_ids, list(step.response_logprobs)) == ("bytes", None, [-0.5] * 2)
    assert (step.response_message or {})["reasoning"] == "hm"
    assert step.metadata.get("engine_flavour") == (f"ollama {version}" if version else "openai")
    stopping(engine.stop)


def test_log_probs_that_are_not_json_numbers_are_marked(gateway, upstream):
    import orjson
    from starlette.responses import Response

    raw = orjson.dumps(chat_answer()).replace(b"-0.5", b"-Infinity", 1)
    upstream.reply = Response(raw, media_type="application/json")
    assert gateway.chat().status_code == 200
    tokens = extract_tokens(gateway.records()[0]["response"], 0, "chat")
    assert tokens.response_ids == [7, 8, 9]
    assert tokens.response_logprobs is None
    assert "position 0" in tokens.mismatch


def test_a_one_model_engine_is_asked_for_its_model(gateway, upstream):
    gateway.chat(model="gpt-whatever")
    assert upstream.last.body["model"] == "policy"
    record = gateway.records()[0]
    assert (record["model"], record["request"]["model"]) == ("policy", "gpt-whatever")


def test_an_engine_of_several_models_gets_the_name_as_it_is(gateway, upstream):
    upstream.models = ["policy", "policy-lora"]
    gateway.chat(model="policy-lora")
    assert upstream.last.body["model"] == "policy-lora"


def test_names_choose_engines(make_gateway, upstream):
    other = Upstream(models=["judge"]).start()
    gateway = make_gateway(upstream)
    gateway.engines.add("judges", other.base_url, models=["judge*"])
    gateway.chat(model="judge-1")
    gateway.chat(model="anything")
    assert (len(other.seen), len(upstream.seen)) == (1, 1)
    assert [record["engine"] for record in gateway.records()] == ["judges", "engine"]
    gateway.engines.remove("judges")
    gateway.chat(model="judge-1")
    assert len(upstream.seen) == 2
    other.stop()


def test_an_engine_may_still_be_starting(make_gateway, upstream):
    gateway = make_gateway()
    begun, go_on = threading.Event(), threading.Event()

    def ready() -> str:
        begun.set()
        assert go_on.wait(60)
        return upstream.base_url

    gateway.engines.add("slow", None, ready=ready)
    assert not begun.is_set()
    answers = []
    workers = [threading.Thread(target=lambda: answers.append(gateway.chat().status_code)) for _ in range(3)]
    for worker in workers:
        worker.start()
    assert begun.wait(30)
    time.sleep(0.2)
    assert answers == []
    go_on.set()
    for worker in workers:
        worker.join(60)
    assert answers == [200, 200, 200]
    assert gateway.engines.status()[0]["base_url"] == upstream.base_url


def test_an_engine_that_does_not_start_is_tried_again(make_gateway, upstream):
    gateway = make_gateway()
    attempts = []

    def ready() -> str:
        attempts.append(1)
        if len(attempts) == 1:
            raise RuntimeError("no weights")
        return upstream.base_url

    gateway.engines.add("shy", None, ready=ready)
    refused = gateway.chat()
    assert refused.status_code == 502
    assert "no weights" in refused.json()["error"]["message"]
    assert gateway.chat().status_code == 200
    assert len(gateway.records()) == 2


def test_an_engine_that_takes_too_long_to_start(make_gateway):
    gateway = make_gateway(timeout_s=0.3)
    end = threading.Event()
    gateway.engines.add("never", None, ready=lambda: str(end.wait(10)))
    assert gateway.chat().status_code == 504
    end.set()


def test_a_supervised_engine_that_died_is_started_again(make_gateway, upstream):
    gateway = make_gateway()
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{sock.getsockname()[1]}/v1"
    addresses = iter([dead, upstream.base_url])
    gateway.engines.add("mortal", None, ready=lambda: next(addresses))
    assert gateway.chat().status_code == 200


def test_a_supervised_engine_that_dies_at_a_call_is_started_again(make_gateway, upstream):
    """The open connection ends first, and then nothing listens any more."""
    gateway = make_gateway()
    listener = socket.create_server(("127.0.0.1", 0))

    def die() -> None:
        connection, _ = listener.accept()
        connection.recv(1 << 16)
        listener.close()
        connection.close()

    threading.Thread(target=die, daemon=True).start()
    addresses = iter([f"http://127.0.0.1:{listener.getsockname()[1]}/v1", upstream.base_url])
    gateway.engines.add("mortal", None, ready=lambda: next(addresses))
    assert gateway.chat().status_code == 200


def test_engines_need_an_address_and_a_known_kind():
    engines = EngineSet()
    with pytest.raises(InvalidInput):
        engines.add("x", None)
    with pytest.raises(InvalidInput):
        engines.add("x", "http://x/v1", kind="other")
    with pytest.raises(EngineError):
        engines.resolve("any")


def test_an_idle_connection_that_the_engine_closed_is_no_failure(make_gateway):
    closing = _ClosingServer()
    gateway = make_gateway()
    gateway.engines.add("engine", closing.base_url)
    for _ in range(4):
        assert gateway.chat().status_code == 200
    closing.stop()


class _ClosingServer:
    """Answers one request per connection and closes it without saying so beforehand."""

    def __init__(self) -> None:
        import orjson

        self._body = orjson.dumps(chat_answer())
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.base_url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                data = b""
                while b"\r\n\r\n" not in data:
                    data += connection.recv(65536)
                head, _, rest = data.partition(b"\r\n\r\n")
                length = next(
                    (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
                )
                while len(rest) < length:
                    rest += connection.recv(65536)
                connection.sendall(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(self._body)
                    + self._body
                )
                time.sleep(0.01)

    def stop(self) -> None:
        self._listener.close()
