from __future__ import annotations

import threading
import time

import pytest

from core.gateway.calls.identity import KeyStore, hash_key
from tests.conftest import eventually
from tests.gateway.upstream import chat_answer


def identity_of(gateway, **kwargs):
    response = gateway.chat(**kwargs)
    assert response.status_code == 200, response.text
    return gateway.records()[-1]["identity"]


def minted(gateway, **fields):
    key, key_sha256 = gateway.keys.mint(**{"trajectory_uid": "key-t", **fields})
    assert key_sha256 == hash_key(key)
    return key


def test_nobody_says_anything(gateway):
    identity = identity_of(gateway)
    assert identity["trajectory_uid"] is None
    assert (identity["identity_source"], identity["channel"], identity["source"]) == ("inferred", "train", "blackbox")


def test_the_ladder_takes_the_first_rung(gateway):
    key = minted(gateway, prompt_uid="key-p", channel="val", agent="key-agent", metadata={"from": "key"})
    everything = {
        "authorization": f"Bearer {key}",
        "x-trajectory-uid": "header-t",
        "x-session-id": "harness-t",
        "x-prompt-uid": "header-p",
    }
    by_path = identity_of(gateway, prefix="/path-t/path-p", headers=everything, model="main__model-t")
    assert (by_path["trajectory_uid"], by_path["prompt_uid"]) == ("path-t", "path-p")
    assert by_path["identity_source"] == "path"
    by_header = identity_of(gateway, headers=everything, model="main__model-t")
    assert (by_header["trajectory_uid"], by_header["prompt_uid"]) == ("header-t", "header-p")
    assert by_header["identity_source"] == "header"
    assert (by_header["channel"], by_header["agent"]) == ("val", "key-agent")
    del everything["x-trajectory-uid"], everything["x-prompt-uid"]
    by_key = identity_of(gateway, headers=everything, model="main__model-t")
    assert (by_key["trajectory_uid"], by_key["prompt_uid"]) == ("key-t", "key-p")
    assert (by_key["identity_source"], by_key["metadata"]["from"]) == ("key", "key")
    del everything["authorization"]
    by_harness = identity_of(gateway, headers=everything, model="main__model-t")
    assert (by_harness["trajectory_uid"], by_harness["identity_source"]) == ("harness-t", "harness")
    assert by_harness["agent"] is None
    by_model = identity_of(gateway, model="main__model-t")
    assert (by_model["trajectory_uid"], by_model["identity_source"]) == ("model-t", "model_name")


def test_a_key_in_x_api_key_counts(gateway):
    identity = identity_of(gateway, headers={"x-api-key": minted(gateway)})
    assert identity["identity_source"] == "key"


@pytest.mark.parametrize(
    ("headers", "agent", "uid"),
    [
        ({"X-Claude-Code-Session-Id": "c1", "user-agent": "claude-cli/2.0 (external, cli)"}, "claude-code", "c1"),
        ({"session-id": "x1", "thread-id": "x2", "user-agent": "codex_exec/0.40"}, "codex", "x1"),
        ({"x-session-affinity": "o1", "user-agent": "opencode/1.0"}, "opencode", "o1"),
        # verifiers sends a rollout's id under opencode's name, pi its session under codex'.
        ({"x-session-id": "o2", "user-agent": "AsyncOpenAI/Python 1.99.9"}, None, "o2"),
        ({"session_id": "p1", "user-agent": "OpenAI/JS 6.10.0"}, None, "p1"),
        ({"x-session-id": "o2"}, None, "o2"),
        ({"x-session-id": "o3", "user-agent": "codex_cli_rs/0.1"}, "codex", "o3"),
    ],
)
def test_known_harnesses(gateway, headers, agent, uid):
    identity = identity_of(gateway, headers=headers)
    assert (identity["agent"], identity["trajectory_uid"]) == (agent, uid)


@pytest.mark.parametrize(
    ("user_id", "uid"),
    [
        ('{"device_id":"d","account_uuid":"a","session_id":"5f0c-1"}', "5f0c-1"),
        ("user_9a_account__session_5f0c-2", "5f0c-2"),
        ("user_9a_account_", None),
        ("{not JSON", None),
        ('{"session_id": 7}', None),
        ('{"session_id": "a b"}', None),
    ],
)
def test_claude_code_is_known_by_its_body_where_a_proxy_keeps_its_headers(gateway, user_id, uid):
    identity = identity_of(gateway, metadata={"user_id": user_id})
    assert (identity["trajectory_uid"], identity["identity_source"]) == (uid, "harness" if uid else "inferred")
    assert identity["agent"] is None
    named = identity_of(gateway, headers={"user-agent": "claude-cli/2"}, metadata={"user_id": user_id})
    assert named["agent"] == "claude-code"
    # What it says in a header counts more.
    assert identity_of(gateway, headers={"session-id": "s"}, metadata={"user_id": user_id})["trajectory_uid"] == "s"


def test_a_session_header_that_is_no_uid_costs_nobody_the_call(gateway):
    for odd in ("has blank", "x" * 300, "a\tb"):
        identity = identity_of(gateway, headers={"x-session-id": odd.encode(), "user-agent": "opencode/1"})
        assert (identity["trajectory_uid"], identity["agent"]) == (None, "opencode")
    both = {"session-id": "has blank", "thread-id": "t1"}
    assert identity_of(gateway, headers=both)["trajectory_uid"] == "t1"


@pytest.mark.parametrize(("turn", "hint"), [("main", "main"), ("side", "auxiliary")])
def test_a_turn_model_name_is_stripped(gateway, upstream, turn, hint):
    upstream.models = ["policy", "other"]
    identity = identity_of(gateway, model=f"{turn}__S42")
    assert identity["trajectory_uid"] == "S42"
    assert identity["metadata"]["call_kind_hint"] == hint
    assert upstream.last.body["model"] == "policy"
    assert gateway.records()[-1]["request"]["model"] == f"{turn}__S42"


def test_headers_name_the_rest(gateway):
    identity = identity_of(gateway, headers={"X-Channel": "val", "X-Source": "service", "X-Agent": "bot"})
    assert (identity["channel"], identity["source"], identity["agent"]) == ("val", "service", "bot")


def test_a_header_names_the_run(gateway):
    assert identity_of(gateway, headers={"X-Run": "prompt-v2"})["metadata"]["run"] == "prompt-v2"
    assert "run" not in identity_of(gateway)["metadata"]


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Source": "nonsense"},
        {"X-Trajectory-Uid": "has blank"},
        {"X-Prompt-Uid": "x" * 300},
        {"X-Channel": "a b"},
        {"X-Run": "x" * 300},
    ],
)
def test_names_that_do_not_fit_are_refused(gateway, headers):
    response = gateway.chat(headers=headers)
    assert response.status_code == 422
    assert response.json()["error"]["param"]
    assert gateway.records() == []


def test_the_channel_of_the_settings_is_the_default(make_gateway, upstream):
    assert identity_of(make_gateway(upstream, channel="elsewhere"))["channel"] == "elsewhere"


def test_retries_are_counted(gateway):
    gateway.chat(headers={"x-stainless-retry-count": "2"})
    gateway.chat(headers={"x-stainless-retry-count": "junk"})
    assert [record["retry_count"] for record in gateway.records()] == [2, 0]


def test_a_gateway_with_a_key_refuses_others(make_gateway, upstream):
    gateway = make_gateway(upstream, api_key="studio-key-123456")
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic abc"}, {"x-api-key": ""}):
        response = gateway.chat(headers=headers)
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
    assert gateway.http.get("/v1/models").status_code == 401
    assert gateway.http.post("/v1/messages", json={}).status_code == 401
    assert upstream.seen == []
    assert gateway.chat(headers={"authorization": "Bearer studio-key-123456"}).status_code == 200
    assert gateway.chat(headers={"x-api-key": minted(gateway)}).status_code == 200


def test_our_keys_never_reach_the_engine_and_foreign_ones_do(make_gateway, upstream):
    gateway = make_gateway(upstream, api_key="studio-key-123456")
    gateway.chat(headers={"authorization": f"Bearer {minted(gateway)}"})
    assert "authorization" not in upstream.last.headers
    gateway.chat(headers={"authorization": "Bearer studio-key-123456"})
    assert "authorization" not in upstream.last.headers
    gateway.chat(headers={"authorization": "Bearer own-provider-key", "x-api-key": "studio-key-123456"})
    assert upstream.last.headers["authorization"] == "Bearer own-provider-key"


def test_an_engines_key_wins_over_the_agents(make_gateway, upstream):
    gateway = make_gateway()
    gateway.engines.add("engine", upstream.base_url, api_key="engine-key")
    gateway.chat(headers={"authorization": "Bearer agents-own"})
    assert upstream.last.headers["authorization"] == "Bearer engine-key"


def test_keys_survive_as_hashes():
    store = KeyStore()
    key, key_sha256 = store.mint(trajectory_uid="t", channel="val", agent="a", metadata={"x": 1})
    rows = [
        {
            "key_sha256": key_sha256,
            "trajectory_uid": "t",
            "prompt_uid": None,
            "channel": "val",
            "agent": "a",
            "metadata": {"x": 1},
        }
    ]
    again = KeyStore()
    again.load(rows)
    assert again.resolve(key) == store.resolve(key)
    assert again.knows_trajectory("t")
    assert again.resolve(key + "x") is None


def test_no_canary_reaches_disk_or_answers(make_gateway, upstream, tmp_path, caplog):
    canaries = [f"canary-{name}-0123456789abcdef" for name in ("api", "engine", "bearer", "xkey", "cookie", "body")]
    api, engine, bearer, xkey, cookie, body = canaries
    gateway = make_gateway(api_key=api)
    gateway.engines.add("engine", upstream.base_url, api_key=engine)
    session = minted(gateway)
    # Agents print their environment into the conversation; engines repeat what they were sent.
    upstream.reply = lambda seen: {
        **chat_answer(f"your key is {seen.headers.get('authorization')}"),
        "echo": [dict(seen.headers), seen.body],
    }
    headers = {
        "authorization": f"Bearer {bearer}",
        "x-api-key": xkey,
        "cookie": f"session={cookie}",
        "proxy-authorization": f"Basic {cookie}",
    }
    printed = [{"role": "tool", "content": f"API_KEY={api} OWN={bearer}", "tool_call_id": "c"}]
    statuses = [
        gateway.chat(headers={**headers, "x-api-key": api}, messages=printed, api_key=body).status_code,
        gateway.chat(headers={**headers, "authorization": f"Bearer {session}"}, extra_headers={"k": body}).status_code,
        gateway.chat(headers=headers).status_code,
        gateway.http.post(f"/v1/chat/completions?api_key={body}", json={}, headers={"x-api-key": api}).status_code,
    ]
    assert statuses == [200, 200, 401, 200]
    upstream.reply = lambda seen: (_ for _ in ()).throw(RuntimeError(str(seen.headers)))
    refused = gateway.chat(headers={**headers, "x-api-key": session})
    assert refused.status_code == 502
    written = b"".join(path.read_bytes() for path in gateway.directory.iterdir())
    shown = str(gateway.stats.snapshot()) + str(gateway.engines.status()) + refused.text
    gateway_log = "\n".join(r.getMessage() for r in caplog.records if r.name.startswith("core"))
    for canary in [*canaries[:-1], body, session]:
        assert canary.encode() not in written, canary
        assert canary not in shown
        assert canary not in gateway_log


def test_versions_are_stamped_at_both_ends(gateway, upstream):
    gateway.policy.apply("registered", 3, at=1.0)
    upstream.gate = threading.Event()
    worker = threading.Thread(target=gateway.chat)
    worker.start()
    eventually(lambda: upstream.seen)
    assert gateway.policy.n_in_flight == 1
    gateway.policy.apply("sync_started", 4, at=2.0)
    gateway.policy.apply("sync_finished", 4, at=3.0)
    upstream.gate.set()
    worker.join()
    (record,) = gateway.records()
    assert (record["policy_version"], record["policy_version_end"]) == (3, 4)
    assert gateway.policy.n_in_flight == 0
    assert [entry["event"] for entry in gateway.policy.history_json()] == [
        "sync_finished", "sync_started", "registered",
    ]  # fmt: skip


def test_new_calls_wait_for_the_weights(gateway, upstream):
    gateway.policy.apply("sync_started", 7, at=1.0)
    answers = []
    worker = threading.Thread(target=lambda: answers.append(gateway.chat()))
    worker.start()
    time.sleep(0.3)
    assert upstream.seen == []
    gateway.policy.apply("sync_finished", 7, at=2.0)
    worker.join(30)
    assert answers[0].status_code == 200
    assert gateway.records()[0]["policy_version"] == 7


def test_waiting_ends_with_503_and_retry_after(make_gateway, upstream):
    gateway = make_gateway(upstream, limits={"sync_wait_s": 0.1})
    gateway.policy.apply("sync_started", 1, at=1.0)
    response = gateway.chat()
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1
    gateway.policy.apply("sync_finished", 1, at=2.0)
    assert gateway.chat().status_code == 200
    assert gateway.stats.snapshot()["n_in_flight"] == 0
