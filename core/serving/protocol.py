"""What a request asks for: OpenAI's chat and completions bodies with vLLM's additions, checked at the border."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from core.errors import InvalidInput, StudioError
from core.serving.grammar import answer_grammar, call_grammar, forced_tools
from core.serving.spelling import Spellings
from core.serving.tokenizer import ChatTokenizer

COMPLETIONS_MAX_TOKENS = 16
MAX_CHOICES = 128
MAX_ANSWERS = 4096
"""Of one call: choices times prompts."""
MAX_TOP_LOGPROBS = 20
NOT_SERVED = ("prompt_logprobs", "structured_outputs", "guided_json", "allowed_token_ids", "suffix")
"""Fields that are refused; the model's card names them."""


class ContextTooLong(InvalidInput):
    """Prompt and answer do not fit the model's context."""

    type = "context_length_exceeded"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw the answer. ``max_tokens=None`` leaves it to the engine; ``top_k=0`` keeps all tokens."""

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
        n_top_logprobs: alternatives wanted beside the sampled token.
        wants_ids: ``return_token_ids``.
        tokens_as_ids: log-prob entries name tokens ``token_id:N``.
        parse_tools: tool calls are taken out of the sampled text.
        forced: names of the tools of which one has to be called.
        echo: the prompt's text stands before the answer's, its log-probs too where log-probs are wanted.
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
        """Whether log-probs of the prompt's tokens are wanted."""
        return self.echo and self.wants_logprobs


def parse_chat(body: Mapping[str, Any], tokenizer: ChatTokenizer, spellings: Spellings) -> Call:
    """Check a ``/v1/chat/completions`` body and render its prompt.

    Raises:
        InvalidInput: a field that does not fit; ``field`` names it.
    """
    _refuse_unsupported(body)
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise InvalidInput("messages must be a list of objects", field="messages")
    tools = body.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise InvalidInput("tools must be a list", field="tools")
    kwargs = body.get("chat_template_kwargs") or {}
    if not isinstance(kwargs, dict) or {"messages", "tools"} & kwargs.keys():
        raise InvalidInput("chat_template_kwargs must be an object of options", field="chat_template_kwargs")
    offered = tools if body.get("tool_choice") != "none" else None
    prompt = tokenizer.encode(render_body(spellings.respelled(messages), offered, kwargs, body, tokenizer))
    n_top = _integer(body, "top_logprobs", 0, 0, MAX_TOP_LOGPROBS)
    limit = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    max_tokens = None if body.get(limit) is None else _integer(body, limit, 1, 1, None)
    forced = forced_tools(body.get("tool_choice"), tools or ())
    grammar = call_grammar(forced, tools or ()) if forced else answer_grammar(body.get("response_format"))
    return Call(
        dialect="chat",
        body=body,
        prompts=(tuple(prompt),),
        sampling=replace(_sampling(body, max_tokens, tokenizer), grammar=grammar),
        forced=forced,
        wants_logprobs=_flag(body, "logprobs", False),
        n_top_logprobs=n_top,
        parse_tools=bool(offered),
        **_delivery(body),
    )


def render_body(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    kwargs: Mapping[str, Any],
    body: Mapping[str, Any],
    tokenizer: ChatTokenizer,
) -> str:
    """The prompt's text: a new turn of the model begins it, or the last message's end is left open.

    Raises:
        InvalidInput: both are asked for, or the last message has no text to go on with.
    """
    goes_on = _flag(body, "continue_final_message", False)
    begins = _flag(body, "add_generation_prompt", not goes_on)
    text = tokenizer.render(messages, tools, **{"add_generation_prompt": begins, **kwargs})
    if not goes_on:
        return text
    said = _said(messages[-1]) if messages else ""
    at = text.rfind(said)
    if begins or not said or at < 0:
        raise InvalidInput(
            "there is no last message to go on with", field="continue_final_message", hint="one with text, last"
        )
    return text[: at + len(said)]


def _said(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    return "".join(text for text in texts if isinstance(text, str))


def parse_completion(body: Mapping[str, Any], tokenizer: ChatTokenizer) -> Call:
    """Check a ``/v1/completions`` body; ``prompt`` is text, token ids, or a list of either.

    Raises:
        InvalidInput: a field that does not fit; ``field`` names it.
    """
    _refuse_unsupported(body)
    logprobs = body.get("logprobs")
    n_top = 0 if logprobs is None else _integer(body, "logprobs", 0, 0, MAX_TOP_LOGPROBS)
    max_tokens = _integer(body, "max_tokens", COMPLETIONS_MAX_TOKENS, 1, None)
    sampling = _sampling(body, max_tokens, tokenizer)
    prompts = _prompts(body.get("prompt"), tokenizer)
    if sampling.n * len(prompts) > MAX_ANSWERS:
        raise InvalidInput(f"n times the number of prompts is over {MAX_ANSWERS}", field="prompt")
    return Call(
        dialect="completions",
        body=body,
        prompts=prompts,
        sampling=sampling,
        wants_logprobs=logprobs is not None and logprobs is not False,
        echo=_flag(body, "echo", False),
        n_top_logprobs=n_top,
        **_delivery(body),
    )


def check_context(call: Call, context_length: int) -> None:
    """Refuse what cannot fit.

    Raises:
        ContextTooLong: prompt, or prompt plus ``max_tokens``, exceed ``context_length``.
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
    """HTTP status and OpenAI's error object; what a caller got wrong is always a 400."""
    status = 400 if isinstance(error, InvalidInput) else error.http_status
    kind = "invalid_request_error" if status == 400 else error.type
    code = error.type if isinstance(error, ContextTooLong) else None
    message = error.message if error.hint is None else f"{error.message} ({error.hint})"
    return status, {"error": {"message": message, "type": kind, "param": error.field, "code": code}}


def _delivery(body: Mapping[str, Any]) -> dict[str, Any]:
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise InvalidInput("stream_options must be an object", field="stream_options")
    return {
        "stream": _flag(body, "stream", False),
        "include_usage": bool(options.get("include_usage")),
        "wants_ids": _flag(body, "return_token_ids", False),
        "tokens_as_ids": _flag(body, "return_tokens_as_token_ids", False),
    }


def _sampling(body: Mapping[str, Any], max_tokens: int | None, tokenizer: ChatTokenizer) -> Sampling:
    stop = body.get("stop") or ()
    stop = (stop,) if isinstance(stop, str) else tuple(stop)
    if not all(isinstance(s, str) and s for s in stop):
        raise InvalidInput("stop must be a text or a list of texts", field="stop")
    stop_ids = tuple(body.get("stop_token_ids") or ())
    if not all(_is_id(i, tokenizer) for i in stop_ids):
        raise InvalidInput("stop_token_ids must be token ids", field="stop_token_ids")
    return Sampling(
        temperature=_number(body, "temperature", 1.0, 0.0, 100.0),
        top_p=_number(body, "top_p", 1.0, 1e-9, 1.0),
        top_k=max(_integer(body, "top_k", 0, -1, None), 0),
        min_p=_number(body, "min_p", 0.0, 0.0, 1.0),
        seed=None if body.get("seed") is None else _integer(body, "seed", 0, -(2**63), 2**63 - 1),
        n=_integer(body, "n", 1, 1, MAX_CHOICES),
        max_tokens=max_tokens,
        min_tokens=_integer(body, "min_tokens", 0, 0, None),
        stop=stop,
        stop_token_ids=stop_ids,
        ignore_eos=_flag(body, "ignore_eos", False),
        presence_penalty=_number(body, "presence_penalty", 0.0, -2.0, 2.0),
        frequency_penalty=_number(body, "frequency_penalty", 0.0, -2.0, 2.0),
        repetition_penalty=_number(body, "repetition_penalty", 1.0, 1e-3, 100.0),
        logit_bias=_logit_bias(body.get("logit_bias"), tokenizer),
    )


def _logit_bias(bias: Any, tokenizer: ChatTokenizer) -> tuple[tuple[int, float], ...]:
    """``{"id": bias}`` as pairs."""
    if not bias:
        return ()
    try:
        pairs = [(int(token), float(value)) for token, value in bias.items()]
    except (AttributeError, TypeError, ValueError):
        pairs = [(-1, 0.0)]
    if not all(_is_id(token, tokenizer) and -100 <= value <= 100 for token, value in pairs):
        raise InvalidInput("logit_bias must map token ids to numbers from -100 to 100", field="logit_bias")
    return tuple(pairs)


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
    """Options that would change the answer are refused, never silently dropped."""
    for field in NOT_SERVED:
        if body.get(field):
            raise InvalidInput(f"{field} is not served by this engine", field=field)


def _is_id(value: Any, tokenizer: ChatTokenizer) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < tokenizer.n_vocab


def _flag(body: Mapping[str, Any], field: str, default: bool) -> bool:
    value = body.get(field)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise InvalidInput(f"{field} must be true or false", field=field)
    return value


def _number(body: Mapping[str, Any], field: str, default: float, low: float, high: float) -> float:
    value = body.get(field)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise InvalidInput(f"{field} must be a number from {low:g} to {high:g}", field=field)
    return float(value)


def _integer(body: Mapping[str, Any], field: str, default: int, low: int, high: int | None) -> int:
    value = body.get(field)
    if value is None:
        return default
    bounded = isinstance(value, int) and not isinstance(value, bool) and value >= low
    if not bounded or (high is not None and value > high):
        span = f"at least {low}" if high is None else f"from {low} to {high}"
        raise InvalidInput(f"{field} must be an integer, {span}", field=field)
    return int(value)
