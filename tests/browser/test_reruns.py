"""Browser tests: what the browser of a page asked for just before its user left the page."""

from __future__ import annotations

import re

from playwright.sync_api import expect

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
