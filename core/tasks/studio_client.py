"""The four calls that a task runner makes to the studio, by HTTP and nothing else."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from core.errors import StudioError


class StudioCallFailed(StudioError):
    """The studio refused a call or could not be reached."""

    type = "studio_call_failed"
    http_status = 502


@dataclass(frozen=True, slots=True)
class Session:
    """A key bound to one trajectory: all that an agent needs to know of the studio."""

    api_key: str
    base_url: str
    trajectory_uid: str


@dataclass(frozen=True, slots=True)
class StudioClient:
    """Talks to a studio at ``base_url`` (``http://host:port``, without ``/v1``)."""

    base_url: str
    api_key: str | None = None
    timeout_s: float = 60.0

    def open_session(self, **fields: Any) -> Session:
        """Mint a key; fields: trajectory_uid, prompt_uid, channel, agent, metadata. None is left out."""
        answer = self._post("sessions", {key: value for key, value in fields.items() if value is not None})
        return Session(answer["api_key"], answer["base_url"], answer["trajectory_uid"])

    def complete(self, trajectory_uid: str, *, reward: float | None, outcome: str | None) -> None:
        """Close a trajectory. ``reward=None`` leaves it unscored."""
        body = {"reward": reward, "outcome": outcome}
        self._post(f"trajectories/{quote(trajectory_uid, safe='')}/complete", body)

    def report_policy(self, version: int, event: str = "registered") -> None:
        """Tell which weights sample from here on."""
        self._post("policy", {"version": version, "event": event})

    def trajectory(self, trajectory_uid: str) -> dict[str, Any]:
        """A trajectory with its steps in order."""
        return self._call("GET", f"trajectories/{quote(trajectory_uid, safe='')}", None)

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._call("POST", path, body)

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        headers = {"content-type": "application/json"}
        if self.api_key is not None:
            headers["authorization"] = f"Bearer {self.api_key}"
        request = urllib.request.Request(
            f"{self.base_url.rstrip('/')}/api/v1/{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers=headers,
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_s) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")[:500]
            raise StudioCallFailed(f"{method} {path}: {error.code} {text}") from error
        except OSError as error:
            raise StudioCallFailed(
                f"{method} {path}: {error}", hint=f"does a studio listen on {self.base_url}?"
            ) from error
