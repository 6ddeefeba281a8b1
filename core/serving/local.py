"""The local engine: an OpenAI-compatible server that runs a small transformer on the CPU.

    python -m core.serving.local --model-dir DIR --port 0 [--record FILE]

Besides OpenAI's and vLLM's routes: ``POST /reload_weights {"path", "policy_version"}`` and ``GET /policy_version``.
Every response has ``policy_version`` and ``policy_version_end``: the versions of the weights that sampled its first and
its last token.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from core.errors import EngineError, InvalidInput, StudioError
from core.serving import httpd
from core.serving.answers import Answer, Choice, Emission
from core.serving.common_routes import common_routes
from core.serving.engine import Engine, SequenceState
from core.serving.model import CONFIG_FILE, make_model
from core.serving.parsing import MessageParser
from core.serving.protocol import Call, check_context, error_body, parse_chat, parse_completion
from core.serving.qwen3 import Qwen3
from core.serving.spelling import Spellings
from core.serving.tokenizer import load_tokenizer

DEFAULT_NAME = "claw-local"
SWITCH_INTERVAL_S = 0.0005
"""Python's thread switch interval: short, so that the HTTP thread and the engine's thread do not block each other."""


class LocalServer:
    """HTTP routes of an ``Engine``."""

    def __init__(self, engine: Engine, *, model: str, path: Path, reasoning_parser: bool) -> None:
        self.engine = engine
        self.model = model
        self.path = path
        self._reasoning_parser = reasoning_parser
        self._spellings = Spellings()
        self._loop: asyncio.AbstractEventLoop | None = None

    def routes(self) -> httpd.Routes:
        """All routes of the server."""
        common = common_routes(
            lambda: self.engine.tokenizer,
            lambda: self.model,
            created=int(time.time()),
            context_length=lambda: self.engine.context_length,
            spellings=self._spellings,
        )
        return {
            **common,
            ("POST", "/v1/chat/completions"): self.chat,
            ("POST", "/v1/completions"): self.completions,
            ("POST", "/reload_weights"): self.reload_weights,
            ("GET", "/policy_version"): self.policy_version,
        }

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the engine; its tokens are delivered on ``loop``."""
        self._loop = loop
        self.engine.start()

    async def chat(self, request: web.BaseRequest) -> web.StreamResponse:
        """``POST /v1/chat/completions``."""
        body = await httpd.read_json(request)
        return await self._respond(request, parse_chat(body, self.engine.tokenizer, self._spellings))

    async def completions(self, request: web.BaseRequest) -> web.StreamResponse:
        """``POST /v1/completions``."""
        body = await httpd.read_json(request)
        return await self._respond(request, parse_completion(body, self.engine.tokenizer))

    async def reload_weights(self, request: web.BaseRequest) -> web.StreamResponse:
        """``POST /reload_weights``: swap weights between two iterations; responds when this is done."""
        body = await httpd.read_json(request)
        path, version = body.get("path"), body.get("policy_version")
        if not isinstance(path, str):
            raise InvalidInput("path must be a folder", field="path")
        if not isinstance(version, int) or isinstance(version, bool) or version < 0:
            raise InvalidInput("policy_version must be an integer, at least 0", field="policy_version")
        try:
            done = await asyncio.to_thread(self.engine.load, Path(path), version)
        except EngineError as error:
            raise InvalidInput(error.message, field=error.field, hint=error.hint) from error
        n_read_again = await asyncio.wrap_future(done)
        self.path = Path(path)
        return httpd.json_response({"policy_version": version, "path": path, "n_sequences_read_again": n_read_again})

    async def policy_version(self, request: web.BaseRequest) -> web.StreamResponse:
        """``GET /policy_version``."""
        state = {"policy_version": self.engine.policy_version, "path": str(self.path)}
        state |= {"n_running": self.engine.n_running, "max_batch_seen": self.engine.max_running}
        return httpd.json_response(state)

    async def _respond(self, request: web.BaseRequest, call: Call) -> web.StreamResponse:
        check_context(call, self.engine.context_length)
        answer = self._new_answer(call)
        async with contextlib.aclosing(self._sample(answer)) as tokens:
            if call.stream:
                return await self._stream(request, answer, tokens)
            async for index, emissions in tokens:
                answer.feed(index, emissions)
        self._remember(answer)
        return httpd.json_response(answer.full_body())

    async def _stream(
        self, request: web.BaseRequest, answer: Answer, tokens: AsyncIterator[tuple[int, list[Emission]]]
    ) -> web.StreamResponse:
        response = await httpd.open_stream(request)
        try:
            for event in answer.opening_events():
                await response.write(event)
            async for index, emissions in tokens:
                for event in answer.feed(index, emissions):
                    await response.write(event)
            self._remember(answer)
            for event in answer.closing_events():
                await response.write(event)
        except EngineError as error:
            await response.write(answer.error_event(error_body(error)[1]))
        await response.write_eof()
        return response

    def _remember(self, answer: Answer) -> None:
        for choice in answer.choices:
            self._spellings.sampled(choice.parser.tool_calls)

    async def _sample(self, answer: Answer) -> AsyncGenerator[tuple[int, list[Emission]]]:
        """Yield tokens of all choices as they are sampled. Closing the generator early cancels the sequences.

        A stream receives each token immediately. Otherwise each choice is delivered when it is complete: waking the
        event loop for every token would take the engine's thread longer than sampling the token.
        """
        loop = self._loop or asyncio.get_running_loop()
        queue: asyncio.Queue[tuple[int, list[Emission] | EngineError]] = asyncio.Queue()
        call = answer.call
        pending: list[list[Emission]] = [[] for _ in answer.choices]

        def deliver(sequence: SequenceState, item: Emission | EngineError) -> None:
            if isinstance(item, EngineError):
                loop.call_soon_threadsafe(queue.put_nowait, (sequence.index, item))
                return
            pending[sequence.index].append(item)
            if call.stream or item.finish_reason is not None:
                ready, pending[sequence.index] = pending[sequence.index], []
                loop.call_soon_threadsafe(queue.put_nowait, (sequence.index, ready))

        sequences = self.engine.submit(
            answer.id,
            call.prompts,
            call.sampling,
            n_top_logprobs=call.n_top_logprobs,
            sink=deliver,
            scores_prompt=call.scores_prompt,
        )
        n_open = len(sequences)
        try:
            while n_open:
                index, item = await queue.get()
                if isinstance(item, EngineError):
                    raise item
                versions = [s.policy_version for s in sequences if s.policy_version is not None]
                latest = [s.policy_version_end for s in sequences if s.policy_version_end is not None]
                answer.extra = {"policy_version": min(versions), "policy_version_end": max(latest)}
                answer.choices[index].read = sequences[index].read or ()
                n_open -= item[-1].finish_reason is not None
                yield index, item
        finally:
            if n_open:
                self.engine.cancel(sequences)

    def _new_answer(self, call: Call) -> Answer:
        def parser() -> MessageParser:
            return MessageParser(
                tools=call.parse_tools,
                reasoning=self._reasoning_parser and call.dialect == "chat",
                call_id=lambda _: f"call_{uuid.uuid4().hex[:24]}",
            )

        n = call.sampling.n
        choices = [Choice(i, i // n, parser()) for i in range(n * len(call.prompts))]
        prefix = "chatcmpl" if call.dialect == "chat" else "cmpl"
        return Answer(
            call,
            self.engine.tokenizer,
            choices,
            answer_id=f"{prefix}-{uuid.uuid4().hex}",
            created=int(time.time()),
            model=self.model,
        )


def load_server(arguments: argparse.Namespace) -> LocalServer:
    """Load the model and build the server. In an empty folder, the seeded model is created first.

    Raises:
        StudioError: the model in the folder can't be served.
    """
    directory: Path = arguments.model_dir
    if not (directory / CONFIG_FILE).exists():
        make_model(directory, seed=arguments.seed)
    # Waiting threads must not spin: on a busy machine that makes small matrix products a hundred times slower.
    # OpenMP reads this variable once, when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    import torch

    torch.set_num_threads(arguments.threads)
    engine = Engine(
        Qwen3.load(directory),
        load_tokenizer(directory),
        max_sequences=arguments.max_sequences,
        default_max_tokens=arguments.default_max_tokens,
        context_length=arguments.context_length,
        policy_version=arguments.policy_version,
        record=arguments.record,
    )
    return LocalServer(
        engine, model=arguments.served_model_name, path=directory, reasoning_parser=arguments.reasoning_parser
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="core.serving.local", description=__doc__)
    add: Any = parser.add_argument
    add("--model-dir", type=Path, required=True, help="transformers folder; if empty, a seeded model is created there")
    add("--served-model-name", default=DEFAULT_NAME)
    add("--record", type=Path, help="append one JSON line per finished choice: sampled ids and log-probs")
    add("--threads", type=int, default=2, help="torch's threads")
    add("--max-sequences", type=int, default=16, help="most sequences in one batch")
    add("--default-max-tokens", type=int, default=512, help="limit for chats without max_tokens")
    add("--context-length", type=int, help="longest prompt with answer, tokens; by default as long as the model allows")
    add("--policy-version", type=int, default=0, help="version of the weights at the start")
    add("--reasoning-parser", action=argparse.BooleanOptionalAction, default=True)
    add("--seed", type=int, default=0, help="seed of a model that is created")
    httpd.add_arguments(parser)
    arguments = parser.parse_args(argv)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        server = load_server(arguments)
    except StudioError as error:
        print(error.message, file=sys.stderr)
        return 2
    httpd.serve(server.routes(), arguments, model=server.model, on_start=server.start, on_stop=server.engine.stop)
    return 0


if __name__ == "__main__":
    sys.exit(main())
