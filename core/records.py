"""What the journal's payloads are: one JSON object each, ``{"kind", "v", "at", ...}``.

Facts are kept as they came: the raw bodies of agent and engine stand in the record unparsed, and tokens are
derived from them on reading (``extract_tokens``), so a better reader can be run over old journals.
Secrets never get in: only allow-listed headers are taken, key fields leave the request, and the keys that a
call presented are blotted out wherever they appear.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import orjson

from core.errors import InvalidInput
from core.types import Identity, Tokens, TokenSource

VERSION: Final = 1
KINDS: Final = frozenset({"call", "steps", "register", "complete", "session", "revoke", "policy", "feedback"})

SECRET_FIELDS: Final = frozenset(
    {
        "api_key",
        "apikey",
        "authorization",
        "aws_access_key_id",
        "aws_secret_access_key",
        "aws_session_token",
        "azure_ad_token",
        "client_secret",
        "extra_headers",
        "headers",
        "vertex_credentials",
    }
)
"""Top-level request fields that hold keys or headers in some client's habit; they never reach a record."""

NESTED_SECRETS: Final[Mapping[str, frozenset[str]]] = {
    "mcp_servers": frozenset({"authorization", "authorization_token", "headers"}),
    "tools": frozenset({"authorization", "authorization_token", "headers"}),
}
"""The same in the objects of a request's lists: what MCP servers are called with."""

HEADER_ALLOW: Final = frozenset(
    {
        "anthropic-beta",
        "anthropic-version",
        "openai-beta",
        "session-id",
        "session_id",
        "thread-id",
        "traceparent",
        "user-agent",
        "x-claude-code-session-id",
        "x-request-id",
        "x-session-affinity",
        "x-session-id",
        "x-stainless-lang",
        "x-stainless-package-version",
        "x-stainless-retry-count",
        "x-stainless-timeout",
    }
)
"""Request headers that say who called and how, and can hold no credential."""

BLOT: Final = b"[secret]"


def call_record(
    *,
    at: float,
    step_uid: str,
    started_at: float,
    finished_at: float,
    identity: Identity,
    dialect: str,
    engine: str | None,
    engine_kind: str | None,
    model: str | None,
    policy_version: int | None,
    policy_version_end: int | None,
    stream: bool,
    stream_mode: str,
    client_headers: Mapping[str, str],
    request: bytes,
    parsed_request: Mapping[str, Any],
    engine_added: Sequence[str] = (),
    dropped_fields: Sequence[str] = (),
    response: bytes | None = None,
    http_status: int | None = None,
    error: Mapping[str, Any] | None = None,
    aborted: bool = False,
    retry_count: int = 0,
    tokenizer_hash: str | None = None,
    engine_dialect: str | None = None,
    engine_facts: Mapping[str, Any] | None = None,
    response_id: str | None = None,
    input_items: Sequence[Mapping[str, Any]] = (),
    secrets: Iterable[str] = (),
) -> bytes:
    """One exchange between an agent and an engine.

    Args:
        dialect: what the agent spoke; ``request`` is in it.
        request: the agent's body, valid JSON; ``parsed_request`` is the same, parsed.
        response: the engine's body, valid JSON, or None when there was none.
        engine_dialect: what the engine was asked in; ``response`` is in it. None means ``dialect``.
        engine_facts: what is known of the engine: ``flavour``, ``version``, ``logprobs`` (which kind it gives), and
            ``prompt_ids`` where it encoded again the prompt that it says it read.
        response_id: the id that the agent saw, where it is not the response's own.
        input_items: the whole input of a ``responses`` request that only names earlier parts of it.
        secrets: keys that this call presented or used; blotted out of everything.
    """
    if SECRET_FIELDS.intersection(parsed_request):
        request = orjson.dumps({key: value for key, value in parsed_request.items() if key not in SECRET_FIELDS})
    record = {
        "kind": "call",
        "v": VERSION,
        "at": at,
        "step_uid": step_uid,
        "started_at": started_at,
        "finished_at": finished_at,
        "identity": {
            "trajectory_uid": identity.trajectory_uid,
            "prompt_uid": identity.prompt_uid,
            "channel": identity.channel,
            "source": identity.source,
            "agent": identity.agent,
            "identity_source": identity.identity_source,
            "metadata": dict(identity.metadata),
        },
        "dialect": dialect,
        "engine": engine,
        "engine_kind": engine_kind,
        "model": model,
        "policy_version": policy_version,
        "policy_version_end": policy_version_end,
        "stream": stream,
        "stream_mode": stream_mode,
        "client_headers": client_headers,
        "request": orjson.Fragment(request),
        "engine_added": list(engine_added),
        "dropped_fields": list(dropped_fields),
        "response": orjson.Fragment(response) if response is not None else None,
        "http_status": http_status,
        "error": error,
        "aborted": aborted,
        "retry_count": retry_count,
        "tokenizer_hash": tokenizer_hash,
        "engine_dialect": engine_dialect or dialect,
    }
    if engine_facts:
        record["engine_facts"] = dict(engine_facts)
    if response_id is not None:
        record["response_id"] = response_id
    if input_items:
        record["input_items"] = list(input_items)
    payload = orjson.dumps(record)
    for secret in secrets:
        payload = blot(payload, secret)
    return payload


def take_secrets(request: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Take the fields that hold keys out of a request, in place.

    Returns:
        Names of what was taken, and every text in it.
    """
    names = sorted(SECRET_FIELDS.intersection(request))
    texts = [text for name in names for text in _strings(request.pop(name))]
    for place, secret in NESTED_SECRETS.items():
        listed = request.get(place)
        for item in listed if isinstance(listed, list) else ():
            for name in sorted(secret.intersection(item)) if isinstance(item, dict) else ():
                texts += _strings(item.pop(name))
                names.append(f"{place}.{name}")
    return list(dict.fromkeys(names)), texts


def _strings(value: Any) -> list[str]:
    """All texts in a JSON value."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in inner for text in _strings(item)]


def blot(payload: bytes, secret: str) -> bytes:
    """Replace a key, as it stands in JSON text, by ``[secret]``."""
    # Quotes and backslashes of a key are escaped in JSON.
    needle = orjson.dumps(secret)[1:-1]
    return payload.replace(needle, BLOT) if needle in payload else payload


def harmless_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """The allow-listed ones of ASGI headers (names are lower case there), as text."""
    kept: dict[str, str] = {}
    for name, value in headers:
        text = name.decode("latin-1")
        if text in HEADER_ALLOW:
            kept[text] = value.decode("latin-1")
    return kept


def steps_record(*, at: float, steps: Sequence[Mapping[str, Any]]) -> bytes:
    """Steps that a producer submitted, already validated, each with its ``step_uid``."""
    return orjson.dumps({"kind": "steps", "v": VERSION, "at": at, "steps": list(steps)})


def register_record(
    *,
    at: float,
    trajectory_uid: str,
    prompt_uid: str | None = None,
    channel: str | None = None,
    agent: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> bytes:
    """A trajectory announced before or during its calls."""
    return orjson.dumps(
        {
            "kind": "register",
            "v": VERSION,
            "at": at,
            "trajectory_uid": trajectory_uid,
            "prompt_uid": prompt_uid,
            "channel": channel,
            "agent": agent,
            "metadata": dict(metadata or {}),
        }
    )


def complete_record(
    *,
    at: float,
    trajectory_uid: str,
    prompt_uid: str | None = None,
    channel: str | None = None,
    reward: float | None = None,
    outcome: str | None = None,
) -> bytes:
    """A trajectory closed. ``reward=None`` means unscored, never 0."""
    return orjson.dumps(
        {
            "kind": "complete",
            "v": VERSION,
            "at": at,
            "trajectory_uid": trajectory_uid,
            "prompt_uid": prompt_uid,
            "channel": channel,
            "reward": reward,
            "outcome": outcome,
        }
    )


def session_record(
    *,
    at: float,
    key_sha256: str,
    trajectory_uid: str,
    prompt_uid: str | None = None,
    channel: str,
    agent: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> bytes:
    """A session key bound to a trajectory; only the key's SHA-256 (hex) is kept."""
    return orjson.dumps(
        {
            "kind": "session",
            "v": VERSION,
            "at": at,
            "key_sha256": key_sha256,
            "trajectory_uid": trajectory_uid,
            "prompt_uid": prompt_uid,
            "channel": channel,
            "agent": agent,
            "metadata": dict(metadata or {}),
        }
    )


def revoke_record(*, at: float, key_sha256: str) -> bytes:
    """A session key taken back, for good."""
    return orjson.dumps({"kind": "revoke", "v": VERSION, "at": at, "key_sha256": key_sha256})


def feedback_record(*, at: float, feedback: Sequence[Mapping[str, Any]]) -> bytes:
    """What live services and people said of answers, already validated, each with its ``feedback_uid``.

    Entries: ``feedback_uid``, one of ``step_uid``, ``trajectory_uid`` and ``response_id`` (with ``choice_index``),
    ``kind``, ``value`` (None withdraws), ``reward``, ``author``, ``source``, ``note``, ``metadata``, and
    ``given_at``: seconds since the epoch, or None where only the time of arrival is known.
    """
    return orjson.dumps({"kind": "feedback", "v": VERSION, "at": at, "feedback": list(feedback)})


def policy_record(*, at: float, version: int, event: str, metadata: Mapping[str, Any] | None = None) -> bytes:
    """A trainer's report about its weights."""
    return orjson.dumps(
        {
            "kind": "policy",
            "v": VERSION,
            "at": at,
            "version": version,
            "event": event,
            "metadata": dict(metadata or {}),
        }
    )


def parse(payload: bytes) -> dict[str, Any]:
    """Read a payload back.

    Raises:
        InvalidInput: not JSON, not an object, or a kind or version that this program does not know.
    """
    try:
        record = orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"a journal record is not JSON: {error}", field="payload") from error
    if not isinstance(record, dict) or record.get("kind") not in KINDS:
        raise InvalidInput("a journal record of unknown kind", field="kind", hint=", ".join(sorted(KINDS)))
    if record.get("v") != VERSION:
        raise InvalidInput(
            f"a journal record of version {record.get('v')!r}",
            field="v",
            hint=f"this program reads version {VERSION}; open the data with the program that wrote it",
        )
    return record


def extract_tokens(response: Mapping[str, Any], choice_index: int, dialect: str) -> Tokens:
    """Derive the tokens of one choice from an engine's raw answer (shapes: research/capture.md).

    Knows vLLM (``prompt_token_ids``, ``token_ids``), SGLang (``response_token_ids``, ``meta_info`` with
    ``output_token_logprobs``), llama.cpp (``__verbose.tokens``, ``id`` in log-prob entries), log-prob tokens that read
    ``token_id:N``, and plain log-probs (text only). Each may also stand in ``provider_specific_fields``, where
    LiteLLM moves them. Ids that an answer tells twice must agree.

    Args:
        response: parsed body of a chat or completions answer; ids may stand in it as arrays.
        choice_index: position in ``choices``.
        dialect: ``chat`` or ``completions``; other dialects carry no ids.

    Returns:
        Tokens; ``mismatch`` says in words which lengths disagree. Nothing is padded or cut.
    """
    choices = response.get("choices")
    if not isinstance(choices, list) or not 0 <= choice_index < len(choices):
        return Tokens(None, None, None, TokenSource.NONE)
    choice = choices[choice_index]
    if dialect not in {"chat", "completions"} or not isinstance(choice, dict):
        return Tokens(None, None, None, TokenSource.NONE)
    problems: list[str] = []
    entries = _logprob_entries(choice, dialect)
    logprobs = _logprob_values(entries.values, problems) if entries is not None else None
    pairs = _sglang_pairs(choice)
    response_ids, source = _response_ids(response, choice, entries, pairs, problems)
    if pairs is not None and logprobs is None:
        logprobs = _logprob_values([pair[0] for pair in pairs], problems)
    prompt_ids = _prompt_ids(response, choice, problems)
    if response_ids is not None and logprobs is not None and len(response_ids) != len(logprobs):
        problems.append(f"{len(response_ids)} response ids, {len(logprobs)} log-probs")
    usage = response.get("usage")
    # Usage counts all choices together, so it can only be held against a single one.
    if isinstance(usage, dict) and len(choices) == 1:
        for what, ids, name in (
            ("response", response_ids, "completion_tokens"),
            ("prompt", prompt_ids, "prompt_tokens"),
        ):
            told = usage.get(name)
            if ids is not None and isinstance(told, int) and told != len(ids):
                problems.append(f"{len(ids)} {what} ids, usage says {told}")
    return Tokens(prompt_ids, response_ids, logprobs, source, "; ".join(problems) or None)


@dataclass(frozen=True, slots=True)
class _Entries:
    """Log-prob entries: the token (text or id) and log-prob of each sampled token, as the engine tells them."""

    tokens: list[Any]
    values: list[Any]


def _response_ids(
    response: Mapping[str, Any],
    choice: Mapping[str, Any],
    entries: _Entries | None,
    pairs: list[list[Any]] | None,
    problems: list[str],
) -> tuple[Sequence[int] | None, str]:
    """Ids, and how far to trust them."""
    told, where = _told_ids(response, choice)
    named = _named_ids(entries.tokens) if entries is not None and entries.tokens else None
    if told is None and pairs is not None:
        told, where = [pair[1] for pair in pairs], "meta_info.output_token_logprobs"
    if told is not None:
        ids = _ids(told, where, problems)
        if ids is not None and named is not None and len(ids) == len(named) and ids != named:
            problems.append(f"{where} and the log-prob entries name different ids")
        return ids, TokenSource.ENGINE if ids is not None else TokenSource.NONE
    if named is not None:
        return named, TokenSource.LOGPROBS
    return None, TokenSource.BYTES if entries is not None and entries.tokens else TokenSource.NONE


def _told_ids(response: Mapping[str, Any], choice: Mapping[str, Any]) -> tuple[Any, str]:
    """What the engine gives as the sampled ids, and where; None where it gives none."""
    for name in ("token_ids", "response_token_ids"):
        if (told := _extra(choice, name)) is not None:
            return told, name
    # llama.cpp has one drawer for the whole answer: it is the first choice's.
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
    told = _extra(choice, "prompt_token_ids")
    if told is None:
        told = _extra(response, "prompt_token_ids")
    if told is None and isinstance(meta := choice.get("meta_info"), dict):
        told = meta.get("prompt_token_ids")
    return _ids(told, "prompt_token_ids", problems) if told is not None else None


def _extra(holder: Mapping[str, Any], name: str) -> Any:
    value = holder.get(name)
    if value is None and isinstance(moved := holder.get("provider_specific_fields"), dict):
        value = moved.get(name)
    return value


def _logprob_entries(choice: Mapping[str, Any], dialect: str) -> _Entries | None:
    """Token and log-prob per sampled token; None where the engine gave no log-probs."""
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
    told = [entry if isinstance(entry, dict) else {} for entry in content]
    return _Entries([entry.get("id", entry.get("token")) for entry in told], [entry.get("logprob") for entry in told])


def _logprob_values(values: list[Any], problems: list[str]) -> list[float] | None:
    # All finite where the sum is: thousands of tokens are checked without a Python loop.
    if set(map(type, values)) <= {float} and math.isfinite(sum(values)):
        return values
    for position, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            problems.append(f"the log-prob at position {position} is {value!r}")
            return None
    return [float(value) for value in values]


def _named_ids(tokens: list[Any]) -> list[int] | None:
    """The ids that log-prob entries name, if all of them do."""
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


def _ids(told: Any, where: str, problems: list[str]) -> Sequence[int] | None:
    if isinstance(told, np.ndarray):
        return cast("Sequence[int]", told)  # made of checked ids
    if not isinstance(told, list):
        problems.append(f"{where} is not a list")
        return None
    # Prompts hold tens of thousands of ids: both checks run without a Python loop.
    if set(map(type, told)) - {int} or min(told, default=0) < 0:
        problems.append(f"{where} holds something else than token ids")
        return None
    return told
