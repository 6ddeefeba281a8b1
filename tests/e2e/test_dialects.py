"""Every dialect to the pool: what agents say in their own words ends as the same kind of step, ids intact."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from core.config import Settings
from core.service import Service
from core.serving.process import EngineProcess

ADD = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
CALL = {"name": "add", "arguments": {"a": 2, "b": 3}}
SCRIPT = {
    "model": "scripted-1",
    "rules": [
        {"when": {"turn": 0, "has_tools": True}, "reply": {"reasoning": "Sum it.", "tool_calls": [CALL, CALL]}},
        {"when": {"turn": 1, "has_tools": True}, "reply": {"content": "And once more.", "tool_calls": [CALL]}},
        {"when": {"last_contains": "Say nothing."}, "reply": {"content": ""}},
        {"when": {"last_contains": "three ways"}, "variants": [{"content": word} for word in "ABC"]},
    ],
    "default": {"content": "It is 5."},
}  # fmt: skip


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("dialects")
    (folder / "script.json").write_text(json.dumps(SCRIPT))
    with EngineProcess.start("scripted", args=["--script", folder / "script.json"]) as engine:
        opened = Service.open(Settings(data_dir=folder / "data", port=0, engine=str(engine.base_url)))
        yield opened
        opened.close()


def steps_of(service: Service, trajectory_uid: str) -> list[dict[str, Any]]:
    assert service.ingest.catch_up(120)
    uids = [step["step_uid"] for step in service.pool.trajectories.get(trajectory_uid)["steps"]]
    return [service.pool.steps.get(uid) for uid in uids]


def moving_marks(messages: list[Any]) -> list[Any]:
    """As Claude Code sends them: the last message's last block is marked, the others are not."""
    sent = json.loads(json.dumps(messages))
    last = sent[-1]
    if isinstance(last["content"], str):
        last["content"] = [{"type": "text", "text": last["content"]}]
    last["content"][-1]["cache_control"] = {"type": "ephemeral"}
    return sent


def claude_codes_system(n: int) -> list[Any]:
    billing = f"x-anthropic-billing-header: cc_version=2.1.329.abc; cc_entrypoint=sdk-cli; cch={n:05x};"
    prompt = {"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}}
    return [{"type": "text", "text": billing}, prompt]


def test_a_loop_like_claude_codes(service: Service) -> None:
    headers = {"X-Claude-Code-Session-Id": "session-1", "User-Agent": "claude-cli/2.1.329"}
    messages: list[Any] = [{"role": "user", "content": "Add 2 and 3."}]
    ids = []
    with anthropic.Anthropic(base_url=service.base_url, api_key="x", default_headers=headers) as client:
        for turn in range(3):
            with client.messages.stream(
                model="claude-any",
                max_tokens=100,
                system=claude_codes_system(turn),
                messages=moving_marks(messages),
                tools=[{"name": "add", "input_schema": ADD}, {"type": "web_search_20250305", "name": "web_search"}],
                metadata={"user_id": "someone"},
                extra_query={"beta": "true"},
            ) as stream:
                answer = stream.get_final_message()
            ids.append(answer.id)
            messages.append({"role": "assistant", "content": [block.to_dict() for block in answer.content]})
            calls = [block for block in answer.content if block.type == "tool_use"]
            results = [{"type": "tool_result", "tool_use_id": call.id, "content": "5"} for call in calls]
            messages.append({"role": "user", "content": results})
    steps = steps_of(service, "session-1")
    assert [step["step_index"] for step in steps] == [0, 1, 2]
    assert [step["transition"] for step in steps] == [None, "extends", "extends"]
    assert [step["call_kind"] for step in steps] == ["main"] * 3
    assert [step["response_id"] for step in steps] == ids
    assert {step["dialect"] for step in steps} == {"messages"}
    assert {step["agent"] for step in steps} == {"claude-code"}
    for step, before in zip(steps[1:], steps, strict=False):
        whole = [*before["prompt_ids"], *before["response_ids"]]
        assert list(step["prompt_ids"][: len(whole)]) == whole
        assert step["parent_step_uid"] == before["step_uid"]
        assert (step["token_source"], step["mismatch"]) == ("engine", None)
        assert len(step["response_logprobs"]) == len(step["response_ids"])
    first = steps[0]
    assert first["messages"] == [
        {"role": "system", "content": "You are Claude Code."},
        {"role": "user", "content": "Add 2 and 3."},
    ]
    assert first["response_message"]["tool_calls"][0]["function"]["name"] == "add"
    assert [tool["function"]["name"] for tool in first["tools"]] == ["add"]
    assert set(first["metadata"]["dropped_fields"]) == {
        "system.x-anthropic-billing-header", "tools.web_search_20250305", "metadata",
    }  # fmt: skip


@pytest.mark.parametrize("chained", [False, True])
def test_a_loop_like_codexs(service: Service, chained: bool) -> None:
    session = f"thread-{chained}"
    first_items: list[Any] = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Sandboxed."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Add 2 and 3."}]},
    ]
    new, sent, previous = first_items, [], None
    ids = []
    with openai.OpenAI(
        base_url=f"{service.base_url}/v1", api_key="x", default_headers={"session-id": session}
    ) as client:
        for _ in range(3):
            sent += new
            more: Any = {"previous_response_id": previous} if chained and previous else {}
            if not chained:
                more = {"store": False, "include": ["reasoning.encrypted_content"]}
            with client.responses.stream(
                model="gpt-5-codex",
                instructions="You are Codex.",
                input=new if chained else sent,
                tools=[{"type": "function", "name": "add", "parameters": ADD, "strict": False}],
                reasoning={"effort": "medium", "summary": "auto"},
                **more,
            ) as stream:
                answer = stream.get_final_response()
            previous = answer.id
            ids.append(answer.id)
            sent += [item.to_dict() for item in answer.output]
            calls = [item for item in answer.output if item.type == "function_call"]
            new = [{"type": "function_call_output", "call_id": call.call_id, "output": "5"} for call in calls]
    steps = steps_of(service, session)
    assert [step["transition"] for step in steps] == [None, "extends", "extends"]
    assert [step["response_id"] for step in steps] == ids
    assert [len(step["messages"]) for step in steps] == [2, 5, 7]
    assert steps[0]["messages"][0] == {"role": "system", "content": "You are Codex.\n\nSandboxed."}
    assert steps[1]["messages"][2]["reasoning_content"].strip() == "Sum it."
    for step, before in zip(steps[1:], steps, strict=False):
        whole = [*before["prompt_ids"], *before["response_ids"]]
        assert list(step["prompt_ids"][: len(whole)]) == whole
        assert (step["token_source"], step["mismatch"]) == ("engine", None)


def test_every_choice_is_a_sibling_step(service: Service) -> None:
    with openai.OpenAI(base_url=f"{service.base_url}/choices/p/v1", api_key="x") as client:
        answer = client.chat.completions.create(
            model="m", n=3, messages=[{"role": "user", "content": "three ways"}], temperature=1.0
        )
    steps = steps_of(service, "choices")
    assert len(steps) == 3
    texts = [choice.message.content for choice in answer.choices]
    assert [step["response_message"]["content"] for step in steps] == texts
    assert len(set(texts)) == 3
    assert len({tuple(step["prompt_ids"]) for step in steps}) == 1
    assert {step["call_kind"] for step in steps} == {"main"}
    assert {step["response_id"] for step in steps} == {answer.id}
    first = steps[0]["step_uid"]
    assert [step["step_uid"] for step in steps] == [first, f"{first}.1", f"{first}.2"]


def test_completions_of_several_prompts_texts_and_ids(service: Service) -> None:
    with openai.OpenAI(base_url=f"{service.base_url}/prompts/p/v1", api_key="x") as client:
        answer = client.completions.create(model="m", prompt=["one", "two words"], max_tokens=5, n=2)
        ids = client.completions.create(model="m", prompt=[[5, 6, 7], [8, 9]], max_tokens=5)
    assert (len(answer.choices), len(ids.choices)) == (4, 2)
    # Each prompt is a task: the second one is a trajectory and a group of its own.
    for uid, text, sent in (("prompts", "one", [5, 6, 7]), ("prompts.prompt1", "two words", [8, 9])):
        steps = steps_of(service, uid)
        assert [step["messages"][0]["content"] for step in steps[:2]] == [text, text]
        assert [list(step["prompt_ids"]) for step in steps[2:]] == [sent]
        assert all((step["token_source"], step["mismatch"]) == ("engine", None) for step in steps)


def test_legacy_functions_are_tools(service: Service) -> None:
    with openai.OpenAI(base_url=f"{service.base_url}/legacy/p/v1", api_key="x") as client:
        client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "x"}], functions=[{"name": "add", "parameters": ADD}]
        )
    (step,) = steps_of(service, "legacy")
    assert step["tools"] == [{"type": "function", "function": {"name": "add", "parameters": ADD}}]


def test_a_developer_is_heard(service: Service) -> None:
    with openai.OpenAI(base_url=f"{service.base_url}/developer/p/v1", api_key="x") as client:
        messages: list[Any] = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "x"}]
        answer = client.chat.completions.create(model="m", messages=messages)
        messages += [answer.choices[0].message.to_dict(), {"role": "user", "content": "y"}]
        client.chat.completions.create(model="m", messages=messages)
        client.chat.completions.create(model="m", messages=[{**messages[0], "role": "system"}, messages[1]])
    first, second, same = steps_of(service, "developer")
    assert second["transition"] == "extends"
    # The template knows no developer and would leave the words out.
    assert list(first["prompt_ids"]) == list(same["prompt_ids"])
    assert first["messages"] == same["messages"]


def test_agents_without_identity_are_known_by_the_response_that_they_continue(tmp_path):
    """Equal questions and empty answers: only ``previous_response_id`` tells the attempts apart, also after a start."""
    (tmp_path / "script.json").write_text(json.dumps(SCRIPT))
    own: list[list[str]] = [[], [], []]
    last: list[str | None] = [None, None, None]
    with EngineProcess.start("scripted", args=["--script", tmp_path / "script.json"]) as engine:
        settings = Settings(data_dir=tmp_path / "data", port=0, engine=str(engine.base_url))
        for turns in (2, 1):
            service = Service.open(settings)
            try:
                with openai.OpenAI(base_url=f"{service.base_url}/v1", api_key="x") as client:
                    for turn in range(turns):
                        for agent in (0, 1, 2) if turn else (2, 0, 1):
                            asked = "Say nothing." if last[agent] is None else "Go on."
                            answered = client.responses.with_raw_response.create(
                                model="scripted-1", input=asked, previous_response_id=last[agent]
                            )
                            last[agent] = answered.parse().id
                            own[agent].append(answered.headers["x-step-uid"])
                assert service.ingest.catch_up(120)
                stored = service.pool.steps.page(limit=None).to_pylist()
            finally:
                service.close()
    trajectories = {step["step_uid"]: step["trajectory_uid"] for step in stored}
    assert [len(steps) for steps in own] == [3, 3, 3]
    assert [len({trajectories[uid] for uid in steps}) for steps in own] == [1, 1, 1]
    assert len(set(trajectories.values())) == 3
    assert not any("uncertain" in step["findings"] for step in stored)
