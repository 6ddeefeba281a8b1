"""Browser tests: what a live part of a page asks for while its user leaves the page or clicks on it."""

from __future__ import annotations

import re

from playwright.sync_api import WebSocketRoute, expect
from streamlit.proto.BackMsg_pb2 import BackMsg

from tests.conftest import eventually

RECORD = """
const send = WebSocket.prototype.send;
window.sent = [];
WebSocket.prototype.send = function (data) { window.sent.push([this, data]); return send.call(this, data); };
window.again = n => window.sent.slice(0, n).forEach(([socket, data]) => send.call(socket, data));
"""


def test_a_live_part_of_the_page_before_is_not_drawn_on_the_next_one(shared_studio, watch):
    """The requests of Overview's live parts arrive once more when Inspect is open, as they do on a busy machine."""
    watched = watch(shared_studio.url)
    page = watched.page
    page.add_init_script(RECORD)
    page.goto(shared_studio.url)
    expect(page.locator(".cs-head h1")).to_have_text("Overview")
    page.evaluate("window.sent.length = 0")
    n = 3
    eventually(lambda: page.evaluate("window.sent.length") >= n)
    page.locator("[data-testid=stSidebar]").get_by_role("link", name="Inspect").click()
    expect(page.locator(".cs-head h1")).to_have_text("Inspect")
    expect(page.locator(".cs-strip")).to_be_visible()
    page.evaluate("n => window.again(n)", n)
    page.wait_for_timeout(3000)
    expect(page.locator(".cs-head h1")).to_have_text("Inspect")
    expect(page).to_have_url(re.compile("/inspect"))
    before = page.evaluate("window.sent.length")
    eventually(lambda: page.evaluate("window.sent.length") > before)  # its own live parts go on
    watched.check()


def test_a_timer_between_a_click_and_its_request_does_not_take_the_click(shared_studio, watch):
    """The request of a click is held until a live part has asked, which a busy browser does by itself now and then."""
    watched = watch(shared_studio.url)
    page = watched.page
    passed: list[str] = []

    def slow_clicks(browser: WebSocketRoute) -> None:
        server = browser.connect_to_server()
        held: list[bytes] = []

        def hold(message: bytes | str) -> None:
            assert isinstance(message, bytes)
            rerun = BackMsg.FromString(message).rerun_script
            chosen = [list(widget.string_array_value.data) for widget in rerun.widget_states.widgets]
            if ["Compare"] in chosen and not (rerun.fragment_id or held or passed):
                held.append(message)
                return
            server.send(message)
            if held and rerun.is_auto_rerun:
                server.send(held.pop())
                passed.extend(["timer", "click"])

        browser.on_message(hold)

    page.route_web_socket(re.compile("_stcore/stream"), slow_clicks)
    page.goto(f"{shared_studio.url}/datasets")
    expect(page.locator(".cs-strip")).to_be_visible()
    page.get_by_role("radio", name="Compare").click()
    expect(page).to_have_url(re.compile("tab=diff"))
    expect(page.get_by_role("radio", name="Compare")).to_be_checked()
    assert passed == ["timer", "click"]
    page.wait_for_timeout(1000)
    expect(page.get_by_role("radio", name="Compare")).to_be_checked()


def test_the_second_of_two_quick_clicks_keeps_the_first(demo, watch):
    """All that the server sends is held between two clicks, so the second one's request has the query of before."""
    watched = watch(demo[0].url)
    page = watched.page
    waiting: list[bytes | str] = []
    asked: list[str] = []
    holding = False

    def slow_answers(browser: WebSocketRoute) -> None:
        server = browser.connect_to_server()

        def ask(message: bytes | str) -> None:
            nonlocal holding
            assert isinstance(message, bytes)
            rerun = BackMsg.FromString(message).rerun_script
            server.send(message)
            if holding and not rerun.is_auto_rerun:
                asked.append(rerun.query_string)
            if len(asked) == 2:
                # Held until the last one is sent: a message that comes meanwhile keeps its place.
                while waiting:
                    browser.send(waiting.pop(0))
                holding = False

        def answer(message: bytes | str) -> None:
            waiting.append(message) if holding else browser.send(message)

        browser.on_message(ask)
        server.on_message(answer)

    page.route_web_socket(re.compile("_stcore/stream"), slow_answers)
    page.goto(f"{demo[0].url}/curate")
    steps, review = page.get_by_role("radio", name="Steps"), page.get_by_role("radio", name="Review", exact=True)
    expect(steps).to_be_visible()
    expect(page.get_by_test_id("stApp")).to_have_attribute("data-test-script-state", "notRunning")
    holding = True
    steps.click()
    # The wait lets Playwright call the two functions above.
    eventually(lambda: page.wait_for_timeout(20) or (len(asked) == 1 and len(waiting) > 20))
    review.click()
    expect(page).to_have_url(re.compile(r"(?=.*level=step)(?=.*tab=review)"))
    expect(review).to_be_checked()
    assert asked == ["", ""]
    page.locator("[data-testid=stSidebar]").get_by_role("link", name="Curate").click()
    expect(page).to_have_url(re.compile(r"/curate$"))
    trajectories = page.get_by_role("radio", name="Trajectories")
    expect(trajectories).to_have_count(1)
    expect(trajectories).to_be_checked()
    page.go_back()
    expect(page).to_have_url(re.compile(r"(?=.*level=step)(?=.*tab=review)"))
    expect(review).to_be_checked()
    watched.check()
