"""Captured text is data: whatever stands in it, no page shows an image, a link or an element of it, or asks outside.

The judge is Chromium itself: its requests, the elements in its document, and a script's mark on ``window``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import pytest
from playwright.sync_api import expect

from studio.nav import PAGES
from tests.browser.walk import idle

OUTSIDE = "planted.test"


def planted(where: str) -> str:
    """Markdown, HTML and addresses as text; ``where`` tells the places apart."""
    return (
        f"{where} ![i](http://{OUTSIDE}/1) [l](http://{OUTSIDE}/2) <img id=planted src=//{OUTSIDE}/3"
        f" onerror='window.planted=1'> http://{OUTSIDE} www.{OUTSIDE} :material/home: :red[r] $x$"
        f" <a href=//{OUTSIDE}>a</a>"
    )


def named(where: str) -> str:
    """Planted text as a name in a path of the API, which can't hold a slash."""
    return quote(planted(where).replace("/", "|").replace("http:", "www."), safe="")


UID = f"django__django-11099 ![i](http://{OUTSIDE}/uid.png)"
GROUP = f"group__1 ![i](http://{OUTSIDE}/group.png) <a href=http://{OUTSIDE}/g>g</a>"
OTHER = f"{UID}__2"


def wire_step(uid: str, index: int) -> dict[str, Any]:
    """A step whose every text is planted."""
    image = {"type": "image_url", "image_url": {"url": f"http://{OUTSIDE}/message.png"}}
    call = {
        "id": planted("callid"),
        "type": "function",
        "function": {"name": planted("toolname"), "arguments": planted("arguments")},
    }
    return {
        "step_uid": f"{uid}/{index}__s",
        "trajectory_uid": uid,
        "prompt_uid": GROUP,
        "step_index": index,
        "channel": planted("channel"),
        "model": planted("model"),
        "agent": planted("agent"),
        "prompt_ids": [1, 2, 3] if not index else [1, 2, 3, 4, 5, 9],
        "response_ids": [4, 5],
        "response_logprobs": [-0.1, -0.2],
        "policy_version": 1,
        "reward": float(uid == UID) if index else None,
        "is_last": bool(index),
        "messages": [
            {"role": "system", "content": planted("system")},
            {"role": "user", "content": [{"type": "text", "text": planted("user")}, image]},
        ],
        "response_message": {"role": "assistant", "content": planted("answer"), "tool_calls": [call]},
        "tools": [
            {"type": "function", "function": {"name": planted("offered"), "description": planted("description")}}
        ],
        "metadata": {planted("key"): planted("metadata")},
    }


def ok(answer: httpx.Response) -> Any:
    """The answer's JSON; fails with its text."""
    assert answer.status_code == 200, f"{answer.request.url}: {answer.text}"
    return answer.json()


@pytest.fixture(scope="module")
def hostile(shared_studio) -> Iterator[Any]:
    """A studio whose pool holds planted text in everything that a producer, a person or a trainer can send."""
    with httpx.Client(base_url=f"{shared_studio.gateway_url}/api/v1", timeout=60) as api:
        steps = [wire_step(uid, index) for uid in (UID, OTHER) for index in range(2)]
        ok(api.post("/steps", json={"steps": steps}))
        opinions = [("tag", planted("tag")), ("note", planted("note")), ("quality", "good"), ("reward", 0.5)]
        for author in (planted("author"), planted("colleague")):
            ok(
                api.post(
                    "/annotations",
                    json={
                        "annotations": [
                            {
                                "target": {"trajectory_uid": UID},
                                "kind": kind,
                                "value": value,
                                "author": author,
                                "source": planted("source"),
                                "note": planted("remark"),
                            }
                            for kind, value in opinions
                        ]
                    },
                )
            )
        target = {"step_uid": f"{UID}/0__s"}
        ok(api.post("/feedback", json={"kind": "comment", "value": planted("comment"), "author": "a", **target}))
        ok(api.post("/feedback", json={"kind": "event", "value": planted("event"), "author": "a", **target}))
        ok(api.put(f"/views/{named('view')}", json={"where": "reward > 0", "filters": {}}))
        recipe = {"algorithm": "grpo", "n_rollouts": 2, "batch_size": 1, "channel": planted("channel")}
        ok(api.put(f"/recipes/{named('recipe')}", json={"recipe": recipe, "author": planted("author")}))
        ok(api.post("/policy", json={"version": 2, "event": "registered", "metadata": {"by": planted("policy")}}))
        batch = ok(api.post("/batches/fetch", json={"consumer": planted("consumer"), "recipe": recipe}))
        metrics = {planted("metric"): 0.5}
        ok(api.post(f"/batches/{batch['batch_uid']}/ack", json={"consumer": planted("consumer"), "metrics": metrics}))
        yield shared_studio


def addresses() -> list[str]:
    """Every page, each of its tabs, and what a crafted link can put into it."""
    channel = planted("channel")
    recipe = '{"algorithm":"grpo","n_rollouts":2,"channel":' + repr(channel).replace("'", '"') + "}"
    paths = [info.url_path for info in PAGES.values()]
    queries: dict[str, list[dict[str, str]]] = {
        "inspect": [
            *({"level": level} for level in ("trajectories", "steps", "groups")),
            *(
                {"trajectory": UID, "tab": tab}
                for tab in ("messages", "transcript", "tokens", "facts", "raw", "history")
            ),
            {"group": GROUP},
            {"compare": f"{UID}"},
            {"where": planted("where")},
            {"trajectory": planted("missing")},
        ],
        "curate": [
            *({"tab": tab} for tab in ("label", "distributions", "funnel", "reviewers", "history")),
            {"tab": "review", "level": "trajectory"},
            {"tab": "distributions", "by": "agent"},
        ],
        "datasets": [{"tab": tab} for tab in ("versions", "freeze", "diff", "rewards")],
        "batch": [
            {"recipe": recipe, "tab": tab}
            for tab in ("chosen", "excluded", "credit", "compare", "whatif", "export", "json")
        ]
        + [{"recipe": recipe, "tab": "export", "format": name} for name in ("trl_grpo", "openai_messages")],
        "optimise": [{"recipe": recipe, "tab": tab} for tab in ("tree", "rows", "groups")],
        "consume": [{"channel": channel}, {"channel": channel, "tab": "consumers"}, {"channel": planted("none")}],
        "collect": [{"agent": planted("agent")}, {"model": planted("elsewhere")}],
    }
    for page, page_queries in queries.items():
        paths += [f"{page}?{urlencode(query)}" for query in page_queries]
    return paths


ACTIVE = f"""() => [...document.querySelectorAll('[src], [href], [action], [data], #planted')].filter(
    (one) => one.id === 'planted' || [one.src, one.href, one.action, one.data].some(
        (to) => typeof to === 'string' && URL.canParse(to) && new URL(to).hostname.endsWith('{OUTSIDE}'))
).map((one) => one.outerHTML)"""


REFUSED = """window.refused = []; document.addEventListener('securitypolicyviolation', (event) =>
    window.refused.push([event.effectiveDirective, event.blockedURI, event.sourceFile, event.lineNumber]))"""


def test_no_page_shows_or_loads_what_captured_text_names(hostile, browser) -> None:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.set_default_timeout(60_000)
    page.add_init_script(REFUSED)
    refused: list[tuple[str, Any]] = []
    active: list[tuple[str, Any]] = []
    shown = 0
    try:
        for address in addresses():
            page.goto(f"{hostile.url}/{address}")
            page.wait_for_selector(".cs-head")
            idle(page)
            page.wait_for_timeout(150)
            if hits := page.evaluate(ACTIVE):
                active.append((address, hits))
            if hits := page.evaluate("window.refused"):
                refused.append((address, hits))
            shown += page.locator(f"text={OUTSIDE}").count()
            assert page.evaluate("window.planted") is None, address
            assert page.locator("[data-testid=stException]").count() == 0, address
    finally:
        context.close()
    assert active == []
    assert refused == []  # the pages themselves need nothing that the policy refuses
    assert shown > 50  # it was there to be read
    outside = {httpx.URL(url).host for url in requested if url.startswith("http")} - {"127.0.0.1"}
    assert outside == set()


def test_a_page_can_load_from_and_send_to_no_other_host(shared_studio, browser) -> None:
    """Were something of captured text active after all, the browser itself would refuse it."""
    context = browser.new_context()
    try:
        page = context.new_page()
        page.goto(shared_studio.url)
        page.wait_for_selector(".cs-head")
        refused = page.evaluate(f"""async () => {{
            const refused = []
            document.addEventListener('securitypolicyviolation', (event) => refused.push(event.effectiveDirective))
            document.body.append(Object.assign(new Image(), {{ src: 'http://{OUTSIDE}/1.png' }}))
            document.body.append(Object.assign(document.createElement('iframe'), {{ src: 'http://{OUTSIDE}/' }}))
            document.body.append(Object.assign(document.createElement('script'), {{ src: 'http://{OUTSIDE}/1.js' }}))
            await fetch('http://{OUTSIDE}/').catch(() => null)
            // The refusal of a frame comes from the browser's own process, later than the others on a busy machine.
            const until = performance.now() + 30000
            while (refused.length < 4 && performance.now() < until) await new Promise((done) => setTimeout(done, 50))
            return refused.sort()
        }}""")
        assert refused == ["connect-src", "frame-src", "img-src", "script-src-elem"]
    finally:
        context.close()


def test_no_text_becomes_a_script(shared_studio, browser) -> None:
    """Were markup of captured text in the document, or text handed to an evaluator, nothing of it would run."""
    context = browser.new_context()
    try:
        page = context.new_page()
        page.goto(shared_studio.url)
        page.wait_for_selector(".cs-head")
        # By an element of the page itself: what Playwright evaluates stands above the policy.
        ran, refused = page.evaluate("""async () => {
            const refused = []
            document.addEventListener('securitypolicyviolation', (event) => refused.push(event.effectiveDirective))
            const place = document.body.appendChild(document.createElement('div'))
            place.innerHTML = "<img src='data:,x' onerror='window.ran = 1'><a href='javascript:window.ran = 2'>x</a>"
            place.querySelector('a').click()
            const script = document.createElement('script')
            script.textContent = 'window.ran = 3'
            place.append(script)
            setTimeout('window.ran = 4')
            const until = performance.now() + 30000
            while (refused.length < 4 && performance.now() < until) await new Promise((done) => setTimeout(done, 50))
            return [window.ran, refused.sort()]
        }""")
        assert ran is None
        assert refused == ["script-src", "script-src-attr", "script-src-elem", "script-src-elem"]
    finally:
        context.close()


def test_a_trajectory_named_with_two_underscores_opens(hostile, watch) -> None:
    """SWE-bench's names have them, and Streamlit parts a component's events there."""
    watched = watch(f"{hostile.url}/inspect?{urlencode({'trajectory': UID})}")
    components = watched.page.locator("[data-testid^=stBidiComponent]").filter(visible=True)
    expect(components.first).to_be_visible()
    # The key belongs to this button: before it is there, nothing listens.
    expect(watched.page.get_by_role("button", name="Next step")).to_be_enabled()
    idle(watched.page)
    watched.page.keyboard.press("j")
    expect(watched.page).to_have_url(re.compile("step="))
    watched.page.goto(f"{hostile.url}/inspect?{urlencode({'group': GROUP})}")
    expect(components.first).to_be_visible()
