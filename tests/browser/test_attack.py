"""A page of somebody else, in a real browser, against a real service and a real studio on this machine.

The page is served from another port of this machine and, under names that resolve here, as a rebound name would be.
"""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.access.conftest import SCRIPT, SECRET, state_of
from tests.browser.conftest import PATIENCE_MS, Studio, chromium_path, start_studio
from tests.conftest import ServeProcess, eventually, scripted_engine

ATTACK = """async ([gateway, pages, stream]) => {
  const read = [];
  const seen = async (what, work) => {
    try { const got = await work(); if (got) read.push([what, String(got).slice(0, 200)]); } catch (error) { }
  };
  const sql = JSON.stringify({sql: 'SELECT * FROM steps'});
  const call = JSON.stringify({model: 'scripted-1', messages: [{role: 'user', content: 'written by a page'}]});
  const writes = [
    ['/api/v1/retention', JSON.stringify({older_than_days: 0, apply: true, journal: true})],
    ['/api/v1/policy', JSON.stringify({version: 99, event: 'sync_started'})], ['/api/v1/sessions', '{}'],
    ['/api/v1/sql', sql], ['/submit_steps', JSON.stringify({steps: [{trajectory_uid: 'evil', step_index: 0}]})],
    ['/v1/chat/completions', call], ['/init_trajectory', ''], ['/complete_trajectory/planted', '{"reward": 1}'],
  ];
  for (const [path, body] of writes) {
    for (const media of ['text/plain', 'application/x-www-form-urlencoded', 'application/json']) {
      for (const mode of ['cors', 'no-cors']) {
        await seen(`fetch ${path} ${media} ${mode}`, async () => {
          const headers = {'Content-Type': media};
          const answer = await fetch(gateway + path, {method: 'POST', mode, headers, body});
          return answer.ok && await answer.text();
        });
      }
    }
    navigator.sendBeacon(gateway + path, body);
    const frame = document.createElement('iframe');
    frame.name = `form${Math.random()}`; document.body.append(frame);
    const form = document.createElement('form');
    Object.assign(form, {method: 'post', action: gateway + path, enctype: 'text/plain', target: frame.name});
    const field = document.createElement('input');
    field.name = body.slice(0, -1) + ',"x":"'; field.value = '"}'; form.append(field);
    document.body.append(form); form.submit();
  }
  for (const path of ['/api/v1/steps', '/api/v1/stats', '/metrics', '/v1/models', '/api/v1/sessions']) {
    await seen(`get ${path}`, async () => { const a = await fetch(gateway + path); return a.ok && await a.text(); });
    await seen(`xhr ${path}`, () => new Promise((done) => {
      const request = new XMLHttpRequest();
      request.onloadend = () => done(request.status === 200 && request.responseText);
      request.open('GET', gateway + path); request.send();
    }));
    await seen(`script ${path}`, () => new Promise((done) => {
      const script = document.createElement('script');
      script.onload = () => done('loaded'); script.onerror = () => done(null);
      script.src = gateway + path; document.body.append(script);
    }));
  }
  await seen('websocket', () => new Promise((done) => {
    const socket = new WebSocket(stream, ['streamlit']);
    socket.onopen = () => done('open'); socket.onerror = () => done(null);
    setTimeout(() => done(null), 5000);
  }));
  await seen('pages by fetch', async () => { const a = await fetch(pages); return a.ok && await a.text(); });
  await new Promise((done) => setTimeout(done, 1000));
  return read;
}"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with scripted_engine(tmp_path_factory.mktemp("attack-engine"), SCRIPT) as running:
        assert running.base_url
        yield running.base_url


@pytest.fixture(scope="module")
def attacker() -> Iterator[int]:
    """The port of the page's own server."""

    class Blank(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>evil</title><body>evil")

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Blank)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()


@pytest.fixture
def victim(engine: str, tmp_path: Path, browser: Browser) -> Iterator[Studio]:
    """A studio with one captured call, open on this machine."""
    studio = start_studio(tmp_path, env={"CLAW_STUDIO_ENGINE": engine, "CLAW_STUDIO_GATEWAYS": "2"})
    request = {"model": "scripted-1", "messages": [{"role": "user", "content": SECRET}]}
    httpx.post(f"{studio.gateway_url}/planted/group/v1/chat/completions", json=request, timeout=60).raise_for_status()
    eventually(lambda: httpx.get(f"{studio.gateway_url}/api/v1/stats", timeout=120).json()["n_steps"] == 1)
    yield studio
    studio.stop()


class Looked:
    """``state_of`` asks a service; a studio has one."""

    def __init__(self, studio: Studio) -> None:
        self.http = httpx.Client(base_url=studio.gateway_url, timeout=30)


def evil_page(opened: Browser, address: str) -> Page:
    page = opened.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(address)
    return page


def test_a_page_of_another_origin_gets_and_changes_nothing(victim: Studio, attacker: int, browser: Browser) -> None:
    before = state_of(Looked(victim))  # type: ignore[arg-type]
    for host in ("127.0.0.1", "localhost"):
        page = evil_page(browser, f"http://{host}:{attacker}/")
        stream = victim.url.replace("http", "ws") + "/_stcore/stream"
        read = page.evaluate(ATTACK, [victim.gateway_url, victim.url, stream])
        assert read == []
        page.close()
    assert state_of(Looked(victim)) == before  # type: ignore[arg-type]


def test_a_rebound_name_gets_and_changes_nothing(victim: Studio, attacker: int, browser: Browser) -> None:
    """The browser takes ``evil.test`` for this machine: page and service are one origin to it."""
    gateway, pages = (url.replace("127.0.0.1", "evil.test") for url in (victim.gateway_url, victim.url))
    before = state_of(Looked(victim))  # type: ignore[arg-type]
    args = ["--no-sandbox", "--host-resolver-rules=MAP evil.test 127.0.0.1"]
    rebound = browser.browser_type.launch(executable_path=chromium_path(), args=args)
    try:
        page = evil_page(rebound, f"http://evil.test:{attacker}/")
        stream = pages.replace("http", "ws") + "/_stcore/stream"
        assert page.evaluate(ATTACK, [gateway, pages, stream]) == []
        # As documents of the rebound name itself, where nothing is cross-origin any more.
        for address in (f"{gateway}/api/v1/steps", f"{gateway}/docs", pages):
            answer = page.goto(address)
            assert answer is not None and answer.status == 421
            assert SECRET not in page.content()
            assert page.evaluate(ATTACK, [gateway, pages, stream]) == []
    finally:
        rebound.close()
    assert state_of(Looked(victim)) == before  # type: ignore[arg-type]


def test_no_foreign_page_frames_the_studio_and_links_still_lead_to_it(
    victim: Studio, attacker: int, browser: Browser
) -> None:
    page = evil_page(browser, f"http://127.0.0.1:{attacker}/")
    page.set_content(f'<iframe src="{victim.url}"></iframe><a href="{victim.url}">in</a>')
    frame = eventually(lambda: next((one for one in page.frames if one != page.main_frame), None))
    page.wait_for_timeout(2000)
    assert frame.locator(".stApp").count() == 0
    page.get_by_text("in").click()
    expect(page.locator(".cs-head h1")).to_have_text("Overview")
    answer = httpx.get(victim.url, timeout=120)
    assert "frame-ancestors 'self'" in answer.headers["content-security-policy"]
    page.close()


def test_an_upload_needs_the_token_of_the_pages(victim: Studio) -> None:
    """What the pages' own script sends as a header, no form or page of another origin can."""
    with httpx.Client(base_url=victim.url, headers={"Origin": victim.url}, timeout=60) as http:
        token = http.get("/_stcore/health").cookies["_streamlit_xsrf"]
        path, files = "/_stcore/upload_file/session/file", {"file": ("a.txt", b"x")}
        for header in ({}, {"X-Xsrftoken": "2|00000000|00000000|1700000000"}):
            assert http.put(path, files=files, headers=header).status_code == 403
        # With the token, what is left to refuse is that there is no such session.
        answer = http.put(path, files=files, headers={"X-Xsrftoken": token})
        assert answer.status_code != 403, answer.text


def test_a_listed_origin_makes_model_calls_and_nothing_else(
    engine: str, attacker: int, browser: Browser, tmp_path: Path
) -> None:
    """Preflights and answers by a real browser's rules; an origin that isn't listed gets none."""
    listed = f"http://127.0.0.1:{attacker}"
    service = ServeProcess(
        tmp_path / "data", engine, env={"CLAW_STUDIO_CORS_ORIGINS": listed, "CLAW_STUDIO_GATEWAYS": "2"}
    )
    ask = """async ([url, method, body]) => {
      try {
        const headers = {'Content-Type': 'application/json', 'Authorization': 'Bearer x', 'X-Agent': 'page'};
        const answer = await fetch(url, {method, headers, body});
        return [answer.status, await answer.text(), answer.headers.get('x-step-uid')];
      } catch (error) { return [0, String(error), null]; }
    }"""
    call = json.dumps({"model": "scripted-1", "messages": [{"role": "user", "content": "from a page"}]})
    try:
        page = evil_page(browser, listed)
        for _ in range(4):
            status, text, step_uid = page.evaluate(ask, [f"{service.base_url}/v1/chat/completions", "POST", call])
            assert status == 200 and "forty-two" in text and step_uid
        assert page.evaluate(ask, [f"{service.base_url}/v1/models", "GET", None])[0] == 200
        assert page.evaluate(ask, [f"{service.base_url}/api/v1/stats", "GET", None])[0] == 0
        assert page.evaluate(ask, [f"{service.base_url}/api/v1/sql", "POST", '{"sql": "SELECT 1"}'])[0] == 0
        page.close()
        other = evil_page(browser, f"http://localhost:{attacker}/")
        assert other.evaluate(ask, [f"{service.base_url}/v1/chat/completions", "POST", call])[0] == 0
        other.close()
    finally:
        assert service.stop() == 0


KEY = "the-admin-key-0123456789"


def test_on_a_network_address_the_pages_ask_for_the_admin_key(tmp_path: Path, browser: Browser) -> None:
    env = {"CLAW_STUDIO_API_KEY": KEY, "STREAMLIT_SERVER_ADDRESS": "0.0.0.0"}
    studio = start_studio(tmp_path, env=env)
    try:
        page = evil_page(browser, f"{studio.url}/settings")
        key = page.locator("input[type=password]")
        expect(key).to_be_visible()
        assert page.locator(".cs-head").count() == 0 and str(studio.data_dir) not in page.content()
        key.fill("a wrong one")
        page.get_by_role("button", name="Open the studio").click()
        expect(page.get_by_text("This is not the admin key.")).to_be_visible()
        key.fill(KEY)
        page.get_by_role("button", name="Open the studio").click()
        expect(page.locator(".cs-head h1")).to_have_text("Settings")
        expect(page.get_by_text("open to the network, visitors need the admin key")).to_be_visible()
        page.get_by_role("link", name="Collect").click()
        expect(page.locator(".cs-head h1")).to_have_text("Collect")
        page.close()
        another = evil_page(browser, studio.url)
        expect(another.locator("input[type=password]")).to_be_visible()
        another.close()
    finally:
        studio.stop()


def test_on_a_network_address_without_a_key_the_pages_show_nothing(tmp_path: Path, browser: Browser) -> None:
    studio = start_studio(tmp_path, env={"STREAMLIT_SERVER_ADDRESS": "0.0.0.0"})
    try:
        page = evil_page(browser, studio.url)
        expect(page.get_by_text("no admin key is set")).to_be_visible()
        assert page.locator(".cs-head").count() == 0
        page.close()
    finally:
        studio.stop()
