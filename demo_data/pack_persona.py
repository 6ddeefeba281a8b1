"""The demo pack's tasks of the persona route: someone's everyday work with a few files."""

from __future__ import annotations

import random
from datetime import date, timedelta

from pack_base import PATHS, Made, as_csv, as_json, rule

PEOPLE = ("Ana", "Bram", "Chidi", "Dewi", "Elif", "Farid", "Greta", "Hugo", "Ines", "Jonas")
CLUBS = ("rowing club", "repair café", "community choir", "chess circle")
SERVICES = ("intake", "router", "storage", "mailer", "search")
TROUBLE = ("no answer from peer", "checksum differs", "disk is slow", "retry gave up")
REGIONS = ("north", "south", "east", "west")


def meeting(draw: random.Random, n: int) -> Made:
    """Choose a meeting time from answers, and invite."""
    club, start = CLUBS[n % len(CLUBS)], date(2026, 3, 2) + timedelta(days=draw.randrange(20))
    slots = [f"{start + timedelta(days=k)} {draw.choice(('18:00', '18:30', '19:00'))}" for k in (0, 1, 3)]
    people = draw.sample(PEOPLE, 8)
    answers = {one: [draw.choice(("yes", "yes", "maybe", "no")) for _ in slots] for one in people}
    counts = [
        [sum(row[k] == word for row in answers.values()) for word in ("yes", "maybe", "no")] for k in range(len(slots))
    ]
    scores = [yes + 0.5 * maybe for yes, maybe, _ in counts]
    best = min(range(len(slots)), key=lambda k: (-scores[k], slots[k]))
    room = draw.choice(("Room 2", "the boat house", "the library annex"))
    choice = {"slot": slots[best], "score": scores[best], "room": room}
    invite = (
        f"Hello everyone,\n\nour {club} meets on {slots[best]} in {room}. We will plan the spring programme.\n"
        "Please tell us by the day before whether you will be there.\n\nSee you soon\n"
    )
    table = [["slot", "yes", "maybe", "no"], *([slots[k], *counts[k]] for k in range(len(slots)))]
    return Made(
        "meeting",
        "Productivity & Collaboration",
        f"I organise the {club} and have to fix our next meeting. input/answers.csv has one row a person and one "
        f"column "
        "a slot. A slot's score is the number of yes plus half the number of maybe. Write output/slots.csv with the "
        "columns slot,yes,maybe,no: one row a slot, in the order of the input's columns. Write output/choice.json with "
        'the keys "slot" (the slot with the highest score; the earlier one if two are equal), "score" and "room" '
        "(it is "
        "in input/room.txt). Then write output/invite.txt, at most 80 words: name the slot exactly as in the CSV and "
        f"the room, say that we plan the spring programme, and ask for an answer. {PATHS}",
        {
            "input/answers.csv": as_csv([["name", *slots], *([one, *row] for one, row in answers.items())]),
            "input/room.txt": f"{room}\n",
        },
        {"output/slots.csv": as_csv(table), "output/choice.json": as_json(choice), "output/invite.txt": invite},
        {
            "slots_counted": ("csv_rows", {"path": "output/slots.csv", "rows": [list(map(str, row)) for row in table]}),
            "slot_chosen": ("json_value", {"path": "output/choice.json", "key": "slot", "expected": slots[best]}),
            "score_right": ("json_value", {"path": "output/choice.json", "key": "score", "expected": scores[best]}),
            "room_named": ("json_value", {"path": "output/choice.json", "key": "room", "expected": room}),
            "invite_names_all": (
                "contains",
                {"path": "output/invite.txt", "phrases": [slots[best], room, "spring programme"]},
            ),
            "invite_short": ("at_most_words", {"path": "output/invite.txt", "n": 80}),
        },
        (
            rule(
                "tone of the invitation",
                "output/invite.txt",
                {
                    0: "is missing, or is not an invitation",
                    0.5: "invites, but is stiff, or does not ask for an answer",
                    1: "is friendly, brief and asks for an answer",
                },
            ),
        ),
    )


def triage(draw: random.Random, n: int) -> Made:
    """Count the errors of a log by service."""
    start, rows = 8 * 3600, []
    for _ in range(60 + 5 * n):
        start += draw.randrange(5, 240)
        level = draw.choice(("INFO", "INFO", "DEBUG", "WARN", "ERROR"))
        text = draw.choice(TROUBLE) if level in {"WARN", "ERROR"} else draw.choice(("job done", "cache warm"))
        rows.append((f"{start // 3600:02}:{start // 60 % 60:02}:{start % 60:02}", level, draw.choice(SERVICES), text))
    errors = [row for row in rows if row[1] == "ERROR"]
    counts = {name: sum(row[2] == name for row in errors) for name in sorted({row[2] for row in errors})}
    first = {name: next(row[0] for row in errors if row[2] == name) for name in counts}
    ranked = sorted(counts, key=lambda name: (-counts[name], name))
    report = {name: {"errors": counts[name], "first": first[name]} for name in counts}
    log = "".join(f"{at} {level:5} [{service}] {text}\n" for at, level, service, text in rows)
    return Made(
        "log triage",
        "Systems & Automation",
        "I am on call tonight and need an overview of logs/app.log. A line is: time, level, [service], message. Write "
        'output/errors.json: for each service with lines of level ERROR an object with "errors" (their number) and '
        '"first" (the time of the first one). Warnings do not count. Write output/ranking.txt: the names of those '
        "services, one a line, most errors first, equal ones by name. Leave the log as it is. "
        f"{PATHS}",
        {"logs/app.log": log},
        {"output/errors.json": as_json(report), "output/ranking.txt": "".join(f"{name}\n" for name in ranked)},
        {
            "errors_right": ("json_value", {"path": "output/errors.json", "expected": report}),
            "ranking_right": ("lines", {"path": "output/ranking.txt", "expected": ranked}),
            "log_unchanged": ("unchanged", {"path": "logs/app.log", "text": log, "produced": "output/errors.json"}),
        },
    )


def sales(draw: random.Random, n: int) -> Made:
    """Totals of a table with returns."""
    rows = []
    for k in range(40 + 4 * n):
        cents = draw.randrange(500, 40_000)
        rows.append(
            (f"2026-{1 + k % 4:02}-{draw.randrange(1, 28):02}", draw.choice(REGIONS), cents, draw.random() < 0.15)
        )
    draw.shuffle(rows)
    signed = [(day, region, -cents if back else cents) for day, region, cents, back in rows]
    by_region = {one: sum(c for _, region, c in signed if region == one) / 100 for one in sorted(REGIONS)}
    by_month = {m: sum(c for day, _, c in signed if day[:7] == m) / 100 for m in sorted({row[0][:7] for row in rows})}
    best = max(by_month, key=lambda month: by_month[month])
    summary = {"by_region": by_region, "best_month": best, "total": sum(c for *_, c in signed) / 100}
    table = [["date", "region", "amount", "kind"]]
    table += [[day, region, f"{cents / 100:.2f}", "return" if back else "sale"] for day, region, cents, back in rows]
    return Made(
        "sales",
        "Analysis & Reasoning",
        "I run a small shop and close the books. data/sales.csv has the columns date, region, amount, kind. A "
        "return counts "
        'against the sales. Write output/summary.json with the keys "by_region" (region -> net amount), '
        '"best_month" (the '
        'month YYYY-MM with the highest net amount) and "total" (net amount of all rows); two decimals. Also write '
        "output/returns.txt: the number of returns, and nothing else. "
        f"{PATHS}",
        {"data/sales.csv": as_csv(table)},
        {"output/summary.json": as_json(summary), "output/returns.txt": f"{sum(back for *_, back in rows)}\n"},
        {
            "by_region": (
                "json_value",
                {"path": "output/summary.json", "key": "by_region", "expected": by_region, "tolerance": 0.006},
            ),
            "best_month": ("json_value", {"path": "output/summary.json", "key": "best_month", "expected": best}),
            "total": (
                "json_value",
                {"path": "output/summary.json", "key": "total", "expected": summary["total"], "tolerance": 0.006},
            ),
            "returns": ("lines", {"path": "output/returns.txt", "expected": [str(sum(back for *_, back in rows))]}),
        },
    )


TOPICS = (
    ("tea", ("harvest", "withering", "oxidation", "drying", "grading")),
    ("bees", ("queen", "workers", "drones", "comb", "swarm")),
    ("bridges", ("beam", "arch", "truss", "cable", "deck")),
    ("maps", ("scale", "legend", "contour", "projection", "grid")),
)


def index(draw: random.Random, n: int) -> Made:
    """Index the headings of notes, and summarise them."""
    topic, words = TOPICS[n % len(TOPICS)]
    lines, found = [f"# Notes on {topic}", ""], []
    for word in draw.sample(words, len(words)):
        lines += [f"## {word.capitalize()}", "", f"{word.capitalize()} is part {draw.randrange(2, 9)} of the talk."]
        found.append((word.capitalize(), len(lines) - 2))
        lines += ["TODO: check the source."] if draw.random() < 0.5 else []
        lines += [""]
    n_todo = sum(line.startswith("TODO") for line in lines)
    rows = [f"- {title}, line {at}" for title, at in sorted(found)]
    body = f"# Index\n\n{chr(10).join(rows)}\n\nOpen points: {n_todo}\n"
    summary = f"The notes on {topic} treat {', '.join(title.lower() for title, _ in sorted(found))}.\n"
    return Made(
        "index",
        "Content & Domain",
        f"I prepare a talk about {topic}; my notes are in notes/{topic}.md. Write output/index.md: the title line "
        '"# Index", then for each heading of level 2 a line "- HEADING, line N" with its line number in the notes, '
        'sorted by heading, and at the end the line "Open points: N" with the number of lines that begin with TODO. '
        f"Then write output/summary.txt, at most 40 words, that names every heading of level 2. {PATHS}",
        {f"notes/{topic}.md": "\n".join(lines) + "\n"},
        {"output/index.md": body, "output/summary.txt": summary},
        {
            "index_right": (
                "lines",
                {"path": "output/index.md", "expected": ["# Index", *rows, f"Open points: {n_todo}"]},
            ),
            "summary_names_all": (
                "contains",
                {"path": "output/summary.txt", "phrases": [title for title, _ in found]},
            ),
            "summary_short": ("at_most_words", {"path": "output/summary.txt", "n": 40}),
        },
        (
            rule(
                "readable summary",
                "output/summary.txt",
                {
                    0: "is missing, or is a bare list of words",
                    0.5: "is in sentences, but unclear",
                    1: "is one or two clear sentences",
                },
            ),
        ),
    )


def plan(draw: random.Random, n: int) -> Made:
    """Earliest dates of tasks that depend on each other."""
    names = ("survey", "design", "permits", "order", "build", "paint", "inspect", "open")
    days = {name: draw.randrange(1, 6 + n % 3) for name in names}
    needs = {name: sorted(draw.sample(names[:k], min(k, draw.randrange(1, 3)))) for k, name in enumerate(names)}
    start: dict[str, int] = {}
    for name in names:
        start[name] = max((start[one] + days[one] for one in needs[name]), default=0)
    end = max(start[name] + days[name] for name in names)
    rows = [[name, start[name], start[name] + days[name]] for name in sorted(names, key=lambda one: (start[one], one))]
    jobs = [{"name": name, "days": days[name], "needs": needs[name]} for name in draw.sample(names, len(names))]
    return Made(
        "schedule",
        "Planning & Knowledge",
        'I plan the renovation of a small hall. plan/jobs.json lists jobs with "name", "days" and "needs": the '
        "jobs that "
        "must be finished before. Work starts on day 0, and any number of jobs may run at once. Write "
        "output/schedule.csv "
        "with the columns job,start,end: the earliest start of each job and its start plus its days, sorted by "
        "start, then "
        f"by name. Write output/days.txt with the day on which all is done. {PATHS}",
        {"plan/jobs.json": as_json(jobs)},
        {"output/schedule.csv": as_csv([["job", "start", "end"], *rows]), "output/days.txt": f"{end}\n"},
        {
            "schedule_right": (
                "csv_rows",
                {
                    "path": "output/schedule.csv",
                    "rows": [["job", "start", "end"], *([str(cell) for cell in row] for row in rows)],
                },
            ),
            "days_right": ("lines", {"path": "output/days.txt", "expected": [str(end)]}),
        },
    )


BUGS: tuple[tuple[str, str, str, str, list[tuple[list[object], object]]], ...] = (
    (
        "median",
        "the middle value; of an even number of values the mean of the two in the middle",
        "def median(values):\n    ordered = sorted(values)\n    return ordered[len(ordered) // 2]\n",
        "def median(values):\n    ordered = sorted(values)\n    half = len(ordered) // 2\n"
        "    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2\n",
        [([[3, 1, 2]], 2), ([[4, 1, 3, 2]], 2.5), ([[7]], 7), ([[1, 9]], 5)],
    ),
    (
        "chunks",
        "the list cut into parts of the given size; the last part may be shorter, and nothing is lost",
        "def chunks(items, size):\n    return [items[k : k + size] for k in range(0, len(items) - size + 1, size)]\n",
        "def chunks(items, size):\n    return [items[k : k + size] for k in range(0, len(items), size)]\n",
        [([[1, 2, 3, 4], 2], [[1, 2], [3, 4]]), ([[1, 2, 3], 2], [[1, 2], [3]]), ([[], 3], []), ([[1], 4], [[1]])],
    ),
    (
        "slug",
        "the words of a title in lower case with single hyphens between them; other characters than letters and digits "
        "separate words",
        "def slug(title):\n    return title.lower().replace(' ', '-')\n",
        "import re\n\n\ndef slug(title):\n    return '-'.join(re.findall(r'[a-z0-9]+', title.lower()))\n",
        [(["Two  Words"], "two-words"), (["a, b & c"], "a-b-c"), ([" x "], "x"), (["One"], "one")],
    ),
    (
        "overlap",
        "how many days two ranges [first, last] share, both ends counted; 0 if they share none",
        "def overlap(a, b):\n    return min(a[1], b[1]) - max(a[0], b[0])\n",
        "def overlap(a, b):\n    return max(0, min(a[1], b[1]) - max(a[0], b[0]) + 1)\n",
        [([[1, 5], [4, 9]], 2), ([[1, 2], [5, 6]], 0), ([[1, 3], [3, 4]], 1), ([[2, 2], [1, 9]], 1)],
    ),
)


def bug(draw: random.Random, n: int) -> Made:
    """Mend a function."""
    name, meaning, wrong, right, cases = BUGS[n % len(BUGS)]
    note = f"{name}: did not give {meaning}"
    return Made(
        "bug fix",
        "Software Development",
        f"I maintain a small library. The function {name} in src/{name}.py should give {meaning}. It sometimes "
        f"does not. "
        f"Mend it in place, keep its name and arguments, and write CHANGES.txt with one line that begins with "
        f'"{name}: " '
        f"and says what was wrong. {PATHS}",
        {f"src/{name}.py": wrong, "README.txt": f"A library with one function, {name}.\n"},
        {f"src/{name}.py": right, "CHANGES.txt": f"{note}\n"},
        {
            "function_right": ("calls", {"path": f"src/{name}.py", "function": name, "cases": cases}),
            "change_noted": ("contains", {"path": "CHANGES.txt", "phrases": [f"{name}: "]}),
        },
        (
            rule(
                "the change is explained",
                "CHANGES.txt",
                {0: "is missing or says nothing", 0.5: "names the function only", 1: "says what was wrong"},
            ),
        ),
    )


FAMILIES = (meeting, triage, sales, index, plan, bug)
