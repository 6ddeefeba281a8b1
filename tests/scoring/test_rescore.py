"""Attempts are scored again from their kept workspaces, by a running service and a scripted judge."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from core.client import StudioClient
from core.errors import StudioError
from core.packs import Pack, PackFile, PackTask
from core.packs.clawgym import reward_script
from core.packs.library import PackLibrary
from core.packs.model import REWARD_SH
from core.rollouts import Attempt, RunSettings, RunStore, WorkspaceStore
from tests.conftest import eventually, scripted_engine

CHECK = (
    "import json, sys, pathlib\n"
    "out = pathlib.Path(sys.argv[1]) / 'out.txt'\n"
    "print(json.dumps({'there': out.exists(), 'right': out.exists() and out.read_text() == 'yes'}))\n"
)
RULE = {"name": "right answer", "file_path": "out.txt", "scores": {"0": "wrong", "0.5": "partly", "1": "right"}}
TASK = PackTask(
    "t1",
    "Write yes to out.txt.",
    input_files={"in.txt": PackFile(b"x")},
    checker=REWARD_SH,
    checker_files={"reward.sh": reward_script(), "check.py": PackFile(CHECK.encode())},
    rules=(RULE,),
)
SCRIPT = {
    "model": "scripted-1",
    "rules": [
        {"when": {"contains": "right answer", "last_contains": "\nyes\n"}, "reply": {"content": '{"level": 1}'}},
        {"when": {"contains": "right answer"}, "reply": {"content": '{"reason": "near", "level": 0.5}'}},
    ],
    "default": {"reply": {"content": "yes"}},
}
# Attempt -> what it left in out.txt (None: no file), and the reward it was given.
ATTEMPTS = {"a-right": ("yes", 1.0), "a-near": ("Yes.", 1.0), "a-none": (None, 0.0), "a-lost": ("yes", None)}


@pytest.fixture(scope="module")
def studio(tmp_path_factory):
    from tests.conftest import ServeProcess

    root = tmp_path_factory.mktemp("rescore")
    data = root / "data"
    pack = Pack("p", [TASK])
    PackLibrary(data / "packs").keep(pack, now=1.0)
    workspaces = WorkspaceStore(data / "workspaces")
    settings = RunSettings("run-1", "p", pack.version, "/p", ("t1",), "demo", "scripted-1", 4, 1, 1.0)
    run = RunStore(data / "rollouts").create(settings)
    with scripted_engine(root, SCRIPT) as engine:
        service = ServeProcess(data, engine.base_url)
        try:
            with StudioClient(service.base_url) as client, run.writer() as writer:
                for number, (uid, (text, reward)) in enumerate(ATTEMPTS.items()):
                    folder = root / uid
                    folder.mkdir()
                    (folder / "in.txt").write_bytes(b"x")
                    if text is not None:
                        (folder / "out.txt").write_text(text)
                    digest = workspaces.put(folder, TASK.input_files)
                    capture(client, uid, reward)
                    attempt = Attempt(
                        "run-1", "p", pack.version, "t1", "demo", number, 0, uid, "done", workspace=digest
                    )
                    writer.write(attempt)
                capture(client, "b-outside", 0.0)
                eventually(lambda: client.call("GET", "/api/v1/stats")["n_steps"] == len(ATTEMPTS) + 1)
                yield client, data
        finally:
            assert service.stop() == 0


def capture(client: StudioClient, uid: str, reward: float | None) -> None:
    session = client.session(trajectory_uid=uid, prompt_uid="t1@demo")
    body = {"model": "scripted-1", "messages": [{"role": "user", "content": "Write it."}]}
    headers = {"Authorization": f"Bearer {session.api_key}"}
    answer = httpx.post(f"{session.base_url}/chat/completions", json=body, headers=headers, timeout=120)
    assert answer.status_code == 200, answer.text
    client.complete(uid, reward=reward)


def run(client: StudioClient, name: str, **fields):
    client.call("POST", "/api/v1/rescores", {"name": name, "view": {"filters": {"channel": "train"}}, **fields})
    return eventually(lambda: (shown := client.call("GET", f"/api/v1/rescores/{name}"))["running"] is False and shown)


def rewards(client: StudioClient) -> dict[str, float | None]:
    uids = [*ATTEMPTS, "b-outside"]
    return {uid: client.call("GET", f"/api/v1/trajectories/{uid}")["reward"] for uid in uids}


def test_the_tasks_own_checks_again_then_adopted(studio):
    client, data = studio
    before = rewards(client)
    shown = run(client, "again")
    assert shown["error"] is None and shown["n_done"] == shown["n_total"] == 5
    compared = shown["comparison"]
    assert compared["outcomes"] == {"scored": 4, "missing": 1}
    assert (compared["n_both"], compared["n_equal"], compared["n_newly_scored"]) == (3, 2, 1)
    # b-outside is no attempt of a run: nothing of it was kept, so it has no new reward.
    assert compared["n_no_longer_scored"] == 1 and compared["n_no_longer_solved"] == 1
    (flip,) = [one for one in compared["changes"] if one["flips"]]
    assert flip == {"trajectory_uid": "a-near", "old": 1.0, "new": 0.5, "flips": True}
    (result,) = client.call("GET", "/api/v1/rescores/again/results?trajectory_uid=a-near")["results"]
    assert result["details"]["values"] == {"there": True, "right": False}
    assert result["environment"]["isolation"]["level"]
    assert rewards(client) == before

    adopted = client.call("POST", "/api/v1/rescores/again/adopt", {"author": "me"})["adopted"]
    assert adopted["policies"] == {"train": "rescore-again@1"}
    after = {**before, "a-near": 0.5, "a-lost": 1.0}
    assert rewards(client) == after
    with pytest.raises(StudioError, match="was adopted"):
        client.call("POST", "/api/v1/rescores/again/adopt", {})
    # Another policy brings the earlier rewards back, and this one can be adopted again.
    client.call("PUT", "/api/v1/rewards/before", {"policy": {"rule": "precedence", "sources": ["complete"]}})
    client.call("PUT", "/api/v1/channels/train/rewards", {"name": "before"})
    assert rewards(client) == before
    client.call("PUT", "/api/v1/channels/train/rewards", {"name": "rescore-again"})
    assert rewards(client) == after
    client.call("PUT", "/api/v1/channels/train/rewards", {"name": "before"})
    # Combined with the rewards of the check at the rollout; a trajectory without one of both has no reward.
    run(client, "third")
    body = {"combine": "code_0.7_rubric_0.3", "code": "complete"}
    client.call("POST", "/api/v1/rescores/third/adopt", body)
    assert rewards(client) == {**before, "a-near": pytest.approx(0.85), "b-outside": None}
    client.call("PUT", "/api/v1/channels/train/rewards", {"name": "before"})
    # Or it keeps the one that it has: a-lost the new one, b-outside the old one.
    run(client, "fourth")
    client.call("POST", "/api/v1/rescores/fourth/adopt", {**body, "missing": "skip"})
    assert rewards(client) == {**before, "a-near": pytest.approx(0.85), "a-lost": 1.0}
    client.call("PUT", "/api/v1/channels/train/rewards", {"name": "before"})
    assert client.call("DELETE", "/api/v1/rescores/again") == {"discarded": "again"}
    assert not (data / "rescores" / "again").exists()


def test_a_judge_through_the_gateway_is_captured_cached_and_compared_with_people(studio):
    client, data = studio
    client.annotate("quality", "bad", trajectory_uid="a-near", author="ann", source="studio")
    client.annotate("reward", 1.0, trajectory_uid="a-right", author="ann", source="human")
    judge = {"model": "scripted-1", "max_calls": 20}
    shown = run(client, "rubric", verifier="rubric", repeats=2, judge=judge)
    by_uid = {one["trajectory_uid"]: one["new"] for one in shown["comparison"]["changes"]}
    assert by_uid["a-near"] == 0.5 and by_uid["a-lost"] == 1.0
    # a-none left no file: 0 without a call. The others are asked twice.
    assert shown["spending"]["n_calls"] == 6 - shown["spending"]["n_cached"]
    human = shown["reliability"]["human"]
    assert (human["n"], human["n_disagree"], human["agreement"]) == (2, 0, 1.0)
    assert shown["reliability"]["n"] == 4 and shown["reliability"]["mean_variance"] == 0.0

    n_calls = shown["spending"]["n_calls"]
    address = "/api/v1/steps?where=channel%20%3D%20'judge'"
    steps = eventually(lambda: len(s := client.call("GET", address)["steps"]) == n_calls > 0 and s)
    assert {(one["call_kind"], one["trainable"], one["trajectory_uid"]) for one in steps} == {
        ("auxiliary", False, "judge-rubric")
    }
    again = run(client, "rubric-2", verifier="rubric", repeats=2, judge={**judge, "max_calls": 0})
    assert (again["spending"]["n_calls"], again["spending"]["n_cached"]) == (0, 6)
    assert again["comparison"]["changes"] == shown["comparison"]["changes"]
    # Another question, and no budget for it: unscored with the reason, and no 0.
    check = {"verifier": "rubric", "rules": [{**RULE, "name": "new right answer"}]}
    spent = run(client, "spent", verifier=check, judge={**judge, "max_calls": 0})
    assert spent["comparison"]["outcomes"] == {"refused": 3, "scored": 1, "missing": 1}
    assert list((data / "judge").rglob("*.json"))


def test_messages_are_enough_for_some_verifiers(studio):
    client, _ = studio
    shown = run(client, "words", verifier={"verifier": "final_answer", "answer": "yes"})
    assert shown["comparison"]["outcomes"] == {"scored": 5}
    label = run(client, "people", verifier={"verifier": "human", "question": "Is it good?"})
    assert label["comparison"]["outcomes"] == {"missing": 5}
    tags = client.call("GET", "/api/v1/trajectories/b-outside")
    assert "label-requested" in str(tags), sorted(tags)
    client.call("DELETE", "/api/v1/rescores/words")
    names = {one["name"] for one in client.call("GET", "/api/v1/rescores")["rescores"]}
    assert "people" in names and "words" not in names


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "../x"}, "name"),
        ({"name": "x", "verifier": "other"}, "verifier"),
        ({"name": "x", "isolation": "best"}, "isolation"),
        ({"name": "x", "verifier": {"verifier": "code_check", "program": "/bin/true"}}, "verifier"),
        ({"name": "x", "verifier": {"verifier": "every", "checks": [{"folder": "/"}]}}, "verifier"),
        ({"name": "x", "judge": {"model": "unknown-model", "max_usd": 1.0}}, "judge.max_usd"),
        ({"name": "x", "view": {"where": "no_column = 1"}}, None),
    ],
)
def test_wrong_requests_are_refused(studio, body, field):
    client, data = studio
    with pytest.raises(StudioError) as caught:
        client.call("POST", "/api/v1/rescores", body)
    assert field is None or caught.value.field == field
    assert not Path(data / "rescores" / "x").exists()


def test_prices_are_litellms_own():
    import json
    from importlib.util import find_spec

    from core.scoring.prices import MAP, price_of

    entries = json.loads((Path(find_spec("litellm").origin).parent / MAP).read_text())
    entry = entries["gpt-4o-mini"]
    price = price_of("gpt-4o-mini")
    assert price.of(1000, 10) == pytest.approx(
        1000 * entry["input_cost_per_token"] + 10 * entry["output_cost_per_token"]
    )
    assert price.of(None, 10) is None and price_of("scripted-1") is None
