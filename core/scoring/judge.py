"""A judge that calls a model through the gateway: captured as auxiliary calls, cached, within a budget."""

from __future__ import annotations

import hashlib
import json
import os
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from core.client import Session, StudioClient
from core.errors import InvalidInput, StudioError
from core.rewards.base import Unscored
from core.rewards.services import Message, Reply
from core.scoring.prices import Price, price_of

CHANNEL = "judge"
AGENT = "judge"
TIMEOUT_S = 120.0
MAX_TOKENS = 512
RETRY_STATUS = frozenset({408, 409, 429, 500, 502, 503, 504})
N_TRIES = 4


@dataclass(frozen=True, slots=True)
class JudgeSettings:
    """How a judge is asked.

    Attributes:
        model: model name, by which the gateway chooses the engine or provider.
        temperature: of sampling; None leaves it to the engine. With 0, several votes are usually equal.
        max_tokens: longest answer.
        max_calls, max_usd: budget; None: no limit. A price that is not known does not count against ``max_usd``.
        timeout_s: of one call, seconds.
    """

    model: str
    temperature: float | None = None
    max_tokens: int = MAX_TOKENS
    max_calls: int | None = None
    max_usd: float | None = None
    timeout_s: float = TIMEOUT_S

    def __post_init__(self) -> None:
        if not self.model.strip():
            raise InvalidInput("the judge has no model", field="judge.model", hint="a model that an engine serves")
        if self.max_usd is not None and price_of(self.model) is None:
            raise InvalidInput(
                f"the price of {self.model} is not known", field="judge.max_usd", hint="limit max_calls instead"
            )


class Spending:
    """Calls and US dollars that a judge has spent, against its budget. Thread-safe."""

    def __init__(self, max_calls: int | None, max_usd: float | None) -> None:
        self._max_calls, self._max_usd = max_calls, max_usd
        self._lock = threading.Lock()
        self.n_calls, self.n_cached, self.usd = 0, 0, 0.0

    def begin(self) -> None:
        """Count a call that begins now.

        Raises:
            Unscored: the budget is spent.
        """
        with self._lock:
            if self._max_calls is not None and self.n_calls >= self._max_calls:
                raise Unscored("refused", f"the judge's budget of {self._max_calls} calls is spent")
            if self._max_usd is not None and self.usd >= self._max_usd:
                raise Unscored("refused", f"the judge's budget of {self._max_usd:g} US dollars is spent")
            self.n_calls += 1

    def end(self, cost_usd: float | None) -> None:
        """Add the price of a call, if it is known."""
        with self._lock:
            self.usd += cost_usd or 0.0

    def from_cache(self) -> None:
        """Count an answer that was stored."""
        with self._lock:
            self.n_cached += 1

    def as_dict(self) -> dict[str, Any]:
        """``n_calls, n_cached, cost_usd, max_calls, max_usd``."""
        with self._lock:
            spent = {"n_calls": self.n_calls, "n_cached": self.n_cached, "cost_usd": self.usd}
        return {**spent, "max_calls": self._max_calls, "max_usd": self._max_usd}


class ReplyCache:
    """Answers of judges in a folder, one file each, by the hash of the request."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, key: str) -> Reply | None:
        """The stored answer, or None."""
        try:
            fields = json.loads(self._path(key).read_bytes())
            return Reply(**{**fields, "cached": True})
        except (OSError, ValueError, TypeError):
            return None

    def put(self, key: str, reply: Reply) -> None:
        """Store an answer. A cache that can't be written is a cache without it."""
        path = self._path(key)
        part = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(asdict(reply)), encoding="utf-8")
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.json"


class GatewayJudge:
    """Calls a model through the gateway; an instance is a ``core.rewards.services.Judge``. Thread-safe.

    Its calls are steps of the trajectory ``trajectory_uid`` in the channel ``judge``, of kind auxiliary.

    Args:
        studio: client of the studio, with the right to make sessions.
        settings: model, sampling and budget.
        trajectory_uid: trajectory of the calls; None makes one.
        cache: where answers are stored; None: nowhere.
        tls: for ``https``.
        sleep: called with the wait between tries, seconds.
        channel, agent: of the trajectory, for calls that are not a judge's.
    """

    def __init__(
        self,
        studio: StudioClient,
        settings: JudgeSettings,
        *,
        trajectory_uid: str | None = None,
        cache: ReplyCache | None = None,
        tls: ssl.SSLContext | None = None,
        sleep: Callable[[float], None] = time.sleep,
        channel: str = CHANNEL,
        agent: str = AGENT,
    ) -> None:
        self._studio, self._settings, self._cache = studio, settings, cache
        self._channel, self._agent = channel, agent
        self._trajectory_uid = trajectory_uid
        self._tls, self._sleep = tls, sleep
        self._price: Price | None = price_of(settings.model)
        self._session: Session | None = None
        self._lock = threading.Lock()
        self.spending = Spending(settings.max_calls, settings.max_usd)

    def __call__(self, messages: Sequence[Message], n: int, first: int = 0) -> list[Reply]:
        """``n`` answers with the numbers ``first``, ``first + 1``, …; those that are stored are not paid again.

        Raises:
            Unscored: the budget is spent, or the engine failed.
        """
        return [self._vote(messages, number) for number in range(first, first + n)]

    def _vote(self, messages: Sequence[Message], number: int) -> Reply:
        request = self._request(messages, number)
        key = hashlib.sha256(json.dumps([request, number], sort_keys=True).encode()).hexdigest()
        stored = self._cache.get(key) if self._cache is not None else None
        if stored is not None:
            self.spending.from_cache()
            return stored
        self.spending.begin()
        reply = self._call(request)
        self.spending.end(reply.cost_usd)
        if self._cache is not None:
            self._cache.put(key, reply)
        return reply

    def _request(self, messages: Sequence[Message], number: int) -> dict[str, Any]:
        request: dict[str, Any] = {"model": self._settings.model, "messages": list(messages)}
        request["max_tokens"] = self._settings.max_tokens
        if self._settings.temperature is not None:
            request["temperature"] = self._settings.temperature
        if number:
            request["seed"] = number
        return request

    def _call(self, request: dict[str, Any]) -> Reply:
        import httpx

        session = self._bound()
        url = f"{session.base_url.rstrip('/')}/chat/completions"
        headers = {"Authorization": f"Bearer {session.api_key}"}
        verify: Any = True if self._tls is None else self._tls
        with httpx.Client(timeout=self._settings.timeout_s, verify=verify, trust_env=False) as client:
            for attempt in range(N_TRIES):
                try:
                    response = client.post(url, json=request, headers=headers)
                except httpx.TimeoutException:
                    raise Unscored(
                        "timed_out", f"the model did not answer within {self._settings.timeout_s:g} s"
                    ) from None
                except httpx.HTTPError as error:
                    raise Unscored("crashed", f"the model can't be reached: {error}") from None
                if response.status_code not in RETRY_STATUS or attempt == N_TRIES - 1:
                    break
                self._sleep(0.5 * 2**attempt)
        if response.status_code != 200:
            raise Unscored("crashed", f"the model answered {response.status_code}: {response.text[:300]}")
        return self._read(response.content)

    def _read(self, content: bytes) -> Reply:
        try:
            answer = json.loads(content)
            text = answer["choices"][0]["message"].get("content") or ""
        except (ValueError, LookupError, TypeError, AttributeError):
            raise Unscored("crashed", "the model's answer is no chat completion") from None
        usage = answer.get("usage") or {}
        n_prompt, n_response = usage.get("prompt_tokens"), usage.get("completion_tokens")
        cost = None if self._price is None else self._price.of(n_prompt, n_response)
        return Reply(str(text), str(answer.get("model") or self._settings.model), n_prompt, n_response, cost)

    def _bound(self) -> Session:
        """The session of the calls; made at the first."""
        with self._lock:
            if self._session is None:
                try:
                    self._session = self._studio.session(
                        trajectory_uid=self._trajectory_uid,
                        channel=self._channel,
                        agent=self._agent,
                        metadata={"call_kind": "auxiliary", self._agent: self._settings.model},
                    )
                except StudioError as error:
                    raise Unscored("crashed", f"the model has no session: {error.message}") from None
            return self._session
