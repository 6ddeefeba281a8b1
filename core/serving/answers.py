"""Builds response bodies from sampled tokens: complete or streamed, in OpenAI's format with vLLM's token ids.

Every sampled token, the end token included, appears exactly once in ``token_ids``, in the log-prob entries and
in ``usage.completion_tokens``. Each chunk of a stream carries the ids of its tokens. This also holds for tokens that
add no text (half a character, a tool-call mark, the end of the turn).
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from core.serving.parsing import MessageParser
from core.serving.protocol import Call
from core.serving.tokenizer import ChatTokenizer

LOWEST_LOGPROB = -9999.0
"""The lowest log-prob that is sent, as in vLLM: JSON has no minus infinity."""

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Emission:
    """One sampled token.

    Attributes:
        token_id: the sampled id.
        logprob: its raw log-prob (before temperature), nats.
        top: the most likely ``(id, logprob)`` at this position, best first; empty if not requested.
        text: the text that is final once this token is known; may be empty.
        finish_reason: ``stop`` or ``length`` on the last token, else None.
        stop_reason: the stop text or stop id that ended the answer (vLLM's extension).
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    text: str = ""
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(frozen=True, slots=True)
class PromptToken:
    """One prompt token with its raw log-prob in nats. It is None for the first token, which has no context."""

    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class Choice:
    """One choice of a response while it is generated.

    Attributes:
        prompt: index of the prompt that it continues.
        text_length: characters sent so far, including the prompt if it is echoed with log-probs.
        read: the prompt's tokens with log-probs; empty unless requested.
    """

    index: int
    prompt: int
    parser: MessageParser
    emissions: list[Emission] = field(default_factory=list)
    text_length: int = 0
    read: Sequence[PromptToken] = ()

    @property
    def ids(self) -> list[int]:
        """Sampled ids, in order."""
        return [e.token_id for e in self.emissions]

    @property
    def logprobs(self) -> list[float]:
        """Raw log-probs, in order."""
        return [e.logprob for e in self.emissions]

    @property
    def finish_reason(self) -> str | None:
        """OpenAI's ``finish_reason``; None until the last token."""
        if not self.emissions:
            return None
        reason = self.emissions[-1].finish_reason
        return "tool_calls" if reason == "stop" and self.parser.tool_calls else reason


class Answer:
    """The response to one call. Pass each new token to ``feed``. Send its events, or send ``whole`` at the end.

    Args:
        extra: keys added to every body (``policy_version``); may be replaced while the answer is generated.
    """

    def __init__(
        self,
        call: Call,
        tokenizer: ChatTokenizer,
        choices: Sequence[Choice],
        *,
        answer_id: str,
        created: int,
        model: str,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self.call = call
        self.choices = list(choices)
        self._tokenizer = tokenizer
        self._chat = call.dialect == "chat"
        name = "chat.completion" if self._chat else "text_completion"
        self._head: dict[str, Any] = {"id": answer_id, "object": name, "created": created, "model": model}
        self.extra: Mapping[str, Any] = extra or {}

    @property
    def id(self) -> str:
        """The response's id."""
        return str(self._head["id"])

    def opening_events(self) -> list[bytes]:
        """First events of a stream: the role, and the prompt ids if requested."""
        if not self._chat:
            return []
        prompt = {"prompt_token_ids": list(self.call.prompts[0])} if self.call.wants_ids else {}
        delta = {"role": "assistant", "content": ""}
        return [
            self._event([{"index": c.index, "delta": delta, "logprobs": None, "finish_reason": None}], prompt)
            for c in self.choices
        ]

    def feed(self, index: int, emissions: Sequence[Emission]) -> list[bytes]:
        """Add sampled tokens to a choice; returns the events for a streaming client."""
        choice = self.choices[index]
        first = not choice.emissions
        choice.emissions += emissions
        text = "".join(e.text for e in emissions)
        ended = emissions[-1].finish_reason is not None
        if not self._chat:
            if first and self.call.scores_prompt:
                choice.text_length = len(self._echo(choice))
            offset = choice.text_length
            choice.text_length += len(text)
            choice.parser.feed(text)
            return [self._text_event(choice, emissions, text, offset, first)] if self.call.stream else []
        deltas = choice.parser.feed(text) + (choice.parser.close() if ended else [])
        if not self.call.stream:
            return []
        events = []
        for n, delta in enumerate(deltas or [{}]):
            last = ended and n == max(len(deltas) - 1, 0)
            part = emissions if n == 0 else ()
            body: dict[str, Any] = {"index": choice.index, "delta": delta}
            body["logprobs"] = self._chat_logprobs(part) if self.call.wants_logprobs and part else None
            body["finish_reason"] = choice.finish_reason if last else None
            if last:
                body["stop_reason"] = emissions[-1].stop_reason
            if self.call.wants_ids:
                body["token_ids"] = [e.token_id for e in part]
            events.append(self._event([body], {}))
        return events

    def closing_events(self) -> list[bytes]:
        """Last events of a stream: usage if requested, and ``[DONE]``."""
        usage = [self._event([], {"usage": self.usage})] if self.call.include_usage else []
        return [*usage, DONE]

    def error_event(self, body: Mapping[str, Any]) -> bytes:
        """An error in the middle of a stream, in vLLM's format."""
        return b"data: " + orjson.dumps(body) + b"\n\n" + DONE

    @property
    def usage(self) -> dict[str, Any]:
        """Token counts: each prompt is counted once, and every sampled token."""
        n_prompt = sum(map(len, self.call.prompts))
        n_completion = sum(len(c.emissions) for c in self.choices)
        return {
            "prompt_tokens": n_prompt,
            "completion_tokens": n_completion,
            "total_tokens": n_prompt + n_completion,
        }

    def full_body(self) -> dict[str, Any]:
        """The complete body, for a call that does not stream."""
        body = {**self._head, "choices": [self._whole_choice(c) for c in self.choices], "usage": self.usage}
        if self._chat:
            body["prompt_token_ids"] = list(self.call.prompts[0]) if self.call.wants_ids else None
        return {**body, **self.extra}

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        last = choice.emissions[-1]
        body: dict[str, Any] = {"index": choice.index}
        logprobs = None
        if self._chat:
            body["message"] = choice.parser.message
            if self.call.wants_logprobs:
                logprobs = self._chat_logprobs(choice.emissions)
        else:
            body["text"] = self._echo(choice) + "".join(e.text for e in choice.emissions)
            if self.call.wants_logprobs:
                before = len(self._echo(choice)) if self.call.scores_prompt else 0
                logprobs = self._text_logprobs(choice.emissions, before, choice.read)
            body["prompt_token_ids"] = list(self.call.prompts[choice.prompt]) if self.call.wants_ids else None
        body["logprobs"] = logprobs
        body["finish_reason"] = choice.finish_reason
        body["stop_reason"] = last.stop_reason
        body["token_ids"] = choice.ids if self.call.wants_ids else None
        return body

    def _text_event(self, choice: Choice, emissions: Sequence[Emission], text: str, offset: int, first: bool) -> bytes:
        body: dict[str, Any] = {"index": choice.index, "text": self._echo(choice) + text if first else text}
        read = choice.read if first else ()
        body["logprobs"] = self._text_logprobs(emissions, offset, read) if self.call.wants_logprobs else None
        body["finish_reason"] = choice.finish_reason
        body["stop_reason"] = emissions[-1].stop_reason
        if self.call.wants_ids:
            if first:
                body["prompt_token_ids"] = list(self.call.prompts[choice.prompt])
            body["token_ids"] = [e.token_id for e in emissions]
        return self._event([body], {})

    def _echo(self, choice: Choice) -> str:
        if not self.call.echo:
            return ""
        return self._tokenizer.decode(self.call.prompts[choice.prompt], skip_special=False)

    def _event(self, choices: list[dict[str, Any]], extra: Mapping[str, Any]) -> bytes:
        name = "chat.completion.chunk" if self._chat else "text_completion"
        body = {**self._head, "object": name, "choices": choices, **extra, **self.extra}
        return b"data: " + orjson.dumps(body) + b"\n\n"

    def _token(self, token_id: int) -> str:
        if self.call.tokens_as_ids:
            return f"token_id:{token_id}"
        return self._tokenizer.token_bytes[token_id].decode("utf-8", errors="replace")

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        return {
            "token": self._token(token_id),
            "logprob": max(logprob, LOWEST_LOGPROB),
            "bytes": list(self._tokenizer.token_bytes[token_id]),
        }

    def _chat_logprobs(self, emissions: Sequence[Emission]) -> dict[str, Any]:
        return {
            "content": [
                {**self._entry(e.token_id, e.logprob), "top_logprobs": [self._entry(*t) for t in e.top]}
                for e in emissions
            ]
        }

    def _text_logprobs(
        self, emissions: Sequence[Emission], offset: int, read: Sequence[PromptToken] = ()
    ) -> dict[str, Any]:
        """Log-prob entries of prompt tokens and sampled tokens. ``offset``: where the first emission's text starts."""
        offsets = self._prompt_offsets(read)
        for e in emissions:
            offsets.append(offset)
            offset += len(e.text)
        entries: list[PromptToken | Emission] = [*read, *emissions]
        return {
            "text_offset": offsets,
            "token_logprobs": [None if e.logprob is None else max(e.logprob, LOWEST_LOGPROB) for e in entries],
            "tokens": [self._token(e.token_id) for e in entries],
            "top_logprobs": [None if e.logprob is None else self._top(e.token_id, e.logprob, e.top) for e in entries],
        }

    def _top(self, token_id: int, logprob: float, top: Sequence[tuple[int, float]]) -> dict[str, float]:
        return {self._token(i): max(lp, LOWEST_LOGPROB) for i, lp in (*top, (token_id, logprob))}

    def _prompt_offsets(self, read: Sequence[PromptToken]) -> list[int]:
        """Start of each token in the text of an echoed prompt, in characters; part of a character starts with it."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        offsets, length = [], 0
        for one in read:
            offsets.append(length)
            length += len(decoder.decode(self._tokenizer.token_bytes[one.token_id]))
        return offsets
