"""Reports as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from core.report.figures import SKIPPED

UNSCORED = ("crashed", "refused", "lost", SKIPPED)
TITLES = {"category": "By category", "agent": "By agent", "policy_version": "By policy version"}


def report_markdown(report: Mapping[str, Any]) -> str:
    """A report of ``bench.report``."""
    lines = [f"# Report of {_cell(report['run'])}", ""]
    lines += [f"- {_cell(name)}: {_cell(value)}" for name, value in report["about"].items() if value is not None]
    total = report["total"]
    lines += ["", *_summary(total, report["above"]), ""]
    for name, title in TITLES.items():
        parts = report["by"][name]
        if len(parts) > 1:
            lines += [f"## {title}", "", *_parts(parts, name), ""]
    lines += ["Intervals are 95 %, with tasks as clusters. Attempts without a score are not counted as 0 in the mean."]
    return "\n".join(lines) + "\n"


def compare_markdown(compared: Mapping[str, Any]) -> str:
    """A comparison of ``bench.compare``."""
    first, second = compared["first"], compared["second"]
    lines = [f"# {_cell(first['run'])} and {_cell(second['run'])}", ""]
    rows = [
        [title, estimate(first["total"][name]), estimate(second["total"][name])]
        for name, title in (("mean", "mean score"), ("solved", "solved"), ("mean_missing_as_zero", "missing as 0"))
    ]
    rows += [
        [f"{one['k']} of {one['k']}" if how == "all" else f"pass@{one['k']}", estimate(one[how]), estimate(other[how])]
        for one, other in zip(first["total"]["passes"], second["total"]["passes"], strict=False)
        for how in ("any", "all")
        if one["k"] == other["k"] and one["k"] > 1
    ]
    lines += [*_table(["", first["run"], second["run"]], rows), ""]
    if compared["paired"] is None:
        return "\n".join([*lines, "No task has a score in both runs."]) + "\n"
    parts = [{"name": "all", "paired": compared["paired"]}, *compared["by_category"]]
    lines += ["## Difference, task by task", ""]
    lines += _table(
        ["", "tasks", "difference", "better", "equal", "worse", "p (t-test)", "p (permutation)"],
        [_difference(part["name"], part["paired"]) for part in parts if len(parts) > 2 or part["name"] == "all"],
    )
    only = compared["n_tasks_only_first"], compared["n_tasks_only_second"]
    lines += ["", f"Tasks with a score in one run only: {only[0]} and {only[1]}. They are not compared."]
    return "\n".join(lines) + "\n"


def estimate(value: Mapping[str, Any] | None) -> str:
    """``0.512 [0.401, 0.623]``; a dash if unknown."""
    if value is None:
        return "–"
    interval = "" if value["low"] is None else f" [{value['low']:.3f}, {value['high']:.3f}]"
    return f"{value['value']:.3f}{interval}"


def _difference(name: str, one: Mapping[str, Any]) -> list[str]:
    value = one["difference"]
    counts = [str(one[word]) for word in ("better", "equal", "worse")]
    return [
        name,
        str(value["n_tasks"]),
        estimate(value),
        *counts,
        "–" if one["t_p"] is None else f"{one['t_p']:.3g}",
        f"{one['permutation_p']:.3g}",
    ]


def _summary(total: Mapping[str, Any], above: float) -> list[str]:
    unscored = ", ".join(f"{total['outcomes'][name]} {name}" for name in UNSCORED if total["outcomes"].get(name))
    wall = total["wall_s"]
    rows = [
        ["tasks, attempts, with a score", f"{total['n_tasks']}, {total['n_attempts']}, {total['n_scored']}"],
        ["outcomes", ", ".join(f"{n} {name}" for name, n in total["outcomes"].items())],
        ["without a score", unscored or "none"],
        ["mean score", estimate(total["mean"])],
        ["mean score, missing as 0", estimate(total["mean_missing_as_zero"])],
        [f"solved (score > {above:g})", estimate(total["solved"])],
        [f"tasks with a mean > {above:g}", f"{total['n_correct']} of {total['n_tasks']}"],
        *([f"pass@{one['k']}", estimate(one["any"])] for one in total["passes"] if one["k"] > 1),
        *([f"pass^{one['k']}", estimate(one["all"])] for one in total["passes"] if one["k"] > 1),
        [
            "seconds: mean, median, p90, total",
            ", ".join(_number(wall[name]) for name in ("mean", "median", "p90", "total")),
        ],
        ["processor seconds", _number(total["cpu_s"])],
        ["model calls", _number(total["n_calls"])],
        ["tokens: prompts, answers", f"{_number(total['n_prompt_tokens'])}, {_number(total['n_response_tokens'])}"],
    ]
    if total["cost_usd"] is not None:
        rows.append(["cost, US dollars", f"{total['cost_usd']:.4f}"])
    return _table(["", "value"], rows)


def _parts(parts: Sequence[Mapping[str, Any]], name: str) -> list[str]:
    k = max((one["k"] for part in parts for one in part["passes"]), default=1)
    rows = []
    for part in parts:
        most = next((one for one in part["passes"] if one["k"] == k), {"any": None, "all": None})
        numbers = [str(part["n_tasks"]), str(part["n_scored"]), estimate(part["mean"]), estimate(part["solved"])]
        rows.append(
            [part["name"], *numbers, estimate(most["any"]), estimate(most["all"]), _number(part["wall_s"]["mean"])]
        )
    header = [name.replace("_", " "), "tasks", "scored", "mean", "solved", f"pass@{k}", f"pass^{k}", "mean seconds"]
    return _table(header, rows)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(_cell(one) for one in line)} |" for line in lines]


def _cell(value: Any) -> str:
    """Text on one line that can't end a table's cell or begin markup."""
    return " ".join(str(value).split()).replace("|", "\\|").replace("<", "&lt;").replace("`", "'")


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
