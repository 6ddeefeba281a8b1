"""The two routes: their stages in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from core.errors import InvalidInput
from core.synthesis.draft import Draft
from core.synthesis.settings import PERSONA, SKILL
from core.synthesis.stages import persona, skill
from core.synthesis.stages.base import Products, Stage
from core.synthesis.stages.checker import CHECKER, checking
from core.synthesis.stages.shared import DEDUP, JUDGE, RUBRICS, judging, novelty, rubric


@dataclass(frozen=True)
class Route:
    """A route.

    Attributes:
        stages: in order.
        sample, task: the stages that choose what a task is about, and that write it.
        draft: reads a task from their products.
    """

    stages: tuple[Stage, ...]
    sample: str
    task: str
    draft: Callable[[Products], Draft]

    def stage(self, name: str) -> Stage:
        """A stage by its name.

        Raises:
            InvalidInput: the route has no such stage.
        """
        for one in self.stages:
            if one.name == name:
                return one
        names = ", ".join(one.name for one in self.stages)
        raise InvalidInput(f"there is no stage {name!r}", field="stage", hint=names)


def _persona() -> Route:
    shows = (persona.SAMPLE, persona.TASKS)
    return Route(
        (
            Stage(persona.SAMPLE, "sample category, persona and operations", make_all=persona.sample),
            Stage(persona.TASKS, "write the task", (persona.SAMPLE,), (persona.SAMPLE,), ("task",), persona.write_task),
            Stage(
                DEDUP, "remove near-duplicates", shows, make_all=novelty(persona.SAMPLE, persona.TASKS, persona.draft)
            ),
            Stage(JUDGE, "judge the task", (*shows, DEDUP), shows, ("task_judge",), judging(persona.draft)),
            Stage(
                CHECKER,
                "write a checker that holds",
                (*shows, DEDUP, JUDGE),
                shows,
                ("solution", "checker"),
                checking(persona.draft),
            ),
            Stage(
                RUBRICS,
                "write a rubric",
                (*shows, DEDUP, JUDGE, CHECKER),
                (*shows, CHECKER),
                ("rubric",),
                rubric(persona.draft),
            ),
        ),
        persona.SAMPLE,
        persona.TASKS,
        persona.draft,
    )


def _skill() -> Route:
    shows = (skill.COMPOSE, skill.SYNTHESIZE)
    return Route(
        (
            Stage(skill.SKILLS, "read skill folders", make_all=skill.read),
            Stage(
                skill.ANNOTATE,
                "annotate skills",
                (skill.SKILLS,),
                (skill.SKILLS,),
                ("skill_annotation",),
                skill.annotate,
            ),
            Stage(skill.COMPOSE, "combine skills", make_all=skill.compose),
            Stage(
                skill.SYNTHESIZE,
                "write the task",
                (skill.COMPOSE,),
                (skill.COMPOSE,),
                ("skill_task",),
                skill.write_task,
            ),
            Stage(
                DEDUP, "remove near-duplicates", shows, make_all=novelty(skill.COMPOSE, skill.SYNTHESIZE, skill.draft)
            ),
            Stage(JUDGE, "judge the task", (*shows, DEDUP), shows, ("task_judge",), judging(skill.draft)),
            Stage(
                CHECKER,
                "write a checker that holds",
                (*shows, DEDUP, JUDGE),
                shows,
                ("solution", "checker"),
                checking(skill.draft),
            ),
            Stage(
                RUBRICS,
                "write a rubric",
                (*shows, DEDUP, JUDGE, CHECKER),
                (*shows, CHECKER),
                ("rubric",),
                rubric(skill.draft),
            ),
        ),
        skill.COMPOSE,
        skill.SYNTHESIZE,
        skill.draft,
    )


ROUTE: Mapping[str, Callable[[], Route]] = {PERSONA: _persona, SKILL: _skill}


def route_of(name: str) -> Route:
    """The route of this name."""
    return ROUTE[name]()
