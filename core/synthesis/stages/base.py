"""What a stage is: a function of one row, or of all rows at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from core.synthesis.settings import SynthesisSettings
from core.synthesis.state import State
from core.synthesis.vectors import Vectors

Product = Mapping[str, Any]
Products = Mapping[str, Product]
"""Name of an earlier stage -> its product for the same row."""
Ask = Callable[[str, str, Mapping[str, str]], str]
"""``ask(role, prompt, values)``: the text of an answer; see ``core.synthesis.asking``."""


@dataclass(frozen=True)
class Work:
    """What a stage has at hand for one row.

    Attributes:
        settings: of the run.
        key: of the row.
        ask: asks a model.
        should_stop: raises if the run stops.
    """

    settings: SynthesisSettings
    key: str
    ask: Ask
    should_stop: Callable[[], None]


MakeRow = Callable[[Work, Products], Product]
"""Makes the product of one row; raises ``Failed``."""
Result = tuple[Product | None, str | None]
"""A product, and the reason why the row fails, or None."""
MakeAll = Callable[[SynthesisSettings, State, Vectors], Mapping[str, Result]]
"""Makes all rows of a stage from the state of the run; the last argument makes vectors of texts."""


@dataclass(frozen=True)
class Stage:
    """One stage of a route; it has either ``make`` or ``make_all``.

    Attributes:
        name: ClawGym's name of the stage.
        title: what it does.
        needs: earlier stages that a row must pass.
        shows: of these, the stages whose products ``make`` gets. A row is made again when one of them changes.
        prompts: (prompt, most answers for a row).
        make: makes one row.
        make_all: makes all rows, without prompts; it is run again whenever the run goes on.
    """

    name: str
    title: str
    needs: tuple[str, ...] = ()
    shows: tuple[str, ...] = ()
    prompts: tuple[str, ...] = ()
    make: MakeRow | None = None
    make_all: MakeAll | None = None
