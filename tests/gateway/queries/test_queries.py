"""Routes that are not recorded, asked with real clients: embeddings, tokenizer, health, models, stored responses."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
import orjson
import pytest
from starlette.responses import JSONResponse

from tests.gateway.conftest import script
from tests.gateway.upstream import Upstream


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
    tokenized = scripted.http.post(f"{place}/tokenize", json={"prompt": "hello there"})
    assert tokenized.json() == engine.post("/tokenize", json={"prompt": "hello there"}).json()
    back = scripted.http.post(f"{place}/detokenize", json={"tokens": tokenized.json()["tokens"]})
    assert back.json() == {"prompt": "hello there"}
    assert scripted.http.get("/health").json() == {"status": "ok"}
    assert scripted.http.post(f"{place}/tokenize", json={"prompt": 1}).status_code == 400
    assert scripted.records() == []


def test_a_provider_has_no_tokenizer_to_ask(make_gateway) -> None:
    gateway = make_gateway()
    gateway.engines.add("hosted", "openai/gpt-4o", kind="litellm")
    refused = gateway.http.post("/tokenize", json={"prompt": "hi"})
    assert refused.status_code == 404 and "has no /tokenize" in refused.json()["error"]["message"]


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
