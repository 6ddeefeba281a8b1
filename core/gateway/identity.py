"""Who calls: session keys and the identity ladder.

The first rung that names a trajectory wins: URL path, ``X-*`` headers, session key, known harness headers,
``turn__session`` model name. Lower rungs still fill what the winner left open (channel, agent, prompt group).
When no rung applies the trajectory stays None and ingest infers it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from core.errors import InvalidInput, Unauthorized
from core.types import Identity, IdentitySource, Source

KEY_PREFIX: Final = "cs-"
MAX_UID_CHARS: Final = 256

HARNESS_HEADERS: Final = (
    ("x-claude-code-session-id", "claude-code"),
    ("session-id", "codex"),
    ("session_id", "codex"),
    ("thread-id", "codex"),
    ("x-session-id", "opencode"),
    ("x-session-affinity", "opencode"),
)
"""Session headers that known agents send by themselves, and the agent each belongs to."""

USER_AGENTS: Final = (
    ("claude-cli", "claude-code"),
    ("codex", "codex"),
    ("opencode", "opencode"),
    ("openclaw", "openclaw"),
)
"""Beginnings of ``User-Agent`` that name an agent."""

_TURN_MODEL = re.compile(r"^(?P<turn>main|side)__(?P<session>.+)$")
_UID = re.compile(r"^[\x21-\x7e]+$")


@dataclass(frozen=True, slots=True)
class Binding:
    """What a session key stands for."""

    trajectory_uid: str
    prompt_uid: str | None = None
    channel: str | None = None
    agent: str | None = None
    source: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


def hash_key(key: str) -> str:
    """SHA-256 of a key, hex: the only form in which a key is kept."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


class KeyStore:
    """Session keys by hash. Thread-safe."""

    def __init__(self) -> None:
        self._bindings: dict[str, Binding] = {}
        self._trajectories: set[str] = set()
        self._lock = threading.Lock()

    def mint(
        self,
        *,
        trajectory_uid: str,
        prompt_uid: str | None = None,
        channel: str | None = None,
        agent: str | None = None,
        source: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> tuple[str, str]:
        """Make a key bound to a trajectory.

        Returns:
            The key, shown this once, and its SHA-256 in hex, which is what gets stored.
        """
        key = KEY_PREFIX + secrets.token_urlsafe(32)
        key_sha256 = hash_key(key)
        binding = Binding(trajectory_uid, prompt_uid, channel, agent, source, dict(metadata or {}))
        self._add(key_sha256, binding)
        return key, key_sha256

    def load(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take the sessions of earlier runs: rows shaped like ``session`` records."""
        for row in rows:
            binding = Binding(
                trajectory_uid=row["trajectory_uid"],
                prompt_uid=row.get("prompt_uid"),
                channel=row.get("channel"),
                agent=row.get("agent"),
                source=row.get("source"),
                metadata=row.get("metadata") or {},
            )
            self._add(row["key_sha256"], binding)

    def resolve(self, key: str) -> Binding | None:
        """What the key is bound to; None when it was not minted here. Keys are found by their hash alone."""
        return self._bindings.get(hash_key(key))

    def knows_trajectory(self, trajectory_uid: str) -> bool:
        """True when some key is bound to the trajectory."""
        return trajectory_uid in self._trajectories

    def _add(self, key_sha256: str, binding: Binding) -> None:
        with self._lock:
            self._bindings[key_sha256] = binding
            self._trajectories.add(binding.trajectory_uid)


@dataclass(frozen=True, slots=True)
class Caller:
    """What the border found out about a call.

    Attributes:
        identity: who made it.
        model: the model name without a ``turn__session`` disguise; None when nothing but that was given.
        foreign_key: the agent's own provider key, to be passed on; None when it was one of ours or absent.
        secrets: every key that the call presented.
    """

    identity: Identity
    model: str | None
    foreign_key: str | None
    secrets: tuple[str, ...]


def presented_keys(headers: Mapping[str, str]) -> tuple[str, ...]:
    """Keys in ``Authorization`` and ``x-api-key``, the bearer first."""
    found: list[str] = []
    authorization = headers.get("authorization", "")
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        found.append(token.strip())
    elif authorization and not token:
        found.append(authorization)
    if key := headers.get("x-api-key", "").strip():
        found.append(key)
    return tuple(dict.fromkeys(found))


def authorize(presented: Iterable[str], keys: KeyStore, api_key: str | None) -> None:
    """Let a call in when it presented ``api_key`` or a session key, or when no key is asked for.

    Raises:
        Unauthorized: ``api_key`` is set and neither it nor a session key was presented.
    """
    if api_key is None:
        return
    expected = hash_key(api_key)
    if not any(hmac.compare_digest(hash_key(key), expected) or keys.resolve(key) for key in presented):
        raise Unauthorized(
            "this gateway needs a key",
            field="authorization",
            hint="send CLAW_STUDIO_API_KEY or a key of POST /api/v1/sessions as a bearer token",
        )


def resolve_caller(
    *,
    path: Mapping[str, str],
    headers: Mapping[str, str],
    model: str | None,
    presented: tuple[str, ...],
    keys: KeyStore,
    api_key: str | None,
    channel: str,
) -> Caller:
    """Climb the identity ladder, for a call that ``authorize`` let in.

    Args:
        path: ``trajectory_uid`` and ``prompt_uid`` where the URL has them.
        headers: the call's headers, names in lower case.
        model: the request's model name.
        channel: channel of calls that name none.

    Raises:
        InvalidInput: a uid that is too long or holds blanks or control characters.
    """
    binding = next((found for key in presented if (found := keys.resolve(key)) is not None), None)
    metadata: dict[str, Any] = dict(binding.metadata) if binding is not None else {}
    turn = _TURN_MODEL.match(model) if model else None
    if turn is not None:
        metadata["call_kind_hint"] = "main" if turn["turn"] == "main" else "auxiliary"
        metadata["turn"] = turn["turn"]
        model = None
    harness, agent = _harness(headers)
    rungs = (
        (IdentitySource.PATH, path.get("trajectory_uid")),
        (IdentitySource.HEADER, headers.get("x-trajectory-uid")),
        (IdentitySource.KEY, binding.trajectory_uid if binding is not None else None),
        (IdentitySource.HARNESS, harness),
        (IdentitySource.MODEL_NAME, turn["session"] if turn is not None else None),
    )
    trajectory_uid, identity_source = None, IdentitySource.INFERRED
    for source, uid in rungs:
        if uid:
            trajectory_uid, identity_source = _checked(uid, "trajectory_uid"), source
            break
    prompt_uid = path.get("prompt_uid") or headers.get("x-prompt-uid")
    if not prompt_uid and binding is not None and binding.trajectory_uid == trajectory_uid:
        prompt_uid = binding.prompt_uid
    identity = Identity(
        trajectory_uid=trajectory_uid,
        prompt_uid=_checked(prompt_uid, "prompt_uid") if prompt_uid else None,
        channel=_checked(
            headers.get("x-channel") or (binding.channel if binding is not None else None) or channel,
            "channel",
        ),
        source=_source(headers.get("x-source") or (binding.source if binding is not None else None)),
        agent=headers.get("x-agent") or (binding.agent if binding is not None else None) or agent,
        identity_source=identity_source,
        metadata=metadata,
    )
    ours = {key for key in presented if keys.resolve(key) is not None or key == api_key}
    foreign = next((key for key in presented if key not in ours), None)
    return Caller(identity, model, foreign, presented)


def _harness(headers: Mapping[str, str]) -> tuple[str | None, str | None]:
    """The session id that a known agent sent by itself, and the agent's name."""
    user_agent = headers.get("user-agent", "").lower()
    named = next((agent for start, agent in USER_AGENTS if user_agent.startswith(start)), None)
    for header, agent in HARNESS_HEADERS:
        if uid := headers.get(header):
            return uid, named or agent
    return None, named


def _source(named: str | None) -> str:
    if named is None:
        return Source.BLACKBOX
    if named not in set(Source):
        raise InvalidInput(f"unknown source {named!r}", field="X-Source", hint=", ".join(Source))
    return named


def _checked(uid: str, field_name: str) -> str:
    if len(uid) > MAX_UID_CHARS or not _UID.match(uid):
        raise InvalidInput(
            f"{field_name} must be 1 to {MAX_UID_CHARS} printable ASCII characters without blanks",
            field=field_name,
        )
    return uid
