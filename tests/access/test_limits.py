"""What a session key may no more: of one process and of several, before and after a kill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from core.client import StudioClient
from core.errors import StudioError
from tests.conftest import ServeProcess, eventually

HI: list[Any] = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module", params=["1", "2"], ids=["one process", "workers"])
def studio(
    request: pytest.FixtureRequest, engine: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServeProcess]:
    folder = tmp_path_factory.mktemp("limits") / "data"
    process = ServeProcess(folder, engine, env={"CLAW_STUDIO_GATEWAYS": request.param})
    yield process
    assert process.stop() == 0


def ask(studio: ServeProcess, key: str, *, prefix: str = "", **fields: Any) -> str:
    """``ok``, or the code of the error, over a connection of its own."""
    with openai.OpenAI(base_url=f"{studio.base_url}{prefix}/v1", api_key=key, max_retries=0) as client:
        try:
            client.chat.completions.create(**{"model": "scripted-1", "messages": HI, **fields})
        except openai.APIStatusError as error:
            return f"{error.status_code} {error.code}"
    return "ok"


def minted(studio: ServeProcess, **limits: Any) -> str:
    with StudioClient(studio.base_url) as client:
        return client.session(**limits).api_key


def test_exactly_so_many_calls_whatever_the_number_of_processes(studio: ServeProcess) -> None:
    key = minted(studio, trajectory_uid="t-calls", max_calls=7)
    with ThreadPoolExecutor(8) as pool:
        statuses = Counter(pool.map(lambda _: ask(studio, key), range(20)))
    assert statuses == {"ok": 7, "429 key_spent": 13}
    assert ask(studio, minted(studio, trajectory_uid="t-calls")) == "ok", "another key of the trajectory has no limit"


UIDS = ("a", "b/c", "ü日本", "a?b#c%20d", 'q"\\,;:<>', "..", "x" * 256)
NO_UIDS = ("a b", " a", "a\tb", "a\u00a0b", "a\u200bb", "a\u3000b", "x" * 257)


@pytest.mark.parametrize("field", ["trajectory_uid", "prompt_uid", "channel"])
def test_a_key_that_is_created_can_make_calls(studio: ServeProcess, field: str) -> None:
    """What the gateway would refuse at every call is refused when the key is created."""
    for uid in UIDS:
        assert ask(studio, minted(studio, **{field: uid})) == "ok", uid
    for uid in NO_UIDS:
        with pytest.raises(StudioError) as refused:
            minted(studio, **{field: uid})
        assert refused.value.field == field, uid


def test_the_command_line_tells_what_a_key_may_and_until_when(studio: ServeProcess) -> None:
    before = time.time()
    minted(studio, trajectory_uid="t-told", max_calls=7, max_tokens=99, models=["scripted-*"], expires_in_s=600)
    command = [sys.executable, "-m", "core.cli", "keys", "list", "--trajectory", "t-told"]
    env = {**os.environ, "CLAW_STUDIO_DATA_DIR": studio.ready["data"]}
    completed = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=True)
    limits = json.loads(completed.stdout)["limits"]
    assert (limits["max_calls"], limits["max_tokens"], limits["models"]) == (7, 99, ["scripted-*"])
    assert before + 600 <= limits["expires_at"] <= time.time() + 600


def test_calls_a_minute(studio: ServeProcess) -> None:
    key = minted(studio, calls_per_minute=3)
    assert [ask(studio, key) for _ in range(5)] == ["ok"] * 3 + ["429 key_spent"] * 2
    answer = studio.http.post(
        "/v1/chat/completions",
        json={"model": "scripted-1", "messages": HI},
        headers={"Authorization": f"Bearer {key}"},
    )
    assert 0 < int(answer.headers["retry-after"]) <= 60


def test_tokens(studio: ServeProcess) -> None:
    key = minted(studio, max_tokens=1)
    assert ask(studio, key) == "ok", "what begins below the budget is answered"
    eventually(lambda: ask(studio, key) == "429 key_spent")


def test_models(studio: ServeProcess) -> None:
    key = minted(studio, models=["scripted-*"])
    assert ask(studio, key) == "ok"
    assert ask(studio, key, model="another").startswith("403")


def test_a_key_expires(studio: ServeProcess) -> None:
    key = minted(studio, expires_in_s=3)
    assert ask(studio, key) == "ok"
    eventually(lambda: ask(studio, key) == "401 invalid_api_key", every_s=0.3)


def test_the_prompt_group_is_the_keys(studio: ServeProcess) -> None:
    key = minted(studio, trajectory_uid="t-prompt", prompt_uid="p-own")
    assert ask(studio, key) == "ok"
    assert ask(studio, key, prefix="/t-prompt/p-own") == "ok"
    assert ask(studio, key, prefix="/t-prompt/p-other").startswith("403")
    assert ask(studio, key, extra_headers={"X-Prompt-Uid": "p-other"}).startswith("403")
    free = minted(studio, trajectory_uid="t-prompt", prompt_uid="p-own", any_prompt=True)
    assert ask(studio, free, prefix="/t-prompt/p-other") == "ok"


def test_where_a_key_is_asked_for_a_key_without_a_group_joins_none(
    engine: str, serve: Callable[..., ServeProcess]
) -> None:
    service = serve(engine, env={"CLAW_STUDIO_API_KEY": "an-admin-key-0123456789"})
    with StudioClient(service.base_url, api_key="an-admin-key-0123456789") as client:
        key = client.session(trajectory_uid="t").api_key
    assert ask(service, key) == "ok"
    assert ask(service, key, prefix="/t/p-of-others").startswith("403")


def test_budgets_outlive_a_kill(engine: str, serve: Callable[..., ServeProcess], tmp_path: Path) -> None:
    data = tmp_path / "data"
    first = serve(engine, data)
    calls = minted(first, trajectory_uid="t-kill", max_calls=4)
    brief = minted(first, expires_in_s=1.0)
    assert [ask(first, calls) for _ in range(3)] == ["ok"] * 3
    first.kill()
    time.sleep(1.0)
    second = serve(engine, data)
    assert [ask(second, calls) for _ in range(3)] == ["ok", "429 key_spent", "429 key_spent"]
    assert ask(second, brief) == "401 invalid_api_key"
    listed = second.http.get("/api/v1/sessions").json()["sessions"]
    assert {"max_calls": 4} in [one["limits"] for one in listed]
