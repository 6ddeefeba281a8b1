"""A verifier that asks a person for a label."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.rewards.base import Score, Unscored
from core.rewards.services import Services


def verify(workspace: Path, spec: Mapping[str, Any], services: Services) -> Score:
    """Request a label; the attempt stays unscored until a person gives one, which is a reward of the source ``human``.

    ``spec["question"]`` is what the person is asked. ``spec["payload"]["metadata"]`` names the attempt.

    Raises:
        Unscored: always; ``missing`` while the label is not there, ``refused`` where nobody can be asked.
    """
    if services.ask is None:
        raise Unscored("refused", "nobody can be asked here for a label")
    services.ask({"question": spec.get("question"), "metadata": (spec.get("payload") or {}).get("metadata") or {}})
    raise Unscored("missing", "a person has not labelled it yet")
