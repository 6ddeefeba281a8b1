"""HTTP client for white-box producers: sessions, steps, rewards, feedback, policy versions, reading.

It uses only the standard library and does not open the studio, so a trainer or an environment can import it cheaply.

    studio = StudioClient("http://127.0.0.1:8100")
    with studio.rollout(prompt_uid="task-1") as rollout:
        rollout.step(prompt_ids=[1, 2], response_ids=[3], response_logprobs=[-0.1], reward=None)
        rollout.reward = 1.0

An error of the service is raised with the same class, ``type``, ``field`` and ``hint``. Steps are sent again after a
lost connection; the service identifies them by ``step_uid``, so none is stored twice.
"""

from __future__ import annotations

import http.client
import json
import select
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from core.errors import Conflict, EngineError, EngineTimeout, InvalidInput, NotFound, StudioError, Unauthorized
from core.rollout import Environment, RecordedEnvironment, Rollout, Sampled, ids_of, known, reward_of

__all__ = [
    "Environment",
    "RecordedEnvironment",
    "Rollout",
    "Sampled",
    "Session",
    "StudioClient",
    "Unreachable",
    "error_of",
    "trusting",
]

BATCH_STEPS = 500
BATCH_TOKENS = 2_000_000
RETRY_STATUS = frozenset({429, 502, 503, 504})


class Unreachable(StudioError):
    """The service did not respond: it is not running, or too slow. Whether it received the call is not known."""

    type = "unreachable"
    http_status = 503


_ERRORS: dict[str, type[StudioError]] = {
    kind.type: kind for kind in (Conflict, InvalidInput, NotFound, EngineError, EngineTimeout)
}
# A gateway process answers so when the main process ended before it had answered.
_ERRORS["owner_away"] = Unreachable


@dataclass(frozen=True, slots=True)
class Session:
    """A key for one agent attempt. OpenAI clients use it with ``base_url``, Anthropic's with ``anthropic_base_url``."""

    api_key: str
    key_id: str
    base_url: str
    anthropic_base_url: str
    trajectory_uid: str
    prompt_uid: str | None
    channel: str


def new_uid() -> str:
    """32 hex digits."""
    return uuid.uuid4().hex


class StudioClient:
    """A client of the studio's HTTP API. Thread-safe: each thread has a separate connection.

    Args:
        base_url: root of the service, ``http://host:port``.
        api_key: the admin key, if one is set.
        tls: TLS context for ``https``, for example ``trusting(certificate)``; None uses the system's certificates.
        timeout_s: timeout of one request, seconds.
        n_retries: retries of a repeatable call after a lost connection or a 503.
        sleep: called with the wait between retries, seconds; waits double from 0.1 to 5.
    """

    def __init__(
        self,
        base_url: str = "http://127.0.0.1:8100",
        *,
        api_key: str | None = None,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = 60.0,
        n_retries: int = 5,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInput(f"{base_url!r} is no base URL", field="base_url", hint="http://127.0.0.1:8100")
        self.base_url = base_url.rstrip("/")
        self._parts = parts
        self._api_key = api_key
        self._tls = tls
        self._timeout_s = timeout_s
        self._n_retries = n_retries
        self._sleep = sleep
        self._local = threading.local()

    # Producing ------------------------------------------------------------------------------------------------

    def session(
        self,
        *,
        trajectory_uid: str | None = None,
        prompt_uid: str | None = None,
        channel: str | None = None,
        agent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        **limits: Any,
    ) -> Session:
        """A key bound to one trajectory, for a black-box agent.

        ``limits``: ``expires_in_s``, ``max_calls``, ``max_tokens``, ``calls_per_minute``, ``models`` (globs),
        ``any_prompt``, as in ``POST /api/v1/sessions``.
        """
        body = known(trajectory_uid=trajectory_uid, prompt_uid=prompt_uid, channel=channel, agent=agent)
        fields = self.call("POST", "/api/v1/sessions", {**body, **limits, "metadata": dict(metadata or {})})
        return Session(**{name: fields[name] for name in Session.__slots__})

    def revoke(self, name: str) -> list[str]:
        """Revoke the key with this ``key_id``, or all keys of a trajectory; returns the ids of keys that were valid."""
        revoked: list[str] = self.call("DELETE", f"/api/v1/sessions/{quote(name, safe='')}", repeat=True)["revoked"]
        return revoked

    def submit(self, steps: Iterable[Mapping[str, Any]]) -> int:
        """Send steps (fields as in ``POST /api/v1/steps``), split into several requests if large; returns their number.

        Each request is atomic and may be sent twice: steps that are already stored are accepted.
        """
        n_accepted = 0
        for batch in _batches(steps):
            n_accepted += self.call("POST", "/api/v1/steps", {"steps": batch}, repeat=True)["accepted"]
        return n_accepted

    def known(self, step_uids: Sequence[str]) -> set[str]:
        """The subset of these steps that the service has stored."""
        uids: list[str] = self.call("POST", "/api/v1/steps/known", {"step_uids": list(step_uids)}, repeat=True)["known"]
        return set(uids)

    def rollout(
        self,
        *,
        prompt_uid: str | None = None,
        trajectory_uid: str | None = None,
        channel: str | None = None,
        agent: str | None = None,
        policy_version: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        buffer: int = 32,
    ) -> Rollout:
        """A context manager that records a trajectory step by step and completes it at the end."""
        common = known(prompt_uid=prompt_uid, channel=channel, agent=agent, policy_version=policy_version)
        return Rollout(self, trajectory_uid or new_uid(), common, dict(metadata or {}), buffer)

    def complete(
        self,
        trajectory_uid: str,
        *,
        reward: float | None = None,
        outcome: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Close a trajectory. ``reward=None`` leaves it unscored, which is not 0.

        ``metadata`` may say why: ``verifier``, ``reward_components`` (name -> number), ``reward_reason`` and
        ``reward_details``. The pages show them beside the reward.
        """
        path = f"/api/v1/trajectories/{quote(trajectory_uid, safe='')}/complete"
        body = {"reward": reward_of(reward), "outcome": outcome, "metadata": dict(metadata or {})}
        self.call("POST", path, body, repeat=True)

    def complete_many(self, rewards: Mapping[str, float | None]) -> None:
        """Complete trajectories, uid -> reward, by one request. One that is unknown refuses all."""
        completions = [{"trajectory_uid": uid, "reward": reward_of(reward)} for uid, reward in rewards.items()]
        self.call("POST", "/api/v1/trajectories/complete", {"completions": completions}, repeat=True)

    def annotate(
        self,
        kind: str,
        value: Any,
        *,
        step_uid: str | None = None,
        trajectory_uid: str | None = None,
        author: str = "api",
        source: str = "api",
        note: str | None = None,
    ) -> str:
        """Append one opinion on a step or a trajectory; returns the ``action_uid`` with which it can be undone."""
        target = known(step_uid=step_uid, trajectory_uid=trajectory_uid)
        annotation = {"target": target, "kind": kind, "value": value, "author": author, "source": source, "note": note}
        action_uid: str = self.call("POST", "/api/v1/annotations", {"annotations": [annotation]})["action_uid"]
        return action_uid

    def feedback(
        self,
        kind: str,
        value: Any,
        *,
        step_uid: str | None = None,
        trajectory_uid: str | None = None,
        response_id: str | None = None,
        feedback_uid: str | None = None,
        author: str = "user",
        given_at: float | None = None,
        **fields: Any,
    ) -> str:
        """Record feedback of a person or a live service on a response; returns its uid, for later revisions.

        ``kind`` is thumbs (``up``, ``down``), score, correction, comment or event. A value of None withdraws it.
        """
        uid = feedback_uid or new_uid()
        target = known(step_uid=step_uid, trajectory_uid=trajectory_uid, response_id=response_id)
        feedback = {**target, "feedback_uid": uid, "kind": kind, "value": value, "author": author, "given_at": given_at}
        self.call("POST", "/api/v1/feedback", {"feedback": [{**feedback, **fields}]}, repeat=True)
        return uid

    def policy(self, version: int, event: str = "registered", metadata: Mapping[str, Any] | None = None) -> None:
        """Report the weights' version: ``registered``, ``sync_started`` or ``sync_finished``."""
        body = {"version": version, "event": event, "metadata": dict(metadata or {})}
        self.call("POST", "/api/v1/policy", body, repeat=True)

    def generate(self, prompt_ids: Sequence[int], **sampling: Any) -> dict[str, Any]:
        """Sample from the studio's engine by token ids: ``{token_ids, log_probs, stop_reason, policy_version}``."""
        body = {"prompt_ids": ids_of(prompt_ids), "sampling_params": {"logprobs": True, **sampling}}
        answer: dict[str, Any] = self.call("POST", "/generate", body)
        return answer

    # Reading --------------------------------------------------------------------------------------------------

    def policy_state(self) -> dict[str, Any]:
        """``{version, syncing, sync, history}``."""
        return self._get("/api/v1/policy")

    def step(self, step_uid: str) -> dict[str, Any]:
        """One step with its tokens, messages and feedback."""
        return self._get(f"/api/v1/steps/{quote(step_uid, safe='')}")

    def trajectory(self, trajectory_uid: str) -> dict[str, Any]:
        """One trajectory with its steps in order."""
        return self._get(f"/api/v1/trajectories/{quote(trajectory_uid, safe='')}")

    def group(self, prompt_uid: str) -> dict[str, Any]:
        """One prompt group with its trajectories."""
        return self._get(f"/api/v1/groups/{quote(prompt_uid, safe='')}")

    def stats(self) -> dict[str, Any]:
        """Counts, rates, ingest lag, dropped calls."""
        return self._get("/api/v1/stats")

    def steps(self, where: str = "", *, order: str = "created_at", page: int = 500, **filters: str) -> Iterator[Any]:
        """Iterate over the steps that match an expression over step columns, without tokens and messages."""
        cursor: str | None = None
        while True:
            query = {"where": where, "order": order, "limit": page, **filters, **known(cursor=cursor)}
            answer = self._get("/api/v1/steps", query)
            yield from answer["steps"]
            cursor = answer["next_cursor"]
            if cursor is None:
                return

    def download(self, path: str) -> bytes:
        """The body of a GET as bytes, for responses that are not JSON."""
        status, raw, _ = self._once("GET", f"{self._parts.path.rstrip('/')}{path}", None, self._timeout_s)
        if status >= 400:
            raise error_of(status, raw)
        return raw

    def _get(self, path: str, query: Mapping[str, Any] | None = None) -> dict[str, Any]:
        answer: dict[str, Any] = self.call("GET", path, query=query, repeat=True)
        return answer

    # Transport ------------------------------------------------------------------------------------------------

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, Any] | None = None,
        repeat: bool = False,
        timeout_s: float | None = None,
    ) -> Any:
        """Send any request with a JSON body; returns the parsed JSON response.

        Args:
            repeat: the call is idempotent, so it is retried if the response was lost.
            timeout_s: timeout of this request, seconds; None: the client's.

        Raises:
            StudioError: the service's error, or Unreachable.
        """
        payload = _json(body) if body is not None else None
        target = f"{self._parts.path.rstrip('/')}{path}" + (f"?{urlencode(query)}" if query else "")
        pause_s = 0.1
        for attempt in range(self._n_retries + 1):
            last = attempt == self._n_retries
            try:
                status, raw, retry_after_s = self._once(method, target, payload, timeout_s or self._timeout_s)
            except (OSError, http.client.HTTPException) as error:
                # After a refused connection the service can't have received the call.
                if last or not (repeat or isinstance(error, ConnectionRefusedError)):
                    hint = "is 'claw-studio serve' or the studio running there?"
                    what = f"{self.base_url} did not answer {method} {path}: {error!r}"
                    raise Unreachable(what, field="base_url", hint=hint) from error
                self._sleep(pause_s)
            else:
                if status < 400:
                    return json.loads(raw) if raw else None
                if last or not repeat or status not in RETRY_STATUS:
                    raise error_of(status, raw)
                self._sleep(max(pause_s, min(retry_after_s, 30.0)))
            pause_s = min(2 * pause_s, 5.0)
        raise AssertionError("the last attempt returns or raises")

    def _once(self, method: str, target: str, payload: bytes | None, timeout_s: float) -> tuple[int, bytes, float]:
        """Status, body and Retry-After of one exchange; the connection is kept, and closed after a failure."""
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is not None and _is_over(connection):
            self.close()
            connection = None
        if connection is None:
            host, port = self._parts.hostname or "", self._parts.port
            if self._parts.scheme == "https":
                connection = http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=self._tls)
            else:
                connection = http.client.HTTPConnection(host, port, timeout=self._timeout_s)
            self._local.connection = connection
        connection.timeout = timeout_s
        if connection.sock is not None:
            connection.sock.settimeout(timeout_s)
        headers = {"Accept": "application/json"}
        if payload is not None:
            headers["Content-Type"] = "application/json"
        if self._api_key is not None:
            headers["Authorization"] = f"Bearer {self._api_key}"
        try:
            connection.request(method, target, payload, headers)
            answer = connection.getresponse()
            raw = answer.read()
        except BaseException:
            self.close()
            raise
        wait_s = answer.getheader("retry-after") or ""
        return answer.status, raw, float(wait_s) if wait_s.isdecimal() else 0.0

    def close(self) -> None:
        """Close this thread's connection; the next call opens one."""
        connection = getattr(self._local, "connection", None)
        self._local.connection = None
        if connection is not None:
            connection.close()

    def __enter__(self) -> StudioClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def trusting(certificate: Path) -> ssl.SSLContext:
    """A TLS context that accepts only this certificate (the first of a PEM file), under any host name.

    It is for services on the same machine, whose certificate file is readable here.
    """
    context = ssl.create_default_context(cadata=_first_certificate(certificate))
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _first_certificate(path: Path) -> str:
    end = "-----END CERTIFICATE-----"
    certificate, separator, _ = path.read_text().partition(end)
    if not separator:
        raise InvalidInput(f"{path} has no certificate", field="tls_cert", hint="a PEM file")
    return certificate + separator


def error_of(status: int, raw: bytes) -> StudioError:
    """The exception of an error response, with its type, field and hint if it has them."""
    try:
        body = json.loads(raw)
    except ValueError:
        body = None
    if not isinstance(body, dict) or not isinstance(body.get("message"), str):
        body = {"message": f"HTTP {status}: {raw[:200].decode('utf-8', 'replace')}"}
    kind = Unauthorized if status in (401, 403) else _ERRORS.get(str(body.get("type")), StudioError)
    error = kind(body["message"], field=body.get("field"), hint=body.get("hint"))
    error.type, error.http_status = str(body.get("type", error.type)), status
    return error


def _json(body: object) -> bytes:
    try:
        return json.dumps(body, allow_nan=False, default=_plain_or_fail).encode()
    except ValueError as error:
        raise InvalidInput(f"not JSON: {error}", field="body", hint="NaN and infinity have no JSON form") from error


def _plain_or_fail(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _batches(steps: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """Split steps into requests of at most ``BATCH_STEPS`` steps and ``BATCH_TOKENS`` tokens."""
    batch: list[Mapping[str, Any]] = []
    n_tokens = 0
    for step in steps:
        size = sum(len(step.get(name) or ()) for name in ("prompt_ids", "response_ids"))
        if batch and (len(batch) >= BATCH_STEPS or n_tokens + size > BATCH_TOKENS):
            yield batch
            batch, n_tokens = [], 0
        batch.append(step)
        n_tokens += size
    if batch:
        yield batch


def _is_over(connection: http.client.HTTPConnection) -> bool:
    """Whether the service has closed an idle connection; a call on it would be lost."""
    if connection.sock is None:
        return False
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))
