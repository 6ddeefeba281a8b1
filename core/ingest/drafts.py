"""Turns journal records into drafts: steps that are not linked yet.

A draft is a ``Step`` whose unknown identity is empty: ``trajectory_uid=""`` and ``prompt_uid=""`` are inferred,
``step_index=-1`` is counted on, by ``core.ingest.linker``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from core.checked import checked
from core.dialects import RESPONSES, canonical_request, chat_answer
from core.dialects.responses_items import parse_response_id
from core.errors import InvalidInput
from core.ingest.fields import CallFields, EngineFacts, SubmittedStep, objects
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


def _ids(ids: Sequence[int] | None) -> Sequence[int] | None:
    """The ids, checked, as an int32 array: a list of 30k Python integers would be slow."""
    return cast("Sequence[int] | None", ids_array(ids))


def _logprobs(logprobs: Sequence[float] | None) -> Sequence[float] | None:
    return cast("Sequence[float] | None", logprobs_array(logprobs))


def drafts_of_call(record: Mapping[str, Any], segment: str, offset: int) -> list[Step]:
    """The steps of one captured call: one per choice, ``{uid}``, ``{uid}.1``, ...; one for a failed call."""
    call = checked(CallFields, record)
    engine_dialect = call.engine_dialect or call.dialect
    try:
        request = canonical_request(call.dialect, call.request, call.input_items)
    except InvalidInput:
        # The engine may have understood what we don't: its answer counts all the same.
        request = {}
    response = chat_answer(engine_dialect, call.response)
    choices = response.get("choices")
    choices = [c for c in choices if isinstance(c, dict)] if isinstance(choices, list) else []
    status, error = _outcome(call, choices)
    if status == StepStatus.ERROR or not choices:
        return [_draft(call, request, engine_dialect, segment, offset, None, response, status, error)]
    return [
        _draft(call, request, engine_dialect, segment, offset, index, response, status, error)
        for index in range(len(choices))
    ]


def _outcome(call: CallFields, choices: Sequence[Any]) -> tuple[str, str | None]:
    """(status, error)."""
    message, http_status = None, call.http_status
    if isinstance(call.error, dict):
        message = f"{call.error.get('type', 'error')}: {call.error.get('message', '')}"
    if message is not None or (http_status is not None and http_status >= HTTP_ERROR):
        return StepStatus.ERROR, message or f"HTTP {http_status}"
    if call.aborted:
        return StepStatus.ABORTED, "the agent went away before the answer was delivered"
    if not choices:
        return StepStatus.ERROR, "the answer has no choices"
    return StepStatus.OK, None


def _draft(
    call: CallFields,
    request: Mapping[str, Any],
    engine_dialect: str,
    segment: str,
    offset: int,
    index: int | None,
    response: Mapping[str, Any],
    status: str,
    error: str | None,
) -> Step:
    identity, facts = call.identity, call.engine_facts
    choice: Mapping[str, Any] = {} if index is None else response["choices"][index]
    nth_prompt = _prompt_number(request, engine_dialect, index or 0)
    messages, prompt_ids = _prompt(request, engine_dialect, nth_prompt)
    tokens = Tokens(None, None, None, TokenSource.NONE)
    if index is not None:
        tokens = extract_tokens(response, index, engine_dialect, echoed=request.get("echo") is True)
        prompt_ids = tokens.prompt_ids if tokens.prompt_ids is not None else prompt_ids
        if prompt_ids is None:
            prompt_ids = _encoded_prompt(facts, response)
        if tokens.mismatch is not None and status == StepStatus.OK:
            status = StepStatus.MISMATCH
    else:
        prompt_ids = None
    # Fields that were not sent to the engine had no effect. ``n`` is kept if choices were requested one by one.
    unheeded = set(call.dropped_fields) - {"n"}
    sampling = {name: request[name] for name in _SAMPLING if request.get(name) is not None and name not in unheeded}
    if call.retry_count:
        sampling["retry_count"] = call.retry_count
    if tokens.response_logprobs is not None and facts.logprobs:
        sampling["logprobs_mode"] = facts.logprobs
    uid = call.step_uid
    finish_reason = choice.get("finish_reason")
    response_id = call.response_id or response.get("id")
    metadata = dict(identity.metadata or {})
    if call.dropped_fields:
        metadata["dropped_fields"] = call.dropped_fields
    if facts.renamed_fields:
        metadata["renamed_fields"] = facts.renamed_fields
    if trace := _trace_id(call.client_headers):
        metadata["trace_id"] = trace
    if facts.flavour:
        metadata["engine_flavour"] = " ".join(filter(None, [facts.flavour, facts.version]))
    if facts.attempts:
        metadata["attempts"] = facts.attempts
    trajectory_uid, prompt_uid = identity.trajectory_uid, identity.prompt_uid
    if not trajectory_uid and call.connection:
        metadata["connection"] = call.connection
    if not trajectory_uid and (previous := _previous_step(call)):
        metadata["previous_step_uid"] = previous
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
        created_at=call.started_at,
        channel=identity.channel or "train",
        source=identity.source or Source.BLACKBOX,
        agent=identity.agent or None,
        model=call.model or None,
        engine=call.engine or None,
        dialect=call.dialect,
        identity_source=identity.identity_source or IdentitySource.INFERRED,
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
        policy_version=call.policy_version,
        policy_version_end=call.policy_version_end,
        latency_s=max(0.0, call.finished_at - call.started_at),
        sampling=sampling,
        response_id=response_id if isinstance(response_id, str) else None,
        stream_mode=call.stream_mode or None,
        tokenizer_hash=call.tokenizer_hash or None,
        journal_segment=segment,
        journal_offset=offset,
        metadata=metadata,
    )


def _previous_step(call: CallFields) -> str | None:
    """The step whose answer ``previous_response_id`` names; the gateway made that id."""
    previous = call.request.get("previous_response_id")
    if call.dialect != RESPONSES.name or not isinstance(previous, str):
        return None
    parts = parse_response_id(previous)
    return parts[0] if parts is not None else None


def _trace_id(client_headers: Mapping[str, Any]) -> str | None:
    """The trace of a W3C ``traceparent`` (``00-<trace>-<span>-<flags>``): some agents keep one for a user's turn."""
    parts = str(client_headers.get("traceparent", "")).split("-")
    trace_id = parts[1] if len(parts) >= 4 else ""
    return trace_id if len(trace_id) == 32 and set(trace_id) <= _HEX and set(trace_id) != {"0"} else None


def _encoded_prompt(facts: EngineFacts, response: Mapping[str, Any]) -> Sequence[int] | None:
    """The prompt's ids, encoded again from the engine's own rendering, if their number equals the engine's count.

    A byte-level tokenizer's ids spell their text in full and are what it encodes that text to, so the second
    encoding is the first. Where a tokenizer drops or merges something on the way, the count gives it away.
    """
    ids = facts.prompt_ids
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


def draft_of_wire(fields: Mapping[str, Any], at: float, segment: str, offset: int) -> Step:
    """A submitted step (core/api/wire.py checked it): ids are the producer's."""
    step = checked(SubmittedStep, fields)
    prompt, response = _ids(step.prompt_ids), _ids(step.response_ids)
    logprobs = _logprobs(step.response_logprobs)
    mismatch = step.mismatch or None
    if mismatch is None and logprobs is not None and (response is None or len(logprobs) != len(response)):
        mismatch = f"{0 if response is None else len(response)} response ids, {len(logprobs)} log-probs"
    known = TokenSource.WHITEBOX if response is not None else TokenSource.NONE
    return Step(
        step_uid=step.step_uid,
        trajectory_uid=step.trajectory_uid,
        prompt_uid=step.prompt_uid or "",
        step_index=step.step_index,
        created_at=at if step.created_at is None else step.created_at,
        channel=step.channel or "train",
        source=step.source or Source.WHITEBOX,
        agent=step.agent or None,
        model=step.model or None,
        engine=step.engine or None,
        dialect=step.dialect or None,
        identity_source=step.identity_source or IdentitySource.PRODUCER,
        call_kind=step.call_kind or CallKind.MAIN,
        transition=step.transition or None,
        status=step.status or (StepStatus.OK if mismatch is None else StepStatus.MISMATCH),
        error=step.error or None,
        token_source=step.token_source or known,
        mismatch=mismatch,
        prompt_ids=prompt,
        response_ids=response,
        response_logprobs=logprobs,
        response_mask=cast("Sequence[int] | None", mask_array(step.response_mask)),
        messages=step.messages,
        response_message=step.response_message or None,
        tools=step.tools,
        finish_reason=step.finish_reason or None,
        reward=step.reward,
        policy_version=step.policy_version,
        policy_version_end=step.policy_version_end,
        is_last=step.is_last,
        latency_s=step.latency_s,
        sampling=step.sampling,
        response_id=step.response_id or None,
        stream_mode=step.stream_mode or None,
        tokenizer_hash=step.tokenizer_hash or None,
        journal_segment=segment,
        journal_offset=offset,
        metadata=step.metadata,
    )
