"""What a run of the synthesis does: fixed when it is created, and the same when it is resumed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from core.errors import InvalidInput
from core.sandbox import Level, parse_level
from core.synthesis.seeds import demo_folder

PERSONA, SKILL = "persona", "skill"
ROUTES = {
    PERSONA: "category × persona × operations → task → novelty → judge → checker → rubric",
    SKILL: "skill folders → annotation → combination → task → novelty → judge → checker → rubric",
}
UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class SynthesisSettings:
    """Settings of a run.

    Attributes:
        run: uid of the run, also the name of its folder.
        route: a key of ``ROUTES``.
        model: name of the model that writes tasks and checkers.
        n_tasks: tasks to begin; fewer reach the pack.
        created_at: seconds since the epoch.
        judge_model: model of the judge; empty: ``model``.
        solver_model: model that writes reference solutions; empty: ``model``.
        embedding_model: model whose embeddings are compared for novelty; empty: TF-IDF of words.
        seeds: folder with personas.json, categories.json, operations.json.
        skills: folder of skill folders, for the skill route.
        seed: seed of the sampling of categories, personas, operations and skills.
        workers: rows at a time.
        n_operations: operations of a task, persona route.
        n_supporting: supporting skills of a task, skill route.
        temperature: of sampling; None leaves it to the engine.
        max_tokens: longest answer.
        timeout_s: of one call, seconds.
        max_calls, max_total_tokens, max_usd: budget of the run over all its resumptions; None: no limit. Tokens that an
            engine does not report do not count.
        novelty: a task whose cosine similarity to an earlier one of its category is at least this is removed.
        repair_rounds: further answers for a checker or a solution that fails.
        n_runs: how often a checker scores the reference solution, to find scores that change.
        n_mutants: most mutants of the reference solution.
        min_mutation_score: lowest share of mutants that must score below the solution.
        min_difficulty: lowest difficulty of a task, 1 to 5; 0: any.
        check_time_s: limit of one run of a checker or a solution, seconds.
        isolation: the lowest level of isolation of the sandboxes.
    """

    run: str
    route: str
    model: str
    n_tasks: int
    created_at: float
    judge_model: str = ""
    solver_model: str = ""
    embedding_model: str = ""
    seeds: str = ""
    skills: str = ""
    seed: int = 0
    workers: int = 4
    n_operations: int = 3
    n_supporting: int = 1
    temperature: float | None = None
    max_tokens: int = 8192
    timeout_s: float = 300.0
    max_calls: int | None = None
    max_total_tokens: int | None = None
    max_usd: float | None = None
    novelty: float = 0.90
    repair_rounds: int = 3
    n_runs: int = 10
    n_mutants: int = 8
    min_mutation_score: float = 0.5
    min_difficulty: int = 0
    check_time_s: float = 60.0
    isolation: Level = "process"

    def __post_init__(self) -> None:
        if not UID.fullmatch(self.run):
            raise InvalidInput(
                f"{self.run!r} is no name of a run",
                field="run",
                hint="1 to 100 letters, digits, dots, underscores and hyphens",
            )
        if self.route not in ROUTES:
            raise InvalidInput(f"there is no route {self.route!r}", field="route", hint=", ".join(ROUTES))
        if not self.model.strip():
            raise InvalidInput("no model is named", field="model", hint="a model that an engine serves")
        if self.route == SKILL and not self.skills:
            raise InvalidInput("the skill route needs skills", field="skills", hint="a folder of skill folders")
        for name in ("seeds", "skills"):
            if "\0" in getattr(self, name):
                raise InvalidInput(f"{name} has a NUL character", field=name, hint="the path of a folder")
        whole = {"n_tasks": 1, "workers": 1, "max_tokens": 1, "n_operations": 1, "n_runs": 1, "n_mutants": 1}
        for name, low in {**whole, "n_supporting": 0, "repair_rounds": 0, "min_difficulty": 0}.items():
            if getattr(self, name) < low:
                raise InvalidInput(f"{name} is {getattr(self, name)}", field=name, hint=f"at least {low}")
        for name in ("novelty", "min_mutation_score"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidInput(f"{name} is {getattr(self, name)}", field=name, hint="from 0 to 1")
        for name in ("timeout_s", "check_time_s", "max_calls", "max_total_tokens", "max_usd"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InvalidInput(f"{name} is {value}", field=name, hint="above 0")
        parse_level(self.isolation)

    def model_of(self, role: str) -> str:
        """The model for a role: ``judge``, ``solver`` or any other."""
        return {"judge": self.judge_model, "solver": self.solver_model}.get(role) or self.model

    @property
    def seeds_folder(self) -> Path:
        """The folder of the seed lists: ``seeds``, or the shipped ones."""
        return Path(self.seeds) if self.seeds else demo_folder()

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON values."""
        return asdict(self)


FIELDS = frozenset(one.name for one in fields(SynthesisSettings))


def parse_settings(data: Mapping[str, Any]) -> SynthesisSettings:
    """Settings from ``SynthesisSettings.to_json``.

    Raises:
        InvalidInput: a field is missing or invalid.
    """
    try:
        return SynthesisSettings(**{name: value for name, value in data.items() if name in FIELDS})
    except TypeError as error:
        raise InvalidInput(f"the settings of a run are incomplete: {error}", field="run") from error
