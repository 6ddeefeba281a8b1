"""Session keys: stored as hashes, bound to a trajectory and a channel, revocable."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final

from core.errors import Forbidden, NotFound, TooManyAttempts, Unauthorized
from core.gateway.access.wrong_keys import WrongKeys
from core.records import parse

KEY_PREFIX: Final = "cs-"
KEY_ID_CHARS: Final = 16
_GENERATED_KEY = re.compile(r"cs-[A-Za-z0-9_-]{43}")
# Records begin with their kind, so call records are skipped without parsing.
_SESSION, _REVOKE = b'{"kind":"session"', b'{"kind":"revoke"'


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """Limits of a session key; None or empty means no limit.

    Attributes:
        expires_at: seconds since the epoch at which it becomes invalid.
        max_calls, max_tokens: over its life; earlier calls of its trajectory count.
        models: globs of allowed model names.
        any_prompt: whether calls may name a prompt group other than the key's.
    """

    expires_at: float | None = None
    max_calls: int | None = None
    max_tokens: int | None = None
    calls_per_minute: int | None = None
    models: tuple[str, ...] = ()
    any_prompt: bool = False

    @property
    def counted(self) -> bool:
        """Whether calls of the key must be counted."""
        return not self.max_calls is self.max_tokens is self.calls_per_minute is None

    @classmethod
    def of(cls, row: Mapping[str, Any] | None) -> KeyLimits:
        """From the JSON of a ``session`` record."""
        values = dict(row or {})
        return cls(**{**values, "models": tuple(values.get("models") or ())})


@dataclass(frozen=True, slots=True)
class Binding:
    """What a session key is bound to."""

    trajectory_uid: str
    prompt_uid: str | None = None
    channel: str | None = None
    agent: str | None = None
    source: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    limits: KeyLimits = KeyLimits()
    key_sha256: str = ""


def hash_key(key: str) -> str:
    """SHA-256 of a key, hex; keys are stored in this form only."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def key_id(key_sha256: str) -> str:
    """The id under which a key is listed and revoked; it does not reveal the key."""
    return key_sha256[:KEY_ID_CHARS]


class KeyStore:
    """Session keys by hash. Thread-safe.

    Keys are looked up by SHA-256, so lookup time reveals nothing about a guess.
    """

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._bindings: dict[str, Binding] = {}
        self._revoked: set[str] = set()
        self._trajectories: set[str] = set()
        self._lock = threading.Lock()
        self._listener: Callable[[Mapping[str, Any]], None] | None = None

    def listen(self, listener: Callable[[Mapping[str, Any]], None]) -> None:
        """Call the listener with a row as in ``load`` for each key made or revoked from now on, in that thread."""
        self._listener = listener

    def rows(self) -> list[dict[str, Any]]:
        """All keys as rows for ``load``."""
        with self._lock:
            return [self._row(key_sha256) for key_sha256 in self._bindings]

    def _row(self, key_sha256: str) -> dict[str, Any]:
        revoked = 0.0 if key_sha256 in self._revoked else None
        return {**asdict(self._bindings[key_sha256]), "key_sha256": key_sha256, "revoked_at": revoked}

    def mint(
        self,
        *,
        trajectory_uid: str,
        prompt_uid: str | None = None,
        channel: str | None = None,
        agent: str | None = None,
        source: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        limits: KeyLimits | None = None,
    ) -> tuple[str, str]:
        """Make a key bound to a trajectory.

        Returns:
            The key, shown this once, and its SHA-256 in hex, which is what gets stored.
        """
        key = KEY_PREFIX + secrets.token_urlsafe(32)
        key_sha256 = hash_key(key)
        binding = Binding(
            trajectory_uid, prompt_uid, channel, agent, source, dict(metadata or {}), limits or KeyLimits(), key_sha256
        )
        self._add(key_sha256, binding)
        self._notify(key_sha256)
        return key, key_sha256

    def load(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Load the sessions of earlier runs: rows like ``session`` records, with ``revoked_at`` where revoked."""
        for row in rows:
            binding = Binding(
                trajectory_uid=row["trajectory_uid"],
                prompt_uid=row.get("prompt_uid"),
                channel=row.get("channel"),
                agent=row.get("agent"),
                source=row.get("source"),
                metadata=row.get("metadata") or {},
                limits=KeyLimits.of(row.get("limits")),
                key_sha256=row["key_sha256"],
            )
            self._add(row["key_sha256"], binding)
            if row.get("revoked_at") is not None:
                self.revoke(row["key_sha256"])

    def replay(self, payloads: Iterable[bytes]) -> None:
        """Apply journal records that may not be in the pool yet because an earlier process was killed."""
        for payload in payloads:
            if payload.startswith(_SESSION):
                self.load([parse(payload)])
            elif payload.startswith(_REVOKE):
                self.revoke(parse(payload)["key_sha256"])

    def resolve(self, key: str) -> Binding | None:
        """The key's binding; None if it was not made here, is revoked or has expired."""
        key_sha256 = hash_key(key)
        binding = self._bindings.get(key_sha256)
        if binding is None or key_sha256 in self._revoked:
            return None
        expires_at = binding.limits.expires_at
        return None if expires_at is not None and self._clock() >= expires_at else binding

    def n_in_force(self) -> int:
        """How many keys are neither revoked nor expired."""
        now = self._clock()
        with self._lock:
            return sum(
                key_sha256 not in self._revoked
                and (binding.limits.expires_at is None or now < binding.limits.expires_at)
                for key_sha256, binding in self._bindings.items()
            )

    def binding(self, key_sha256: str) -> Binding | None:
        """The binding of the key with this hash, revoked or not."""
        return self._bindings.get(key_sha256)

    def knows_trajectory(self, trajectory_uid: str) -> bool:
        """Whether any key is or was bound to the trajectory."""
        return trajectory_uid in self._trajectories

    def find(self, name: str) -> list[str]:
        """Hashes of a trajectory's keys, or of the key with this id, also revoked ones. NotFound if there is none."""
        with self._lock:
            hashes = [
                key_sha256
                for key_sha256, binding in self._bindings.items()
                if binding.trajectory_uid == name or name in (key_sha256, key_id(key_sha256))
            ]
        if not hashes:
            raise NotFound(
                f"no session key {name!r}", field="name", hint="a key_id or trajectory_uid of GET /api/v1/sessions"
            )
        return hashes

    def is_revoked(self, key_sha256: str) -> bool:
        """Whether the key is revoked."""
        return key_sha256 in self._revoked

    def revoke(self, key_sha256: str) -> None:
        """Revoke a key."""
        with self._lock:
            self._revoked.add(key_sha256)
        self._notify(key_sha256)

    def _notify(self, key_sha256: str) -> None:
        if self._listener is not None and key_sha256 in self._bindings:
            self._listener(self._row(key_sha256))

    def _add(self, key_sha256: str, binding: Binding) -> None:
        with self._lock:
            self._bindings[key_sha256] = binding
            self._trajectories.add(binding.trajectory_uid)


def presented_keys(headers: Mapping[str, str]) -> tuple[str, ...]:
    """Keys in ``Authorization`` and ``x-api-key``, the bearer first."""
    keys: list[str] = []
    authorization = headers.get("authorization", "")
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        keys.append(token.strip())
    elif authorization and not token:
        keys.append(authorization)
    if key := headers.get("x-api-key", "").strip():
        keys.append(key)
    return tuple(dict.fromkeys(keys))


def is_studio_key(key: str, api_key: str | None) -> bool:
    """Whether ``key`` is the admin key, compared in constant time."""
    return api_key is not None and hmac.compare_digest(hash_key(key), hash_key(api_key))


def _looks_like_ours(key: str, api_key: str | None) -> bool:
    """Whether a key that was not made here was meant as a session key.

    Where there is an admin key, a key of another length is counted as a guess of it, since it too may begin like this.
    """
    if api_key is None:
        return key.startswith(KEY_PREFIX)
    return _GENERATED_KEY.fullmatch(key) is not None and not is_studio_key(key, api_key)


def authorize(
    presented: Iterable[str], keys: KeyStore, api_key: str | None, address: str, wrong_keys: WrongKeys
) -> Binding | None:
    """Authorize a call by the admin key or a session key.

    Args:
        api_key: the admin key; None requires no key.
        address: the client's address. After many wrong keys from it only session keys are accepted, because they can't
            be guessed.

    Returns:
        The binding of the presented session key; None for a caller without restrictions.

    Raises:
        Unauthorized: a key is required and neither kind was presented, or a key that begins like a session key is
            none. The latter holds also where no key is required, because the agent expects to be bound to something.
        TooManyAttempts: the address sent too many wrong keys.
    """
    binding: Binding | None = None
    others: list[str] = []
    for key in presented:
        bound = keys.resolve(key)
        if bound is not None:
            binding = binding or bound
        elif _looks_like_ours(key, api_key):
            raise Unauthorized(
                "this session key is mistyped, was revoked or has expired",
                field="authorization",
                hint="compare it with the key that was shown; POST /api/v1/sessions makes a new one",
            )
        else:
            others.append(key)
    if api_key is None:
        return binding
    if others:
        try:
            wrong_keys.check(address)
        except TooManyAttempts:
            if binding is None:
                raise
        else:
            if any(is_studio_key(key, api_key) for key in others):
                return None
            for key in others:
                wrong_keys.count_failure(address, hash_key(key))
    if binding is None:
        raise Unauthorized(
            "this call needs a key",
            field="authorization",
            hint="send CLAW_STUDIO_API_KEY or, for model calls, a key of POST /api/v1/sessions as a bearer token",
        )
    return binding


def check_model(binding: Binding, model: str | None) -> None:
    """Raises Forbidden for a model that the key does not allow."""
    if binding.limits.models and not any(fnmatchcase(model or "", glob) for glob in binding.limits.models):
        raise Forbidden(
            f"this session key may not ask for the model {model!r}",
            field="model",
            hint=f"it may ask for {', '.join(binding.limits.models)}",
        )


def check_prompt(binding: Binding, prompt_uid: str | None) -> None:
    """Raises Forbidden for a prompt group other than the key's, because steps are compared within their group."""
    if prompt_uid and prompt_uid != binding.prompt_uid and not binding.limits.any_prompt:
        raise Forbidden(
            f"this session key is bound to prompt group {binding.prompt_uid!r}"
            if binding.prompt_uid
            else "this session key names no prompt group",
            field="prompt_uid",
            hint="POST /api/v1/sessions with any_prompt makes a key whose calls may name another",
        )


def check_binding(binding: Binding, *, trajectory_uid: str | None, channel: str) -> None:
    """Raises Forbidden if a call names another trajectory or channel than its session key is bound to."""
    if trajectory_uid != binding.trajectory_uid:
        raise Forbidden(
            f"this session key is bound to trajectory {binding.trajectory_uid!r}",
            field="trajectory_uid",
            hint="POST /api/v1/sessions makes a key for another one",
        )
    if binding.channel is not None and channel != binding.channel:
        raise Forbidden(f"this session key is bound to channel {binding.channel!r}", field="channel")
