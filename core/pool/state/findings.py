"""Findings: automatic checks of steps that flag them for review.

There are two kinds. Findings of a call alone (``find_in_call``) are made once, when the step is stored, and stored in
``step_findings``. Findings that need its trajectory or group (repeats, failed tools, equal rewards) are derived from
them in SQL with the effective state. Both are stored as bits of an integer, which can be updated in place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from core.pool.store.content import content_hash, message_text

FINDINGS: dict[str, str] = {
    "truncated": "The answer was cut off at the token limit (finish reason length).",
    "empty": "The call succeeded, but the answer has no text and no tool call.",
    "repeated_step": "The answer, text and tool calls, equals that of the main step before it in its trajectory.",
    "looping": "The same answer for at least the third time among the main steps of its trajectory.",
    "tool_error": "A tool that this step called answered with an error: a failure message, a traceback, an exit code.",
    "malformed_tool_call": "A tool call names no offered tool, its arguments are no JSON object, or it was not parsed.",
    "length_mismatch": "Token ids, log-probs and counts differ in length, so the step can't be trained on.",
    "drift": "The prompt's tokens do not continue the step before: re-encoded (realigned), or its tail replaced.",
    "zero_variance": "All scored trajectories of its prompt group, at least two, have equal rewards: no advantage.",
    "reward_hacking": (
        "Suspected: the trajectory's reward is above 0.5 while a check fails (a verifier's reward of 0.5 or less, the "
        "label incorrect, a failed outcome, or checks_passed false in its metadata), and no person set the reward."
    ),
    "uncertain": (
        "The trajectory of the call is not certain: it was not named, and several attempts fit. The reason is in "
        "its metadata; it is not trained on unless a label says so."
    ),
}
"""Name -> definition, in the order of the bits. Bits are stored: append only."""

BIT: dict[str, int] = {name: 1 << place for place, name in enumerate(FINDINGS)}
"""Name -> its bit."""

OBSERVED = ("truncated", "empty", "malformed_tool_call", "uncertain")
"""Findings that are observed in one call alone."""

OF_STEPS = (*OBSERVED, "repeated_step", "looping", "tool_error", "length_mismatch", "drift")
"""Findings of a step; the others belong to its trajectory and apply to all its steps."""

CUT_REASONS = frozenset({"length", "max_tokens", "max_output_tokens", "model_length"})
CHECKS = ("verifier", "check", "test", "rule")
"""Sources of rewards that are checks: these words, alone or before a colon."""
FAILED_OUTCOMES = ("failed", "failure", "error", "timeout", "crashed")

_FAILURE = re.compile(
    r"""^\s*(?:<[^>]{1,40}>\s*)?(?:
        (?:error|fatal|exception)\s*(?:[:!(\[]|$)
        | error\ (?:executing|calling|running|in|while|reading|writing|opening)\b
        | failed\ to\b
        | \w*(?:Error|Exception):
    )
    | Traceback\ \(most\ recent\ call\ last\)
    | "is_?error"\s*:\s*true
    | "(?:success|ok)"\s*:\s*false
    | "error"\s*:\s*(?:"[^"]|\{)
    | (?:exit[ _]?(?:code|status)|return[ _]?code)["']?\s*(?:[:=>]|was|is)?\s*[1-9]
    | command\ not\ found\s*$
    """,
    re.IGNORECASE | re.VERBOSE,
)
_HEAD, _TAIL = 2000, 400
_TEXT_CALL = re.compile(r"<tool_call>|<function=|<\|tool_call|<\|python_tag\|>|\[TOOL_CALLS\]|<invoke name=")


@dataclass(frozen=True, slots=True)
class CallFindings:
    """Findings of one call: bits, whether one of its tool results is a failure, and its answer's hash.

    ``answer_hash`` is a signed 64-bit number, equal for equal text and tool calls whatever the calls' ids are; None
    when there is no answer to compare.
    """

    bits: int
    tool_failed: bool
    answer_hash: int | None


def find_in_call(
    answer: Mapping[str, Any] | None,
    new_messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    *,
    status: str,
    finish_reason: str | None,
    response: bytes | None,
    uncertain: bool = False,
) -> CallFindings:
    """Look at one call.

    Args:
        answer: the response message; None when only tokens are known.
        new_messages: messages of its prompt that its parent step didn't have.
        tools: the tools it was offered; None when unknown.
        status: its status; only ``ok`` calls can be empty.
        finish_reason: why the answer ended.
        response: the response ids as bytes; None when unknown.
        uncertain: linking found several possible parents.
    """
    calls = list(_calls(answer))
    text = "" if answer is None else message_text(answer).strip()
    bits = BIT["uncertain"] if uncertain else 0
    if (finish_reason or "").lower() in CUT_REASONS:
        bits |= BIT["truncated"]
    nothing = not text and not calls if answer is not None else response is not None and not response
    if status == "ok" and nothing:
        bits |= BIT["empty"]
    if any(_malformed(call, tools) for call in calls) or (not calls and _TEXT_CALL.search(text)):
        bits |= BIT["malformed_tool_call"]
    failed = any(tool_failed(message) for message in new_messages if message.get("role") in ("tool", "function"))
    return CallFindings(bits, failed, None if nothing else _answer_hash(text, calls, answer is None, response))


def tool_failed(message: Mapping[str, Any]) -> bool:
    """Whether a tool's result reports a failure. Only its beginning and its end are read."""
    if message.get("is_error") is True or message.get("status") == "error":
        return True
    text = message_text(message)
    if len(text) > _HEAD + _TAIL:
        text = text[:_HEAD] + "\n" + text[-_TAIL:]
    return _FAILURE.search(text) is not None


def _calls(answer: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    calls = (answer or {}).get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        yield call if isinstance(call, Mapping) else {}


def _function(call: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in ("function", "custom"):
        function = call.get(key)
        if isinstance(function, Mapping):
            return function
    return {}


def _malformed(call: Mapping[str, Any], tools: Sequence[Mapping[str, Any]] | None) -> bool:
    function = _function(call)
    name = function.get("name")
    if not isinstance(name, str) or not name:
        return True
    if tools:
        offered = {_tool_name(tool) for tool in tools if isinstance(tool, Mapping)}
        if offered != {None} and name not in offered:
            return True
    if "custom" in call:
        return False
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        if not arguments.strip():
            return False  # a call without arguments
        try:
            arguments = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            return True
    return not (arguments is None or isinstance(arguments, Mapping))


def _tool_name(tool: Mapping[str, Any]) -> Any:
    """A tool's name; of a built-in one its type is the name."""
    return _function(tool).get("name") or tool.get("name") or tool.get("type")


def _answer_hash(
    text: str, calls: Sequence[Mapping[str, Any]], only_tokens: bool, response: bytes | None
) -> int | None:
    if only_tokens:
        if response is None:
            return None
        content = response
    else:
        named = [
            (_function(call).get("name"), _function(call).get("arguments", _function(call).get("input")))
            for call in calls
        ]
        content = repr((text, named)).encode("utf-8", "replace")
    return int.from_bytes(content_hash(content)[:8], "little", signed=True)


def findings_table(step_ids: pa.Array, trajectory_ids: pa.Array, seen: Sequence[CallFindings]) -> pa.Table:
    """Rows of ``step_findings``."""
    return pa.table(
        {
            "step_id": step_ids,
            "trajectory_id": trajectory_ids,
            "bits": pa.array([item.bits for item in seen], pa.int32()),
            "tool_failed": pa.array([item.tool_failed for item in seen], pa.bool_()),
            "answer_hash": pa.array([item.answer_hash for item in seen], pa.int64()),
        }
    )


def names_of(bits: int) -> list[str]:
    """The names of these bits' findings, in the registry's order."""
    return [name for name, bit in BIT.items() if bits & bit]


def mask(names: Sequence[str]) -> int:
    """The bits of these findings. KeyError when one is unknown."""
    bits = 0
    for name in names:
        bits |= BIT[name]
    return bits


def names_sql(bits: str) -> str:
    """SQL: the names of the findings in an integer expression's bits, as a list in the registry's order."""
    each = ", ".join(f"CASE WHEN {bits} & {bit} <> 0 THEN '{name}' END" for name, bit in BIT.items())
    return f"(CASE WHEN {bits} = 0 THEN []::VARCHAR[] ELSE list_filter([{each}], lambda x: x IS NOT NULL) END)"
