"""Tests of the Collect page: links from problems to their steps, feedback, connection snippets."""

from __future__ import annotations

import time
from dataclasses import replace
from urllib.parse import parse_qs, unquote, urlsplit

import httpx
import pytest

from core.journal import write_watermarks
from tests.pages.samples import agent_steps


def links(html: str) -> list[str]:
    return [unquote(part.split('"', 1)[0].replace("&amp;", "&")) for part in html.split('href="')[1:]]


def test_an_empty_pool_offers_a_connection_and_no_feedback(service, open_page):
    page = open_page("collect")
    assert page.failures == []
    assert "None yet" in " ".join(caption.value for caption in page.app.caption)
    assert any("base_url" in block.value for block in page.app.code)
    assert "Waiting for the first call" in page.html


def test_what_waits_for_other_machines_and_for_a_copy_is_shown(service, open_page):
    shown = open_page("collect").html
    assert "Held" not in shown
    assert "Not yet copied" not in shown
    write_watermarks(service.settings.journal_dir, {"n1.a": time.time() - 10, "n2.b": time.time() + 60})
    service.settings = service.settings.model_copy(update={"journal_target": "/mnt/shared"})
    page = open_page("collect")
    assert page.failures == []
    assert "1 of 2 writers behind" in page.html
    assert "Not yet copied" in page.html
    assert "all copied" in page.html


@pytest.fixture
def talked_about(filled):
    steps, _ = agent_steps()
    feedback = [
        {
            "kind": "thumbs",
            "value": "down",
            "step_uid": steps[0].step_uid,
            "author": "ben",
            "note": "<b>wrong</b> file",
        },
        {"kind": "score", "value": 0.5, "trajectory_uid": steps[1].trajectory_uid},
        {"kind": "comment", "value": "later", "response_id": "chatcmpl-later"},
    ]
    for one in feedback:
        httpx.post(f"{filled.base_url}/api/v1/feedback", json=one, timeout=120).raise_for_status()
    assert filled.ingest.catch_up(120)
    return filled, steps


def test_feedback_stands_with_what_it_is_about(talked_about, open_page):
    _, steps = talked_about
    page = open_page("collect")
    assert page.failures == []
    assert "&lt;b&gt;wrong&lt;/b&gt; file" in page.html
    assert "waiting for chatcmpl-later" in page.html
    targets = [parse_qs(urlsplit(link).query) for link in links(page.html) if link.startswith("inspect?")]
    assert {"step": [steps[0].step_uid]} in targets
    assert {"trajectory": [steps[1].trajectory_uid]} in targets


def test_a_count_that_needs_a_look_leads_to_its_steps(service, open_page):
    steps, completions = agent_steps()
    odd = replace(steps[0], status="mismatch", mismatch="3 response ids, 2 log-probs")
    service.pool.steps.append([odd, *steps[1:]], completions=completions)
    page = open_page("collect")
    assert page.failures == []
    (link,) = [one for one in links(page.html) if "status" in one]
    query = parse_qs(urlsplit(link).query)
    assert query["level"] == ["steps"]
    shown = open_page("inspect", **{name: values for name, values in query.items()})
    assert shown.failures == []
    assert [len(table.value) for table in shown.app.dataframe] == [1]
