"""Arguments of a tool call that JSON's readers disagree on: captured, shown and exported as the engine said them.

A text that is nested deep, or holds half a surrogate pair, NaN or a number beyond 64 bits, is a text all the same. The
reference is what the engine said, and what it is sent again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
import torch

from core.batch.plan import plan
from core.batch.recipe import parse_recipe
from core.batch.redact import redact, texts_of
from core.config import Settings
from core.export import export
from core.pool.query.views import View
from core.pool.redaction.rules import parse_redaction
from core.service import Service
from studio.widgets.steps.messages import delta
from tests.batch.keeping_all import SFT_ALL
from tests.conftest import eventually
from tests.gateway.upstream import Upstream, chat_answer

SECRET = "-".join(["sk", "abcdefghijklmnopqrstuvwx0123456789"])


def nested(n: int) -> str:
    return '{"a": ' * n + f'"{SECRET}"' + "}" * n


ODD = {
    "plain": '{"a": 1}',
    "150 deep": nested(150),
    "300 deep": nested(300),
    "1000 deep": nested(1000),
    "1020 deep": nested(1020),
    "3000 deep": nested(3000),
    "half a pair": '{"a": "\\ud83d x", "b": "größe"}',
    "no number": '{"a": NaN}',
    "beyond 64 bits": '{"a": 123456789012345678901234567890}',
    "beyond doubles": '{"a": 1e999}',
    "a list": "[1, 2]",
    "cut": '{"a": "b',
}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


@dataclass(frozen=True)
class Made:
    """The service, and what the engine was sent as the arguments of its own call: by (kind of odd, dialect)."""

    service: Service
    sent_again: dict[tuple[str, str], str]

    def step(self, name: str, dialect: str) -> dict[str, Any]:
        """The step that made the call."""
        return self.service.pool.trajectories.get(uid(name, dialect))["steps"][0]


def uid(name: str, dialect: str) -> str:
    return f"{name} {dialect}".replace(" ", "-")


def by_chat(root: str, upstream: Upstream) -> None:
    client = openai.OpenAI(base_url=f"{root}/v1", api_key="x", max_retries=0)
    talk: list[Any] = [{"role": "user", "content": "go"}]
    completion = client.chat.completions.create(model="policy", messages=talk, tools=TOOLS).choices[0].message
    talk += [completion, {"role": "tool", "tool_call_id": completion.tool_calls[0].id, "content": "ok"}]
    upstream.reply = chat_answer("done", response_ids=(7, 9), prompt_ids=(1, 2, 3, 4, 7, 8, 5))
    client.chat.completions.create(model="policy", messages=talk, tools=TOOLS)


def by_messages(root: str, upstream: Upstream) -> None:
    client = anthropic.Anthropic(base_url=root, api_key="x", max_retries=0)
    request: Any = {"model": "policy", "max_tokens": 99, "tools": [{"name": "f", "input_schema": {"type": "object"}}]}
    talk: list[Any] = [{"role": "user", "content": "go"}]
    blocks = client.messages.create(messages=talk, **request).content
    talk.append({"role": "assistant", "content": blocks})
    talk.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": blocks[-1].id, "content": "ok"}]})
    upstream.reply = chat_answer("done", response_ids=(7, 9), prompt_ids=(1, 2, 3, 4, 7, 8, 5))
    client.messages.create(messages=talk, **request)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    upstream = Upstream().start()
    service = Service.open(Settings(data_dir=tmp_path_factory.mktemp("odd"), port=0, engine=upstream.base_url))
    sent = {}
    try:
        for name, arguments in ODD.items():
            for dialect, talk in (("chat", by_chat), ("messages", by_messages)):
                call = {"id": f"call_{name}", "type": "function", "function": {"name": "f", "arguments": arguments}}
                upstream.reply = chat_answer("I call.", tool_calls=[call], response_ids=(7, 8))
                talk(f"{service.base_url}/{uid(name, dialect)}/p", upstream)
                (again,) = upstream.last.body["messages"][1]["tool_calls"]
                sent[name, dialect] = again["function"]["arguments"]
        n_steps = 4 * len(ODD)
        eventually(
            lambda: service.pool.stats.totals()["n_steps"] + service.pool.stats.totals()["n_ingest_errors"] >= n_steps
        )
        for name, dialect in sent:
            closing = {"kind": "complete", "trajectory_uid": uid(name, dialect), "reward": 1.0}
            service.pool.steps.append([], completions=[closing])
        yield Made(service, sent)
    finally:
        service.close()
        upstream.stop()


def test_every_call_is_stored_and_linked(made: Made) -> None:
    stats = made.service.pool.stats.totals()
    assert (stats["n_steps"], stats["n_ingest_errors"]) == (4 * len(ODD), 0)
    for name, dialect in made.sent_again:
        first, second = made.service.pool.trajectories.get(uid(name, dialect))["steps"]
        assert first["response_message"]["tool_calls"][0]["function"]["arguments"] == ODD[name]
        assert (second["transition"], second["parent_step_uid"]) == ("extends", first["step_uid"]), (name, dialect)
        assert first["trainable"] and second["trainable"]


def test_the_engine_is_sent_again_what_it_said(made: Made) -> None:
    assert made.sent_again == {(name, dialect): ODD[name] for name, dialect in made.sent_again}


def test_what_is_shown_says_what_was_said(made: Made) -> None:
    for name, arguments in ODD.items():
        shown = next(entry for entry in delta(made.step(name, "chat")) if entry.get("calls"))["calls"][0]
        text, problem = shown["arguments"], shown["problem"]
        text.encode()  # as a page sends it
        if problem is None:
            assert json.loads(text) == json.loads(arguments)
        else:
            assert text == arguments
        assert (problem is None) == (name in ("plain", "150 deep", "a list")), (name, problem)


@pytest.mark.parametrize("form", ["openai_messages", "slime", "trl_sft", "steps_parquet", "llama_factory", "rllm"])
def test_files_hold_every_call(made: Made, form: str, tmp_path: Path) -> None:
    planned = plan(made.service.pool, View(), parse_recipe(SFT_ALL))
    assert len(planned.step_uids) == 4 * len(ODD)
    written = export(planned, made.service.pool, form, tmp_path, **({"credit": "trainer"} if form == "slime" else {}))
    if form == "slime":
        samples = torch.load(written.path, weights_only=True)["samples"]
        assert sum(sum(sample["loss_mask"]) for sample in samples) == 4 * len(ODD) * 2
    if form == "openai_messages":
        rows = [json.loads(line) for line in written.path.read_text().splitlines()]
        arguments = [line["messages"][1]["tool_calls"][0]["function"]["arguments"] for line in rows]
        assert sorted(arguments) == sorted([*ODD.values(), *ODD.values()])
    if form == "llama_factory":
        # It reads the arguments as JSON: what it would read as something else is left out by name.
        manifest = json.loads(next(tmp_path.glob("*manifest*.json")).read_text())
        assert "no JSON that can be written as it is" in json.dumps(manifest)


def test_redaction_finds_what_stands_deep(made: Made) -> None:
    members = made.service.pool.steps.page(View(), limit=None).select(["step_uid", "trajectory_uid", "prompt_uid"])
    rules = parse_redaction({"rules": ["secrets"], "action": "drop"})
    assert rules is not None
    pool = made.service.pool
    redacted = redact(pool.training, pool.screening, members, rules, texts_of(None))
    trajectories = dict(zip(*(members[name].to_pylist() for name in ("step_uid", "trajectory_uid")), strict=True))
    hold = {uid(name, dialect) for name, dialect in made.sent_again if SECRET in ODD[name]}
    assert {trajectories[step] for step in redacted.dropped} == hold
    assert len(redacted.dropped) == 2 * len(hold)
