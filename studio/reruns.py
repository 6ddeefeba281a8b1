"""Reruns of fragments that reach the server late: what Streamlit 1.67 does with them, and what replaces it here.

A live part of a page asks for its rerun every few seconds. On a busy machine the request, or what was drawn before it,
can wait while something else happens. Five of Streamlit's answers then damage the page:

- A request that was sent from one page and is handled on the next one carries the first page's hash. The run announces
  that page, the browser clears itself, and the fragment's first block has no place: "Cannot set a node at a delta
  path". The page stays dead. Such a request is ignored here: its page is gone.
- A request of a fragment that joins a waiting run of the whole app replaces the page and the query of that run. The
  user's click on another page is lost. Here the whole run keeps both.
- A request of a timer carries the values of all widgets. If it is sent between a click and the request of that click,
  it brings the click's value first: the callback of the clicked widget runs, but only the fragment is drawn again. The
  click's own request then changes no value and carries the query of before, so the page stays as it was. Here a timer
  brings no values; a user's own request does.
- A request carries the browser's query. If it is sent before the query that an earlier click set has reached the
  browser, it brings the query of before that click: the second of two quick clicks undoes the first one's tab or
  filter. Here such a request keeps the query that the server holds. A query that the server has left behind since the
  browser last had the same one is known to be old; every other one is the user's own (a link, Back, Forward).
- When a fragment starts, what it drew in an earlier run and the browser has not received yet is removed from the queue,
  also if that run drew the whole page. The browser then removes the fragment, and what stands behind it moves to its
  place. Here the queue is kept: it holds the runs in their order.
"""

from __future__ import annotations

from dataclasses import replace
from functools import wraps
from typing import Any
from urllib.parse import parse_qs, urlencode
from weakref import WeakKeyDictionary

from streamlit.runtime.forward_msg_queue import ForwardMsgQueue
from streamlit.runtime.pages_manager import PagesManager
from streamlit.runtime.scriptrunner.script_runner import ScriptRunner
from streamlit.runtime.scriptrunner_utils.script_requests import RerunData, ScriptRequests, ScriptRequestType
from streamlit.runtime.scriptrunner_utils.script_run_context import get_script_run_ctx

_left_behind: WeakKeyDictionary[PagesManager, set[str]] = WeakKeyDictionary()
"""By session: the page's queries since the browser last had the server's one."""
_untold: WeakKeyDictionary[PagesManager, bool] = WeakKeyDictionary()
"""Sessions of which the browser may not have received the query."""


def is_of_fragments(request: RerunData) -> bool:
    """Whether the request reruns parts of a page only."""
    return bool(request.fragment_id or request.fragment_id_queue)


def keep_pages() -> None:
    """Replace the five answers in this process. A second call changes nothing."""
    if hasattr(ScriptRunner._run_script, "__wrapped__"):
        return
    ScriptRunner._run_script = _on_its_page(ScriptRunner._run_script)
    ScriptRequests._request_rerun_locked = _without_values(_of_the_whole_run(ScriptRequests._request_rerun_locked))
    ForwardMsgQueue.clear = _in_order(ForwardMsgQueue.clear)


def _on_its_page(run_script: Any) -> Any:
    @wraps(run_script)
    def run(runner: ScriptRunner, request: RerunData) -> None:
        current = runner._pages_manager.current_page_script_hash
        if is_of_fragments(request) and current and request.page_script_hash not in ("", current):
            return
        run_script(runner, _with_newest_query(runner, request, current))

    return run


def _with_newest_query(runner: ScriptRunner, request: RerunData, current_page: str) -> RerunData:
    """The request, with the query that the server holds if the browser's is an older one of the same page."""
    session = runner._pages_manager
    with runner._session_state.query_params() as params:
        own = urlencode(params._query_params, doseq=True)
    asked = urlencode(parse_qs(request.query_string, keep_blank_values=True), doseq=True)
    same_page = bool(current_page) and request.page_script_hash == current_page
    of_widgets = request.is_auto_rerun or bool(request.widget_states and request.widget_states.widgets)
    left_behind = _left_behind.setdefault(session, set())
    if not same_page or request.is_history_navigation or not of_widgets or asked == own or asked not in left_behind:
        left_behind.clear()
        left_behind.add(asked)
        return request
    left_behind.add(own)
    _untold[session] = True
    return replace(request, query_string=own)


def tell_query() -> None:
    """Send the query to the browser again, from the page's script, if the run that set it may have been dropped."""
    context = get_script_run_ctx()
    if context is not None and _untold.pop(context.pages_manager, False):
        with context.session_state.query_params() as params:
            params._send_query_param_msg()


def _of_the_whole_run(request_rerun: Any) -> Any:
    @wraps(request_rerun)
    def join(requests: ScriptRequests, request: RerunData) -> bool:
        waiting = requests._rerun_data
        if requests._state == ScriptRequestType.RERUN and is_of_fragments(request) and not is_of_fragments(waiting):
            request = replace(
                request,
                query_string=waiting.query_string,
                page_script_hash=waiting.page_script_hash,
                page_name=waiting.page_name,
                is_auto_rerun=waiting.is_auto_rerun,
            )
        joined: bool = request_rerun(requests, request)
        return joined

    return join


def _without_values(request_rerun: Any) -> Any:
    @wraps(request_rerun)
    def ask(requests: ScriptRequests, request: RerunData) -> bool:
        if is_of_fragments(request) and request.is_auto_rerun:
            request = replace(request, widget_states=None)
        asked: bool = request_rerun(requests, request)
        return asked

    return ask


def _in_order(clear: Any) -> Any:
    @wraps(clear)
    def keep(
        queue: ForwardMsgQueue, retain_lifecycle_msgs: bool = False, fragment_ids_this_run: list[str] | None = None
    ) -> None:
        # Of no fragment is what a run of fragments removes.
        clear(queue, retain_lifecycle_msgs, None if fragment_ids_this_run is None else [])

    return keep
