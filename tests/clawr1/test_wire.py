"""The HTTP exchange that Claw-R1's GSM8K agent and white-box flows make, request by request as they were observed."""

from __future__ import annotations

import json
import re
from typing import Any

import openai
import pytest

from core.serving.tokenizer import ASSETS, ChatTokenizer
from tests.clawr1.conftest import ANSWER, CALL, FIELDS, QUESTION, SAMPLING
from tests.conftest import ServeProcess

TOOL = {
    "type": "function",
    "function": {
        "name": "check_answer",
        "description": "Check if your answer to the math problem is correct.",
        "parameters": {
            "type": "object",
            "properties": {"answer": {"type": "string", "description": "Your final numerical answer"}},
            "required": ["answer"],
        },
    },
}
AGAIN = "Please verify your answer step by step and provide the final answer again in the format #### <number>."


@pytest.fixture(scope="module")
def tokenizer() -> ChatTokenizer:
    return ChatTokenizer(ASSETS)


def only_trajectory(service: ServeProcess, prompt_uid: str) -> dict[str, Any]:
    rows = service.http.get(f"/api/v1/groups/{prompt_uid}").json()["trajectories"]
    assert len(rows) == 1
    return service.http.get(f"/api/v1/trajectories/{rows[0]['trajectory_uid']}").json()


def test_the_black_box_agent(service: ServeProcess) -> None:
    """It allocates, puts its own prompt group into the URL, registers, talks, and reads tool calls out of the text."""
    made = service.http.post("/init_trajectory").json()
    assert set(made) >= {"trajectory_uid", "base_url"}
    base = f"{made['base_url'].rsplit('/', 2)[0]}/q-black/v1"
    metadata = {**{name: FIELDS[name] for name in ("reward_model", "data_source", "extra_info")}, "uid": "q-black"}
    registered = service.http.post(
        f"{base}/register_trajectory",
        content=json.dumps({"metadata": metadata}),
        headers={"content-type": "application/json"},
    )
    assert registered.json()["status"] == "ok"
    client = openai.OpenAI(base_url=base, api_key="not-needed", timeout=60)
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    first = client.chat.completions.create(model="default", messages=messages, tools=[TOOL])  # type: ignore[list-item]
    content = first.choices[0].message.content or ""
    called = [json.loads(text) for text in re.findall(r"<tool_call>(.*?)</tool_call>", content, re.DOTALL)]
    assert called == [CALL]
    assert first.choices[0].message.tool_calls is None
    messages += [{"role": "assistant", "content": content}, {"role": "tool", "content": "Correct!"}]
    second = client.chat.completions.create(model="default", messages=messages, tools=[TOOL])  # type: ignore[list-item]
    assert second.choices[0].message.content == ANSWER
    assert service.http.post(f"{base}/complete_trajectory").json()["status"] == "ok"
    trajectory = only_trajectory(service, "q-black")
    assert (trajectory["complete"], trajectory["channel"], trajectory["reward"]) == (True, "train", None)
    assert trajectory["metadata"] == metadata
    one, two = trajectory["steps"]
    assert {one["identity_source"], two["identity_source"]} == {"path"}
    assert {one["token_source"], two["token_source"]} == {"engine"}
    assert one["response_message"]["tool_calls"][0]["function"]["name"] == "check_answer", (
        "stored as the engine said it"
    )
    assert two["transition"] in ("extends", "realigned")


def test_a_stream_has_the_calls_in_its_text_as_well(service: ServeProcess) -> None:
    made = service.http.post("/init_trajectory").json()
    client = openai.OpenAI(base_url=made["base_url"], api_key="not-needed", timeout=60)
    stream = client.chat.completions.create(
        model="default",
        messages=[{"role": "user", "content": QUESTION}],
        tools=[TOOL],  # type: ignore[list-item]
        stream=True,
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert json.loads(text.removeprefix("<tool_call>").removesuffix("</tool_call>")) == CALL


def test_the_white_box_flow(service: ServeProcess, tokenizer: ChatTokenizer) -> None:
    """It samples by token ids, submits each step itself, and asks for the last one's reward before it does."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": QUESTION}]
    fields = {**FIELDS, "uid": "q-white"}
    trajectory_uid = "0123456789abcdef0123456789abcdef"
    for turn in range(2):
        prompt_ids = tokenizer.encode(tokenizer.render(messages, None, add_generation_prompt=True))
        answer = service.http.post("/generate", json={"prompt_ids": prompt_ids, "sampling_params": SAMPLING})
        assert answer.status_code == 200, answer.text
        sampled = answer.json()
        assert len(sampled["token_ids"]) == len(sampled["log_probs"])
        assert sampled["stop_reason"] == "stop"
        text = tokenizer.decode(sampled["token_ids"])
        assert text == ANSWER
        step = {
            "prompt_ids": prompt_ids,
            "response_ids": sampled["token_ids"],
            "reward": None,
            "rollout_log_probs": sampled["log_probs"],
            "trajectory_uid": trajectory_uid,
            "prompt_uid": "q-white",
            "step_index": turn,
            "policy_version": 0,
            "is_last": turn == 1,
            "metadata": fields,
        }
        if turn == 1:
            request = {
                "prompt_ids": prompt_ids,
                "response_ids": sampled["token_ids"],
                "num_turns": 3,
                "extra_fields": {},
                "dataset_fields": fields,
            }
            scored = service.http.post("/compute_reward", json=request).json()
            assert scored["reward_score"] == 1.0
            assert scored["reward_extra_info"]["found"] == "72"
            step["reward"] = scored["reward_score"]
        accepted = service.http.post("/submit_steps", json={"steps": [step]}, params={"channel": "val"})
        assert accepted.json() == {"accepted": 1}
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": AGAIN}]
    trajectory = only_trajectory(service, "q-white")
    assert (trajectory["complete"], trajectory["channel"], trajectory["reward"]) == (True, "val", 1.0)
    assert [step["reward"] for step in trajectory["steps"]] == [None, 1.0]
    assert [step["token_source"] for step in trajectory["steps"]] == ["whitebox", "whitebox"]
    assert trajectory["steps"][1]["transition"] == "extends"
    assert trajectory["n_steps"] == 2, "what /generate sampled is in the pool once: as its caller submitted it"


def test_submitted_steps_may_leave_out_what_is_unknown(service: ServeProcess) -> None:
    """Claw-R1's payloads carry nulls and empty texts for it."""
    step = {"prompt_ids": [1], "response_ids": [2], "trajectory_uid": "t-nulls", "prompt_uid": "", "metadata": None}
    nulls = {"reward": None, "rollout_log_probs": None, "multi_modal_data": None, "routed_experts": [[1, 2]]}
    assert service.http.post("/submit_steps", json={"steps": [{**step, **nulls, "step_index": 0}]}).status_code == 200
    stored = service.http.get("/api/v1/trajectories/t-nulls").json()["steps"][0]
    assert stored["metadata"] == {"routed_experts": [[1, 2]]}
    assert stored["response_logprobs"] is None


def test_what_cannot_be_scored_or_sampled_says_why(service: ServeProcess) -> None:
    body = {"prompt_ids": [1], "response_ids": [2], "dataset_fields": {"data_source": "openai/nothing"}}
    refused = service.http.post("/compute_reward", json=body)
    assert (refused.status_code, refused.json()["field"]) == (422, "dataset_fields.data_source")
    assert "final_number" in refused.json()["hint"]
    opened = {"reward_model": {"verifier": "file_contains", "path": "secret.txt", "contains": ["x"]}}
    assert service.http.post("/compute_reward", json={**body, "dataset_fields": opened}).status_code == 422
    no_answer = {**body, "dataset_fields": {"data_source": "openai/gsm8k"}}
    assert service.http.post("/compute_reward", json=no_answer).status_code == 422
    assert service.http.post("/generate", json={"prompt_ids": []}).status_code == 422
    too_far = {"prompt_ids": [1], "sampling_params": {"temperature": "hot"}}
    assert 400 <= service.http.post("/generate", json=too_far).status_code < 500


def test_ready_and_docs_are_where_the_rollouter_looks(service: ServeProcess) -> None:
    assert service.http.get("/ready").json() == {"ready": True}


def test_a_registered_version_is_on_the_steps(service: ServeProcess) -> None:
    """As ``claw_r1.async_rollouter`` sends it with the task's fields; any other form of it is refused by name."""
    base = service.http.post("/init_trajectory").json()["base_url"].removeprefix(service.base_url)
    prompt = base.split("/")[2]
    body = {"metadata": {"policy_version": 12, "uid": prompt}}
    assert service.http.post(f"{base}/register_trajectory", json=body).status_code == 200
    ask = {"model": "default", "messages": [{"role": "user", "content": QUESTION}]}
    assert service.http.post(f"{base}/chat/completions", json=ask).status_code == 200
    assert service.http.post(f"{base}/complete_trajectory").status_code == 200
    (step,) = only_trajectory(service, prompt)["steps"]
    assert (step["policy_version"], step["policy_version_end"]) == (12, 12)
    for odd in ("new", [1], -1):
        refused = service.http.post(f"{base}/register_trajectory", json={"metadata": {"policy_version": odd}})
        assert (refused.status_code, refused.json()["field"]) == (422, "metadata.policy_version")
