from __future__ import annotations

import subprocess
import sys
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InvalidInput
from core.serving.parsing import assistant_text
from core.serving.tokenizer import ASSETS, Detokenizer, load_tokenizer, render_chat, tokenizer_hash
from core.serving.train_tokenizer import train
from tests.effort import settings
from tests.serving.serving_strategies import CALLS, TEXT


@lru_cache(1)
def hf() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(ASSETS)


def test_the_shipped_tokenizer_can_be_made_again(tmp_path):
    train(tmp_path)
    assert tokenizer_hash(tmp_path) == tokenizer_hash()
    assert (tmp_path / "tokenizer_config.json").read_text() == (ASSETS / "tokenizer_config.json").read_text()
    assert sum(f.stat().st_size for f in ASSETS.iterdir()) < 1_000_000


@settings(max_examples=150, deadline=None)
@given(TEXT)
def test_encoding_is_lossless_and_equals_transformers(text):
    tokenizer = load_tokenizer()
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids, skip_special=False) == text
    assert ids == hf()(text, add_special_tokens=False)["input_ids"]


@settings(max_examples=100, deadline=None)
@given(TEXT)
def test_detokenizer_pieces_add_up(text):
    tokenizer = load_tokenizer()
    detokenizer = Detokenizer(tokenizer)
    ids = tokenizer.encode(text)
    assert "".join(map(detokenizer.feed, ids)) + detokenizer.close() == tokenizer.decode(ids)


def messages_of(turns: list[tuple[str, str, list[dict[str, Any]], list[str]]]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
    for user, content, calls, results in turns:
        messages.append({"role": "user", "content": user})
        wire = [{"id": str(n), "type": "function", "function": c} for n, c in enumerate(calls)]
        messages.append({"role": "assistant", "content": content, "tool_calls": wire})
        messages += [{"role": "tool", "tool_call_id": str(n), "content": r} for n, r in enumerate(results)]
    return messages


TURNS = st.lists(st.tuples(TEXT, TEXT, CALLS, st.lists(TEXT, max_size=3)), min_size=1, max_size=4)


@settings(max_examples=80, deadline=None)
@given(TURNS, st.sampled_from([{}, {"enable_thinking": False}]), st.booleans())
def test_template_equals_transformers(turns, kwargs, with_tools):
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}] if with_tools else None
    messages = messages_of(turns)
    ours = render_chat(messages, tools, **kwargs)
    theirs = hf().apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True, **kwargs)
    assert ours == theirs


@settings(max_examples=150, deadline=None)
@given(TURNS, st.sampled_from([{}, {"enable_thinking": False}]))
def test_each_prompt_extends_the_prompt_and_answer_before_it(turns, kwargs):
    tokenizer = load_tokenizer()
    messages = messages_of(turns)
    previous: list[int] | None = None
    for at, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        prompt = tokenizer.encode(tokenizer.render(messages[:at], **kwargs))
        if previous is not None:
            assert prompt[: len(previous)] == previous
        calls = [c["function"] for c in message["tool_calls"]]
        answer = assistant_text({"content": message["content"], "tool_calls": calls}) + "<|im_end|>"
        previous = prompt + tokenizer.encode(answer)


def test_earlier_thinking_is_kept():
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "long\nthought"},
        {"role": "user", "content": "c"},
    ]
    assert "<think>\nlong\nthought\n</think>\n\nb<|im_end|>" in render_chat(messages)


def test_content_parts_are_text_and_images_are_refused():
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    assert "<|im_start|>user\none two<|im_end|>" in render_chat([{"role": "user", "content": parts}])
    with pytest.raises(InvalidInput, match="image_url"):
        render_chat([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])
    with pytest.raises(InvalidInput, match="unknown role"):
        render_chat([{"role": "oracle", "content": "x"}])


def test_scripted_engine_and_model_maker_need_no_torch():
    code = (
        "import sys, core.serving.scripted, core.serving.local, core.serving.model, core.serving.process;"
        "from core.serving.tokenizer import load_tokenizer; load_tokenizer().render([]);"
        "print([m for m in ('torch', 'transformers', 'litellm') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
