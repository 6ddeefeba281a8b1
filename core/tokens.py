"""Extracts the exact tokens and log-probs of a model call from the engine's response."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from core.types import Tokens, TokenSource


def extract_tokens(response: Mapping[str, Any], choice_index: int, dialect: str, *, echoed: bool = False) -> Tokens:
    """Extract the tokens of one choice from an engine's raw response.

    Supported formats: vLLM (``prompt_token_ids``, ``token_ids``), SGLang (``response_token_ids``, ``meta_info`` with
    ``output_token_logprobs``), llama.cpp (``__verbose.tokens``, ``id`` in log-prob entries), log-prob tokens written
    ``token_id:N``, and plain log-probs (text only). The fields may also be in ``provider_specific_fields``, where
    LiteLLM moves them. If a response contains the ids twice, they must agree.

    Args:
        response: parsed body of a chat or completions response; ids may be NumPy arrays.
        choice_index: position in ``choices``.
        dialect: ``chat`` or ``completions``; other dialects have no ids.
        echoed: the request had ``echo``, so log-prob entries start with those of the prompt.

    Returns:
        Tokens; ``mismatch`` describes lengths that disagree. Nothing is padded or cut.
    """
    choices = response.get("choices")
    if not isinstance(choices, list) or not 0 <= choice_index < len(choices):
        return Tokens(None, None, None, TokenSource.NONE)
    choice = choices[choice_index]
    if dialect not in {"chat", "completions"} or not isinstance(choice, dict):
        return Tokens(None, None, None, TokenSource.NONE)
    problems: list[str] = []
    entries = _logprob_entries(choice, dialect)
    echoed_prompt_ids = None
    if echoed and entries is not None:
        entries, echoed_prompt_ids = _without_echo(response, choice, entries, problems)
    logprobs = _logprob_values(entries.values, problems) if entries is not None else None
    pairs = _sglang_pairs(choice)
    response_ids, source = _response_ids(response, choice, entries, pairs, problems)
    if pairs is not None and logprobs is None:
        logprobs = _logprob_values([pair[0] for pair in pairs], problems)
    prompt_ids = _prompt_ids(response, choice, problems)
    prompt_ids = echoed_prompt_ids if prompt_ids is None else prompt_ids
    if response_ids is not None and logprobs is not None and len(response_ids) != len(logprobs):
        problems.append(f"{len(response_ids)} response ids, {len(logprobs)} log-probs")
    usage = response.get("usage")
    # Usage counts all choices together, so it can be compared only if there is one choice.
    if isinstance(usage, dict) and len(choices) == 1:
        for what, ids, name in (
            ("response", response_ids, "completion_tokens"),
            ("prompt", prompt_ids, "prompt_tokens"),
        ):
            n_reported = usage.get(name)
            if ids is not None and isinstance(n_reported, int) and n_reported != len(ids):
                problems.append(f"{len(ids)} {what} ids, usage says {n_reported}")
    return Tokens(prompt_ids, response_ids, logprobs, source, "; ".join(problems) or None)


@dataclass(frozen=True, slots=True)
class _Entries:
    """Log-prob entries of a response: the token (text or id) and the log-prob of each sampled token."""

    tokens: Iterable[Any]
    values: list[Any]


def _without_echo(
    response: Mapping[str, Any], choice: Mapping[str, Any], entries: _Entries, problems: list[str]
) -> tuple[_Entries | None, list[int] | None]:
    """The entries of the sampled tokens, and the prompt's ids if its entries name them."""
    prompt, sampled, usage = _prompt_ids(response, choice, []), _listed_ids(response, choice)[0], response.get("usage")
    n_prompt: Any = usage.get("prompt_tokens") if isinstance(usage, dict) and len(response["choices"]) == 1 else None
    if isinstance(sampled, list):
        n_prompt = len(entries.values) - len(sampled)
    if prompt is not None:
        n_prompt = len(prompt)
    tokens = list(entries.tokens)
    if not isinstance(n_prompt, int) or not 0 <= n_prompt <= len(entries.values):
        problems.append(f"{len(entries.values)} log-probs of prompt and answer can't be separated")
        return None, None
    rest = _Entries(tokens[n_prompt:], entries.values[n_prompt:])
    return rest if rest.values else None, _named_ids(tokens[:n_prompt]) if n_prompt else None


def _response_ids(
    response: Mapping[str, Any],
    choice: Mapping[str, Any],
    entries: _Entries | None,
    pairs: list[list[Any]] | None,
    problems: list[str],
) -> tuple[Sequence[int] | None, str]:
    """The sampled ids, and their ``TokenSource``."""
    listed, where = _listed_ids(response, choice)
    named = _named_ids(entries.tokens) if entries is not None and entries.values else None
    if listed is None and pairs is not None:
        listed, where = [pair[1] for pair in pairs], "meta_info.output_token_logprobs"
    if listed is not None:
        ids = _ids(listed, where, problems)
        if ids is not None and named is not None and len(ids) == len(named) and ids != named:
            problems.append(f"{where} and the log-prob entries name different ids")
        return ids, TokenSource.ENGINE if ids is not None else TokenSource.NONE
    if named is not None:
        return named, TokenSource.LOGPROBS
    return None, TokenSource.BYTES if entries is not None and entries.values else TokenSource.NONE


def _listed_ids(response: Mapping[str, Any], choice: Mapping[str, Any]) -> tuple[Any, str]:
    """The sampled ids as the engine lists them, and the field's name; None if it lists none."""
    for name in ("token_ids", "response_token_ids"):
        if (ids := _extra(choice, name)) is not None:
            return ids, name
    # llama.cpp has one ``__verbose`` object per response, so it can be used only if there is one choice.
    drawer = response.get("__verbose")
    if isinstance(drawer, dict) and len(response["choices"]) == 1:
        return drawer.get("tokens") or None, "__verbose.tokens"
    return None, ""


def _sglang_pairs(choice: Mapping[str, Any]) -> list[list[Any]] | None:
    """``[log-prob, id, ...]`` per sampled token."""
    meta = choice.get("meta_info")
    pairs = meta.get("output_token_logprobs") if isinstance(meta, dict) else None
    if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) >= 2 for pair in pairs):
        return None
    return pairs


def _prompt_ids(response: Mapping[str, Any], choice: Mapping[str, Any], problems: list[str]) -> Sequence[int] | None:
    ids = _extra(choice, "prompt_token_ids")
    if ids is None:
        ids = _extra(response, "prompt_token_ids")
    if ids is None and isinstance(meta := choice.get("meta_info"), dict):
        ids = meta.get("prompt_token_ids")
    return _ids(ids, "prompt_token_ids", problems) if ids is not None else None


def _extra(holder: Mapping[str, Any], name: str) -> Any:
    value = holder.get(name)
    if value is None and isinstance(moved := holder.get("provider_specific_fields"), dict):
        value = moved.get(name)
    return value


def _logprob_entries(choice: Mapping[str, Any], dialect: str) -> _Entries | None:
    """Token and log-prob per sampled token; None if the response has no log-probs."""
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, dict):
        return None
    if dialect == "completions" and isinstance(values := logprobs.get("token_logprobs"), list):
        tokens = logprobs.get("tokens")
        if not isinstance(tokens, list) or len(tokens) != len(values):
            tokens = [None] * len(values)
        return _Entries(tokens, values)
    content = logprobs.get("content")
    if not isinstance(content, list):
        return None
    # Tokens are a lazy iterable: most engines name no ids here, and the first entry is enough to see that.
    entries = [entry if isinstance(entry, dict) else {} for entry in content]
    return _Entries(
        (entry.get("id", entry.get("token")) for entry in entries), [entry.get("logprob") for entry in entries]
    )


def _logprob_values(values: list[Any], problems: list[str]) -> list[float] | None:
    # If the sum is finite, all values are: thousands of tokens are checked without a Python loop.
    if set(map(type, values)) <= {float} and math.isfinite(sum(values)):
        return values
    for position, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            problems.append(f"the log-prob at position {position} is {value!r}")
            return None
    return [float(value) for value in values]


def _named_ids(tokens: Iterable[Any]) -> list[int] | None:
    """The ids in log-prob entries; None unless all entries have one."""
    named: list[int] = []
    for token in tokens:
        token_id = _named_id(token)
        if token_id is None:
            return None
        named.append(token_id)
    return named


def _named_id(token: Any) -> int | None:
    if isinstance(token, int) and not isinstance(token, bool):
        return token
    if isinstance(token, str) and token.startswith("token_id:") and token[9:].isdecimal():
        return int(token[9:])
    return None


def _ids(values: Any, where: str, problems: list[str]) -> Sequence[int] | None:
    if isinstance(values, np.ndarray):
        return cast("Sequence[int]", values)  # its ids were checked before
    if not isinstance(values, list):
        problems.append(f"{where} is not a list")
        return None
    # Prompts have tens of thousands of ids, so both checks run without a Python loop.
    if set(map(type, values)) - {int} or min(values, default=0) < 0:
        problems.append(f"{where} has values that are not token ids")
        return None
    return values
