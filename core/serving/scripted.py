"""The scripted engine: an OpenAI-compatible server whose replies come from a script.

    python -m core.serving.scripted --script FILE.json --port 0

Prompts are rendered and encoded by the shipped template and tokenizer. Replies are encoded as the template
would write them. Log-probs are a function of (seed, position, id). ``GET /__log`` returns the requests with the ids
and log-probs of their responses; ``DELETE /__log`` clears it; ``PUT /__script`` replaces the script.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import sys
import time
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from core.errors import EngineError, InvalidInput, StudioError
from core.serving import httpd
from core.serving.answers import Answer, Choice, Emission, PromptToken
from core.serving.common_routes import common_routes
from core.serving.faults import BODY, split_fault
from core.serving.grammar import Guides
from core.serving.parsing import MessageParser, StopScanner, assistant_text
from core.serving.protocol import MAX_CHOICES, Call, check_context, error_body, parse_chat, parse_completion
from core.serving.script import Match, Matcher, Reply, Script
from core.serving.spelling import Spellings
from core.serving.tokenizer import END_OF_TURN, ChatTokenizer, Detokenizer, load_tokenizer

LOGPROB_STEPS = 1 << 12
FOREVER_S = 86_400.0


def scripted_logprob(seed: int, position: int, token_id: int) -> float:
    """The log-prob of a token at a position of the answer: in (-4, 0] nats, exact in float32."""
    mixed = (seed * 0x9E3779B1 + position * 0x85EBCA6B + token_id * 0xC2B2AE35 + 0x27D4EB2F) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 15)) * 0x2C1B3C6D) & 0xFFFFFFFF
    return -((mixed >> 12) % (4 * LOGPROB_STEPS)) / LOGPROB_STEPS


class ScriptedEngine:
    """The server's routes and state: the script, the counters of its rules, the log."""

    def __init__(self, script: Script, tokenizer: ChatTokenizer, *, clock: Any = time.time) -> None:
        self.tokenizer = tokenizer
        self._clock = clock
        self.n_requests = 0
        self._spellings = Spellings()
        self._guides = Guides(tokenizer)
        self.use(script)

    def use(self, script: Script) -> None:
        """Replace the script; counters and log are reset."""
        self.script = script
        self._matcher = Matcher(script)
        self._log: deque[dict[str, Any]] = deque(maxlen=script.log_size)
        self._fast: dict[tuple[Any, ...], web.Response | bytes | list[bytes]] = {}
        self._tokens = lru_cache(4096)(self._emissions)

    def routes(self) -> httpd.Routes:
        """All routes of the server."""
        common = common_routes(
            lambda: self.tokenizer,
            lambda: self.script.model,
            created=int(self._clock()),
            context_length=lambda: self.script.context_length,
            spellings=self._spellings,
        )
        return {
            **common,
            ("POST", "/v1/chat/completions"): self.chat,
            ("POST", "/v1/completions"): self.completions,
            ("GET", "/__log"): self.log,
            ("DELETE", "/__log"): self.forget,
            ("PUT", "/__script"): self.replace_script,
        }

    async def chat(self, request: web.BaseRequest) -> web.StreamResponse:
        """``POST /v1/chat/completions``."""
        return await self._answer(request, "chat")

    async def completions(self, request: web.BaseRequest) -> web.StreamResponse:
        """``POST /v1/completions``."""
        return await self._answer(request, "completions")

    async def log(self, request: web.BaseRequest) -> web.StreamResponse:
        """``GET /__log[?since=n]``: requests in order of arrival, with the ids and log-probs of their responses."""
        since = int(request.query.get("since", 0))
        rows = [row for row in self._log if row["n"] >= since]
        return httpd.json_response({"n_requests": self.n_requests, "requests": rows})

    async def forget(self, request: web.BaseRequest) -> web.StreamResponse:
        """``DELETE /__log``."""
        self._log.clear()
        return httpd.json_response({"requests": []})

    async def replace_script(self, request: web.BaseRequest) -> web.StreamResponse:
        """``PUT /__script``."""
        self.use(Script.parse(await httpd.read_json(request)))
        return httpd.json_response({"model": self.script.model})

    async def _answer(self, request: web.BaseRequest, route: str) -> web.StreamResponse:
        body = await httpd.read_json(request)
        n = body.get("n") or 1
        # An n out of range is refused when the request is parsed; until then, one choice is enough.
        n_choices = n if isinstance(n, int) and 1 <= n <= MAX_CHOICES else 1
        match = self._matcher.match(route, body, request.headers, n_choices)
        self.n_requests += 1
        if match.rule.delay_s:
            await asyncio.sleep(match.rule.delay_s)
        if self.script.fast and match.rule.fault is None:
            return await self._answer_fast(request, route, body, match)
        row = self._start_row(request, body, match)
        name, argument = split_fault(match.rule.fault) if match.rule.fault else ("", 0.0)
        if name == "status":
            return self._refuse(row, int(argument))
        if name == "hang":
            await asyncio.sleep(FOREVER_S)
        if name == "disconnect":
            await _drop(request)
        answer, events = self._compose(route, body, match, row)
        if answer.call.stream:
            return await self._send_stream(request, events, match, name, argument)
        return await self._send_whole(request, answer, name)

    async def _answer_fast(
        self, request: web.BaseRequest, route: str, body: dict[str, Any], match: Match
    ) -> web.StreamResponse:
        """Send the cached bytes of an equivalent request: the engine takes as little time as possible in benchmarks."""
        field_names = ("n", "stream", "logprobs", "top_logprobs", "return_token_ids", "max_tokens", "echo")
        values = (repr(body.get(name)) for name in ("stream_options", "tool_choice", "response_format"))
        options = (*values, bool(body.get("tools")), body.get("max_completion_tokens"))
        key = (route, match.index, match.variants, *map(body.get, field_names), *options)
        payload = self._fast.get(key)
        if payload is None:
            answer, events = self._compose(route, body, match, {})
            payload = b"".join(events) if answer.call.stream else orjson.dumps(answer.full_body())
            self._fast[key] = payload
        kind = "text/event-stream" if body.get("stream") else "application/json"
        return web.Response(body=payload, content_type=kind)

    def _compose(
        self, route: str, body: dict[str, Any], match: Match, row: dict[str, Any]
    ) -> tuple[Answer, list[bytes]]:
        """The answer, and the events of its stream (empty if it does not stream)."""
        if route == "chat":
            call = parse_chat(body, self.tokenizer, self._spellings)
        else:
            call = parse_completion(body, self.tokenizer)
        check_context(call, self.script.context_length)
        digest = hashlib.blake2b(repr((call.prompts, self.script.seed)).encode(), digest_size=8).hexdigest()
        answer = self._new_answer(call, match, digest, row)
        events = answer.opening_events() if call.stream else []
        for choice in answer.choices:
            if call.scores_prompt:
                choice.read = self._read(call.prompts[choice.prompt], call.n_top_logprobs)
            emissions = self._choose(call, match, choice.index % call.sampling.n)
            size = match.rule.chunk_tokens if call.stream else len(emissions)
            for start in range(0, len(emissions), size):
                events += answer.feed(choice.index, emissions[start : start + size])
        for choice in answer.choices:
            self._spellings.sampled(choice.parser.tool_calls)
        if call.stream:
            events += answer.closing_events()
        row["prompt_ids"] = call.prompts[0]
        row["choices"] = [
            {
                "index": c.index,
                "prompt_ids": call.prompts[c.prompt],
                "response_ids": c.ids,
                "logprobs": c.logprobs,
                "finish_reason": c.finish_reason,
                "message": c.parser.message,
            }
            for c in answer.choices
        ]
        return answer, events

    def _new_answer(self, call: Call, match: Match, digest: str, row: dict[str, Any]) -> Answer:
        def call_id(choice: int, index: int) -> str:
            return f"call_{digest[:12]}_{choice}_{index}"

        choices = [
            Choice(
                index=index,
                prompt=index // call.sampling.n,
                parser=MessageParser(
                    tools=call.parse_tools or bool(match.reply(index % call.sampling.n).tool_calls),
                    reasoning=self.script.reasoning_parser,
                    call_id=lambda k, index=index: call_id(index, k),  # type: ignore[misc]
                ),
            )
            for index in range(call.sampling.n * len(call.prompts))
        ]
        prefix = "chatcmpl" if call.dialect == "chat" else "cmpl"
        answer_id = f"{prefix}-{digest}-{self.n_requests}"
        row["response_id"] = answer_id
        return Answer(
            call, self.tokenizer, choices, answer_id=answer_id, created=int(self._clock()), model=self.script.model
        )

    def _choose(self, call: Call, match: Match, choice: int) -> Sequence[Emission]:
        """The tokens of a reply, cut at the call's limits and stop texts as a sampler would."""
        reply = match.reply(choice)
        self._check(call, reply)
        emissions: Sequence[Emission] = self._tokens(_reply_key(reply), call.n_top_logprobs)
        limit = call.sampling.max_tokens
        if limit is not None and limit < len(emissions):
            emissions = (*emissions[: limit - 1], _ended(emissions[limit - 1], "length", None))
        if call.sampling.stop:
            emissions = _stopped(emissions, call.sampling.stop)
        if reply.finish_reason not in (None, "tool_calls", emissions[-1].finish_reason):
            emissions = (*emissions[:-1], _ended(emissions[-1], str(reply.finish_reason), None))
        return emissions

    def _check(self, call: Call, reply: Reply) -> None:
        """Raise InvalidInput if the script's reply violates the request's ``tool_choice`` or ``response_format``."""
        called = [made.name for made in reply.tool_calls]
        if call.forced and not set(called) & set(call.forced):
            raise InvalidInput(f"the script's reply calls {called or 'no tool'}", field="tool_choice")
        plain = reply.text is None and reply.n_tokens is None
        if call.sampling.grammar is not None and not called and plain:
            guide = self._guides.guide(call.sampling.grammar)
            if not guide.fits(reply.content or ""):
                raise InvalidInput("the script's reply does not match response_format", field="response_format")

    def _emissions(self, key: bytes, n_top: int) -> tuple[Emission, ...]:
        reply = Reply.model_validate_json(key)
        seed, detokenizer = self.script.seed, Detokenizer(self.tokenizer)
        ids = self._reply_ids(reply)
        pieces = [detokenizer.feed(i) for i in ids]
        pieces[-1] += detokenizer.close()
        emissions = []
        for position, (token_id, text) in enumerate(zip(ids, pieces, strict=True)):
            logprob = scripted_logprob(seed, position, token_id)
            emissions.append(Emission(token_id, logprob, self._top_tokens(token_id, logprob, n_top), text))
        ended = "stop" if ids[-1] in self.tokenizer.end_ids else "length"
        emissions[-1] = _ended(emissions[-1], ended, None)
        return tuple(emissions)

    def _read(self, prompt: Sequence[int], n_top: int) -> list[PromptToken]:
        """The prompt's tokens with scripted log-probs."""
        logprobs = [scripted_logprob(self.script.seed, position, token) for position, token in enumerate(prompt)]
        rest = zip(prompt[1:], logprobs[1:], strict=True)
        return [
            PromptToken(prompt[0], None),
            *(PromptToken(token, value, self._top_tokens(token, value, n_top)) for token, value in rest),
        ]

    def _top_tokens(self, token_id: int, logprob: float, n_top: int) -> tuple[tuple[int, float], ...]:
        return tuple(((token_id + k) % self.tokenizer.n_vocab, logprob - k) for k in range(n_top))

    def _reply_ids(self, reply: Reply) -> list[int]:
        if reply.n_tokens is not None:
            words = self.tokenizer.encode(" the plan is to read each file and write what it says")
            return [words[i % len(words)] for i in range(reply.n_tokens - 1)] + [self.tokenizer.end_ids[0]]
        text = reply.text if reply.text is not None else assistant_text(reply.model_dump())
        ids = self.tokenizer.encode(text if reply.finish_reason == "length" and text else text + END_OF_TURN)
        # A reply that contains an end token ends there, as sampled text would.
        end = next((n for n, i in enumerate(ids) if i in self.tokenizer.end_ids), len(ids))
        return ids[: end + 1]

    def _start_row(self, request: web.BaseRequest, body: dict[str, Any], match: Match) -> dict[str, Any]:
        headers = {k.lower(): "set" if k.lower() == "authorization" else v for k, v in request.headers.items()}
        row = {
            "n": self.n_requests - 1,
            "at": self._clock(),
            "path": request.path,
            "headers": headers,
            "body": body,
            "rule": match.index,
            "variants": match.variants,
            "fault": match.rule.fault,
        }
        self._log.append(row)
        return row

    def _refuse(self, row: dict[str, Any], status: int) -> web.StreamResponse:
        row["status"] = status
        error = EngineError(f"scripted failure with status {status}", upstream_status=status)
        _, body = error_body(error)
        headers = {"Retry-After": "0"} if status in (429, 503) else {}
        return httpd.json_response(body, status, headers)

    async def _send_whole(self, request: web.BaseRequest, answer: Answer, fault: str) -> web.StreamResponse:
        body = answer.full_body()
        if fault in BODY:
            body = orjson.loads(orjson.dumps(body))
            BODY[fault](body)
        payload = b"<html>Bad gateway</html>" if fault == "garbage" else orjson.dumps(body)
        if fault != "disconnect_body":
            return web.Response(body=payload, content_type="application/json")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.content_length = len(payload)
        await response.prepare(request)
        await response.write(payload[: len(payload) // 2])
        await _drop(request)
        return response

    async def _send_stream(
        self, request: web.BaseRequest, events: list[bytes], match: Match, fault: str, argument: float
    ) -> web.StreamResponse:
        delay_s = argument if fault == "slow_stream" else match.rule.chunk_delay_s
        if fault in BODY:
            events = [_with_fault(event, fault) for event in events]
        if fault == "garbage":
            events = [b"data: {not json\n\n", *events[-1:]]
        if fault == "no_done":
            events = events[:-1]
        if fault == "error_in_stream":
            failure = EngineError("scripted failure in the stream", upstream_status=500)
            events = [*events[: len(events) // 2], b"data: " + orjson.dumps(error_body(failure)[1]) + b"\n\n"]
        stop_after = {"disconnect_stream": int(argument), "disconnect_body": len(events) // 2}.get(fault)
        response = await httpd.open_stream(request)
        for event in events[:stop_after]:
            if delay_s:
                await asyncio.sleep(delay_s)
            await response.write(event)
        if stop_after is not None:
            await _drop(request)
        await response.write_eof()
        return response


def _reply_key(reply: Reply) -> bytes:
    return reply.model_dump_json().encode()


def _ended(emission: Emission, finish_reason: str, stop_reason: int | str | None) -> Emission:
    return Emission(emission.token_id, emission.logprob, emission.top, emission.text, finish_reason, stop_reason)


def _stopped(emissions: Sequence[Emission], stops: Sequence[str]) -> Sequence[Emission]:
    """Cut after the token that completes a stop text; the tokens are kept, the stop text is left out."""
    scanner = StopScanner(stops)
    kept: list[Emission] = []
    for e in emissions:
        text, stop = scanner.feed(e.text)
        if e.finish_reason is not None and stop is None:
            text += scanner.close()
        kept.append(Emission(e.token_id, e.logprob, e.top, text, e.finish_reason, e.stop_reason))
        if stop is not None:
            kept[-1] = _ended(kept[-1], "stop", stop)
            break
    return kept


def _with_fault(event: bytes, fault: str) -> bytes:
    payload = event.removeprefix(b"data: ").strip()
    if payload == b"[DONE]":
        return event
    body = orjson.loads(payload)
    BODY[fault](body)
    return b"data: " + orjson.dumps(body) + b"\n\n"


async def _drop(request: web.BaseRequest) -> None:
    """Close the connection during the response; the handler is then cancelled."""
    if request.transport is not None:
        request.transport.close()
    await asyncio.sleep(FOREVER_S)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="core.serving.scripted", description=__doc__)
    parser.add_argument("--script", type=Path, help="script file; without it every answer is 'Done.'")
    parser.add_argument("--tokenizer-dir", type=Path, help="folder of another tokenizer and template")
    httpd.add_arguments(parser)
    arguments = parser.parse_args(argv)
    try:
        script = Script.load(arguments.script) if arguments.script else Script()
        engine = ScriptedEngine(script, load_tokenizer(arguments.tokenizer_dir))
    except StudioError as error:
        print(error.message, file=sys.stderr)
        return 2
    httpd.serve(engine.routes(), arguments, model=script.model)
    return 0


if __name__ == "__main__":
    sys.exit(main())
