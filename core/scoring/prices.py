"""Prices of models, from the price map that LiteLLM ships. LiteLLM itself is not imported."""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAP = "model_prices_and_context_window_backup.json"


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars for one token of the prompt, and for one of the answer."""

    prompt_usd: float
    response_usd: float

    def of(self, n_prompt: int | None, n_response: int | None) -> float | None:
        """Price of a call; None if a number of tokens is not known."""
        if n_prompt is None or n_response is None:
            return None
        return n_prompt * self.prompt_usd + n_response * self.response_usd


def price_of(model: str) -> Price | None:
    """The list price of a model by its name, with or without its provider; None if it is not in the map."""
    entry = _prices().get(model)
    if not isinstance(entry, Mapping):
        return None
    prompt, response = entry.get("input_cost_per_token"), entry.get("output_cost_per_token")
    if not isinstance(prompt, int | float) or not isinstance(response, int | float):
        return None
    return Price(float(prompt), float(response))


@functools.cache
def _prices() -> dict[str, Any]:
    spec = importlib.util.find_spec("litellm")
    if spec is None or spec.origin is None:
        return {}
    try:
        prices: dict[str, Any] = json.loads((Path(spec.origin).parent / MAP).read_bytes())
    except (OSError, ValueError):
        return {}
    return prices
