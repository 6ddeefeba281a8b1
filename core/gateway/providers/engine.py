"""Hosted providers through LiteLLM.

Only fields of the OpenAI API become LiteLLM arguments. All other request fields are sent in ``extra_body``, so no
request can set LiteLLM's own options (``api_base``, ``mock_response``, callbacks).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import orjson

from core.dialects.errors import openai_error
from core.dialects.messages_request import CONTINUE, PREFILL
from core.errors import EngineError, EngineTimeout
from core.gateway.engines.answer import EngineAnswer, EngineCall, EngineStream
from core.gateway.engines.base import BUSY, Engine, EngineOptions
from core.gateway.engines.capabilities import AUTO, KINDS, RELAY, WHOLE
from core.gateway.engines.streams import StreamDeadline
from core.gateway.providers.anthropic import ask_anthropic, speaks_natively
from core.gateway.providers.fields import FIELDS, FieldExaminer, FieldUse
from core.gateway.providers.litellm_import import LiteLLM
from core.gateway.providers.read_counter import ReadCounter
from core.gateway.providers.stream import ProviderStream, is_stream, opened, provider_failure, retry_after
from core.gateway.served_dialects import add_fields, check_answer
from core.tokens import extract_tokens

_PROVIDERS = """
ai21 anthropic anyscale azure azure_ai bedrock cerebras clarifai cloudflare codestral cohere cohere_chat databricks
deepinfra deepseek fireworks_ai gemini github groq hosted_vllm huggingface litellm_proxy lm_studio mistral moonshot
nvidia_nim ollama ollama_chat openai openrouter perplexity replicate sambanova together_ai vertex_ai volcengine
voyage watsonx xai
"""
PROVIDERS: Final = frozenset(_PROVIDERS.split())
"""Prefixes of ``provider/model`` names that LiteLLM supports."""

_NOT_SENT: Final = frozenset({"model", "stream", "stream_options"})

_NO_DETOURS: Final = {"num_retries": 0, "max_retries": 0, "_skip_mcp_handler": True}
"""The gateway retries by itself. Tools are the agent's: LiteLLM would look for MCP servers in them, and needs further
packages for that.
"""

_KEY_NAMES: Final = ("_API_KEY", "_ACCESS_KEY", "_ACCESS_KEY_ID", "_TOKEN")


def names_provider(model: str) -> bool:
    """Whether the name is ``provider/model`` with a provider that LiteLLM supports."""
    provider, slash, rest = model.partition("/")
    return bool(slash and rest) and provider in PROVIDERS


class ProviderEngine(Engine):
    """A provider behind LiteLLM. Made by ``EngineSet.add`` and ``EngineSet.pick``.

    Args:
        model: the ``provider/model`` for all model names without a provider; None uses the agent's name.
        api_base: another address of the provider's API.
        litellm: the library, imported at its first use.
    """

    kind = "litellm"

    def __init__(self, options: EngineOptions, model: str | None, *, api_base: str | None, litellm: LiteLLM) -> None:
        super().__init__(options)
        self._pool = options.pool
        self._litellm = litellm
        self._model = model
        self._api_base = api_base
        self._streaming = options.streaming
        self._returns_ids: bool | None = None
        self._sent = FieldExaminer()

    @property
    def address(self) -> str | None:
        """The provider's model, or another address of its API."""
        return self._api_base or self._model

    async def ask(self, call: EngineCall) -> EngineAnswer:
        """The whole answer. ``dropped`` names the fields that were not sent."""
        answer = await self._ask(call, stream=False)
        assert isinstance(answer, EngineAnswer)
        return answer

    async def ask_stream(self, call: EngineCall) -> EngineStream | EngineAnswer:
        """A stream, unless it would lose ids."""
        return await self._ask(call, stream=True)

    def streaming(self) -> dict[str, str]:
        """Mode, and how each kind of call is streamed now."""
        return {"mode": self._streaming, **{kind: self._stream_how(kind) for kind in KINDS}}

    async def _ask(self, call: EngineCall, *, stream: bool) -> EngineStream | EngineAnswer:
        model = call.model if call.model is not None and names_provider(call.model) else self._model
        if model is None:
            raise self.failed(
                EngineError(f"{call.model!r} names no provider", field="model", hint="use provider/model")
            )
        if speaks_natively(call, model):
            return await self._ask_natively(call, model, stream=stream and self._streaming != WHOLE)
        try:
            litellm = await self._litellm.get()
        except EngineError as error:
            raise self.failed(error) from error
        self.findings["litellm"] = True
        arguments, added, sent = self._arguments(litellm, call, model)
        dropped, facts = sent.dropped, {"renamed_fields": sent.renamed} if sent.renamed else {}
        stream = stream and self._stream_how(call.dialect.name) == RELAY
        if stream:
            arguments |= {"stream": True, "stream_options": {"include_usage": True}}
        function = litellm.acompletion if call.dialect.name == "chat" else litellm.atext_completion
        deadline = asyncio.get_running_loop().time() + self.timeouts.total
        counter = ReadCounter(self._pool.bounds.answer)
        try:
            async with asyncio.timeout_at(deadline):
                with counter:
                    response = await function(**arguments)
                    source = await opened(response) if stream and is_stream(response) else None
        except TimeoutError as error:
            raise self.failed(EngineTimeout(f"{model} gave no answer within {self.timeouts.total:g} s")) from error
        except Exception as error:
            failure = self.failed(provider_failure(litellm, model, error, counter))
            if failure.upstream_status not in BUSY:
                raise failure from error
            # A refusal is passed on like an engine's own, with its Retry-After.
            body = openai_error(failure)
            raw, again = orjson.dumps(body), retry_after(error)
            return EngineAnswer(failure.upstream_status, raw, body, model, added, dropped, again, facts=facts)
        if source is not None:
            return ProviderStream(
                response,
                source,
                litellm=litellm,
                model=model,
                counter=counter,
                added=added,
                stream_deadline=StreamDeadline(self.name, deadline, self.timeouts),
                finish=partial(self._finish, model, added, dropped, facts, None),
            )
        raw = orjson.dumps(response.model_dump(mode="json"))
        answer = check_answer(orjson.loads(raw))
        self.succeeded()
        if call.dialect.name == "chat":
            self._note_ids(answer)
        return EngineAnswer(200, raw, answer, model, added, dropped, facts=facts)

    async def _ask_natively(self, call: EngineCall, model: str, *, stream: bool) -> EngineStream | EngineAnswer:
        try:
            answer = await ask_anthropic(
                self._pool,
                call,
                model,
                name=self.name,
                api_base=self._api_base,
                api_key=self.api_key,
                timeouts=self.timeouts,
                finish=partial(self._finish, model, (), (), {}, call.native_dialect) if stream else None,
            )
        except EngineError as error:
            self.failed(error)
            raise
        if isinstance(answer, EngineAnswer):
            self.succeeded()
        return answer

    async def _finish(
        self,
        model: str,
        added: Sequence[str],
        dropped: Sequence[str],
        facts: Mapping[str, Any],
        engine_dialect: str | None,
        body: dict[str, Any] | None,
        failure: str | None,
    ) -> EngineAnswer | None:
        """Called at the end of a stream, to count it."""
        if failure is None:
            self.succeeded()
        else:
            self.failed(EngineError(failure))
        if body is None:
            return None
        raw = orjson.dumps(body)
        return EngineAnswer(200, raw, body, model, added, dropped, engine_dialect=engine_dialect, facts=facts)

    def _stream_how(self, kind: str) -> str:
        """How a kind of call is streamed, and why.

        Providers return no ids, so their streams lose none. A server at the user's own ``api_base`` may return ids,
        which its first whole answer shows.
        """
        if kind == "completions":
            # LiteLLM rewrites these streams, and their source can't be reached.
            return WHOLE
        if self._streaming != AUTO:
            return self._streaming
        if self._api_base is None or self._returns_ids is False:
            return RELAY
        return f"{WHOLE}: {'not asked yet' if self._returns_ids is None else 'ids would be lost'}"

    def _note_ids(self, answer: Mapping[str, Any]) -> None:
        tokens = extract_tokens(answer, 0, "chat")
        has_ids = tokens.response_ids is not None or tokens.prompt_ids is not None
        self._returns_ids = bool(self._returns_ids) or has_ids

    async def list_models(self) -> list[dict[str, Any]]:
        """Its model; a provider's whole catalogue is not listed."""
        names = [self._model] if self._model else self.plain_models()
        return [{"id": name, "object": "model", "created": 0, "owned_by": "litellm"} for name in names]

    def secrets(self) -> Sequence[str]:
        """Its own key, and the keys in the environment that LiteLLM may use."""
        from_environment = [value for name, value in os.environ.items() if name.endswith(_KEY_NAMES)]
        return [*super().secrets(), *from_environment]

    def _arguments(self, litellm: Any, call: EngineCall, model: str) -> tuple[dict[str, Any], list[str], FieldUse]:
        fields = FIELDS[call.dialect.name]
        prefill = call.native_dialect == "messages" and CONTINUE.items() <= call.body.items()
        supported = set(litellm.get_supported_openai_params(model=model) or ())
        body: Mapping[str, Any] = call.body
        if prefill:
            body = {name: value for name, value in body.items() if name not in CONTINUE}
        added: list[str] = []
        if call.dialect.name == "chat" and "logprobs" in supported:
            body, added = add_fields(body, {"logprobs": True})
        if self._api_base is not None:
            # A server of the user's own behind a provider prefix may accept more than the provider does.
            body, more = add_fields(body, {"return_token_ids": True})
            added = [*added, *more]
        known = {key: value for key, value in body.items() if key in fields}
        extra = {key: value for key, value in body.items() if key not in fields and key not in _NOT_SENT}
        agent_fields = {key: value for key, value in known.items() if key not in added}
        sent = self._sent.examine(litellm, model, call.dialect.name, agent_fields)
        if prefill:
            sent = replace(sent, dropped=[*sent.dropped, PREFILL])
        arguments = {**known, "model": model, "timeout": self.timeouts.total, **_NO_DETOURS}
        if extra:
            arguments["extra_body"] = {**sent.extra, **extra}
        if self._api_base is not None:
            arguments["api_base"] = self._api_base
        key = self.api_key or self._passed_key(litellm, model, call.foreign_key)
        if key is not None:
            arguments["api_key"] = key
        return arguments, added, sent

    @staticmethod
    def _passed_key(litellm: Any, model: str, foreign_key: str | None) -> str | None:
        """The agent's own key, unless the environment has the provider's."""
        if foreign_key is None:
            return None
        environment = litellm.validate_environment(model=model)
        return None if environment.get("keys_in_environment") else foreign_key
