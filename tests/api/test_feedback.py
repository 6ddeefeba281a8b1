"""Feedback over HTTP: tied to what the agent saw, early, late, revised, and there after kill -9."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from core.client import StudioClient
from core.serving.process import EngineProcess
from tests.conftest import ServeProcess, eventually

USER = {"role": "user", "content": "hello"}
CALLS = {
    "chat": ("chat/completions", {"messages": [USER]}),
    "completions": ("completions", {"prompt": "hello"}),
    "responses": ("responses", {"input": "hello"}),
    "messages": ("messages", {"messages": [USER], "max_tokens": 50}),
}


def ask(service: ServeProcess, dialect: str) -> tuple[str, str]:
    """(step_uid, id that the agent saw) of one answer."""
    path, body = CALLS[dialect]
    answer = service.http.post(f"/v1/{path}", json={"model": "scripted-1", **body})
    assert answer.status_code == 200, answer.text
    return answer.headers["x-step-uid"], answer.json()["id"]


def send(service: ServeProcess, *entries: dict[str, Any]) -> list[str]:
    """Send feedback; the state of each."""
    answer = service.http.post("/api/v1/feedback", json={"feedback": list(entries)})
    assert answer.status_code == 200, answer.text
    return [entry["state"] for entry in answer.json()["feedback"]]


@pytest.mark.parametrize("dialect", CALLS)
def test_an_answer_is_judged_by_the_id_its_agent_saw(dialect: str, service: ServeProcess, client: StudioClient) -> None:
    step_uid, response_id = ask(service, dialect)
    assert send(service, {"response_id": response_id, "kind": "thumbs", "value": "down"}) == ["applied"]
    step = client.step(step_uid)
    assert step["reward"] == 0.0
    (feedback,) = step["feedback"]
    assert (feedback["target"], feedback["step_uid"], feedback["value"]) == (
        {"response_id": response_id},
        step_uid,
        "down",
    )
    assert (feedback["author"], feedback["source"]) == ("user", "human")
    assert client.trajectory(step["trajectory_uid"])["feedback"] == [feedback]


def test_every_kind_does_what_the_document_says(service: ServeProcess, client: StudioClient) -> None:
    step_uid, _ = ask(service, "chat")
    about = {"target": {"step_uid": step_uid}}
    states = send(
        service,
        {**about, "kind": "score", "value": 4, "scale": [1, 5], "author": "kim", "note": "nearly"},
        {**about, "kind": "correction", "value": "It should have said: 42."},
        {**about, "kind": "comment", "value": "why forty-two?"},
        {**about, "kind": "event", "value": "copied"},
    )
    assert states == ["applied"] * 4
    step = client.step(step_uid)
    assert (step["reward"], step["tags"], step["n_notes"]) == (0.75, ["corrected", "event:copied"], 1)
    by_kind = {feedback["kind"]: feedback for feedback in step["feedback"]}
    assert by_kind["correction"]["value"] == "It should have said: 42."
    assert by_kind["event"]["source"] == "service"
    assert (by_kind["score"]["author"], by_kind["score"]["note"]) == ("kim", "nearly")
    counts = service.http.get("/api/v1/feedback", params={"kind": "event"}).json()["counts"]
    assert counts["by_value"]["copied"] >= 1


def test_feedback_that_comes_first_waits(service: ServeProcess, client: StudioClient) -> None:
    trajectory = uuid.uuid4().hex
    target = {"step_uid": f"{trajectory}:0"}
    assert send(service, {**target, "feedback_uid": f"fb-{trajectory}", "kind": "thumbs", "value": True}) == ["pending"]
    waiting = service.http.get("/api/v1/feedback", params={"state": "pending"}).json()["feedback"]
    assert f"fb-{trajectory}" in {feedback["feedback_uid"] for feedback in waiting}
    client.submit([{"trajectory_uid": trajectory, "step_index": 0, "response_ids": [1]}])
    assert client.step(f"{trajectory}:0")["reward"] == 1.0
    assert service.http.get(f"/api/v1/feedback/fb-{trajectory}").json()["state"] == "applied"


def test_it_can_be_revised_withdrawn_and_repeated(service: ServeProcess, client: StudioClient) -> None:
    step_uid, _ = ask(service, "chat")
    uid = client.feedback("thumbs", "up", step_uid=step_uid)
    for value, reward in (("up", 1.0), ("down", 0.0), ("up", 1.0), (None, None)):
        client.feedback("thumbs", value, step_uid=step_uid, feedback_uid=uid)
        assert client.step(step_uid)["reward"] == reward
    client.feedback("thumbs", "down", step_uid=step_uid, feedback_uid=uid, given_at=5.0)
    assert client.step(step_uid)["reward"] is None, "what was given earlier and came late is history"
    feedback = service.http.get(f"/api/v1/feedback/{uid}").json()
    assert (feedback["state"], feedback["n_revisions"]) == ("withdrawn", 5)
    assert [word["value"] for word in feedback["revisions"]] == ["up", "down", "up", None, "down"]


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        ({"kind": "thumbs", "value": "up"}, "feedback.0"),
        ({"kind": "thumbs", "value": "up", "step_uid": "a", "response_id": "b"}, "feedback.0"),
        ({"kind": "thumbs", "value": "sideways", "step_uid": "a"}, "feedback.0"),
        ({"kind": "score", "value": "high", "step_uid": "a"}, "feedback.0"),
        ({"kind": "score", "value": 7, "scale": [1, 5], "step_uid": "a"}, "feedback.0"),
        ({"kind": "comment", "value": 3, "step_uid": "a"}, "feedback.0"),
        ({"kind": "shrug", "value": 3, "step_uid": "a"}, "feedback.0.kind"),
        ({"kind": "event", "value": "x", "step_uid": "a", "given_at": 1.8e12}, "feedback.0.given_at"),
        ({"kind": "event", "value": "x", "step_id": "a"}, "feedback.0.step_id"),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_is_taken(
    entry: dict[str, Any], field: str, service: ServeProcess
) -> None:
    good = {"feedback_uid": f"good-{uuid.uuid4().hex}", "kind": "event", "value": "x", "step_uid": "a"}
    refused = service.http.post("/api/v1/feedback", json={"feedback": [entry, good]})
    assert (refused.status_code, refused.json()["field"]) == (422, field)
    assert service.http.get(f"/api/v1/feedback/{good['feedback_uid']}").status_code == 404
    alone = service.http.post("/api/v1/feedback", json=good)
    assert alone.json() == {"accepted": 1, "feedback": [{"feedback_uid": good["feedback_uid"], "state": "pending"}]}


def test_nothing_that_was_answered_is_lost_by_kill_9(
    scripted: EngineProcess, serve: Callable[..., ServeProcess]
) -> None:
    """Feedback, a key and its revocation, each answered right before the process is gone."""
    assert scripted.base_url
    first = serve(scripted.base_url)
    step_uid, response_id = ask(first, "chat")
    with StudioClient(first.base_url) as client:
        kept, revoked = client.session(trajectory_uid="t-kept"), client.session(trajectory_uid="t-revoked")
        client.revoke(revoked.key_id)
        client.feedback("thumbs", "up", response_id=response_id, feedback_uid="fb-arrived")
        client.feedback("thumbs", "up", step_uid="t-later:0", feedback_uid="fb-early")
    first.kill()
    second = serve(scripted.base_url)
    body = {"model": "scripted-1", "messages": [USER]}
    called = {
        session.trajectory_uid: second.http.post(
            "/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {session.api_key}"}
        )
        for session in (kept, revoked)
    }
    assert called["t-kept"].headers["x-trajectory-uid"] == "t-kept"
    assert (called["t-revoked"].status_code, called["t-revoked"].json()["error"]["code"]) == (401, "invalid_api_key")
    with StudioClient(second.base_url) as client:
        eventually(lambda: [feedback["state"] for feedback in client.step(step_uid)["feedback"]] == ["applied"])
        assert client.step(step_uid)["reward"] == 1.0
        client.submit([{"trajectory_uid": "t-later", "step_index": 0, "response_ids": [1]}])
        assert client.step("t-later:0")["reward"] == 1.0


def test_a_session_key_opens_what_it_is_bound_to(scripted: EngineProcess, serve: Callable[..., ServeProcess]) -> None:
    """Where a key is asked for; in each dialect's own words."""
    assert scripted.base_url
    studio = serve(scripted.base_url, env={"CLAW_STUDIO_API_KEY": "studio-key-0123456789"})
    with StudioClient(studio.base_url, api_key="studio-key-0123456789") as client:
        session = client.session(trajectory_uid="t-mine", channel="val", any_prompt=True)
    own = {"Authorization": f"Bearer {session.api_key}"}
    openai_shape, anthropic_shape = ("chat/completions", "error"), ("messages", "error")

    def call(path: str, headers: dict[str, str], prefix: str = "/v1") -> httpx.Response:
        body = {"model": "scripted-1", "messages": [USER], "max_tokens": 20}
        return studio.http.post(f"{prefix}/{path}", json=body, headers=headers)

    assert call("chat/completions", own).headers["x-trajectory-uid"] == "t-mine"
    assert call("chat/completions", own, "/t-mine/p/v1").status_code == 200
    for headers, prefix in (
        (own, "/t-other/p/v1"),
        ({**own, "X-Trajectory-Uid": "t-other"}, "/v1"),
        ({**own, "X-Channel": "train"}, "/v1"),
    ):
        refused = call("chat/completions", headers, prefix)
        assert refused.status_code == 403, refused.text
    for path, key in (openai_shape, anthropic_shape):
        for headers in ({}, {"x-api-key": "wrong"}, {"Authorization": "Bearer cs-" + "x" * 43}):
            refused = call(path, headers)
            assert refused.status_code == 401
            assert refused.json()[key]["message"]
    assert call("messages", {"x-api-key": "wrong"}).json()["error"]["type"] == "authentication_error"
    assert studio.http.get("/api/v1/stats", headers=own).status_code == 403, "it opens calls, not the studio"
    assert studio.http.get("/openapi.json").status_code == 200
