"""What a studio has promised so far, in plain Python, and whether it holds: every reply adds to it.

What was asked and not answered may have happened or not; the next look at the studio decides which, and from then on
that holds as well.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

UNKNOWN = "unknown"
PAGE = 500
ARRIVES_WITHIN_S = 300.0
"""What is in the journal when the service starts is readable after so long."""


@dataclass
class Label:
    """A reward given to a step by a person. ``state``: on, off (undone) or unknown."""

    step_uid: str
    value: float
    action_uid: str | None = None
    state: str = UNKNOWN


@dataclass
class Promised:
    """Everything that was asked for, by kind.

    Attributes:
        calls: step uid -> question, of answered calls; by round.
        labels: in the order in which they were asked for, each about a step of its own.
        completions: trajectory -> (reward, whether it was acknowledged).
        leases: request id -> ``{batch_uid, state, trajectories}``; ``state`` is leased, acked, released, or unknown.
        versions: name -> the hash that was told, None where no reply came.
        exports: files that were told of.
    """

    calls: dict[int, dict[str, str]] = field(default_factory=dict)
    labels: list[Label] = field(default_factory=list)
    completions: dict[str, tuple[float, bool]] = field(default_factory=dict)
    leases: dict[str, dict[str, Any]] = field(default_factory=dict)
    versions: dict[str, str | None] = field(default_factory=dict)
    exports: set[str] = field(default_factory=set)
    lost: list[str] = field(default_factory=list)

    def note(self, what: str) -> None:
        """A promise that was broken."""
        self.lost.append(what)

    def check(self, http: httpx.Client, exports: Path, *, rounds: list[int], last: int) -> None:
        """Compare with the studio: calls of these rounds, and of the rest the ``last`` latest of each kind."""
        for number in rounds:
            self._check_calls(http, number)
        for label in self.labels[-last:]:
            self._check_label(http, label)
        for uid in list(self.completions)[-last:]:
            self._check_completion(http, uid)
        for request_id in list(self.leases)[-last:]:
            self._check_lease(http, request_id)
        for name in list(self.versions)[-last:]:
            self._check_version(http, name)
        self._check_leases_apart()
        self._check_exports(exports)

    def _check_calls(self, http: httpx.Client, number: int) -> None:
        wanted = self.calls.get(number, {})
        deadline = time.monotonic() + ARRIVES_WITHIN_S
        while wanted.keys() - set(stored := _steps_of_round(http, number)) and time.monotonic() < deadline:
            time.sleep(0.1)
        if len(stored) != len(set(stored)):
            self.note(f"round {number}: a step is there twice")
        for uid in wanted.keys() - set(stored):
            self.note(f"round {number}: {uid} was answered and is gone")
        for uid in sorted(wanted)[:3]:
            step = got(http, f"/api/v1/steps/{uid}")
            if step.status_code != 200:
                continue
            body = step.json()
            if body["messages"][-1]["content"] != wanted[uid]:
                self.note(f"{uid}: it was asked {wanted[uid]!r}")
            if body["token_source"] != "engine" or not body["response_ids"]:
                self.note(f"{uid}: it has lost its tokens")

    def _check_label(self, http: httpx.Client, label: Label) -> None:
        reward = ok(got(http, f"/api/v1/steps/{label.step_uid}"))["reward"]
        if reward not in (None, label.value):
            self.note(f"{label.step_uid}: reward {reward}, it was {label.value}")
        there = "off" if reward is None else "on"
        if label.state == UNKNOWN:
            label.state = there
        elif label.state != there:
            self.note(f"{label.step_uid}: its label is {there}, acknowledged was {label.state}")

    def _check_completion(self, http: httpx.Client, uid: str) -> None:
        reward, acknowledged = self.completions[uid]
        trajectory = ok(got(http, f"/api/v1/trajectories/{uid}"))
        if trajectory["complete"] != acknowledged:
            if acknowledged:
                self.note(f"{uid}: it was completed and is open")
            elif trajectory["complete"]:
                self.completions[uid] = (reward, True)
        if trajectory["complete"] and trajectory["reward"] != reward:
            self.note(f"{uid}: completed with {reward}, it says {trajectory['reward']}")

    def _check_lease(self, http: httpx.Client, request_id: str) -> None:
        lease = self.leases[request_id]
        if lease["batch_uid"] is None:
            return
        answer = got(http, f"/api/v1/batches/{lease['batch_uid']}")
        if answer.status_code != 200:
            self.note(f"batch {lease['batch_uid']} is gone ({answer.status_code})")
            return
        state = answer.json()["state"]
        if lease["state"] == UNKNOWN:
            lease["state"] = state
        elif lease["state"] != state:
            self.note(f"batch {lease['batch_uid']} is {state}, acknowledged was {lease['state']}")

    def _check_leases_apart(self) -> None:
        seen: dict[str, str] = {}
        for request_id, lease in self.leases.items():
            if lease["state"] not in ("leased", "acked"):
                continue
            for uid in lease["trajectories"]:
                if uid in seen:
                    self.note(f"{uid} was handed out to {seen[uid]} and {request_id}")
                seen[uid] = request_id

    def _check_version(self, http: httpx.Client, name: str) -> None:
        answer = got(http, f"/api/v1/datasets/{name}")
        promised = self.versions[name]
        if answer.status_code == 404 and promised is None:
            del self.versions[name]
            return
        if answer.status_code != 200:
            self.note(f"version {name} is gone ({answer.status_code})")
            return
        if promised is not None and answer.json()["content_hash"] != promised:
            self.note(f"version {name} is another than was frozen")
        self.versions[name] = answer.json()["content_hash"]
        if not ok(got(http, f"/api/v1/datasets/{name}/verify"))["intact"]:
            self.note(f"version {name} is not intact")

    def _check_exports(self, folder: Path) -> None:
        for path in self.exports - {str(one) for one in folder.glob("*")}:
            self.note(f"export {path} is gone")
        for path in folder.glob("*.jsonl"):
            lines = path.read_text(encoding="utf-8").splitlines()
            try:
                rows = [json.loads(line) for line in lines]
            except ValueError:
                self.note(f"export {path} ends in the middle")
                continue
            manifest = path.with_name(path.name + ".manifest.json")
            if manifest.exists():
                details = json.loads(manifest.read_text(encoding="utf-8"))
                if details["sha256"] != hashlib.sha256(path.read_bytes()).hexdigest() or details["n_rows"] != len(rows):
                    self.note(f"export {path} is not what its manifest says")
            elif str(path) in self.exports:
                self.note(f"export {path} has lost its manifest")


def _steps_of_round(http: httpx.Client, number: int) -> list[str]:
    """Their uids, as the pages of the list have them."""
    uids: list[str] = []
    cursor: str | None = None
    while True:
        query = {"limit": str(PAGE), "prompt_uid": f"round-{number}", **({"cursor": cursor} if cursor else {})}
        page = ok(got(http, "/api/v1/steps", query))
        uids += [step["step_uid"] for step in page["steps"]]
        cursor = page["next_cursor"]
        if cursor is None:
            return uids


def got(http: httpx.Client, path: str, query: dict[str, str] | None = None) -> httpx.Response:
    """The answer; a transport's error where a gateway process says that its owner is gone."""
    answer = http.get(path, params=query)
    if answer.status_code == 503 and answer.json()["type"] == "owner_away":
        raise httpx.ConnectError("the owner is away", request=answer.request)
    return answer


def ok(answer: httpx.Response) -> Any:
    """The answer's JSON."""
    assert answer.status_code == 200, f"{answer.request.method} {answer.request.url}: {answer.text[:500]}"
    return answer.json()
