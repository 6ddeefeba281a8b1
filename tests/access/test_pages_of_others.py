"""What a web page in the user's browser may not do: the headers are those that browsers send (Fetch standard).

``tests/browser/test_attack.py`` has a real browser do it.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.access.conftest import SECRET, fresh, raw, state_of
from tests.conftest import ServeProcess, eventually

SQL = json.dumps({"sql": "SELECT * FROM steps"})
CALL = json.dumps({"model": "scripted-1", "messages": [{"role": "user", "content": "written by a page"}]})
WRITES = [
    ("/api/v1/retention", json.dumps({"older_than_days": 0, "apply": True, "journal": True})),
    ("/api/v1/backup", json.dumps({"out": "/tmp/never-made-by-a-page"})),
    ("/api/v1/policy", json.dumps({"version": 99, "event": "sync_started"})),
    ("/api/v1/sessions", "{}"),
    ("/api/v1/sql", SQL),
    ("/api/v1/imports", '{"trajectory_uid": "evil", "step_index": 0, "response_ids": [1]}'),
    ("/submit_steps", json.dumps({"steps": [{"trajectory_uid": "evil", "step_index": 0, "response_ids": [1]}]})),
    ("/complete_trajectory/planted", '{"reward": 1.0}'),
    ("/planted/group/v1/complete_trajectory", '{"reward": 1.0}'),
    ("/init_trajectory", ""),
    ("/v1/chat/completions", CALL),
    ("/planted/group/v1/messages", CALL),
]
TYPES = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/json", None]
READS = ["/api/v1/steps", "/api/v1/stats", "/api/v1/sessions", "/metrics", "/v1/models", "/api/v1/trajectories/planted"]


@pytest.mark.parametrize(("path", "body"), WRITES, ids=[path for path, _ in WRITES])
def test_a_page_of_another_origin_writes_nothing(service: ServeProcess, path: str, body: str) -> None:
    before = state_of(service)
    other_port = "http://127.0.0.1:9"
    pages = (
        {"Origin": "https://evil.test", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "https://evil.test"},
        {"Origin": "null"},
        {"Origin": other_port, "Sec-Fetch-Site": "same-site"},
        {"Origin": service.base_url.replace("http:", "file:")},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    )
    for media, page in product(TYPES, pages):
        typed = {} if media is None else {"Content-Type": media}
        answer = fresh(service.base_url, "POST", path, content=body, headers={**typed, **page})
        assert answer.status_code == 403, (media, page, answer.text)
        assert "access-control-allow-origin" not in answer.headers
    assert state_of(service) == before


@pytest.mark.parametrize("path", READS)
def test_a_page_of_another_origin_reads_nothing(service: ServeProcess, path: str) -> None:
    for page in ({"Origin": "https://evil.test"}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}):
        answer = fresh(service.base_url, "GET", path, headers=page)
        assert answer.status_code == 403 and SECRET not in answer.text
    own = {"Origin": service.base_url, "Sec-Fetch-Site": "same-origin"}
    assert fresh(service.base_url, "GET", path, headers=own).status_code == 200, "a page of ours may"


HOSTS = ["evil.test", "evil.test:8100", "127.0.0.1.evil.test", "localhost.evil.test", "evil.test.", "2130706433", ""]
ODD = ["127.0.0.1@evil.test", "evil.test#127.0.0.1", "127.0.0.1:8100:80", "127.0.0.1:99999", "[::1", "[::1]x", "a b"]


@pytest.mark.parametrize("host", HOSTS + ODD)
def test_a_rebound_name_gets_nothing(service: ServeProcess, host: str) -> None:
    """Browsers put the name of the page into ``Host``, whatever it resolves to; here it is same-origin with itself."""
    before = state_of(service)
    for head, body in (
        (f"GET /api/v1/steps HTTP/1.1\nHost: {host}", b""),
        (f"GET /healthz HTTP/1.1\nHost: {host}", b""),
        (f"GET /v1/models HTTP/1.1\nHost: {host}\nOrigin: http://{host}\nSec-Fetch-Site: same-origin", b""),
        (
            f"POST /api/v1/sql HTTP/1.1\nHost: {host}\nOrigin: http://{host}\nContent-Type: application/json",
            SQL.encode(),
        ),
        (f"POST /v1/chat/completions HTTP/1.1\nHost: {host}\nOrigin: http://{host}", CALL.encode()),
    ):
        length = f"\nContent-Length: {len(body)}" if body else ""
        status, answer = raw(service.base_url, head + length, body)
        assert status == 421 and SECRET.encode() not in answer, (head, answer)
        assert json.loads(answer)
    assert state_of(service) == before


def test_no_host_and_two_hosts_are_none(service: ServeProcess) -> None:
    host = urlsplit(service.base_url).netloc
    assert raw(service.base_url, "GET /api/v1/stats HTTP/1.1")[0] in (400, 421)
    assert raw(service.base_url, f"GET /api/v1/stats HTTP/1.1\nHost: evil.test\nHost: {host}")[0] in (400, 421)
    assert raw(service.base_url, f"GET /api/v1/stats HTTP/1.1\nHost: {host}\nHost: evil.test")[0] in (400, 421)


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1", "[::1]:8100", "LOCALHOST.", "127.9.9.9"])
def test_every_name_of_this_machine_for_itself_is_served(service: ServeProcess, host: str) -> None:
    assert raw(service.base_url, f"GET /api/v1/stats HTTP/1.1\nHost: {host}")[0] == 200


@pytest.mark.parametrize("media", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_a_body_of_the_admin_api_says_that_it_is_json(service: ServeProcess, media: str) -> None:
    """Old browsers send forms without ``Origin``; no form and no simple request can be of a JSON type."""
    before = state_of(service)
    answer = fresh(service.base_url, "POST", "/api/v1/sessions", content=b"{}", headers={"Content-Type": media})
    assert answer.status_code == 415 and "application/json" in answer.json()["hint"]
    assert state_of(service) == before
    for good in ("application/json", "Application/JSON; charset=utf-8", "application/vnd.x+json"):
        answer = fresh(service.base_url, "POST", "/api/v1/plans", content=b"{}", headers={"Content-Type": good})
        assert answer.status_code == 200, answer.text
    # Model calls take what agents send: a page of another origin is refused before its body's type matters.
    answer = fresh(service.base_url, "POST", "/v1/messages/count_tokens", content=CALL, headers={"Content-Type": media})
    assert answer.status_code == 200


def test_what_is_refused_is_counted_by_all_processes(service: ServeProcess) -> None:
    def counted() -> float:
        lines = service.http.get("/metrics").text.splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith('claw_refused_total{reason="origin"}'))

    before = counted()
    for _ in range(8):
        fresh(service.base_url, "GET", "/api/v1/stats", headers={"Origin": "https://evil.test"})
    eventually(lambda: counted() == before + 8)


def test_the_owner_behind_workers_is_no_way_around(service: ServeProcess) -> None:
    """It listens on a port of its own; what says that a worker sent it must prove it."""
    table = Path(f"/proc/{service.process.pid}/net/tcp").read_text()
    rows = [line.split() for line in table.splitlines()[1:]]
    inodes = _sockets_of(service.process.pid)
    ports = {int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and row[9] in inodes}
    assert ports
    for port in ports:
        for headers in ({"Origin": "https://evil.test"}, {"Host": "evil.test"}):
            forged: dict[str, Any] = {**headers, "x-claw-worker": "0" * 32 + " 127.0.0.1"}
            assert httpx.get(f"http://127.0.0.1:{port}/api/v1/stats", headers=forged, timeout=120).status_code in (
                403,
                421,
            )


def _sockets_of(pid: int) -> set[str]:
    names = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            names.add(target[8:-1])
    return names
