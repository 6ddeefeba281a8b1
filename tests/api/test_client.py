"""The client for white-box producers against a running service, over connections that break."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import numpy as np
import pytest

from core.client import RETRY_STATUS, RecordedEnvironment, Sampled, StudioClient, Unreachable
from core.errors import Conflict, InvalidInput, NotFound
from tests.conftest import ServeProcess


def uid() -> str:
    return uuid.uuid4().hex


class Countdown:
    """An environment without gymnasium: count down to zero; the last action is scored, some others too."""

    def __init__(self, start: int, rewards: list[float | None], *, old_style: bool = False, limit: int = 100) -> None:
        self.start, self.rewards, self.old_style, self.limit = start, rewards, old_style, limit
        self.left = self.n = 0
        self.closed = False

    def reset(self, *, seed: int | None = None) -> tuple[int, dict[str, Any]]:
        self.left, self.n = self.start, 0
        return self.left, {"seed": seed}

    def step(self, action: int) -> tuple[Any, ...]:
        self.left -= action
        reward = self.rewards[self.n]
        self.n += 1
        done, cut = self.left <= 0, self.n >= self.limit
        if self.old_style:
            return self.left, reward, done, {}
        return self.left, reward, done, cut, {}

    def close(self) -> None:
        self.closed = True


def sample(observation: int) -> Sampled:
    """A policy with tokens: the observation is the prompt, the action the answer."""
    return Sampled(1, prompt_ids=np.arange(observation), response_ids=[7, 8], response_logprobs=np.array([-0.5, -1.0]))


@pytest.mark.parametrize("old_style", [False, True])
def test_an_environment_loop_becomes_steps(client: StudioClient, old_style: bool) -> None:
    prompt = uid()
    inner = Countdown(3, [None, 0, 2.5], old_style=old_style)
    with RecordedEnvironment(inner, lambda: client.rollout(prompt_uid=prompt, channel="val", policy_version=3)) as env:
        observation, info = env.reset(seed=4)
        assert info == {"seed": 4}
        done = False
        while not done:
            observation, _, terminated, truncated, _ = env.step(sample(observation))
            done = terminated or truncated
    assert inner.closed
    group = client.group(prompt)
    trajectory = client.trajectory(group["trajectories"][0]["trajectory_uid"])
    assert (trajectory["complete"], trajectory["outcome"], trajectory["channel"]) == (True, "terminated", "val")
    assert [step["reward"] for step in trajectory["steps"]] == [None, 0.0, 2.5], "unscored and 0 are kept apart"
    assert [step["prompt_ids"] for step in trajectory["steps"]] == [[0, 1, 2], [0, 1], [0]]
    assert [step["is_last"] for step in trajectory["steps"]] == [False, False, True]
    assert {step["token_source"] for step in trajectory["steps"]} == {"whitebox"}
    assert {step["policy_version"] for step in trajectory["steps"]} == {3}
    assert trajectory["steps"][0]["response_logprobs"] == [-0.5, -1.0]


def test_how_an_episode_ended_is_told(client: StudioClient) -> None:
    prompt = uid()
    env = RecordedEnvironment(Countdown(9, [1.0] * 9, limit=2), lambda: client.rollout(prompt_uid=prompt))
    env.reset()
    env.step(sample(9))
    env.reset()
    assert env.step(sample(9))[3] is False
    assert env.step(sample(8))[3] is True
    with pytest.raises(Conflict, match="no episode"):
        env.step(sample(7))
    env.reset()
    with pytest.raises(ZeroDivisionError), env:
        env.step(sample(9))
        raise ZeroDivisionError
    outcomes = [row["outcome"] for row in client.group(prompt)["trajectories"]]
    assert outcomes == ["abandoned", "truncated", "error: ZeroDivisionError"]


def test_a_rollout_is_sent_in_batches_and_completed(client: StudioClient) -> None:
    with client.rollout(prompt_uid=uid(), buffer=2, metadata={"a": 1}) as rollout:
        for n in range(5):
            rollout.step(response_ids=[n], metadata={"n": n})
        assert client.trajectory(rollout.trajectory_uid)["n_steps"] == 4, "the fifth waits"
        rollout.reward = 0.0
    stored = client.trajectory(rollout.trajectory_uid)
    assert (stored["complete"], stored["reward"]) == (True, 0.0)
    assert [step["metadata"] for step in stored["steps"]] == [{"a": 1, "n": n} for n in range(5)]
    with pytest.raises(Conflict, match="is complete"):
        rollout.step(response_ids=[1])


def test_many_steps_go_in_several_requests_and_come_back_in_pages(client: StudioClient) -> None:
    trajectory = uid()
    sent = [{"trajectory_uid": trajectory, "step_index": n, "response_ids": [n]} for n in range(1100)]
    assert client.submit(sent) == 1100
    steps = list(client.steps(trajectory_uid=trajectory, order="step_index", page=400))
    assert [row["step_index"] for row in steps] == list(range(1100))


def test_errors_are_the_services(client: StudioClient) -> None:
    with pytest.raises(InvalidInput) as bad:
        client.submit([{"trajectory_uid": uid(), "step_index": 0, "response_ids": [1], "response_logprobs": []}])
    assert (bad.value.type, bad.value.field, bad.value.http_status) == ("invalid_input", "steps.0", 422)
    with pytest.raises(NotFound):
        client.step("none")
    trajectory = uid()
    step = {"trajectory_uid": trajectory, "step_index": 0, "response_ids": [1]}
    assert client.submit([step]) == client.submit([step]) == 1
    with pytest.raises(Conflict, match="stored with different content"):
        client.submit([{**step, "response_ids": [2]}])
    with pytest.raises(InvalidInput, match="a reward can't be nan"):
        client.complete(trajectory, reward=float("nan"))
    with pytest.raises(InvalidInput, match="no base URL"):
        StudioClient("127.0.0.1:8100")


def test_nobody_there(client: StudioClient) -> None:
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        waits: list[float] = []
        nobody = StudioClient(f"http://127.0.0.1:{free.getsockname()[1]}", n_retries=3, sleep=waits.append)
        with pytest.raises(Unreachable, match="did not answer"):
            nobody.stats()
    assert waits == [0.1, 0.2, 0.4]


class Unreliable:
    """A relay that hands requests on, notes them and the answers' status, and swallows the first answers."""

    def __init__(self, port: int, n_swallowed: int) -> None:
        self.port = port
        self.left = n_swallowed
        self.asked: list[str] = []
        self.answered: list[int] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self.run, daemon=True).start()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def run(self) -> None:
        while True:
            try:
                inside, _ = self.listener.accept()
            except OSError:
                return
            # Each in a thread: another test may ask who listens on this port, which was free a moment ago.
            threading.Thread(target=self.relay, args=(inside,), daemon=True).start()

    def relay(self, inside: socket.socket) -> None:
        with inside, socket.create_connection(("127.0.0.1", self.port)) as outside:
            while request := read_message(inside):
                self.asked.append(request.split(b"\r\n")[0].decode())
                outside.sendall(request)
                answer = read_message(outside)
                self.answered.append(int(answer.split(b" ", 2)[1]))
                if self.left > 0:
                    self.left -= 1
                    break
                inside.sendall(answer)


def read_message(connection: socket.socket) -> bytes:
    """One message with its body; empty when the other end has closed."""
    message = b""
    while b"\r\n\r\n" not in message:
        piece = connection.recv(1 << 20)
        if not piece:
            return b""
        message += piece
    head, _, body = message.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    missing = (int(lengths[0].split(b":")[1]) if lengths else 0) - len(body)
    while missing > 0:
        piece = connection.recv(missing)
        message += piece
        missing -= len(piece)
    return message


@pytest.fixture
def unreliable(service: ServeProcess) -> Iterator[Unreliable]:
    relay = Unreliable(int(service.base_url.rsplit(":", 1)[1]), 2)
    yield relay
    relay.listener.close()


def test_steps_whose_answer_was_lost_arrive_once(client: StudioClient, unreliable: Unreliable) -> None:
    shaky = StudioClient(unreliable.base_url, sleep=lambda s: None)
    trajectory = uid()
    assert shaky.submit([{"trajectory_uid": trajectory, "step_index": 0, "response_ids": [1]}]) == 1
    # A service that is busy may also answer that it has to be asked again.
    again = [status for status in unreliable.answered[2:] if status in RETRY_STATUS]
    assert unreliable.asked == ["POST /api/v1/steps HTTP/1.1"] * (3 + len(again)), unreliable.answered
    assert client.trajectory(trajectory)["n_steps"] == 1


def test_what_may_not_be_repeated_is_not(unreliable: Unreliable) -> None:
    with pytest.raises(Unreachable):
        StudioClient(unreliable.base_url, sleep=lambda s: None).annotate("note", "x", trajectory_uid="t")
    assert unreliable.asked == ["POST /api/v1/annotations HTTP/1.1"]


def test_a_session_serves_an_agent_until_it_is_revoked(client: StudioClient, service: ServeProcess) -> None:
    session = client.session(prompt_uid="p", agent="probe")
    headers = {"Authorization": f"Bearer {session.api_key}"}
    body = {"model": "scripted-1", "messages": [{"role": "user", "content": "x"}]}
    answer = httpx.post(f"{session.base_url}/chat/completions", json=body, headers=headers, timeout=120)
    assert answer.status_code == 200
    assert answer.headers["x-trajectory-uid"] == session.trajectory_uid
    assert client.revoke(session.key_id) == [session.key_id]
    assert client.revoke(session.trajectory_uid) == [], "a second time changes nothing"
    refused = httpx.post(f"{session.base_url}/chat/completions", json=body, headers=headers, timeout=120)
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
    with pytest.raises(NotFound):
        client.revoke("no-such-key")


def test_importing_the_client_opens_nothing() -> None:
    code = "import sys, core.client; print(sorted(m for m in sys.modules if '.' not in m))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for heavy in ("duckdb", "starlette", "uvicorn", "pyarrow", "pydantic", "orjson", "torch", "httpx", "numpy"):
        assert f"'{heavy}'" not in shown


def test_a_connection_that_the_service_closed_meanwhile_loses_no_call() -> None:
    """It closes what is idle; what may not be done twice is not tried again, so it has to be seen before."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    closed = threading.Semaphore(0)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for _ in range(3):
                connection, _ = server.accept()
                with connection:
                    connection.recv(65_536)
                    connection.sendall(answer)
                closed.release()

        threading.Thread(target=serve, daemon=True).start()
        with StudioClient(f"http://127.0.0.1:{server.getsockname()[1]}") as client:
            for _ in range(3):
                assert client.call("POST", "/api/v1/policy", {"version": 1}) == {}
                assert closed.acquire(timeout=60)
