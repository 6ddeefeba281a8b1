"""Ids made of text, against those that the demo's engine told for the very same calls."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from transformers import PreTrainedTokenizerFast

from core.ingest.drafts import drafts_of_call
from core.ingest.retokenize import Retokenizer
from core.records import parse
from core.serving import tokenizer as shipped
from core.tasks.demo_load import read_demo
from core.types import Step, TokenSource
from tests.ingest.recorded import Bench

FOLDER = shipped.ASSETS


def demo_calls() -> list[dict]:
    return [record for _, record in read_demo() if record["kind"] == "call"]


def text_only(record: dict) -> dict:
    """The call as a hosted provider would have answered it."""
    choices = [
        {name: choice[name] for name in ("index", "message", "finish_reason")}
        for choice in record["response"]["choices"]
    ]
    usage = {**record["response"]["usage"]}
    return {**record, "response": {"id": record["response"]["id"], "choices": choices, "usage": usage}}


def test_text_of_the_demo_s_calls_gives_the_ids_that_its_engine_told() -> None:
    fill = Retokenizer({"other-*": Path("/nowhere"), "demo-*": FOLDER}).fill
    records = demo_calls()
    assert len(records) > 300
    for record in records:
        (sampled,) = drafts_of_call(record, "s", 0)
        (silent,) = drafts_of_call(text_only(record), "s", 0)
        assert silent.token_source == TokenSource.NONE and silent.response_ids is None
        made = fill(silent)
        assert made.token_source == TokenSource.RETOKENIZED
        assert made.response_logprobs is None
        assert made.prompt_ids is not None and made.response_ids is not None
        assert list(made.prompt_ids) == list(sampled.prompt_ids)
        assert list(made.response_ids) == list(sampled.response_ids)
        assert made.tokenizer_hash == shipped.tokenizer_hash()


def test_transformers_renders_and_encodes_the_same() -> None:
    """The same conversation through the library whose folders these are."""
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(FOLDER / "tokenizer.json"))
    theirs.chat_template = (FOLDER / "chat_template.jinja").read_text(encoding="utf-8")
    fill = Retokenizer({"*": FOLDER}).fill
    (silent,) = drafts_of_call(text_only(demo_calls()[7]), "s", 0)
    made = fill(silent)
    messages = orjson.loads(orjson.dumps(silent.messages))
    for message in messages:
        for call in message.get("tool_calls") or ():
            call["function"]["arguments"] = orjson.loads(call["function"]["arguments"])
    wanted = theirs.apply_chat_template(
        messages, tools=silent.tools, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert list(made.prompt_ids or ()) == wanted


@pytest.fixture
def answered() -> Step:
    return Step(
        step_uid="s",
        trajectory_uid="t",
        prompt_uid="p",
        step_index=0,
        created_at=0.0,
        model="m",
        messages=[{"role": "user", "content": [{"type": "text", "text": "say "}, {"type": "text", "text": "hi"}]}],
        response_message={"role": "assistant", "content": "hello there"},
        finish_reason="stop",
    )


def test_an_answer_that_was_cut_off_has_no_end_of_turn(answered: Step) -> None:
    fill, tokenizer = Retokenizer({"m": FOLDER}).fill, shipped.load_tokenizer()
    whole, cut = fill(answered), fill(replace(answered, finish_reason="length"))
    assert tokenizer.decode(list(whole.response_ids or ()), skip_special=False) == "hello there<|im_end|>"
    assert tokenizer.decode(list(cut.response_ids or ()), skip_special=False) == "hello there"
    assert "say hi<|im_end|>" in tokenizer.decode(list(cut.prompt_ids or ()), skip_special=False)


def test_what_has_ids_failed_or_is_of_another_model_is_left_alone(answered: Step) -> None:
    fill = Retokenizer({"m": FOLDER}).fill
    for step in (
        replace(answered, response_ids=[1], token_source=TokenSource.ENGINE),
        replace(answered, model="n"),
        replace(answered, model=None),
        replace(answered, status="error"),
        replace(answered, messages=None),
    ):
        assert fill(step) is step


def test_a_template_that_refuses_leaves_text_and_says_why(answered: Step, tmp_path: Path) -> None:
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
    made = Retokenizer({"m": FOLDER}).fill(replace(answered, messages=image))
    assert made.response_ids is None and made.token_source == TokenSource.NONE
    assert "reads text only" in made.metadata["not_retokenized"]
    missing = Retokenizer({"m": tmp_path}).fill(answered)
    assert "tokenizer.json" in missing.metadata["not_retokenized"]


def test_ingest_fills_what_comes_as_text(tmp_path: Path) -> None:
    record = text_only(demo_calls()[0])
    bench = Bench(tmp_path, tokenizers={"demo-*": FOLDER})
    try:
        bench.feed(orjson.dumps(record))
        step = bench.pool.steps.get(record["step_uid"])
    finally:
        bench.close()
    assert step["token_source"] == "retokenized"
    assert step["response_logprobs"] is None
    assert parse(orjson.dumps(demo_calls()[0]))["response"]["prompt_token_ids"] == step["prompt_ids"].tolist()
