"""Trajectories whose names hold slashes, escapes and worse are read, completed and captured by URL like any other."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import httpx
import openai
import pytest
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st

from core.client import StudioClient
from core.serving.process import EngineProcess
from tests.conftest import ServeProcess, eventually
from tests.effort import settings

HOSTILE = (
    "a/b", "a%2Fb", "/leading", "trailing/", "a//b", "x/complete", "complete", "v1", "a/v1/b", "../../etc/passwd",
    "a?b#c", "100%", "%", "%zz", "a+b", "a b", "django__django-11099", "ü/é", "日本", "a\nb", "\u202e",
    "'; DROP TABLE x", "<script>", "a\\b", "a;b=c", "~", "api/v1/steps", "\U0001f600/1",
)  # fmt: skip


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "script.json").write_text('{"rules": [{"reply": {"content": "well"}}]}')
    with EngineProcess.start("scripted", args=["--script", folder / "script.json"]) as engine:
        assert engine.base_url
        process = ServeProcess(folder / "data", engine.base_url, env={"CLAW_STUDIO_GATEWAYS": "2"})
        yield process
        assert process.stop() == 0


def submitted(studio: ServeProcess, uid: str) -> None:
    step = {"trajectory_uid": uid, "prompt_uid": f"p {uid}", "step_index": 0, "step_uid": f"s:{uid}"}
    body = {"steps": [{**step, "prompt_ids": [1], "response_ids": [2]}]}
    assert studio.http.post("/api/v1/steps", json=body).status_code == 200


def check(studio: ServeProcess, uid: str) -> None:
    submitted(studio, uid)
    name = quote(uid, safe="")
    assert studio.http.get(f"/api/v1/trajectories/{name}").json()["trajectory_uid"] == uid
    assert studio.http.get(f"/api/v1/steps/{quote(f's:{uid}', safe='')}").json()["step_uid"] == f"s:{uid}"
    assert studio.http.get(f"/api/v1/groups/{quote(f'p {uid}', safe='')}").json()["prompt_uid"] == f"p {uid}"
    done = studio.http.post(f"/api/v1/trajectories/{name}/complete", json={"reward": 0.5})
    assert (done.status_code, done.json()["trajectory_uid"]) == (200, uid)
    trajectory = studio.http.get(f"/api/v1/trajectories/{name}").json()
    assert (trajectory["complete"], trajectory["reward"]) == (True, 0.5)


@pytest.mark.parametrize("uid", HOSTILE)
def test_named_ones(studio: ServeProcess, uid: str) -> None:
    check(studio, uid)
    with StudioClient(studio.base_url) as client:
        assert client.trajectory(uid)["complete"]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1, max_size=40))
def test_any(studio: ServeProcess, uid: str) -> None:
    """But for a dot or two alone, which every URL library resolves before it sends."""
    assume(uid.strip(".") or len(uid) > 2)
    check(studio, uid)


@pytest.mark.parametrize("uid", [uid for uid in HOSTILE if uid.isascii() and uid.isprintable() and " " not in uid])
def test_calls_by_path(studio: ServeProcess, uid: str) -> None:
    """A uid in the base URL reaches the step, and Claw-R1's own completion ends it."""
    name = quote(uid, safe="")
    client = openai.OpenAI(base_url=f"{studio.base_url}/cap-{name}/group-{name}/v1", api_key="x", max_retries=0)
    answer = client.chat.completions.with_raw_response.create(
        model="m", messages=[{"role": "user", "content": f"{uid}"}]
    )
    assert answer.headers["x-trajectory-uid"] == f"cap-{uid}"
    step = eventually(
        lambda: (
            r.json()
            if (r := studio.http.get(f"/api/v1/trajectories/{quote(f'cap-{uid}', safe='')}")).status_code == 200
            else None
        )
    )
    assert (step["trajectory_uid"], step["prompt_uid"]) == (f"cap-{uid}", f"group-{uid}")
    done = httpx.post(
        f"{studio.base_url}/cap-{name}/group-{name}/v1/complete_trajectory", json={"reward": 1.0}, timeout=120
    )
    assert done.status_code == 200
    assert studio.http.get(f"/api/v1/trajectories/{quote(f'cap-{uid}', safe='')}").json()["reward"] == 1.0
    assert client.models.list().data
