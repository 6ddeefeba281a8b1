"""Answers that are held to a form, and drawn with penalties: by the local engine, and by a script that has to fit."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest

from core.serving.process import EngineProcess
from core.serving.protocol import Sampling

from .serving_client import Client

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "size": {"enum": ["small", "large"]},
        "years": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
    },
    "required": ["city", "size", "years"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}}
TOOLS = [
    {"type": "function", "function": {"name": "place", "description": "A place.", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "stop"}},
]
ASKED = [{"role": "user", "content": "where?"}]


@pytest.fixture(scope="module")
def scripted() -> Iterator[Client]:
    with EngineProcess.start("scripted") as process:
        client = Client(process)
        yield client
        client.close()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_in_a_schema_is_valid_json_of_it(local: Client, seed: int, stream: bool) -> None:
    request = {"response_format": FORMAT, "seed": seed, "temperature": 1.5, "max_tokens": 300}
    if stream:
        chunks = list(local.chat(ASKED, stream=True, **request))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    else:
        text = local.chat(ASKED, **request).choices[0].message.content
    jsonschema.validate(json.loads(text), SCHEMA)


def test_a_json_object_is_one_as_far_as_it_goes(local: Client) -> None:
    for seed in range(3):
        answer = local.chat(ASKED, response_format={"type": "json_object"}, seed=seed, max_tokens=200).choices[0]
        assert answer.message.content.startswith("{")
        if answer.finish_reason == "stop":
            assert isinstance(json.loads(answer.message.content), dict)


@pytest.mark.parametrize(
    ("choice", "names"),
    [({"type": "function", "function": {"name": "place"}}, {"place"}), ("required", {"place", "stop"})],
)
def test_a_tool_that_has_to_be_called_is_called_with_arguments_that_fit(local: Client, choice: Any, names: Any) -> None:
    for seed in range(3):
        answer = local.chat(ASKED, tools=TOOLS, tool_choice=choice, seed=seed, max_tokens=400).choices[0]
        if answer.finish_reason == "length":
            continue
        (call,) = answer.message.tool_calls
        assert call.function.name in names
        given = json.loads(call.function.arguments)
        if call.function.name == "place":
            jsonschema.validate(given, SCHEMA)


def test_log_probs_of_an_answer_in_a_form_are_the_models_own(
    local: Client, recorded: Callable[[str], list[dict[str, Any]]], model_dir: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    answer = local.chat(ASKED, response_format=FORMAT, seed=1, temperature=0.7, max_tokens=60)
    (row,) = recorded(answer.id)
    prompt, ids = row["prompt_ids"], row["response_ids"]
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    expected = logits.log_softmax(-1)[torch.arange(len(ids)), torch.tensor(ids)]
    assert torch.allclose(torch.tensor(row["logprobs"]), expected, atol=1e-4)


def test_penalties_are_the_ones_that_others_compute() -> None:
    import torch
    from transformers import RepetitionPenaltyLogitsProcessor

    from core.serving.sampler import adjusted

    torch.manual_seed(0)
    rng = random.Random(0)
    for _ in range(20):
        logits = torch.randn(50)
        prompt, ids = rng.choices(range(50), k=7), rng.choices(range(50), k=9)
        processor = RepetitionPenaltyLogitsProcessor(1.7)
        expected = processor(torch.tensor([[*prompt, *ids]]), logits[None].clone())[0]
        assert torch.allclose(adjusted(logits, Sampling(repetition_penalty=1.7), prompt, ids), expected)
        # OpenAI's formula: mu[j] - c[j] * frequency - (c[j] > 0) * presence, of what was sampled.
        by_hand = [float(x) - ids.count(j) * 0.3 - (ids.count(j) > 0) * 0.9 for j, x in enumerate(logits)]
        adjusted_logits = adjusted(logits, Sampling(frequency_penalty=0.3, presence_penalty=0.9), prompt, ids)
        assert torch.allclose(adjusted_logits, torch.tensor(by_hand))
    assert adjusted(logits, Sampling(), prompt, ids) is logits


def test_a_bias_bans_and_forces(local: Client) -> None:
    (token,) = local.http.post("/tokenize", json={"prompt": " the"}).json()["tokens"]
    forced = local.chat(ASKED, logit_bias={str(token): 100}, max_tokens=3)
    assert forced.choices[0].token_ids == [token] * 3


def test_an_echo_stands_before_the_answer(local: Client, scripted: Client) -> None:
    scripted.script({"default": {"content": " there"}})
    for client in (local, scripted):
        request = {"model": "any", "prompt": ["hello", "<|im_start|>x"], "max_tokens": 3, "seed": 1}
        plain, echoed = (client.sdk.completions.create(**request, echo=echo) for echo in (False, True))
        expected = [prompt + choice.text for prompt, choice in zip(request["prompt"], plain.choices, strict=True)]
        assert [choice.text for choice in echoed.choices] == expected
        texts = ["", ""]
        for chunk in client.sdk.completions.create(**request, echo=True, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.text
        assert texts == expected


def test_a_script_is_held_to_what_was_asked_for(scripted: Client) -> None:
    place = {"city": "Ulm", "size": "small", "years": [1]}
    scripted.script({"default": {"content": json.dumps(place)}})
    assert json.loads(scripted.chat(ASKED, response_format=FORMAT).choices[0].message.content) == place
    for field, value in (
        ("response_format", {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "array"}}}}),
        ("tool_choice", {"tools": TOOLS, "tool_choice": "required"}),
        ("tool_choice", {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nobody"}}}),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            scripted.chat(ASKED, **value)
        assert refused.value.param == field


def test_what_is_not_served_is_declared_and_refused_by_name(local: Client, scripted: Client) -> None:
    for client in (local, scripted):
        (card,) = client.http.get("/v1/models").json()["data"]
        assert card["not_served"]
        for field in card["not_served"]:
            path, request = "/v1/completions", {"prompt": "x"}
            answer = client.http.post(path, json={"model": "any", **request, field: {"a": 1}})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
