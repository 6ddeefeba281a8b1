"""Session keys: known by hash, bound to a trajectory and a channel, taken back for good."""

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
# Records begin with their kind: the calls among them need not be parsed.
_SESSION, _REVOKE = b'{"kind":"session"', b'{"kind":"revoke"'
_OURS = re.compile(r"cs-[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a session key may; None and empty is no limit.

    Attributes:
        expires_at: seconds since the epoch from which it opens nothing.
        max_calls, max_tokens: over its life; what its trajectory has already counts.
        models: globs of the model names that it may ask for.
        any_prompt: whether calls may name another prompt group than the key's.
    """

    expires_at: float | None = None
    max_calls: int | None = None
    max_tokens: int | None = None
    calls_per_minute: int | None = None
    models: tuple[str, ...] = ()
    any_prompt: bool = False

    @property
    def counted(self) -> bool:
        """Whether its calls have to be counted."""
        return not self.max_calls is self.max_tokens is self.calls_per_minute is None

    @classmethod
    def of(cls, row: Mapping[str, Any] | None) -> Limits:
        """From JSON, as ``session`` records have it."""
        values = dict(row or {})
        return cls(**{**values, "models": tuple(values.get("models") or ())})


@dataclass(frozen=True, slots=True)
class Binding:
    """What a session key stands for."""

    trajectory_uid: str
    prompt_uid: str | None = None
    channel: str | None = None
    agent: str | None = None
    source: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits = Limits()
    key_sha256: str = ""


def hash_key(key: str) -> str:
    """SHA-256 of a key, hex: the only form in which a key is kept."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def key_id(key_sha256: str) -> str:
    """The name under which a key is listed and revoked; it gives nothing of the key away."""
    return key_sha256[:KEY_ID_CHARS]


class KeyStore:
    """Session keys by hash. Thread-safe.

    A key is looked up by its SHA-256, so the time that takes tells nothing of how much of a guess was right.
    """

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._bindings: dict[str, Binding] = {}
        self._revoked: set[str] = set()
        self._trajectories: set[str] = set()
        self._lock = threading.Lock()
        self._listener: Callable[[Mapping[str, Any]], None] | None = None

    def listen(self, listener: Callable[[Mapping[str, Any]], None]) -> None:
        """Have every key told that is made or taken back from now on, as a row of ``load``, in the caller's thread."""
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
        limits: Limits | None = None,
    ) -> tuple[str, str]:
        """Make a key bound to a trajectory.

        Returns:
            The key, shown this once, and its SHA-256 in hex, which is what gets stored.
        """
        key = KEY_PREFIX + secrets.token_urlsafe(32)
        key_sha256 = hash_key(key)
        binding = Binding(
            trajectory_uid, prompt_uid, channel, agent, source, dict(metadata or {}), limits or Limits(), key_sha256
        )
        self._add(key_sha256, binding)
        self._tell(key_sha256)
        return key, key_sha256

    def load(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take the sessions of earlier runs: rows shaped like ``session`` records, ``revoked_at`` where it was."""
        for row in rows:
            binding = Binding(
                trajectory_uid=row["trajectory_uid"],
                prompt_uid=row.get("prompt_uid"),
                channel=row.get("channel"),
                agent=row.get("agent"),
                source=row.get("source"),
                metadata=row.get("metadata") or {},
                limits=Limits.of(row.get("limits")),
                key_sha256=row["key_sha256"],
            )
            self._add(row["key_sha256"], binding)
            if row.get("revoked_at") is not None:
                self.revoke(row["key_sha256"])

    def replay(self, payloads: Iterable[bytes]) -> None:
        """Take what stands in the journal and may not be in the pool yet: an earlier process was killed."""
        for payload in payloads:
            if payload.startswith(_SESSION):
                self.load([parse(payload)])
            elif payload.startswith(_REVOKE):
                self.revoke(parse(payload)["key_sha256"])

    def resolve(self, key: str) -> Binding | None:
        """What the key is bound to; None when it was not minted here, was revoked or has expired."""
        key_sha256 = hash_key(key)
        binding = self._bindings.get(key_sha256)
        if binding is None or key_sha256 in self._revoked:
            return None
        expires_at = binding.limits.expires_at
        return None if expires_at is not None and self._clock() >= expires_at else binding

    def binding(self, key_sha256: str) -> Binding | None:
        """What the key with this hash is or was bound to."""
        return self._bindings.get(key_sha256)

    def knows_trajectory(self, trajectory_uid: str) -> bool:
        """True when some key is or was bound to the trajectory."""
        return trajectory_uid in self._trajectories

    def find(self, name: str) -> list[str]:
        """Hashes of the keys of a trajectory, or of the key with this id, revoked ones too. NotFound for neither."""
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
        """True once the key was taken back."""
        return key_sha256 in self._revoked

    def revoke(self, key_sha256: str) -> None:
        """Take a key back; from then on it opens nothing."""
        with self._lock:
            self._revoked.add(key_sha256)
        self._tell(key_sha256)

    def _tell(self, key_sha256: str) -> None:
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
    """True when ``key`` is the studio's own, compared in constant time."""
    return api_key is not None and hmac.compare_digest(hash_key(key), hash_key(api_key))


def authorize(
    presented: Iterable[str], keys: KeyStore, api_key: str | None, address: str, wrong_keys: WrongKeys
) -> Binding | None:
    """Let a call in when it presented the admin key or a session key, or when no key is asked for.

    Args:
        api_key: the admin key; None asks for none.
        address: where the call came from; after many wrong keys only session keys open anything from there, since
            those can't be guessed.

    Returns:
        What the session key is bound to that let it in, or that it presented where none is asked for; None for who may
        do everything.

    Raises:
        Unauthorized: a key is asked for and neither was presented; or a session key was that does not hold, whether or
            not one is asked for: its agent believes that it is bound to something.
        TooManyAttempts: the address is not heard.
    """
    binding: Binding | None = None
    others: list[str] = []
    for key in presented:
        bound = keys.resolve(key)
        if bound is not None:
            binding = binding or bound
        elif _OURS.fullmatch(key) and not is_studio_key(key, api_key):
            raise Unauthorized(
                "this session key was revoked, has expired or was never given out",
                field="authorization",
                hint="POST /api/v1/sessions makes one",
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
                wrong_keys.wrong(address, hash_key(key))
    if binding is None:
        raise Unauthorized(
            "this call needs a key",
            field="authorization",
            hint="send CLAW_STUDIO_API_KEY or, for model calls, a key of POST /api/v1/sessions as a bearer token",
        )
    return binding


def check_model(binding: Binding, model: str | None) -> None:
    """Raises Forbidden for a model that the key may not ask for."""
    if binding.limits.models and not any(fnmatchcase(model or "", glob) for glob in binding.limits.models):
        raise Forbidden(
            f"this session key may not ask for the model {model!r}",
            field="model",
            hint=f"it may ask for {', '.join(binding.limits.models)}",
        )


def check_prompt(binding: Binding, prompt_uid: str | None) -> None:
    """Raises Forbidden for a prompt group other than the key's: its steps would be compared to others'."""
    if prompt_uid and prompt_uid != binding.prompt_uid and not binding.limits.any_prompt:
        raise Forbidden(
            f"this session key is bound to prompt group {binding.prompt_uid!r}"
            if binding.prompt_uid
            else "this session key names no prompt group",
            field="prompt_uid",
            hint="POST /api/v1/sessions with any_prompt makes a key whose calls may name another",
        )


def check_binding(binding: Binding, *, trajectory_uid: str | None, channel: str) -> None:
    """Hold a caller that a session key let in to what the key is bound to. Forbidden names what it reached for."""
    if trajectory_uid != binding.trajectory_uid:
        raise Forbidden(
            f"this session key is bound to trajectory {binding.trajectory_uid!r}",
            field="trajectory_uid",
            hint="POST /api/v1/sessions makes a key for another one",
        )
    if binding.channel is not None and channel != binding.channel:
        raise Forbidden(f"this session key is bound to channel {binding.channel!r}", field="channel")
