"""Faults that a script can inject into the scripted engine, written ``name`` or ``name:argument``.

Transport faults break the delivery of a response; body faults break its content.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

TRANSPORT: Mapping[str, str] = {
    "status": "status:503 answers with that status and OpenAI's error shape",
    "hang": "never answers; ends when the client disconnects",
    "disconnect": "closes the connection without a byte",
    "disconnect_body": "closes in the middle of the JSON body (or of the stream)",
    "disconnect_stream": "disconnect_stream:3 closes the stream after three events",
    "slow_stream": "slow_stream:0.2 waits that long before each event, seconds",
    "garbage": "answers 200 with a body that is not JSON",
    "no_done": "a stream that ends without [DONE]",
    "error_in_stream": "an error object in the middle of a stream, then the end",
}

DEFAULT_ARGUMENTS: Mapping[str, float] = {"status": 500, "disconnect_stream": 2, "slow_stream": 0.2}


def _missing_ids(body: dict[str, Any]) -> None:
    body.pop("prompt_token_ids", None)
    for choice in body.get("choices", ()):
        choice.pop("token_ids", None)
        choice.pop("prompt_token_ids", None)


def _missing_logprobs(body: dict[str, Any]) -> None:
    for choice in body.get("choices", ()):
        choice["logprobs"] = None


def _bad_lengths(body: dict[str, Any]) -> None:
    for choice in body.get("choices", ()):
        logprobs = choice.get("logprobs") or {}
        for entries in logprobs.values():
            if isinstance(entries, list) and entries:
                entries.pop()


def _bad_usage(body: dict[str, Any]) -> None:
    usage = body.get("usage")
    if usage:
        usage["completion_tokens"] += 1
        usage["total_tokens"] += 1


def _lost_ids(body: dict[str, Any]) -> None:
    """As in vLLM's streamed tool calls (vllm#27482): chunks without text lack their token ids."""
    for choice in body.get("choices", ()):
        if "delta" in choice and not choice["delta"].get("content"):
            choice.pop("token_ids", None)
            choice["logprobs"] = None


def _wrong_shape(body: dict[str, Any]) -> None:
    body.clear()
    body["unexpected"] = True


def _empty_choices(body: dict[str, Any]) -> None:
    if "choices" in body:
        body["choices"] = []


BODY: Mapping[str, Callable[[dict[str, Any]], None]] = {
    "missing_ids": _missing_ids,
    "missing_logprobs": _missing_logprobs,
    "bad_lengths": _bad_lengths,
    "bad_usage": _bad_usage,
    "stream_lost_ids": _lost_ids,
    "wrong_shape": _wrong_shape,
    "empty_choices": _empty_choices,
}
"""Fault name -> function that changes a response body, or each chunk of a stream, in place."""


def split_fault(fault: str) -> tuple[str, float]:
    """Name and argument of a fault."""
    name, _, argument = fault.partition(":")
    return name, float(argument) if argument else DEFAULT_ARGUMENTS.get(name, 0.0)


def check_fault(fault: str) -> None:
    """Check the name and the argument of a fault.

    Raises:
        ValueError: the name is unknown, or the argument is not a number.
    """
    name, _ = split_fault(fault)
    if name not in TRANSPORT and name not in BODY:
        raise ValueError(f"no fault {name!r}; one of {', '.join([*TRANSPORT, *BODY])}")
