"""The demo's tasks: eight small file tasks, each with a verifier."""

from __future__ import annotations

import json
import random

from core.tasks.task import Task

_MODULES = ("intake", "router", "storage", "mailer", "search")
_LEVELS = ("INFO", "INFO", "INFO", "DEBUG", "WARN", "ERROR")
_NORMAL = ("job accepted", "job done", "queue drained", "cache warm", "lease renewed")
_TROUBLE = ("no answer from peer", "checksum differs", "disk is slow", "retry gave up")


def demo_tasks(seed: int = 0) -> list[Task]:
    """The tasks in a fixed order. ``seed`` determines the numbers in the tables and the log."""
    return [
        _rename_keys(),
        _sum_column(random.Random(f"{seed}/sales")),
        _fix_typos(),
        _title_index(),
        _unique_guests(),
        _merge_stock(),
        _count_errors(random.Random(f"{seed}/log")),
        _write_greeting(),
    ]


def _rename_keys() -> Task:
    before = {
        "colour": "teal",
        "size": 4,
        "items": [{"colour": "red", "qty": 2}, {"colour": "sand", "qty": 7}],
        "note": "the colour of the door stays",
    }
    after = {
        "color": "teal",
        "size": 4,
        "items": [{"color": "red", "qty": 2}, {"color": "sand", "qty": 7}],
        "note": "the colour of the door stays",
    }
    return Task(
        "demo-rename-keys",
        'In paint.json, rename every key "colour" to "color". Leave all values as they are.',
        {"paint.json": json.dumps(before, indent=2) + "\n"},
        {"verifier": "json_equals", "path": "paint.json", "expected": after},
    )


def _sum_column(draw: random.Random) -> Task:
    regions = ("north", "south", "east", "west")
    rows = [f"{day},{draw.choice(regions)},{draw.randrange(500, 9000) / 100:.2f}" for day in range(1, 41)]
    table = "day,region,amount\n" + "\n".join(rows) + "\n"
    return Task(
        "demo-sum-column",
        "Sum the column amount of sales.csv over the rows of region north. "
        "Write the number alone, with two decimals, to total.txt.",
        {"sales.csv": table},
        {
            "verifier": "csv_sum",
            "csv_text": table,
            "column": "amount",
            "where": {"region": "north"},
            "path": "total.txt",
        },
    )


def _fix_typos() -> Task:
    letter = (
        "Dear neighbours,\n\nwe recieve the seeds on Tuesday and will seperate them by colour.\n"
        "Please adress questions to the gardner. The old shed is definately too small.\n"
    )
    return Task(
        "demo-fix-typos",
        "typos.txt lists misspelled words with their right form, one pair per line. Correct letter.md by it.",
        {
            "letter.md": letter,
            "typos.txt": "recieve receive\nseperate separate\nadress address\ngardner gardener\n"
            "definately definitely\n",
        },
        {
            "verifier": "file_contains",
            "path": "letter.md",
            "contains": ["receive", "separate", "address", "gardener", "definitely"],
            "lacks": ["recieve", "seperate", "adress", "gardner", "definately"],
        },
    )


def _title_index() -> Task:
    notes = {
        "notes/boat.md": "# Care of the boat\n\nDry the hull before winter. Grease the winch.\n",
        "notes/bread.md": "# Bread for Sunday\n\nStart the dough on Friday night.\n",
        "notes/clock.md": "# The kitchen clock\n\nIt gains two minutes in a week.\n",
        "notes/door.md": "# A door that sticks\n\nPlane the lower edge, then oil it.\n",
    }
    lines = [f"- [{text.splitlines()[0][2:]}]({path})" for path, text in notes.items()]
    return Task(
        "demo-title-index",
        "Write INDEX.md: for each markdown file in notes, in order of path, one line "
        "`- [title](path)`, where title is the text of its first heading.",
        notes,
        {"verifier": "lines_equal", "path": "INDEX.md", "expected": lines},
    )


def _unique_guests() -> Task:
    names = ["Marta", "Ivo", "Lene", "Ivo", "Adam", "Suri", "Marta", "Noor", "Lene", "Ivo"]
    return Task(
        "demo-unique-guests",
        "guests.txt has names that occur more than once. Write every name once, in alphabetical order, "
        "one per line, to guests_unique.txt.",
        {"guests.txt": "\n".join(names) + "\n"},
        {"verifier": "lines_equal", "path": "guests_unique.txt", "expected": sorted(set(names))},
    )


def _merge_stock() -> Task:
    cellar, attic = {"jars": 12, "candles": 3, "rope": 1}, {"candles": 5, "blankets": 4, "jars": 1}
    total = {name: cellar.get(name, 0) + attic.get(name, 0) for name in sorted(cellar | attic)}
    return Task(
        "demo-merge-stock",
        "cellar.json and attic.json count things. Write stock.json with the sum for every thing.",
        {"cellar.json": json.dumps(cellar) + "\n", "attic.json": json.dumps(attic) + "\n"},
        {"verifier": "json_equals", "path": "stock.json", "expected": total, "partial": True},
    )


def _count_errors(draw: random.Random) -> Task:
    lines, counts = [], dict.fromkeys(_MODULES, 0)
    for second in range(160):
        module, level = draw.choice(_MODULES), draw.choice(_LEVELS)
        text = draw.choice(_TROUBLE if level in {"WARN", "ERROR"} else _NORMAL)
        counts[module] += level == "ERROR"
        lines.append(f"08:{second // 60:02d}:{second % 60:02d} {level:5} {module}: {text}")
    return Task(
        "demo-count-errors",
        "Count the lines of level ERROR in service.log for every module. "
        "Write errors.json: an object from module to count, for all modules that occur in the log.",
        {"service.log": "\n".join(lines) + "\n"},
        {"verifier": "json_equals", "path": "errors.json", "expected": counts, "partial": True},
    )


def _write_greeting() -> Task:
    return Task(
        "demo-write-greeting",
        "Write hello.txt with one line: Hello from the workspace.",
        {},
        {"verifier": "lines_equal", "path": "hello.txt", "expected": ["Hello from the workspace."]},
    )
