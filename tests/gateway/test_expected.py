"""What real clients expect of a server besides answers, asked with the real clients or as raw bytes."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import httpx
import numpy as np
import openai
import orjson
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse

from core.gateway.app import create_gateway
from core.gateway.http.fast_router import FastRouter
from core.ingest.drafts import drafts_of_call
from core.serving.process import EngineProcess

from .upstream import Upstream, chat_answer, completions_answer

CHAT = {"model": "policy", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def process() -> Iterator[EngineProcess]:
    with EngineProcess.start("scripted") as running:
        yield running


@pytest.fixture
def scripted(make_gateway, process):
    gateway = make_gateway()
    gateway.engines.add("scripted", str(process.base_url))
    return gateway


def script(process: EngineProcess, *rules: dict[str, Any], **more: Any) -> httpx.Client:
    engine = httpx.Client(base_url=str(process.base_url).removesuffix("/v1"), timeout=30)
    engine.put("/__script", json={"rules": list(rules), **more}).raise_for_status()
    return engine


# Thinking


@pytest.mark.parametrize("stream", [False, True])
def test_every_thinking_block_has_a_signature_of_its_own(scripted, process, stream: bool) -> None:
    script(process, default={"reasoning": "Hm.", "content": "Yes."})
    client = anthropic.Anthropic(base_url=scripted.root, api_key="x", max_retries=0)
    asked = {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "well?"}]}
    signatures = []
    for _ in range(3):
        if stream:
            with client.messages.stream(**asked) as events:
                answer = events.get_final_message()
        else:
            answer = client.messages.create(**asked)
        (thinking,) = [block for block in answer.content if block.type == "thinking"]
        assert thinking.thinking == "Hm."
        signatures.append(thinking.signature)
    assert len(set(signatures)) == 3 and all(signatures)


def test_thinking_sent_back_by_its_id_alone_is_read_from_the_journal(scripted, process) -> None:
    engine = script(process, default={"reasoning": "Think of 7.", "content": "Seven."})
    client = scripted.sdk()
    first = client.responses.create(model="m", input="a number?")
    (thought,) = [item for item in first.output if item.type == "reasoning"]
    talk = [
        {"role": "user", "content": "a number?"},
        {"type": "reasoning", "id": thought.id, "summary": []},
        {"role": "assistant", "content": "Seven."},
        {"role": "user", "content": "why?"},
    ]
    client.responses.create(model="m", input=talk)
    rows = engine.get("/__log").json()["requests"]
    before, prompt = [*rows[-2]["prompt_ids"], *rows[-2]["choices"][0]["response_ids"]], rows[-1]["prompt_ids"]
    assert prompt[: len(before)] == before
    talk[1]["id"] = "rs_from_elsewhere"
    client.responses.create(model="m", input=talk)
    assert "reasoning_content" not in engine.get("/__log").json()["requests"][-1]["body"]["messages"][1]
    assert scripted.records()[-1]["dropped_fields"] == ["input.reasoning"]


def test_a_prefill_is_gone_on_with(scripted, process) -> None:
    engine = script(process, default={"content": " are blue."})
    client = anthropic.Anthropic(base_url=scripted.root, api_key="x", max_retries=0)
    talk = [{"role": "user", "content": "roses?"}, {"role": "assistant", "content": "Violets"}]
    answer = client.messages.create(model="m", max_tokens=50, messages=talk)
    assert answer.content[0].text == " are blue."
    (row,) = engine.get("/__log").json()["requests"]
    prompt = engine.post("/detokenize", json={"tokens": row["prompt_ids"]}).json()["prompt"]
    assert prompt.endswith("<|im_start|>assistant\nViolets")
    counted = client.messages.count_tokens(model="m", messages=talk).input_tokens
    assert counted == len(row["prompt_ids"]) == answer.usage.input_tokens


def test_an_engine_that_cannot_go_on_with_a_prefill_is_not_asked_to_and_the_step_says_so(
    make_gateway, upstream: Upstream
) -> None:
    upstream.owner = "somebody"
    try:
        gateway = make_gateway(upstream)
        talk = [{"role": "user", "content": "roses?"}, {"role": "assistant", "content": "Violets"}]
        gateway.http.post("/v1/messages", json={"model": "m", "max_tokens": 9, "messages": talk}).raise_for_status()
    finally:
        upstream.owner = "vllm"
    assert "continue_final_message" not in upstream.last.body
    assert gateway.records()[0]["dropped_fields"] == ["messages.prefill"]


# Echo


@pytest.mark.parametrize("stream", [False, True])
def test_an_echo_reaches_the_agent_and_not_the_engine(gateway, upstream: Upstream, stream: bool) -> None:
    def reply(seen: Any) -> dict[str, Any]:
        # As vLLM does it: with ids asked for, the echo is left out.
        assert "echo" not in seen.body or not seen.body.get("return_token_ids")
        return completions_answer(" upon a time")

    upstream.reply = reply
    asked = {"model": "policy", "prompt": "Once", "echo": True, "max_tokens": 2}
    if stream:
        chunks = gateway.sdk().completions.create(**asked, stream=True)
        text = "".join(choice.text for chunk in chunks for choice in chunk.choices)
    else:
        text = gateway.sdk().completions.create(**asked).choices[0].text
    assert text == "Once upon a time"
    assert upstream.last.body["return_token_ids"] is True


def test_each_choice_of_several_prompts_echoes_its_own(scripted, process) -> None:
    script(process, default={"content": "!"})
    answer = scripted.sdk().completions.create(model="m", prompt=["a", "b"], n=2, echo=True)
    assert [choice.text for choice in answer.choices] == ["a!", "a!", "b!", "b!"]


def test_echoed_log_probs_are_asked_of_the_engine_without_ids(gateway, upstream: Upstream) -> None:
    echoed = completions_answer("ab hello")
    echoed["choices"][0]["logprobs"] = {"tokens": ["a", "b", "c", "d"], "token_logprobs": [None, -1.0, -0.1, -0.2]}
    for name in ("token_ids", "prompt_token_ids"):
        del echoed["choices"][0][name]
    upstream.reply = echoed
    answer = gateway.sdk().completions.create(model="policy", prompt="ab", echo=True, logprobs=1, max_tokens=2)
    assert answer.choices[0].logprobs.token_logprobs == [None, -1.0, -0.1, -0.2]
    assert upstream.last.body["echo"] is True and "return_token_ids" not in upstream.last.body
    assert gateway.records()[0]["request"]["echo"] is True


@pytest.mark.parametrize("stream", [False, True])
def test_log_probs_of_an_echoed_prompt_reach_the_agent_and_the_step_has_those_of_the_answer(
    scripted, process, stream: bool
) -> None:
    engine = script(process, default={"content": " upon a time"})
    prompts = ["Once", "There"]
    answer = scripted.sdk().completions.create(
        model="policy", prompt=prompts, n=2, echo=True, logprobs=1, stream=stream, max_tokens=9
    )
    told: dict[int, list[Any]] = {}
    for piece in answer if stream else [answer]:
        for choice in piece.choices:
            told.setdefault(choice.index, []).extend(choice.logprobs.token_logprobs if choice.logprobs else [])
    (row,) = engine.get("/__log").json()["requests"]
    (record,) = scripted.records()
    steps = drafts_of_call(record, "segment", 0)
    assert len(steps) == len(row["choices"]) == 4
    for step, choice in zip(steps, row["choices"], strict=True):
        n_prompt = len(choice["prompt_ids"])
        entries = told[choice["index"]]
        assert len(entries) == n_prompt + len(choice["response_ids"])
        assert entries[0] is None and None not in entries[1:]
        assert entries[n_prompt:] == choice["logprobs"]
        assert (step.status, step.mismatch) == ("ok", None)
        assert np.array_equal(step.prompt_ids, choice["prompt_ids"])
        assert np.array_equal(step.response_ids, choice["response_ids"])
        assert np.array_equal(np.float32(step.response_logprobs), np.float32(choice["logprobs"]))
        assert step.response_message == {"role": "assistant", "content": " upon a time"}


# Refusals


@pytest.mark.parametrize(
    "refusal",
    [
        {"error": {"message": "not served", "type": "invalid_request_error", "param": "response_format"}},
        {"detail": [{"loc": ["body", "response_format"], "msg": "bad"}]},
        {"error": {"message": "maximum context length is 10 tokens", "code": "context_length_exceeded"}},
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_the_agent_itself_asked_for_is_refused_once(gateway, upstream: Upstream, refusal, stream: bool) -> None:
    upstream.reply = JSONResponse(refusal, 400)
    answer = gateway.chat(response_format={"type": "nonsense"}, stream=stream)
    assert answer.status_code == 400
    assert len(upstream.seen) == 1


def test_what_we_ask_for_beyond_that_is_taken_back_when_it_is_named(gateway, upstream: Upstream) -> None:
    def reply(seen: Any) -> Any:
        if "return_token_ids" in seen.body:
            return JSONResponse({"error": {"message": "unknown", "param": "return_token_ids"}}, 400)
        return chat_answer()

    upstream.reply = reply
    assert gateway.chat().status_code == 200
    assert len(upstream.seen) == 2 and upstream.last.body["logprobs"] is True


# Other paths


def test_embeddings_and_the_tokenizer_are_the_engines_and_not_recorded(make_gateway, process) -> None:
    seen = []

    async def answer(request: Any) -> JSONResponse:
        body = orjson.loads(await request.body())
        seen.append((request.url.path, body))
        data = [{"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}]
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        return JSONResponse({"object": "list", "model": body["model"], "data": data, "usage": usage})

    upstream = Upstream(answer=answer).start()
    try:
        gateway = make_gateway(upstream)
        made = gateway.sdk().embeddings.create(model="anything", input="hi", encoding_format="float")
        assert made.data[0].embedding == [0.5, 0.25]
        assert seen == [("/v1/embeddings", {"model": "policy", "input": "hi", "encoding_format": "float"})]
        raw = gateway.http.post("/t/p/v1/embeddings", json={"model": "x", "input": "hi"})
        assert raw.headers["x-captured"] == "false"
        assert gateway.records() == []
    finally:
        upstream.stop()


@pytest.mark.parametrize("place", ["", "/v1", "/t/p", "/t/p/v1"])
def test_the_engines_tokenizer_and_health_are_where_clients_look(scripted, process, place: str) -> None:
    engine = script(process)
    told = scripted.http.post(f"{place}/tokenize", json={"prompt": "hello there"})
    assert told.json() == engine.post("/tokenize", json={"prompt": "hello there"}).json()
    back = scripted.http.post(f"{place}/detokenize", json={"tokens": told.json()["tokens"]})
    assert back.json() == {"prompt": "hello there"}
    assert scripted.http.get("/health").json() == {"status": "ok"}
    assert scripted.http.post(f"{place}/tokenize", json={"prompt": 1}).status_code == 400
    assert scripted.records() == []


def test_a_provider_has_no_tokenizer_to_ask(make_gateway) -> None:
    gateway = make_gateway()
    gateway.engines.add("hosted", "openai/gpt-4o", kind="litellm")
    refused = gateway.http.post("/tokenize", json={"prompt": "hi"})
    assert refused.status_code == 404 and "has no /tokenize" in refused.json()["error"]["message"]


def test_a_doubled_version_in_the_path_is_one(make_gateway, upstream: Upstream) -> None:
    gateway = make_gateway(upstream)
    from core.gateway.http.server import GatewayServer

    routes = create_gateway(gateway.deps)
    server = GatewayServer(FastRouter(Starlette(routes=routes), routes))
    root = f"http://127.0.0.1:{server.start()}"
    try:
        for prefix in ("", "/t/p"):
            client = openai.OpenAI(base_url=f"{root}{prefix}/v1/v1", api_key="x", max_retries=0)
            assert client.chat.completions.create(**CHAT).choices[0].message.content == "hello"
            assert client.models.list().data[0].id == "policy"
            assert client.models.retrieve("policy").id == "policy"
    finally:
        server.stop(1.0)
    assert [record["identity"]["trajectory_uid"] for record in gateway.records()] == [None, "t"]


def test_a_model_list_is_what_anthropics_client_takes_for_one(scripted, process) -> None:
    script(process)
    strict = anthropic.Anthropic(base_url=scripted.root, api_key="x", max_retries=0, _strict_response_validation=True)
    page = strict.models.list(limit=1)
    assert [card.id for card in page] == ["scripted-1"] and page.has_more is False
    card = strict.models.retrieve("scripted-1")
    assert (card.type, card.lifecycle, card.max_input_tokens) == ("model", "active", 1 << 20)
    assert card.model_dump(mode="json").keys() == json.loads(card.model_dump_json()).keys()
    with pytest.raises(anthropic.BadRequestError):
        strict.models.list(after_id="nobody")


# Stored responses


def test_stored_responses_as_openais_client_asks_for_them(scripted, process) -> None:
    script(process, default={"content": "Fine."})
    client = openai.OpenAI(base_url=f"{scripted.root}/v1", api_key="x", max_retries=0, _strict_response_validation=True)
    first = client.responses.create(model="m", input="How are you?", instructions="Be brief.")
    second = client.responses.create(
        model="m", input=[{"role": "user", "content": "And?"}], previous_response_id=first.id
    )
    items = list(client.responses.input_items.list(second.id, order="asc", limit=2))
    assert [item.role for item in items] == ["user", "assistant", "user"]
    assert [item.content[0].text for item in items] == ["How are you?", "Fine.", "And?"]
    assert [item.id for item in client.responses.input_items.list(second.id)] == [item.id for item in items][::-1]
    assert items[1].id == first.output[0].id
    with pytest.raises(openai.BadRequestError, match="synchronous"):
        client.responses.cancel(second.id)
    client.responses.delete(second.id)
    for gone in (
        lambda: client.responses.retrieve(second.id),
        lambda: client.responses.input_items.list(second.id),
        lambda: client.responses.cancel(second.id),
        lambda: client.responses.delete(second.id),
    ):
        with pytest.raises(openai.NotFoundError):
            gone()
    with pytest.raises(openai.BadRequestError):
        client.responses.create(model="m", input="More", previous_response_id=second.id)
    assert client.responses.retrieve(first.id).output_text == "Fine."
    # What was answered is a fact all the same.
    assert len(scripted.records()) == 2


# Bytes


@pytest.mark.parametrize(("name", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_a_compressed_body_is_read(gateway, name: str, pack: Callable[[bytes], bytes]) -> None:
    body = orjson.dumps(CHAT)
    headers = {"Content-Encoding": name, "Content-Type": "application/json"}
    assert gateway.http.post("/v1/chat/completions", content=pack(body), headers=headers).status_code == 200
    assert gateway.records()[0]["request"] == CHAT
    assert gateway.http.post("/v1/messages/count_tokens", content=pack(body), headers=headers).status_code == 200


def test_two_gzip_members_are_one_body(gateway) -> None:
    body = orjson.dumps(CHAT)
    sent = gzip.compress(body[:9]) + gzip.compress(body[9:])
    answer = gateway.http.post("/v1/chat/completions", content=sent, headers={"Content-Encoding": "gzip"})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("encoding", "body", "status"),
    [
        ("gzip", b"not gzip", 400),
        ("gzip", gzip.compress(orjson.dumps(CHAT))[:-6], 400),
        ("gzip", gzip.compress(b" " * (8 << 20)), 413),
        ("br", b"x", 415),
    ],
    # The compressed bytes hold the time: as ids they would differ between the processes that share the tests.
    ids=["plain", "torn", "bomb", "unknown"],
)
def test_a_body_that_is_no_sound_compression_is_refused(gateway, encoding: str, body: bytes, status: int) -> None:
    answer = gateway.http.post("/v1/chat/completions", content=body, headers={"Content-Encoding": encoding})
    assert answer.status_code == status, answer.text
    assert gateway.records() == []


def test_a_decompressed_body_is_held_to_the_same_size(make_gateway, upstream: Upstream) -> None:
    gateway = make_gateway(upstream, limits={"max_body_bytes": 1000})
    sent = gzip.compress(orjson.dumps({**CHAT, "user": "x" * 2000}))
    answer = gateway.http.post("/v1/chat/completions", content=sent, headers={"Content-Encoding": "gzip"})
    assert answer.status_code == 413


H2C = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"


@pytest.mark.parametrize("cut", [0, 1, 20, 200, 260])
def test_an_offer_of_http_2_is_not_taken_up(gateway, cut: int) -> None:
    """As Java's client sends it with every first request; ``cut`` bytes come later than the rest."""
    body = json.dumps(CHAT).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n{H2C}Content-Length: {len(body)}\r\n\r\n"
    sent = head.encode() + body
    with socket.create_connection(("127.0.0.1", gateway.server.port)) as connection:
        connection.settimeout(20)
        for _ in range(2):
            connection.sendall(sent[: len(sent) - cut])
            if cut:
                connection.sendall(sent[len(sent) - cut :])
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
        connection.sendall(f"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n{H2C}\r\n".encode())
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
    assert [record["request"] for record in gateway.records()] == [CHAT, CHAT]


def test_headers_may_be_utf_8(gateway) -> None:
    headers = {"X-Agent": "агент".encode(), "X-Trajectory-Uid": "путь-1".encode(), "X-Prompt-Uid": "日本".encode()}
    answer = gateway.chat(headers=headers)
    assert answer.status_code == 200
    identity = gateway.records()[0]["identity"]
    assert (identity["agent"], identity["trajectory_uid"], identity["prompt_uid"]) == ("агент", "путь-1", "日本")
    assert gateway.chat(headers={"X-Agent": "caf\xe9".encode("latin-1")}).status_code == 200
    assert gateway.records()[1]["identity"]["agent"] == "café"


def test_a_doubled_version_opens_nothing_but_model_calls() -> None:
    reached = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])

    front = FastRouter(app, [])
    for path in ("/v1/v1/chat/completions", "/t/p/v1/v1/models", "/t/p/v1/v1/register_trajectory", "/a/v1/v1/models"):
        asyncio.run(front({"type": "http", "method": "GET", "path": path, "raw_path": path.encode()}, None, None))
    assert reached == [
        "/v1/chat/completions",
        "/t/p/v1/models",
        "/t/p/v1/v1/register_trajectory",
        "/a/v1/v1/models",
    ]
