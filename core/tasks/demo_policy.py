"""The demo's policy: scripted answers instead of a language model.

The demo must run on any laptop in a second. Its policy is therefore the scripted engine (``core.serving.scripted``)
with ``demo_data/policy.json``, which this module generates. Agent, tools, files, checks and capture are real; only the
model's output is fixed. Each task has eight scripted behaviours (``WAYS``), and a rollout's seed selects one. The
rollouts of a prompt group therefore succeed, recover, fail or loop.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from core.tasks.task import Task

MODEL = "demo-1"
MAX_TURNS = 8
"""The demo agent's turn limit; the looping behaviour reaches it."""
SCRIPT_SEED = 364
"""The scripted engine selects a variant by a hash of this and the request's ``seed``. With this value, the request
seeds 0 to 7 select all eight: direct, mistaken, wrong_path, gives_up, careful, loops, mends, wrong_arguments."""
DELAY_S = 0.05
"""Delay of each answer, seconds; slow enough to see the steps arrive on the pages."""

Reply = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """The files that a rollout writes for a task: ``right`` scores 1, ``wrong`` less. ``reads`` are read before."""

    reads: tuple[str, ...]
    right: Mapping[str, str]
    wrong: Mapping[str, str]


def say(content: str, *calls: tuple[str, dict[str, str]], reasoning: str | None = None) -> Reply:
    """One reply of the script: text, then tool calls."""
    reply: Reply = {"content": content}
    if reasoning is not None:
        reply["reasoning"] = reasoning
    if calls:
        reply["tool_calls"] = [{"name": name, "arguments": arguments} for name, arguments in calls]
    return reply


def _look() -> Reply:
    return say("I'll see which files there are.", ("list_files", {}))


def _read(answer: Answer) -> list[Reply]:
    calls = [("read_file", {"path": path}) for path in answer.reads]
    return [say("Now I read what the task names.", *calls)] if calls else []


def _write(content: str, files: Mapping[str, str]) -> Reply:
    return say(content, *(("write_file", {"path": path, "content": text}) for path, text in files.items()))


def _finish(summary: str) -> Reply:
    return say("", ("finish", {"summary": summary}))


def _direct(answer: Answer) -> list[Reply]:
    return [_look(), *_read(answer), _write("I write the result.", answer.right), _finish("Done as asked.")]


def _careful(answer: Answer) -> list[Reply]:
    reads = [say(f"First {path}.", ("read_file", {"path": path})) for path in answer.reads[:2]]
    rest = [("read_file", {"path": path}) for path in answer.reads[2:]]
    written = [("read_file", {"path": path}) for path in answer.right]
    return [
        _look(),
        *reads,
        *([say("And the rest.", *rest)] if rest else []),
        _write("That is all I need. I write the result.", answer.right),
        say("I check what I wrote.", *written),
        _finish("Done, and read back to be sure."),
    ]


def _wrong_path(answer: Answer) -> list[Reply]:
    guess = (answer.reads or tuple(answer.right))[0]
    return [
        say("I open the file right away.", ("read_file", {"path": f"data/{guess}"})),
        say("That path was wrong. I list the files.", ("list_files", {})),
        *_read(answer),
        _write("Now the result.", answer.right),
        _finish("Done after one wrong path."),
    ]


def _wrong_arguments(answer: Answer) -> list[Reply]:
    target = next(iter(answer.right))
    return [
        _look(),
        *_read(answer),
        say("I write the result.", ("write_file", {"path": target})),
        _write("The content was missing. Once more.", answer.right),
        _finish("Done after one incomplete call."),
    ]


def _mends(answer: Answer) -> list[Reply]:
    return [
        _look(),
        *_read(answer),
        _write("I write the result.", answer.wrong),
        _write("Looking at it again, that is not right. I correct it.", answer.right),
        _finish("Done after a correction."),
    ]


def _mistaken(answer: Answer) -> list[Reply]:
    return [_look(), *_read(answer), _write("This should be it.", answer.wrong), _finish("Done as asked.")]


def _gives_up(answer: Answer) -> list[Reply]:
    return [
        _look(),
        *_read(answer),
        say("I am not sure what is wanted here, so I leave the files as they are."),
    ]


def _loops(answer: Answer) -> list[Reply]:
    return [_look(), *(say("I look again.", ("list_files", {})) for _ in range(MAX_TURNS - 1))]


WAYS: dict[str, Callable[[Answer], list[Reply]]] = {
    "mistaken": _mistaken,
    "mends": _mends,
    "careful": _careful,
    "wrong_arguments": _wrong_arguments,
    "loops": _loops,
    "direct": _direct,
    "gives_up": _gives_up,
    "wrong_path": _wrong_path,
}
"""The behaviours by name, in the order of the script's variants."""

SUCCESSFUL = ("direct", "wrong_path", "careful", "mends", "wrong_arguments")


def plans(task: Task) -> list[list[Reply]]:
    """The replies of every behaviour for a task, ``[n_ways][n_turns]``, in the order of ``WAYS``.

    All rollouts of the greeting task succeed, so that the demo has a group without variance.
    """
    answer = _ANSWERS[task.task_uid](task)
    if task.task_uid == "demo-write-greeting":
        names = [name if name in SUCCESSFUL else "direct" for name in WAYS]
        return [WAYS[name](answer) for name in names]
    return [way(answer) for way in WAYS.values()]


def policy_script(tasks: Sequence[Task]) -> dict[str, Any]:
    """The script for ``core.serving.scripted``: one rule per task and turn, one variant per behaviour.

    A rule matches its task by the prompt. After its last turn, a behaviour replies without a tool call, which ends the
    attempt.
    """
    over: Reply = {"content": "There is nothing left to do."}
    rules = []
    for task in tasks:
        ways = plans(task)
        for turn in range(max(map(len, ways))):
            variants = [way[turn] if turn < len(way) else over for way in ways]
            rules.append({"when": {"contains": task.prompt, "turn": turn}, "variants": variants, "delay_s": DELAY_S})
    return {"model": MODEL, "seed": SCRIPT_SEED, "rules": rules, "default": over}


def _paint(task: Task) -> Answer:
    text = task.input_files["paint.json"]
    return Answer(
        ("paint.json",),
        {"paint.json": text.replace('"colour"', '"color"')},
        {"paint.json": text.replace("colour", "color")},
    )


def _sales(task: Task) -> Answer:
    rows = [line.split(",") for line in task.input_files["sales.csv"].splitlines()[1:]]
    north = sum(round(float(amount) * 100) for _, region, amount in rows if region == "north")
    every = sum(round(float(amount) * 100) for _, _, amount in rows)
    return Answer(("sales.csv",), {"total.txt": f"{north / 100:.2f}\n"}, {"total.txt": f"{every / 100:.2f}\n"})


def _letter(task: Task) -> Answer:
    right = wrong = task.input_files["letter.md"]
    pairs = [line.split() for line in task.input_files["typos.txt"].splitlines()]
    for index, (typo, word) in enumerate(pairs):
        right = right.replace(typo, word)
        wrong = wrong.replace(typo, word) if index < 3 else wrong
    return Answer(("typos.txt", "letter.md"), {"letter.md": right}, {"letter.md": wrong})


def _index(task: Task) -> Answer:
    titles = {path: text.splitlines()[0].removeprefix("# ") for path, text in sorted(task.input_files.items())}
    return Answer(
        tuple(titles),
        {"INDEX.md": "".join(f"- [{title}]({path})\n" for path, title in titles.items())},
        {"INDEX.md": "".join(f"- {title}\n" for title in titles.values())},
    )


def _guests(task: Task) -> Answer:
    names = task.input_files["guests.txt"].split()
    right, wrong = sorted(set(names)), list(dict.fromkeys(names))
    return Answer(
        ("guests.txt",),
        {"guests_unique.txt": "\n".join(right) + "\n"},
        {"guests_unique.txt": "\n".join(wrong) + "\n"},
    )


def _stock(task: Task) -> Answer:
    cellar, attic = (json.loads(task.input_files[name]) for name in ("cellar.json", "attic.json"))
    right = {name: cellar.get(name, 0) + attic.get(name, 0) for name in sorted(cellar | attic)}
    return Answer(
        ("cellar.json", "attic.json"),
        {"stock.json": json.dumps(right) + "\n"},
        {"stock.json": json.dumps(cellar | attic) + "\n"},
    )


def _log(task: Task) -> Answer:
    lines = [line.split() for line in task.input_files["service.log"].splitlines()]
    modules = sorted({module.rstrip(":") for _, _, module, *_ in lines})
    right = {name: sum(lv == "ERROR" and mod == f"{name}:" for _, lv, mod, *_ in lines) for name in modules}
    wrong = {name: count + (index < 2) for index, (name, count) in enumerate(right.items())}
    return Answer(
        ("service.log",),
        {"errors.json": json.dumps(right) + "\n"},
        {"errors.json": json.dumps(wrong) + "\n"},
    )


def _greeting(task: Task) -> Answer:
    return Answer((), {"hello.txt": "Hello from the workspace.\n"}, {"hello.txt": "Hello\n"})


_ANSWERS: dict[str, Callable[[Task], Answer]] = {
    "demo-rename-keys": _paint,
    "demo-sum-column": _sales,
    "demo-fix-typos": _letter,
    "demo-title-index": _index,
    "demo-unique-guests": _guests,
    "demo-merge-stock": _stock,
    "demo-count-errors": _log,
    "demo-write-greeting": _greeting,
}
