"""Tests of token texts: shown only when the tokenizer is known to be the right one."""

from __future__ import annotations

from core.config import Settings
from core.serving.tokenizer import load_tokenizer, tokenizer_hash
from studio.widgets.steps.token_texts import bytes_text, texts_for
from tests.pages.samples import agent_steps

SETTINGS = Settings()


def step_of(**changes) -> dict:
    step = agent_steps(1, 1)[0][0]
    fields = {"response_ids": step.response_ids, "response_message": step.response_message, "tokenizer_hash": None}
    return {**fields, **changes}


def test_named_by_its_hash():
    assert "same hash" in texts_for(step_of(tokenizer_hash=tokenizer_hash()), SETTINGS).why


def test_another_hash_is_another_tokenizer():
    texts = texts_for(step_of(tokenizer_hash="0" * 64), SETTINGS)
    assert texts.tokenizer is None
    assert texts.vocab([1, 2, 3]) == {}
    assert texts.decode([1, 2, 3]) is None


def test_unnamed_but_confirmed_by_the_captured_answer():
    assert "confirmed" in texts_for(step_of(), SETTINGS).why


def test_unnamed_and_contradicted_stays_ids():
    other = {"role": "assistant", "content": "words that these ids don't say"}
    assert texts_for(step_of(response_message=other), SETTINGS).tokenizer is None
    assert texts_for(step_of(response_ids=[10**6]), SETTINGS).tokenizer is None
    assert texts_for(step_of(response_message=None), SETTINGS).tokenizer is None


def test_texts_put_together_are_the_decoded_text():
    tokenizer = load_tokenizer()
    ids = tokenizer.encode("plain words, 42\n\ttabs <|im_end|>")
    texts = texts_for(step_of(), SETTINGS)
    vocab = texts.vocab(ids)
    assert "".join(vocab[i][0] for i in ids) == texts.decode(ids)
    assert vocab[ids[-1]] == ("<|im_end|>", True)


def test_parts_of_a_character_are_spelled_out():
    assert bytes_text("é".encode()) == "é"
    assert bytes_text("é".encode()[:1]) == "\\xc3"
