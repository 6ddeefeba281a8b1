"""What each key opens, over plain HTTP and over TLS, asked with the clients that agents and trainers use."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anthropic
import httpx
import openai
import pytest

from core.api.openapi import operations
from core.client import StudioClient, trusting
from core.config import Settings
from core.errors import StudioError
from core.gateway.access.wrong_keys import MAX_WRONG
from core.service import Service
from core.trainer import Trainer
from tests.access.conftest import SECRET, fresh
from tests.batch.keeping_all import SFT_ALL
from tests.certificates import self_signed
from tests.conftest import ServeProcess, eventually

ADMIN = "an-admin-key-of-0123456789"
HI: list[Any] = [{"role": "user", "content": SECRET}]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Self-signed, for 127.0.0.1."""
    return self_signed(tmp_path_factory.mktemp("tls"), "studio", "IP:127.0.0.1")


@pytest.fixture(scope="module", params=["1", "2"], ids=["one process", "workers"])
def secured(
    request: pytest.FixtureRequest,
    engine: str,
    certificate: tuple[Path, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ServeProcess]:
    """With an admin key and a certificate."""
    cert, key = certificate
    env = {
        "CLAW_STUDIO_GATEWAYS": request.param,
        "CLAW_STUDIO_API_KEY": ADMIN,
        "CLAW_STUDIO_TLS_CERT": str(cert),
        "CLAW_STUDIO_TLS_KEY": str(key),
    }
    process = ServeProcess(tmp_path_factory.mktemp("secured") / "data", engine, env=env)
    process.http.close()
    process.http = httpx.Client(base_url=process.base_url, verify=trusting(cert), timeout=30)
    process.http.headers["Authorization"] = f"Bearer {ADMIN}"
    yield process
    assert process.stop() == 0


def test_real_clients_over_tls_with_session_keys(secured: ServeProcess, certificate: tuple[Path, Path]) -> None:
    assert secured.base_url.startswith("https://")
    tls = trusting(certificate[0])
    with StudioClient(secured.base_url, api_key=ADMIN, tls=tls) as studio:
        session = studio.session(trajectory_uid="t-tls", prompt_uid="p-tls")
        assert session.base_url == f"{secured.base_url}/v1"
        own = {"api_key": session.api_key, "max_retries": 0}
        with openai.OpenAI(
            base_url=session.base_url, http_client=openai.DefaultHttpxClient(verify=tls), **own
        ) as client:
            completion = client.chat.completions.create(model="scripted-1", messages=HI)
            assert "forty-two" in str(completion.choices[0].message.content)
            streamed = client.chat.completions.create(model="scripted-1", messages=HI, stream=True)
            assert "forty-two" in "".join(chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices)
        with anthropic.Anthropic(
            base_url=secured.base_url, http_client=anthropic.DefaultHttpxClient(verify=tls), **own
        ) as claude:
            message = claude.messages.create(model="scripted-1", max_tokens=50, messages=HI)
            assert "forty-two" in str(message.content)
        eventually(lambda: studio.stats()["n_steps"] >= 3)
        assert {step["trajectory_uid"] for step in studio.steps()} == {"t-tls"}
        trainer = Trainer(studio, consumer="over-tls", recipe=SFT_ALL)
        batch = trainer.fetch(wait_s=5)
        assert batch is None or batch.steps
    # Who does not trust the certificate learns nothing, and plain HTTP is none.
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{secured.base_url}/healthz", timeout=120)
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"{secured.base_url.replace('https', 'http')}/healthz", timeout=120)


def test_a_session_key_opens_no_call_of_the_admin_api(secured: ServeProcess, certificate: tuple[Path, Path]) -> None:
    """Every call that the document lists, workers' way included."""
    tls = trusting(certificate[0])
    session = secured.http.post("/api/v1/sessions", json={"trajectory_uid": "t-role"}).json()
    own = {"Authorization": f"Bearer {session['api_key']}"}
    before = secured.http.get("/api/v1/stats").json()["n_steps"]
    for operation in operations():
        method = operation.method
        url = (
            operation.documented_path.replace("{trajectory_uid}", "t-role").replace("{t}", "t-role").replace("{p}", "p")
        )
        url = url.replace("{uid}", "t-role").replace("{name}", "t-role")
        if operation.tag == "capture" or url in ("/healthz", "/readyz", "/ready", "/openapi.json", "/docs"):
            continue
        body = {"json": {}} if method != "GET" else {}
        answer = fresh(secured.base_url, method, url, headers=own, verify=tls, **body)
        assert answer.status_code == 403, (method, url, answer.text)
        answer = fresh(secured.base_url, method, url, verify=tls, **body)
        assert answer.status_code == 401, (method, url, answer.text)
    assert fresh(secured.base_url, "GET", "/v1/models", headers=own, verify=tls).status_code == 200
    assert secured.http.get("/api/v1/stats").json()["n_steps"] == before


def test_answers_of_other_trajectories_are_not_recalled(secured: ServeProcess, certificate: tuple[Path, Path]) -> None:
    tls = trusting(certificate[0])

    def client(uid: str) -> openai.OpenAI:
        key = secured.http.post("/api/v1/sessions", json={"trajectory_uid": uid}).json()["api_key"]
        http = openai.DefaultHttpxClient(verify=tls)
        return openai.OpenAI(base_url=f"{secured.base_url}/v1", api_key=key, max_retries=0, http_client=http)

    with client("t-a") as a, client("t-b") as b:
        first = a.responses.create(model="scripted-1", input=SECRET)
        assert a.responses.retrieve(first.id).id == first.id
        with pytest.raises(openai.NotFoundError):
            b.responses.retrieve(first.id)
        with pytest.raises(openai.BadRequestError):
            b.responses.create(model="scripted-1", input="go on", previous_response_id=first.id)


def test_no_key_means_no_body_is_read(secured: ServeProcess, certificate: tuple[Path, Path]) -> None:
    """The answer comes while the body is still to be sent."""
    parts = urlsplit(secured.base_url)
    assert parts.hostname
    context: ssl.SSLContext = trusting(certificate[0])
    for path in ("/api/v1/steps", "/api/v1/sql", "/v1/chat/completions", "/submit_steps"):
        with (
            socket.create_connection((parts.hostname, parts.port or 443), timeout=20) as plain,
            context.wrap_socket(plain, server_hostname=parts.hostname) as connection,
        ):
            head = f"POST {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
            connection.sendall(f"{head}Content-Length: 200000000\r\n\r\n".encode() + b"{")
            assert connection.recv(4096).startswith(b"HTTP/1.1 401"), path


def test_guessing_is_rate_limited_and_counted(engine: str, serve: Callable[..., ServeProcess]) -> None:
    """Different wrong keys; a wrong key again is an agent that was set up wrongly, and locks nobody out."""
    service = serve(engine, env={"CLAW_STUDIO_API_KEY": ADMIN})

    def ask(key: str, path: str = "/api/v1/stats") -> httpx.Response:
        return fresh(service.base_url, "GET", path, headers={"Authorization": f"Bearer {key}"})

    minted = httpx.post(
        f"{service.base_url}/api/v1/sessions",
        json={},
        headers={"Authorization": f"Bearer {ADMIN}"},
        timeout=120,
    ).json()
    assert {ask("the same wrong one").status_code for _ in range(3 * MAX_WRONG)} == {401}
    assert {ask("cs-" + "x" * 43).status_code for _ in range(3)} == {401}, "an unknown key of our own form"
    assert ask(ADMIN).status_code == 200
    # Of both kinds of wrong key; a gateway process reports its counters a moment later.
    line = f'claw_refused_total{{reason="unauthorized"}} {3 * MAX_WRONG + 3}.0'
    eventually(lambda: line in ask(ADMIN, "/metrics").text.splitlines())
    codes = [ask(f"guess-{number}").status_code for number in range(MAX_WRONG + 5)]
    assert codes[0] == 401 and codes[-1] == 429
    locked = ask(ADMIN)
    assert locked.status_code == 429 and 0 < int(locked.headers["retry-after"]) <= 60, "nor the right guess"
    assert ask(minted["api_key"], "/v1/models").status_code == 200, "agents with session keys go on"
    assert ask("cs-" + "x" * 43, "/v1/models").status_code == 401


def test_an_unknown_session_key_is_refused_on_loopback_too(service: ServeProcess) -> None:
    unknown = {"Authorization": "Bearer cs-" + "y" * 43}
    for method, path in (("GET", "/api/v1/stats"), ("GET", "/v1/models"), ("POST", "/submit_steps")):
        body = {} if method == "GET" else {"json": {"steps": []}}
        assert fresh(service.base_url, method, path, headers=unknown, **body).status_code == 401
    known = service.http.post("/api/v1/sessions", json={}).json()["api_key"]
    for mistyped in (known[:-1], known + "x", known.swapcase().replace("CS-", "cs-"), "cs-"):
        refused = fresh(service.base_url, "GET", "/v1/models", headers={"x-api-key": mistyped})
        assert refused.status_code == 401 and "mistyped" in refused.text, mistyped
    assert fresh(service.base_url, "GET", "/api/v1/stats", headers={"x-api-key": known}).status_code == 403
    assert fresh(service.base_url, "GET", "/v1/models", headers={"x-api-key": known}).status_code == 200


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"host": "0.0.0.0"}, "api_key"),
        ({"host": "0.0.0.0", "api_key": "short"}, "api_key"),
        ({"tls_cert": "no.pem", "tls_key": "no.pem"}, "tls_cert"),
    ],
)
def test_what_would_stand_open_does_not_start(tmp_path: Path, settings: dict[str, Any], field: str) -> None:
    with pytest.raises(StudioError) as refusal:
        Service.open(Settings(data_dir=tmp_path, port=0, **settings))
    assert refusal.value.field == field


@pytest.mark.parametrize(
    "wrong",
    [
        {"tls_cert": "a.pem"},
        {"cors_origins": "*"},
        {"cors_origins": "chat.example"},
        {"cors_origins": ("https://a.example/path",)},
        {"allowed_hosts": "*"},
        {"allowed_hosts": "http://a.example"},
        {"allowed_hosts": ("a.example:80",)},
    ],
    ids=str,
)
def test_settings_that_would_open_too_much_are_none(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"origin|host name|belong together"):
        Settings(**wrong)
