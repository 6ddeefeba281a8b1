"""Translates chat chunks to events of the Responses API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.dialects.base import Json, content_text, maybe_text, named_event, reasoning_of
from core.dialects.calls import own_choices
from core.dialects.responses_items import ResponseItems
from core.errors import StudioError


class ResponsesRelay:
    """Makes the events of one stream.

    Reasoning and text are sent as they arrive. Tool calls are sent at the end of the engine's stream, because output
    items are ordered and a whole answer lists calls after the text.
    """

    def __init__(self, items: ResponseItems) -> None:
        self._items = items
        self._calls = items.tool_calls()
        self._n_events = 0
        self._started = False
        self._model: Any = None
        self._output: list[Json] = []
        self._open: str | None = None
        self._text = ""
        self._refusal = ""
        self._logprobs: list[Json] = []
        self._usage: Any = None
        self._finish: str | None = None

    def feed(self, chunk: Mapping[str, Any]) -> bytes:
        """Events of one chunk."""
        self._model = self._model or chunk.get("model")
        if chunk.get("usage"):
            self._usage = chunk["usage"]
        out = self._start()
        for choice, delta in own_choices(chunk):
            if reasoning := reasoning_of(delta):
                out += self._reasoning(reasoning)
            text = content_text(delta.get("content"))
            self._refusal += maybe_text(delta.get("refusal"))
            self._logprobs += self._items.text_logprobs(choice.get("logprobs"))
            if text:
                out += self._text_delta(text)
            self._calls.feed(delta)
            self._finish = maybe_text(choice.get("finish_reason")) or self._finish
        return b"".join(out)

    def finish(self) -> bytes:
        """The end of the open item, tool calls, the whole response."""
        out = self._start()
        finish = self._finish or "stop"
        final = self._items.response(self._model, finish=finish)
        status = "incomplete" if final["status"] == "incomplete" else "completed"
        out += self._close(status)
        if self._refusal:
            out += self._close_message(status)
        for call in self._calls.all():
            out += self._call_events(self._items.call_item(len(self._output), call))
        final = self._items.response(self._model, self._output, finish=finish, usage=self._usage)
        out.append(self._event(f"response.{final['status']}", response=final))
        return b"".join(out)

    def fail(self, error: StudioError) -> bytes:
        """``response.failed``, which ends the stream."""
        out = self._start()
        failed = self._items.response(self._model, self._output, failure=error)
        out.append(self._event("response.failed", response=failed))
        return b"".join(out)

    def _start(self) -> list[bytes]:
        if self._started:
            return []
        self._started = True
        begun = self._items.response(self._model)
        return [self._event("response.created", response=begun), self._event("response.in_progress", response=begun)]

    def _reasoning(self, text: str) -> list[bytes]:
        out: list[bytes] = []
        summarises = self._items.summarises
        index = "summary_index" if summarises else "content_index"
        if self._open != "reasoning":
            out = self._close("completed")
            self._open = "reasoning"
            empty = {**self._items.reasoning_item(self._n_items, ""), "summary": []}
            empty.pop("encrypted_content", None)
            if "content" in empty:
                empty["content"] = []
            part = {"type": "summary_text" if summarises else "reasoning_text", "text": ""}
            added = "response.reasoning_summary_part.added" if summarises else "response.content_part.added"
            out += [self._item("response.output_item.added", empty), self._piece(added, "rs", part=part, **{index: 0})]
        self._text += text
        name = "response.reasoning_summary_text.delta" if summarises else "response.reasoning_text.delta"
        out.append(self._piece(name, "rs", delta=text, **{index: 0}))
        return out

    def _text_delta(self, text: str) -> list[bytes]:
        out: list[bytes] = []
        if self._open != "message":
            out = self._open_message()
            part = self._items.text_part("")
            out.append(self._piece("response.content_part.added", "msg", content_index=0, part=part))
        self._text += text
        out.append(self._piece("response.output_text.delta", "msg", content_index=0, delta=text, logprobs=[]))
        return out

    def _open_message(self) -> list[bytes]:
        out = self._close("completed")
        self._open = "message"
        empty = self._items.message_item(self._n_items, [], "in_progress")
        return [*out, self._item("response.output_item.added", empty)]

    def _close(self, status: str) -> list[bytes]:
        out: list[bytes] = []
        if self._open == "reasoning":
            out = self._close_reasoning()
        elif self._open == "message":
            out = self._close_message(status)
        self._open, self._text = None, ""
        return out

    def _close_reasoning(self) -> list[bytes]:
        summarises = self._items.summarises
        item = self._items.reasoning_item(self._n_items, self._text)
        kind, index = ("summary", "summary_index") if summarises else ("content", "content_index")
        text = "response.reasoning_summary_text.done" if summarises else "response.reasoning_text.done"
        part = "response.reasoning_summary_part.done" if summarises else "response.content_part.done"
        out = [
            self._piece(text, "rs", text=self._text, **{index: 0}),
            self._piece(part, "rs", part=item[kind][0], **{index: 0}),
            self._item("response.output_item.done", item),
        ]
        self._output.append(item)
        return out

    def _close_message(self, status: str) -> list[bytes]:
        out = [] if self._open == "message" else self._open_message()
        parts: list[Json] = []
        if self._text:
            part = self._items.text_part(self._text, self._logprobs)
            done = {"content_index": 0, "text": self._text, "logprobs": self._logprobs}
            out += [
                self._piece("response.output_text.done", "msg", **done),
                self._piece("response.content_part.done", "msg", content_index=0, part=part),
            ]
            parts.append(part)
        if self._refusal:
            index, part = len(parts), {"type": "refusal", "refusal": self._refusal}
            empty = {"type": "refusal", "refusal": ""}
            out += [
                self._piece("response.content_part.added", "msg", content_index=index, part=empty),
                self._piece("response.refusal.delta", "msg", content_index=index, delta=self._refusal),
                self._piece("response.refusal.done", "msg", content_index=index, refusal=self._refusal),
                self._piece("response.content_part.done", "msg", content_index=index, part=part),
            ]
            parts.append(part)
        item = self._items.message_item(self._n_items, parts, status)
        out.append(self._item("response.output_item.done", item))
        self._output.append(item)
        self._logprobs, self._refusal = [], ""
        return out

    def _call_events(self, item: Json) -> list[bytes]:
        index = self._n_items
        place = {"item_id": item["id"], "output_index": index}
        out: list[bytes] = []
        if item["type"] == "local_shell_call":
            out.append(self._item("response.output_item.added", {**item, "status": "in_progress"}))
        else:
            name = "arguments" if item["type"] == "function_call" else "input"
            word = "function_call_arguments" if name == "arguments" else "custom_tool_call_input"
            begun = {**item, "status": "in_progress", name: ""}
            more = {"name": item["name"]} if name == "arguments" else {}
            out.append(self._item("response.output_item.added", begun))
            if item[name]:
                out.append(self._event(f"response.{word}.delta", **place, delta=item[name]))
            out.append(self._event(f"response.{word}.done", **place, **more, **{name: item[name]}))
        out.append(self._item("response.output_item.done", item))
        self._output.append(item)
        return out

    @property
    def _n_items(self) -> int:
        return len(self._output)

    def _item(self, kind: str, item: Json) -> bytes:
        return self._event(kind, output_index=self._n_items, item=item)

    def _piece(self, kind: str, prefix: str, **body: Any) -> bytes:
        item_id = self._items.item_id(prefix, self._n_items)
        return self._event(kind, item_id=item_id, output_index=self._n_items, **body)

    def _event(self, kind: str, **body: Any) -> bytes:
        event = named_event(kind, {"type": kind, "sequence_number": self._n_events, **body})
        self._n_events += 1
        return event
