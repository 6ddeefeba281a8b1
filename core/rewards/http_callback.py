"""A verifier that asks a service of the user over HTTP."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.errors import InvalidInput
from core.rewards.base import Score, Unscored, as_reward, required, seconds
from core.rewards.services import Services
from core.sandbox import readback

TIMEOUT_S = 60.0
MAX_FILES, MAX_BYTES = 1000, 16 << 20
MAX_REPLY_BYTES = 1 << 20


def verify(workspace: Path, spec: Mapping[str, Any], services: Services) -> Score:
    """The ``reward`` in the JSON reply of the callback ``spec["callback"]``, in [0, 1].

    The setting ``verifier_callbacks`` gives the address of each name. The request is ``POST`` with ``{payload, args,
    files: [{path, content_base64}], refused: {path: reason}}``; ``spec["args"]`` is passed on. Files larger than 16 MiB
    together, and links, are refused. The reply is ``{"reward": number, "details": {...}}``; ``"reward": null`` with an
    ``error`` means that it could not be verified. Redirections are not followed.
    """
    import httpx

    name = required(spec, "callback", str, "a name of the setting verifier_callbacks")
    address = services.callbacks.get(name)
    if address is None:
        known = ", ".join(sorted(services.callbacks)) or "none is set"
        raise InvalidInput(
            f"no callback {name!r}",
            field="check.callback",
            hint=f"set its address in verifier_callbacks; there: {known}",
        )
    listing = readback.listing(workspace, max_files=MAX_FILES, max_bytes=MAX_BYTES)
    files = [
        {"path": one.path, "content_base64": base64.b64encode(readback.read_bytes(workspace, one.path)).decode()}
        for one in listing.files
    ]
    body = {"payload": spec.get("payload") or {}, "args": spec.get("args"), "files": files, "refused": listing.refused}
    timeout_s = seconds(spec, TIMEOUT_S)
    try:
        with (
            httpx.Client(timeout=timeout_s, follow_redirects=False, trust_env=False) as client,
            client.stream("POST", address, json=body) as response,
        ):
            content = _bounded(response)
            status = response.status_code
    except httpx.TimeoutException:
        raise Unscored("timed_out", f"the callback {name} did not answer within {timeout_s:g} s") from None
    except httpx.HTTPError as error:
        raise Unscored("crashed", f"the callback {name} failed: {error}") from None
    if status != 200:
        raise Unscored("crashed", f"the callback {name} answered {status}: {content[:200].decode(errors='replace')}")
    try:
        reply = json.loads(content)
    except (ValueError, RecursionError):
        reply = None
    if not isinstance(reply, dict) or "reward" not in reply:
        raise Unscored("no_number", f"the callback {name} answered no JSON object with reward")
    details = reply.get("details")
    details = dict(details) if isinstance(details, dict) else {}
    if reply["reward"] is None:
        raise Unscored("crashed", f"the callback {name} could not verify: {reply.get('error') or 'no reason'}", details)
    return Score(as_reward(reply["reward"], f"the reward of the callback {name}", details), details)


def _bounded(response: Any) -> bytes:
    content = b""
    for part in response.iter_bytes():
        content += part
        if len(content) > MAX_REPLY_BYTES:
            raise Unscored("crashed", f"the callback's reply is larger than {MAX_REPLY_BYTES} bytes")
    return content
