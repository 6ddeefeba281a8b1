"""Log-probs of an echoed prompt, asked with OpenAI's SDK; the reference is transformers' forward pass over the text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3ForCausalLM

from core.serving.tokenizer import load_tokenizer
from tests.serving.serving_client import IDS, Client

TOLERANCE = 2e-5
PROMPTS = ["<|im_start|>user\nRead the größte file 🦁 there.<|im_end|>\n", "x", "read write list " * 700]
"""Marks, characters of several tokens, a single token, and more than is read at a time."""


@pytest.fixture(scope="module")
def rows(model_dir: Path) -> Any:
    """Token ids -> all log-probs at each place of them."""
    model = Qwen3ForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()

    def compute(ids: list[int]) -> Any:
        with torch.inference_mode():
            return model(torch.tensor([ids])).logits[0].log_softmax(-1)

    return compute


def in_one(choices: list[Any]) -> Any:
    """A stream's pieces of one choice, put together."""
    whole = choices[0]
    for piece in choices[1:]:
        whole.text += piece.text
        whole.token_ids += piece.token_ids
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            getattr(whole.logprobs, name).extend(getattr(piece.logprobs, name) or [])
    return whole


@pytest.mark.parametrize("stream", [False, True])
def test_prompt_and_answer_have_the_log_probs_of_a_plain_forward_pass(local: Client, rows: Any, stream: bool) -> None:
    names = {**IDS, "return_tokens_as_token_ids": True}
    request = {"model": "any", "prompt": PROMPTS, "n": 2, "echo": True, "logprobs": 2, "max_tokens": 3, "seed": 5}
    answer = local.sdk.completions.create(**request, stream=stream, extra_body=names)
    if stream:
        all_choices = [choice for chunk in answer for choice in chunk.choices]
        choices = [in_one([one for one in all_choices if one.index == index]) for index in range(6)]
    else:
        choices = answer.choices
    tokenizer = load_tokenizer()
    for choice in choices:
        prompt = PROMPTS[choice.index // 2]
        ids = [*tokenizer.encode(prompt), *choice.token_ids]
        entries = choice.logprobs
        assert choice.text.startswith(prompt)
        assert entries.tokens == [f"token_id:{i}" for i in ids]
        plain = rows(ids)
        expected = plain[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
        assert entries.token_logprobs[0] is None and entries.top_logprobs[0] is None
        assert torch.allclose(torch.tensor(entries.token_logprobs[1:]), expected, atol=TOLERANCE)
        for place, top in enumerate(entries.top_logprobs[1:]):
            best = plain[place].topk(2).values.tolist()
            assert sorted(top.values(), reverse=True)[:2] == pytest.approx(best, abs=TOLERANCE)
            assert f"token_id:{ids[place + 1]}" in top


def test_offsets_are_where_the_tokens_stand(local: Client, scripted: Client) -> None:
    scripted.script({"default": {"content": " there"}})
    for client in (local, scripted):
        request = {"model": "any", "prompt": PROMPTS[0], "echo": True, "logprobs": 0, "max_tokens": 3, "seed": 5}
        choice = client.sdk.completions.create(**request).choices[0]
        tokens, offsets = choice.logprobs.tokens, choice.logprobs.text_offset
        assert offsets == sorted(offsets) and offsets[0] == 0
        for token, offset in zip(tokens, offsets, strict=True):
            # Tokens of half a character, and those that end the turn, have no text of their own.
            assert "\ufffd" in token or token == "<|im_end|>" or choice.text.startswith(token, offset)
        n_prompt = len(load_tokenizer().encode(PROMPTS[0]))
        assert offsets[n_prompt] == len(PROMPTS[0])


def test_new_weights_while_a_prompt_is_read_are_those_of_all_its_log_probs(model_dir: Path, tmp_path: Path) -> None:
    """A prompt that was read half is read again: no log-prob of it is the old weights', none stands there twice."""
    from core.serving.engine import Engine
    from core.serving.model import make_model
    from core.serving.protocol import Sampling
    from core.serving.qwen3 import Qwen3

    other = make_model(tmp_path / "other", seed=9)
    tokenizer = load_tokenizer()
    prompt = tokenizer.encode(PROMPTS[2])
    model = Qwen3.load(model_dir)
    engine = Engine(model, tokenizer)
    plain_read, n_read = model.read, 0

    def read(*logprobs: Any) -> Any:
        nonlocal n_read
        n_read += 1
        if n_read == 1:
            engine.load(other, 1)  # comes into force after this iteration
        return plain_read(*logprobs)

    model.read = read  # type: ignore[method-assign]
    ended: list[Any] = []
    (sequence,) = engine.submit(
        "r",
        [prompt],
        Sampling(max_tokens=1),
        n_top_logprobs=0,
        sink=lambda _, one: ended.append(one),
        scores_prompt=True,
    )
    with torch.inference_mode():
        while not ended:
            engine._admit()
            engine._iterate()
    assert sequence.read is not None and [one.token_id for one in sequence.read] == prompt
    assert n_read == 1 and sequence.policy_version == 1
    plain = Qwen3ForCausalLM.from_pretrained(other, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = plain(torch.tensor([prompt])).logits[0, :-1].log_softmax(-1)
    got = torch.tensor([one.logprob for one in sequence.read[1:]])
    assert torch.allclose(got, expected.gather(1, torch.tensor(prompt[1:])[:, None])[:, 0], atol=TOLERANCE)
