"""Turns journal records into drafts: steps that are not linked yet.

A draft is a ``Step`` whose unknown identity is empty: ``trajectory_uid=""`` and ``prompt_uid=""`` are inferred,
``step_index=-1`` is counted on, by ``core.ingest.linker``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from core.dialects import canonical_request, chat_answer
from core.errors import InvalidInput
from core.pool.store.append import ids_array, logprobs_array, mask_array
from core.tokens import extract_tokens
from core.types import CallKind, IdentitySource, Source, Step, StepStatus, Tokens, TokenSource

HTTP_ERROR = 400

_HEX = frozenset("0123456789abcdef")
_SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "max_tokens", "max_completion_tokens", "seed", "stop", "n",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "tool_choice", "response_format",
    "reasoning_effort", "chat_template_kwargs",
)  # fmt: skip
"""Request fields with sampling parameters."""


def text(record: Mapping[str, Any], name: str) -> str:
    """A field that must be a text. InvalidInput when it is not."""
    value = record.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"{name} is not a text.", field=name)
    return value


def maybe_text(record: Mapping[str, Any], name: str) -> str | None:
    """A text or None; an empty text is unknown. InvalidInput for anything else."""
    value = record.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidInput(f"{name} is not a text.", field=name)
    return value or None


def number(record: Mapping[str, Any], name: str) -> float:
    """A field that must be a number."""
    value = maybe_number(record, name)
    if value is None:
        raise InvalidInput(f"{name} is missing.", field=name)
    return value


def maybe_number(record: Mapping[str, Any], name: str) -> float | None:
    """A number or None."""
    value = record.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(f"{name} is not a number.", field=name)
    return float(value)


def maybe_int(record: Mapping[str, Any], name: str) -> int | None:
    """An integer or None."""
    value = record.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise InvalidInput(f"{name} is not an integer.", field=name)
    return value


def mapping(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An object; None is an empty one."""
    value = record.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidInput(f"{name} is not an object.", field=name)
    return value


def objects(record: Mapping[str, Any], name: str) -> list[dict[str, Any]] | None:
    """A list of objects or None."""
    value = record.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise InvalidInput(f"{name} is not a list of objects.", field=name)
    return value


def _ids(ids: Sequence[int] | None) -> Sequence[int] | None:
    """The ids, checked, as an int32 array: a list of 30k Python integers would be slow."""
    return cast("Sequence[int] | None", ids_array(ids))


def _logprobs(logprobs: Sequence[float] | None) -> Sequence[float] | None:
    return cast("Sequence[float] | None", logprobs_array(logprobs))


def drafts_of_call(record: Mapping[str, Any], segment: str, offset: int) -> list[Step]:
    """The steps of one captured call: one per choice, ``{uid}``, ``{uid}.1``, ...; one for a failed call."""
    dialect = text(record, "dialect")
    engine_dialect = maybe_text(record, "engine_dialect") or dialect
    try:
        request = canonical_request(dialect, mapping(record, "request"), objects(record, "input_items") or ())
    except InvalidInput:
        # The engine may have understood what we don't: its answer counts all the same.
        request = {}
    response = chat_answer(engine_dialect, mapping(record, "response"))
    choices = response.get("choices")
    choices = [c for c in choices if isinstance(c, dict)] if isinstance(choices, list) else []
    status, error = _outcome(record, choices)
    if status == StepStatus.ERROR or not choices:
        return [_draft(record, request, engine_dialect, segment, offset, None, response, status, error)]
    return [
        _draft(record, request, engine_dialect, segment, offset, index, response, status, error)
        for index in range(len(choices))
    ]


def _outcome(record: Mapping[str, Any], choices: Sequence[Any]) -> tuple[str, str | None]:
    """(status, error)."""
    error = record.get("error")
    message = None
    if isinstance(error, dict):
        message = f"{error.get('type', 'error')}: {error.get('message', '')}"
    http_status = maybe_int(record, "http_status")
    if message is not None or (http_status is not None and http_status >= HTTP_ERROR):
        return StepStatus.ERROR, message or f"HTTP {http_status}"
    if record.get("aborted"):
        return StepStatus.ABORTED, "the agent went away before the answer was delivered"
    if not choices:
        return StepStatus.ERROR, "the answer has no choices"
    return StepStatus.OK, None


def _draft(
    record: Mapping[str, Any],
    request: Mapping[str, Any],
    engine_dialect: str,
    segment: str,
    offset: int,
    index: int | None,
    response: Mapping[str, Any],
    status: str,
    error: str | None,
) -> Step:
    identity = mapping(record, "identity")
    choice: Mapping[str, Any] = {} if index is None else response["choices"][index]
    nth_prompt = _prompt_number(request, engine_dialect, index or 0)
    messages, prompt_ids = _prompt(request, engine_dialect, nth_prompt)
    tokens = Tokens(None, None, None, TokenSource.NONE)
    facts = mapping(record, "engine_facts")
    if index is not None:
        tokens = extract_tokens(response, index, engine_dialect, echoed=request.get("echo") is True)
        prompt_ids = tokens.prompt_ids if tokens.prompt_ids is not None else prompt_ids
        if prompt_ids is None:
            prompt_ids = _encoded_prompt(facts, response)
        if tokens.mismatch is not None and status == StepStatus.OK:
            status = StepStatus.MISMATCH
    else:
        prompt_ids = None
    started_at, finished_at = number(record, "started_at"), number(record, "finished_at")
    # Fields that were not sent to the engine had no effect. ``n`` is kept if choices were requested one by one.
    unheeded = set(record.get("dropped_fields") or ()) - {"n"}
    sampling = {name: request[name] for name in _SAMPLING if request.get(name) is not None and name not in unheeded}
    retry_count = maybe_int(record, "retry_count")
    if retry_count:
        sampling["retry_count"] = retry_count
    if tokens.response_logprobs is not None and (kind := maybe_text(facts, "logprobs")):
        sampling["logprobs_mode"] = kind
    uid = text(record, "step_uid")
    finish_reason = choice.get("finish_reason")
    response_id = record.get("response_id") or response.get("id")
    metadata = dict(mapping(identity, "metadata"))
    if dropped := record.get("dropped_fields"):
        metadata["dropped_fields"] = dropped
    if renamed := mapping(facts, "renamed_fields"):
        metadata["renamed_fields"] = dict(renamed)
    if trace := _trace_id(record):
        metadata["trace_id"] = trace
    if kind := maybe_text(facts, "flavour"):
        metadata["engine_flavour"] = " ".join([kind, *filter(None, [maybe_text(facts, "version")])])
    if attempts := maybe_int(facts, "attempts"):
        metadata["attempts"] = attempts
    trajectory_uid, prompt_uid = maybe_text(identity, "trajectory_uid"), maybe_text(identity, "prompt_uid")
    if trajectory_uid is None and (connection := maybe_text(record, "connection")):
        metadata["connection"] = connection
    if nth_prompt:
        # The prompts of a batch are tasks of their own: the caller's names are those of the first.
        metadata["prompt_number"] = nth_prompt
        trajectory_uid = trajectory_uid and f"{trajectory_uid}.prompt{nth_prompt}"
        prompt_uid = prompt_uid and f"{prompt_uid}.prompt{nth_prompt}"
    return Step(
        step_uid=uid if not index else f"{uid}.{index}",
        trajectory_uid=trajectory_uid or "",
        prompt_uid=prompt_uid or "",
        step_index=-1,
        created_at=started_at,
        channel=maybe_text(identity, "channel") or "train",
        source=maybe_text(identity, "source") or Source.BLACKBOX,
        agent=maybe_text(identity, "agent"),
        model=maybe_text(record, "model"),
        engine=maybe_text(record, "engine"),
        dialect=text(record, "dialect"),
        identity_source=maybe_text(identity, "identity_source") or IdentitySource.INFERRED,
        status=status,
        error=error,
        token_source=tokens.token_source,
        mismatch=tokens.mismatch,
        prompt_ids=_ids(prompt_ids),
        response_ids=_ids(tokens.response_ids),
        response_logprobs=_logprobs(tokens.response_logprobs),
        messages=messages,
        response_message=_answer(choice, engine_dialect, messages if request.get("echo") is True else None),
        tools=_tools(request),
        finish_reason=finish_reason if isinstance(finish_reason, str) else None,
        policy_version=maybe_int(record, "policy_version"),
        policy_version_end=maybe_int(record, "policy_version_end"),
        latency_s=max(0.0, finished_at - started_at),
        sampling=sampling,
        response_id=response_id if isinstance(response_id, str) else None,
        stream_mode=maybe_text(record, "stream_mode"),
        tokenizer_hash=maybe_text(record, "tokenizer_hash"),
        journal_segment=segment,
        journal_offset=offset,
        metadata=metadata,
    )


def _trace_id(record: Mapping[str, Any]) -> str | None:
    """The trace of a W3C ``traceparent`` (``00-<trace>-<span>-<flags>``): some agents keep one for a user's turn."""
    parts = str(mapping(record, "client_headers").get("traceparent", "")).split("-")
    trace_id = parts[1] if len(parts) >= 4 else ""
    return trace_id if len(trace_id) == 32 and set(trace_id) <= _HEX and set(trace_id) != {"0"} else None


def _encoded_prompt(facts: Mapping[str, Any], response: Mapping[str, Any]) -> Sequence[int] | None:
    """The prompt's ids, encoded again from the engine's own rendering, if their number equals the engine's count.

    A byte-level tokenizer's ids spell their text in full and are what it encodes that text to, so the second
    encoding is the first. Where a tokenizer drops or merges something on the way, the count gives it away.
    """
    ids = facts.get("prompt_ids")
    usage = response.get("usage")
    n_prompt = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    if not isinstance(ids, list) or n_prompt != len(ids):
        return None
    return cast("list[int]", ids)


def _tools(request: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Tool schemas; the legacy ``functions`` are tools as well."""
    legacy = objects(request, "functions")
    if legacy and not request.get("tools"):
        return [{"type": "function", "function": function} for function in legacy]
    return objects(request, "tools")


def _prompt_number(request: Mapping[str, Any], dialect: str, index: int) -> int:
    """The prompt that a choice of a completions call answers: choices are ordered by prompt, ``n`` of each."""
    prompt, n = request.get("prompt"), request.get("n")
    if dialect != "completions" or not isinstance(prompt, list) or all(isinstance(item, int) for item in prompt):
        return 0
    return min(index // (n if isinstance(n, int) and n > 0 else 1), len(prompt) - 1)


def _prompt(
    request: Mapping[str, Any], dialect: str, number: int
) -> tuple[list[dict[str, Any]] | None, Sequence[int] | None]:
    """(messages, prompt ids that the agent itself sent)."""
    if dialect != "completions":
        return objects(request, "messages"), None
    prompt = request.get("prompt")
    if isinstance(prompt, list) and prompt and not all(isinstance(item, int) for item in prompt):
        prompt = prompt[number]
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}], None
    if isinstance(prompt, list) and all(isinstance(item, int) for item in prompt):
        return None, prompt
    return None, None


def _answer(
    choice: Mapping[str, Any], dialect: str, echoed: Sequence[Mapping[str, Any]] | None
) -> dict[str, Any] | None:
    """The answer; ``echoed``: the prompt as one message, if the request asked the engine to echo it."""
    if dialect == "completions":
        answer = choice.get("text")
        if echoed and isinstance(answer, str):
            answer = answer.removeprefix(echoed[0]["content"])
        return {"role": "assistant", "content": answer} if isinstance(answer, str) else None
    message = choice.get("message")
    return message if isinstance(message, dict) else None


def draft_of_wire(step: Mapping[str, Any], at: float, segment: str, offset: int) -> Step:
    """A submitted step (core/api/wire.py checked it): ids are the producer's."""
    prompt, response = _ids(step.get("prompt_ids")), _ids(step.get("response_ids"))
    logprobs = _logprobs(step.get("response_logprobs"))
    mismatch = maybe_text(step, "mismatch")
    if mismatch is None and logprobs is not None and (response is None or len(logprobs) != len(response)):
        mismatch = f"{0 if response is None else len(response)} response ids, {len(logprobs)} log-probs"
    step_index = maybe_int(step, "step_index")
    created_at = maybe_number(step, "created_at")
    known = TokenSource.WHITEBOX if response is not None else TokenSource.NONE
    return Step(
        step_uid=text(step, "step_uid"),
        trajectory_uid=text(step, "trajectory_uid"),
        prompt_uid=maybe_text(step, "prompt_uid") or "",
        step_index=-1 if step_index is None else step_index,
        created_at=at if created_at is None else created_at,
        channel=maybe_text(step, "channel") or "train",
        source=maybe_text(step, "source") or Source.WHITEBOX,
        agent=maybe_text(step, "agent"),
        model=maybe_text(step, "model"),
        engine=maybe_text(step, "engine"),
        dialect=maybe_text(step, "dialect"),
        identity_source=maybe_text(step, "identity_source") or IdentitySource.PRODUCER,
        call_kind=maybe_text(step, "call_kind") or CallKind.MAIN,
        transition=maybe_text(step, "transition"),
        status=maybe_text(step, "status") or (StepStatus.OK if mismatch is None else StepStatus.MISMATCH),
        error=maybe_text(step, "error"),
        token_source=maybe_text(step, "token_source") or known,
        mismatch=mismatch,
        prompt_ids=prompt,
        response_ids=response,
        response_logprobs=logprobs,
        response_mask=cast("Sequence[int] | None", mask_array(step.get("response_mask"))),
        messages=objects(step, "messages"),
        response_message=mapping(step, "response_message") or None,
        tools=objects(step, "tools"),
        finish_reason=maybe_text(step, "finish_reason"),
        reward=maybe_number(step, "reward"),
        policy_version=maybe_int(step, "policy_version"),
        policy_version_end=maybe_int(step, "policy_version_end"),
        is_last=bool(step.get("is_last", False)),
        latency_s=maybe_number(step, "latency_s"),
        sampling=mapping(step, "sampling"),
        response_id=maybe_text(step, "response_id"),
        stream_mode=maybe_text(step, "stream_mode"),
        tokenizer_hash=maybe_text(step, "tokenizer_hash"),
        journal_segment=segment,
        journal_offset=offset,
        metadata=mapping(step, "metadata"),
    )
