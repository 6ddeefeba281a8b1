"""Tests of Overview, Collect and Settings on an empty and a known pool: no failures, numbers equal the pool's."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from core.gateway.telemetry.stats import CallEvent
from core.types import View
from tests.studio.conftest import known_steps

OWN_PAGES = ("overview", "collect", "cluster", "settings")


def figure(html: str, label: str) -> str:
    """The text of one number in a row of figures."""
    match = re.search(rf'<div class="l">{re.escape(label)}</div><div class="v">(.*?)</div>', html)
    assert match, f"no figure {label!r}"
    return match.group(1)


@pytest.mark.parametrize("key", OWN_PAGES)
def test_empty_pool(service, open_page, key):
    page = open_page(key)
    assert page.failures == []
    assert "cs-head" in page.html


@pytest.mark.parametrize("key", OWN_PAGES)
def test_known_pool(filled, open_page, key):
    page = open_page(key)
    assert page.failures == []


def test_empty_pages_say_what_to_do(service, open_page):
    for key in ("overview", "collect"):
        labels = [button.label for button in open_page(key).app.button]
        assert "Load demo data" in labels
        assert "Run the demo agent live" in labels


def test_overview_counts_what_the_pool_holds(filled, open_page):
    html = open_page("overview").html
    assert figure(html, "Steps") == "12"
    assert figure(html, "Trajectories") == "6"
    assert figure(html, "Prompt groups") == "2"
    assert figure(html, "Scored") == "50.0 %"
    assert figure(html, "Trainable") == "100 %"
    # 6 first steps of 3 + 2 tokens, 6 second ones of 5 + 2.
    assert figure(html, "Tokens") == str(6 * 5 + 6 * 7)


def test_connect_gives_each_agent_one_key(service, open_page):
    page = open_page("overview", connect="Codex")
    code = "\n".join(block.value for block in page.app.code)
    key = re.search(r"cs-\S+?(?=\")", code)
    assert key, code
    assert f"{service.base_url}/v1" in code
    assert service.keys.resolve(key.group(0)).agent == "codex"
    again = page.app.run()
    assert key.group(0) in "\n".join(block.value for block in again.code)
    assert [row["agent"] for row in service.pool.journal.sessions()] in ([], ["codex"])


def test_first_call_is_ticked(filled, open_page):
    page = open_page("overview")
    assert "Waiting for the first call" in page.html
    key = re.search(r"cs-[\w-]{43}", "\n".join(block.value for block in page.app.code))
    trajectory = filled.keys.resolve(key.group(0)).trajectory_uid
    filled.pool.steps.append([replace(known_steps()[0], step_uid="first", trajectory_uid=trajectory)])
    page.app.run()
    assert "First call seen" in page.html


def test_collect_shows_the_newest_first(filled, open_page):
    page = open_page("collect")
    table = page.app.dataframe[0].value
    assert list(table["preview"][:2]) == ["answer 1 of t12", "answer 0 of t12"]
    assert len(table) == 12


def test_collect_narrows_by_url(filled, open_page):
    page = open_page("collect", channel="val")
    assert set(page.app.dataframe[0].value["channel"]) == {"val"}
    assert filled.pool.steps.count(View({"channel": "val"})) == len(page.app.dataframe[0].value)


def test_collect_pauses(filled, open_page):
    page = open_page("collect")
    page.app.toggle(key="follow").set_value(False).run()
    newer = [step for step in _more_steps()]
    filled.pool.steps.append(newer)
    page.app.run()
    assert len(page.app.dataframe[0].value) == 12
    assert any("1 steps arrived" in caption.value or "1 step" in caption.value for caption in page.app.caption)


def _more_steps():
    from dataclasses import replace

    from tests.studio.conftest import known_steps

    last = known_steps()[-1]
    return [replace(last, step_uid="t12-s2", step_index=2, created_at=last.created_at + 60)]


def test_dropped_calls_are_red_on_every_page(service, open_page):
    service.stats.call_started()
    service.stats.call_finished(
        CallEvent(
            at=time.time(),
            step_uid="s",
            trajectory_uid=None,
            identity_source="inferred",
            channel="train",
            source="blackbox",
            agent=None,
            model="m",
            engine="engine",
            dialect="chat",
            stream=False,
            http_status=200,
            latency_s=0.2,
            n_prompt_tokens=3,
            n_response_tokens=2,
            error=None,
            aborted=False,
        ),
        dropped=True,
    )
    for key in OWN_PAGES:
        html = open_page(key).html
        assert re.search(r'cs-light bad"[^>]*>.*?Dropped<b>1</b>', html), key
    assert 'class="cs-fig bad"' in open_page("collect").html


def test_settings_names_every_field_and_hides_the_key(tmp_path, open_page, monkeypatch):
    from core import service as core_service
    from core.config import Settings

    secret = "canary-of-the-settings-page"
    settings = Settings(data_dir=tmp_path / "d", port=0, engine="http://127.0.0.1:9/v1", api_key=secret)
    core_service.open_current(settings)
    try:
        html = open_page("settings").html
    finally:
        core_service.close_current()
    for name in Settings.model_fields:
        assert f">{name}</code>" in html
    assert secret not in html


def test_settings_tell_what_can_be_restored_and_until_when(service, open_page):
    assert "The trash is empty" in open_page("settings").html
    run, at = "run-" + "7" * 32, time.time()
    folder = service.settings.trash_dir / run
    folder.mkdir(parents=True)
    note = {"run_uid": run, "at": at, "author": "<b>ann", "rule": {}, "deleted": {"n_trajectories": 4321}}
    (folder / "run.json").write_text(json.dumps(note))
    page = open_page("settings")
    assert page.failures == []
    until = datetime.fromtimestamp(at + 86400, UTC).strftime("%Y-%m-%d %H:%M UTC")
    assert run in page.html and until in page.html and "4,321" in page.html
    assert f"claw-studio trash restore {run}" in [code.value for code in page.app.code]


def test_a_page_without_service_says_so(open_page):
    page = open_page("collect")
    assert "streamlit run studio" in page.html
    assert not page.app.exception
