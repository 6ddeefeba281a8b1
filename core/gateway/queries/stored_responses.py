"""Endpoints for stored responses of the Responses API: get, delete, cancel, list input items."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from core.dialects import Json
from core.dialects.responses_request import input_items
from core.errors import NotFound
from core.gateway.calls.earlier_responses import find_response, forget_response, response_of
from core.gateway.queries.base import Endpoint, HttpRequest
from core.gateway.served_dialects import RESPONSES, BadRequest

_PAGE: Final = 20
_MAX_PAGE: Final = 100
_MESSAGE_PARTS: Final = {"assistant": "output_text"}


class _StoredEndpoint(Endpoint):
    dialect = RESPONSES

    async def find(self, http_request: HttpRequest) -> tuple[str, Json]:
        """(id, record) of the response that the path names. NotFound if the caller may not read such a response."""
        response_id = http_request.path["response_id"]
        within = self.readable_trajectory(http_request.headers)
        record = await asyncio.to_thread(find_response, self._deps.journal.directory, response_id, within)
        if record is None:
            raise NotFound(f"Response with id {response_id!r} not found.", field="response_id")
        return response_id, record


class GetResponse(_StoredEndpoint):
    """``GET responses/{response_id}``: an earlier response."""

    async def answer(self, http_request: HttpRequest) -> Any:
        """The response object as it was returned."""
        _, record = await self.find(http_request)
        return response_of(record)


class DeleteResponse(_StoredEndpoint):
    """``DELETE responses/{response_id}``: hides it from all later requests. Its step stays in the pool."""

    async def answer(self, http_request: HttpRequest) -> Any:
        """The confirmation."""
        response_id, _ = await self.find(http_request)
        await asyncio.to_thread(forget_response, self._deps.journal.directory, response_id)
        return {"id": response_id, "object": "response", "deleted": True}


class CancelResponse(_StoredEndpoint):
    """``POST responses/{response_id}/cancel``: always an error, because no response runs in the background."""

    async def answer(self, http_request: HttpRequest) -> Any:
        """Raises the error that OpenAI returns for a synchronous response."""
        await self.find(http_request)
        raise BadRequest(
            "Cannot cancel a synchronous response.",
            field="response_id",
            hint="close the connection of the call instead",
        )


class ListInputItems(_StoredEndpoint):
    """``GET responses/{response_id}/input_items``: the input of a response, last item first by default."""

    async def answer(self, http_request: HttpRequest) -> Any:
        """A page: ``limit``, ``order`` and ``after`` as in OpenAI's API."""
        response_id, record = await self.find(http_request)
        inputs = record.get("input_items") or input_items(record["request"])
        items = [_item(item, f"{response_id.removeprefix('resp_')}_in{number}") for number, item in enumerate(inputs)]
        order = http_request.query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise BadRequest("order must be asc or desc", field="order")
        if order == "desc":
            items.reverse()
        start = 0
        if (after := http_request.query.get("after")) is not None:
            places = [number for number, item in enumerate(items) if item["id"] == after]
            if not places:
                raise BadRequest(f"no item {after!r} is in this list", field="after")
            start = places[0] + 1
        shown = items[start : start + http_request.count("limit", _PAGE, _MAX_PAGE)]
        ends = [shown[0]["id"], shown[-1]["id"]] if shown else [None, None]
        more = start + len(shown) < len(items)
        return {"object": "list", "data": shown, "first_id": ends[0], "last_id": ends[1], "has_more": more}


def _item(item: Mapping[str, Any], tail: str) -> Json:
    """An input item as the API lists it: with type, id and status, text as parts."""
    kind = item.get("type") or "message"
    listed: Json = {"id": f"{_PREFIXES.get(kind, 'item')}_{tail}", "status": "completed", **item, "type": kind}
    if kind == "reasoning":
        listed.setdefault("summary", [])
    if kind == "message" and isinstance(content := item.get("content"), str):
        part = _MESSAGE_PARTS.get(str(item.get("role")), "input_text")
        listed["content"] = [{"type": part, "text": content, **({"annotations": []} if part == "output_text" else {})}]
    return listed


_PREFIXES: Final = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "local_shell_call": "lsh",
    "local_shell_call_output": "lsho",
}
