from __future__ import annotations

import concurrent.futures
import json
import threading
import time
from pathlib import Path
from typing import Any

import openai
import pytest

from core.serving.model import make_model
from core.serving.tokenizer import load_tokenizer
from tests.conftest import eventually
from tests.serving.serving_client import IDS, TOOLS, Client

HELLO = [{"role": "system", "content": "You help."}, {"role": "user", "content": "Say something about files."}]
TOLERANCE = 2e-5
"""Two ways to compute the same float32 log-prob, logits of size ten."""


def close(a: list[float], b: list[float]) -> bool:
    return len(a) == len(b) and max(abs(x - y) for x, y in zip(a, b, strict=True)) < TOLERANCE


def logprobs_of(choice) -> list[float]:
    return [entry.logprob for entry in choice.logprobs.content]


def test_ids_and_logprobs_are_those_of_the_engine_and_of_a_plain_forward_pass(local: Client, recorded, plain_logprobs):
    answer = local.chat(HELLO, logprobs=True, top_logprobs=3, temperature=0.7, top_p=0.9, max_tokens=80)
    choice = answer.choices[0]
    (row,) = recorded(answer.id)
    assert row["prompt_ids"] == answer.prompt_token_ids
    assert row["response_ids"] == choice.token_ids
    assert row["logprobs"] == logprobs_of(choice)
    assert len(choice.token_ids) == answer.usage.completion_tokens
    assert close(row["logprobs"], plain_logprobs(row["prompt_ids"], row["response_ids"]))
    tokenizer = load_tokenizer()
    assert answer.prompt_token_ids == tokenizer.encode(tokenizer.render(HELLO))
    assert choice.message.content == tokenizer.decode(choice.token_ids)
    for entry in choice.logprobs.content:
        best = [t.logprob for t in entry.top_logprobs]
        assert len(best) == 3 and best == sorted(best, reverse=True) and entry.logprob <= best[0]
    assert answer.policy_version == answer.policy_version_end == 0


def test_together_or_alone_gives_the_same(local: Client, plain_logprobs):
    prompts = [[*HELLO[:1], {"role": "user", "content": f"{n} " + "word " * (n * 37)}] for n in range(12)]

    def ask(n: int):
        return local.chat(prompts[n], logprobs=True, seed=n, max_tokens=40, extra={**IDS, "ignore_eos": True})

    together: list[Any] = []

    def batched() -> bool:
        """How many of the twelve meet in the engine is the machine's affair."""
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            together[:] = pool.map(ask, range(12))
        return local.http.get("/policy_version").json()["max_batch_seen"] > 4

    eventually(batched, timeout_s=120)
    alone = [ask(n) for n in range(12)]
    for a, b in zip(together, alone, strict=True):
        assert a.choices[0].token_ids == b.choices[0].token_ids
        assert close(logprobs_of(a.choices[0]), logprobs_of(b.choices[0]))
        assert close(logprobs_of(a.choices[0]), plain_logprobs(a.prompt_token_ids, a.choices[0].token_ids))


def test_a_long_prompt_read_in_parts(local: Client, plain_logprobs):
    answer = local.chat([{"role": "user", "content": "read write list " * 1200}], logprobs=True, max_tokens=4)
    assert len(answer.prompt_token_ids) > 3000
    ids = answer.choices[0].token_ids
    assert close(logprobs_of(answer.choices[0]), plain_logprobs(answer.prompt_token_ids, ids))


def test_stream_equals_whole(local: Client):
    options = {"seed": 11, "max_tokens": 50, "logprobs": True}
    whole = local.chat(HELLO, **options)
    ids, logprobs, content, first, usage, finish = [], [], "", None, None, None
    for chunk in local.chat(HELLO, stream=True, stream_options={"include_usage": True}, **options):
        first = first or chunk
        usage = chunk.usage or usage
        for choice in chunk.choices:
            ids += getattr(choice, "token_ids", None) or []
            logprobs += logprobs_of(choice) if choice.logprobs else []
            content += choice.delta.content or ""
            finish = choice.finish_reason or finish
    assert first.prompt_token_ids == whole.prompt_token_ids and first.choices[0].delta.role == "assistant"
    choice = whole.choices[0]
    assert (ids, content, finish) == (choice.token_ids, choice.message.content, choice.finish_reason)
    assert close(logprobs, logprobs_of(choice))
    assert usage == whole.usage


def test_choices_of_one_request(local: Client, recorded, plain_logprobs):
    answer = local.chat(HELLO, n=4, seed=3, max_tokens=20, logprobs=True)
    assert len({tuple(c.token_ids) for c in answer.choices}) == 4
    assert [r["response_ids"] for r in recorded(answer.id, len(answer.choices))] == [
        c.token_ids for c in answer.choices
    ]
    for choice in answer.choices:
        assert close(logprobs_of(choice), plain_logprobs(answer.prompt_token_ids, choice.token_ids))
    again = local.chat(HELLO, n=4, seed=3, max_tokens=20)
    assert [c.token_ids for c in again.choices] == [c.token_ids for c in answer.choices]
    assert (
        local.chat(HELLO, max_tokens=20).choices[0].token_ids != local.chat(HELLO, max_tokens=20).choices[0].token_ids
    )


def test_greedy_is_the_best_token_of_the_plain_pass(local: Client, model_dir: Path):
    import torch
    from transformers import Qwen3ForCausalLM

    answer = local.chat(HELLO, temperature=0, max_tokens=12, extra={**IDS, "ignore_eos": True})
    model = Qwen3ForCausalLM.from_pretrained(model_dir)
    ids = torch.tensor([answer.prompt_token_ids])
    made = model.generate(ids, do_sample=False, max_new_tokens=12, eos_token_id=-1)[0, ids.shape[1] :].tolist()
    assert answer.choices[0].token_ids == made


def test_length_and_end_options(local: Client):
    tokenizer = load_tokenizer()
    cut = local.chat(HELLO, max_completion_tokens=5, extra={**IDS, "min_tokens": 5}).choices[0]
    assert cut.finish_reason == "length" and len(cut.token_ids) == 5
    # a strong bias to end: only temperature and min_tokens keep it talking
    for seed in range(4):
        long = local.chat(HELLO, seed=seed, max_tokens=400, extra={**IDS, "min_tokens": 60}).choices[0]
        assert len(long.token_ids) >= 60
        assert not set(long.token_ids[:60]) & set(tokenizer.end_ids)
        if long.finish_reason == "stop":
            assert long.token_ids[-1] in tokenizer.end_ids
    whole = local.chat(HELLO, seed=5, max_tokens=60, extra={**IDS, "ignore_eos": True}).choices[0]
    middle = tokenizer.token_bytes[whole.token_ids[20]].decode()
    stopped = local.chat(HELLO, seed=5, max_tokens=60, stop=[middle], extra={**IDS, "ignore_eos": True}).choices[0]
    assert stopped.finish_reason == "stop" and stopped.stop_reason == middle
    assert stopped.message.content == whole.message.content[: whole.message.content.index(middle)]
    assert stopped.token_ids == whole.token_ids[: len(stopped.token_ids)]
    by_id = local.chat(HELLO, seed=5, max_tokens=60, extra={**IDS, "stop_token_ids": [whole.token_ids[7]]}).choices[0]
    assert by_id.stop_reason == whole.token_ids[7] and by_id.token_ids[-1] == whole.token_ids[7]


def test_completions_take_token_ids(local: Client, plain_logprobs):
    tokenizer = load_tokenizer()
    prompts = [tokenizer.encode("the file is"), tokenizer.encode("write a")]
    answer = local.sdk.completions.create(model="m", prompt=prompts, max_tokens=8, logprobs=2, extra_body=IDS)
    assert [c.prompt_token_ids for c in answer.choices] == prompts
    for choice in answer.choices:
        assert choice.text == tokenizer.decode(choice.token_ids)
        assert close(choice.logprobs.token_logprobs, plain_logprobs(choice.prompt_token_ids, choice.token_ids))
        assert all(len(t) in (2, 3) for t in choice.logprobs.top_logprobs)


def test_tools_reach_the_prompt_and_template_options_pass(local: Client):
    with_tools = local.chat(HELLO, tools=TOOLS, max_tokens=2)
    text = load_tokenizer().decode(with_tools.prompt_token_ids, skip_special=False)
    assert json.dumps(TOOLS[0]) in text and "<tools>" in text
    without = local.chat(HELLO, tools=TOOLS, tool_choice="none", max_tokens=2)
    assert "<tools>" not in load_tokenizer().decode(without.prompt_token_ids, skip_special=False)
    quiet = local.chat(HELLO, max_tokens=2, extra={**IDS, "chat_template_kwargs": {"enable_thinking": False}})
    assert load_tokenizer().decode(quiet.prompt_token_ids).endswith("<think>\n\n</think>\n\n")
    with pytest.raises(openai.BadRequestError, match="names no tool"):
        local.chat(HELLO, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "nobody"}})


def test_tokens_may_be_named_by_id(local: Client):
    answer = local.chat(HELLO, max_tokens=5, logprobs=True, extra={**IDS, "return_tokens_as_token_ids": True})
    named = [e.token for e in answer.choices[0].logprobs.content]
    assert named == [f"token_id:{i}" for i in answer.choices[0].token_ids]


def test_too_long_is_openais_error(local: Client):
    with pytest.raises(openai.BadRequestError) as caught:
        local.chat(HELLO, max_tokens=200_000)
    assert caught.value.code == "context_length_exceeded"
    assert "maximum context length is 131072" in caught.value.message


def test_a_client_that_leaves_frees_its_slot(local: Client, recorded):
    def running() -> int:
        return local.http.get("/policy_version").json()["n_running"]

    stream = local.chat(HELLO, stream=True, max_tokens=100_000, extra={**IDS, "ignore_eos": True})
    request_id = next(iter(stream)).id
    eventually(lambda: running() == 1)
    stream.close()
    end = time.monotonic() + 5
    while running() and time.monotonic() < end:
        time.sleep(0.02)
    assert running() == 0
    (row,) = recorded(request_id)
    assert row["cancelled"] and row["finish_reason"] is None


def test_weights_reload_between_iterations(model_dir: Path, tmp_path: Path, plain_logprobs):
    from core.serving.process import EngineProcess

    other = make_model(tmp_path / "other", seed=9)
    record = tmp_path / "record.jsonl"
    with EngineProcess.start("local", args=["--model-dir", model_dir, "--record", record]) as process:
        local = Client(process)
        chunks: list = []
        begun = threading.Event()

        def ask() -> None:
            options = {"seed": 1, "max_tokens": 1500, "logprobs": True, "stream": True}
            for chunk in local.chat(HELLO, extra={**IDS, "ignore_eos": True}, **options):
                chunks.append(chunk)
                if len(chunks) == 20:
                    begun.set()

        thread = threading.Thread(target=ask)
        thread.start()
        assert begun.wait(30)
        reloaded = local.http.post("/reload_weights", json={"path": str(other), "policy_version": 4}).json()
        thread.join()
        assert reloaded["policy_version"] == 4 and reloaded["n_sequences_read_again"] == 1
        assert local.http.get("/policy_version").json()["policy_version"] == 4
        prompt = chunks[0].prompt_token_ids
        assert (chunks[-1].policy_version, chunks[-1].policy_version_end) == (0, 4)
        choices = [c.choices[0] for c in chunks[1:]]
        got = [x for choice in choices for x in logprobs_of(choice)]
        ids = [i for choice in choices for i in choice.token_ids]
        assert len(got) == len(ids) == 1500
        # up to some token the first weights, from there on the second, nothing in between
        first = plain_logprobs(prompt, ids)
        second = plain_logprobs(prompt, ids, other)
        differs = [abs(g - f) > TOLERANCE for g, f in zip(got, first, strict=True)]
        at = differs.index(True)
        assert 0 < at < len(ids)
        assert close(got[:at], first[:at]) and close(got[at:], second[at:])
        after = local.chat(HELLO, max_tokens=10, logprobs=True)
        assert after.policy_version == 4
        assert close(
            logprobs_of(after.choices[0]), plain_logprobs(after.prompt_token_ids, after.choices[0].token_ids, other)
        )
        missing = local.http.post("/reload_weights", json={"path": str(tmp_path / "none"), "policy_version": 5})
        assert missing.status_code == 400 and missing.json()["error"]["param"] == "path"
        assert local.http.post("/reload_weights", json={"path": str(other)}).status_code == 400
        assert local.http.get("/policy_version").json()["policy_version"] == 4
        local.close()
