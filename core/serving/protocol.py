"""Parses and checks requests to an engine: OpenAI's chat and completions bodies with vLLM's extensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from msgspec import Meta, Struct

from core.checked import checked
from core.errors import InvalidInput, StudioError
from core.serving.grammar import answer_grammar, call_grammar, forced_tools
from core.serving.spelling import Spellings
from core.serving.tokenizer import ChatTokenizer

COMPLETIONS_MAX_TOKENS = 16
MAX_CHOICES = 128
MAX_ANSWERS = 4096
"""Limit of choices times prompts in one call."""
MAX_TOP_LOGPROBS = 20
NOT_SERVED = ("prompt_logprobs", "structured_outputs", "guided_json", "allowed_token_ids", "suffix")
"""Fields that are refused. ``GET /v1/models`` lists them."""


_Count = Annotated[int, Meta(ge=1)]
_Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]
_Text = Annotated[str, Meta(min_length=1)]
_TopLogprobs = Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)]


class _Request(Struct, kw_only=True):
    """Fields of both routes."""

    temperature: Annotated[float, Meta(ge=0.0, le=100.0)] = 1.0
    top_p: Annotated[float, Meta(ge=1e-9, le=1.0)] = 1.0
    top_k: Annotated[int, Meta(ge=-1)] = 0
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] = 1
    max_tokens: _Count | None = None
    min_tokens: Annotated[int, Meta(ge=0)] = 0
    stop: str | list[_Text] = ""
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    presence_penalty: _Penalty = 0.0
    frequency_penalty: _Penalty = 0.0
    repetition_penalty: Annotated[float, Meta(ge=1e-3, le=100.0)] = 1.0
    logit_bias: dict[int, Annotated[float, Meta(ge=-100.0, le=100.0)]] = {}
    stream: bool = False
    stream_options: dict[str, Any] = {}
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False


class _Chat(_Request, kw_only=True):
    messages: list[dict[str, Any]]
    tools: list[Any] = []
    chat_template_kwargs: dict[str, Any] = {}
    max_completion_tokens: _Count | None = None
    logprobs: bool = False
    top_logprobs: _TopLogprobs = 0


class _Completion(_Request, kw_only=True):
    logprobs: _TopLogprobs | None = None
    echo: bool = False


class _Turn(Struct):
    """Fields that decide how a chat prompt ends."""

    continue_final_message: bool = False
    add_generation_prompt: bool | None = None


class ContextTooLong(InvalidInput):
    """Prompt and answer do not fit the model's context."""

    type = "context_length_exceeded"


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters. ``max_tokens=None`` takes the engine's default; ``top_k=0`` keeps all tokens."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    grammar: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One checked request.

    Attributes:
        dialect: ``chat`` or ``completions``.
        prompts: token ids of each prompt, one for chat; completions may send several.
        n_top_logprobs: number of alternatives to return with each sampled token.
        wants_ids: ``return_token_ids``.
        tokens_as_ids: log-prob entries write tokens as ``token_id:N``.
        parse_tools: parse tool calls in the sampled text.
        forced: names of the tools of which one must be called.
        echo: return the prompt's text before the answer, with its log-probs if log-probs are requested.
    """

    dialect: str
    body: Mapping[str, Any]
    prompts: tuple[tuple[int, ...], ...]
    sampling: Sampling
    stream: bool = False
    include_usage: bool = False
    wants_logprobs: bool = False
    n_top_logprobs: int = 0
    wants_ids: bool = False
    tokens_as_ids: bool = False
    parse_tools: bool = False
    forced: tuple[str, ...] = ()
    echo: bool = False

    @property
    def scores_prompt(self) -> bool:
        """Whether log-probs of the prompt's tokens are requested."""
        return self.echo and self.wants_logprobs


def parse_chat(body: Mapping[str, Any], tokenizer: ChatTokenizer, spellings: Spellings) -> Call:
    """Check a ``/v1/chat/completions`` body and render its prompt.

    Raises:
        InvalidInput: a field is invalid; ``field`` names it.
    """
    _refuse_unsupported(body)
    request = checked(_Chat, body)
    kwargs = request.chat_template_kwargs
    if {"messages", "tools"} & kwargs.keys():
        raise InvalidInput("chat_template_kwargs must be an object of options", field="chat_template_kwargs")
    tools = request.tools
    offered = None if body.get("tools") is None or body.get("tool_choice") == "none" else tools
    prompt = tokenizer.encode(render_body(spellings.respelled(request.messages), offered, kwargs, body, tokenizer))
    max_tokens = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    forced = forced_tools(body.get("tool_choice"), tools)
    grammar = call_grammar(forced, tools) if forced else answer_grammar(body.get("response_format"))
    return Call(
        dialect="chat",
        body=body,
        prompts=(tuple(prompt),),
        sampling=replace(_sampling(request, max_tokens, tokenizer), grammar=grammar),
        forced=forced,
        wants_logprobs=request.logprobs,
        n_top_logprobs=request.top_logprobs,
        parse_tools=bool(offered),
        **_delivery(request),
    )


def render_body(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    kwargs: Mapping[str, Any],
    body: Mapping[str, Any],
    tokenizer: ChatTokenizer,
) -> str:
    """The prompt's text. It ends with the start of a new assistant turn, or in the last message to be continued.

    Raises:
        InvalidInput: both are requested, or the last message has no text to continue.
    """
    turn = checked(_Turn, body)
    goes_on = turn.continue_final_message
    begins = not goes_on if turn.add_generation_prompt is None else turn.add_generation_prompt
    text = tokenizer.render(messages, tools, **{"add_generation_prompt": begins, **kwargs})
    if not goes_on:
        return text
    last_text = _content_text(messages[-1]) if messages else ""
    at = text.rfind(last_text)
    if begins or not last_text or at < 0:
        raise InvalidInput(
            "there is no last message to continue",
            field="continue_final_message",
            hint="the last message must have text; add_generation_prompt must be off",
        )
    return text[: at + len(last_text)]


def _content_text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    return "".join(text for text in texts if isinstance(text, str))


def parse_completion(body: Mapping[str, Any], tokenizer: ChatTokenizer) -> Call:
    """Check a ``/v1/completions`` body; ``prompt`` is text, token ids, or a list of either.

    Raises:
        InvalidInput: a field is invalid; ``field`` names it.
    """
    _refuse_unsupported(body)
    request = checked(_Completion, body)
    max_tokens = COMPLETIONS_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    sampling = _sampling(request, max_tokens, tokenizer)
    prompts = _prompts(body.get("prompt"), tokenizer)
    if sampling.n * len(prompts) > MAX_ANSWERS:
        raise InvalidInput(f"n times the number of prompts is over {MAX_ANSWERS}", field="prompt")
    return Call(
        dialect="completions",
        body=body,
        prompts=prompts,
        sampling=sampling,
        wants_logprobs=request.logprobs is not None,
        echo=request.echo,
        n_top_logprobs=request.logprobs or 0,
        **_delivery(request),
    )


def check_context(call: Call, context_length: int) -> None:
    """Check that a call fits the model's context.

    Raises:
        ContextTooLong: a prompt, or a prompt plus ``max_tokens``, exceeds ``context_length``.
    """
    for prompt in call.prompts:
        wanted = len(prompt) + (call.sampling.max_tokens or 1)
        if wanted > context_length:
            raise ContextTooLong(
                f"This model's maximum context length is {context_length} tokens. However, you requested "
                f"{wanted} tokens ({len(prompt)} in the prompt, {wanted - len(prompt)} for the completion).",
                field="messages" if call.dialect == "chat" else "prompt",
                hint="shorten the prompt or ask for fewer tokens",
            )


def error_body(error: StudioError) -> tuple[int, dict[str, Any]]:
    """HTTP status and OpenAI's error object; invalid input always gives 400."""
    status = 400 if isinstance(error, InvalidInput) else error.http_status
    kind = "invalid_request_error" if status == 400 else error.type
    code = error.type if isinstance(error, ContextTooLong) else None
    message = error.message if error.hint is None else f"{error.message} ({error.hint})"
    return status, {"error": {"message": message, "type": kind, "param": error.field, "code": code}}


def _delivery(request: _Request) -> dict[str, Any]:
    return {
        "stream": request.stream,
        "include_usage": bool(request.stream_options.get("include_usage")),
        "wants_ids": request.return_token_ids,
        "tokens_as_ids": request.return_tokens_as_token_ids,
    }


def _sampling(request: _Request, max_tokens: int | None, tokenizer: ChatTokenizer) -> Sampling:
    for field, ids in (("stop_token_ids", request.stop_token_ids), ("logit_bias", request.logit_bias)):
        if not all(_is_id(token, tokenizer) for token in ids):
            raise InvalidInput(f"{field} must name token ids below {tokenizer.n_vocab}", field=field)
    stop = [request.stop] if isinstance(request.stop, str) else request.stop
    return Sampling(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=max(request.top_k, 0),
        min_p=request.min_p,
        seed=request.seed,
        n=request.n,
        max_tokens=max_tokens,
        min_tokens=request.min_tokens,
        stop=tuple(text for text in stop if text),
        stop_token_ids=tuple(request.stop_token_ids),
        ignore_eos=request.ignore_eos,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        repetition_penalty=request.repetition_penalty,
        logit_bias=tuple(request.logit_bias.items()),
    )


def _prompts(prompt: Any, tokenizer: ChatTokenizer) -> tuple[tuple[int, ...], ...]:
    if isinstance(prompt, str):
        prompt = [tokenizer.encode(prompt)]
    elif isinstance(prompt, list) and prompt and all(isinstance(p, int) for p in prompt):
        prompt = [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise InvalidInput("prompt must be a text, token ids, or a list of either", field="prompt")
    ids = [tokenizer.encode(p) if isinstance(p, str) else p for p in prompt]
    for one in ids:
        if not isinstance(one, Sequence) or not one or not all(_is_id(i, tokenizer) for i in one):
            raise InvalidInput(
                f"a prompt must hold at least one token, with ids below {tokenizer.n_vocab}", field="prompt"
            )
    return tuple(tuple(one) for one in ids)


def _refuse_unsupported(body: Mapping[str, Any]) -> None:
    """Refuse unsupported options that would change the answer; they are never silently dropped."""
    for field in NOT_SERVED:
        if body.get(field):
            raise InvalidInput(f"{field} is not served by this engine", field=field)


def _is_id(value: Any, tokenizer: ChatTokenizer) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < tokenizer.n_vocab
