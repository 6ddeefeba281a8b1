"""The demo pack's tasks of the skill route: one skill applied to given files."""

from __future__ import annotations

import random
from typing import Any

from pack_base import Made, as_csv, as_json, rule

NAMES = ("Ada Reyes", "Ben Okoro", "Cleo Brandt", "Dan Ito", "Eva Lund", "Finn Marsh", "Gia Rossi", "Hal Novak")
RENAMED = {"host": "address", "port": "port", "timeout": "timeout_s", "debug": "verbose"}


def migrate(draw: random.Random, n: int) -> Made:
    """Move a settings file to another format."""
    sections = draw.sample(("web", "mail", "cache", "jobs", "search"), 3)
    old: dict[str, dict[str, Any]] = {
        one: {
            "host": f"{one}.example.org",
            "port": draw.randrange(2000, 9000),
            "timeout": draw.randrange(1, 60),
            "debug": draw.random() < 0.5,
        }
        for one in sections
    }
    ini = "".join(
        f"[{one}]\n" + "".join(f"{key} = {_ini(value)}\n" for key, value in old[one].items()) + "\n" for one in sections
    )
    new = {one: {RENAMED[key]: value for key, value in old[one].items()} for one in sections}
    table = "".join(f"{a} -> {b}\n" for a, b in RENAMED.items())
    return Made(
        "migration",
        "Systems & Automation",
        "Convert input/settings.ini to output/settings.json: one object a section, in it one key a setting. "
        "input/keys.txt "
        "says what each key is called in the new file. Numbers become numbers, and yes and no become true and "
        "false. Write "
        'output/report.json with the keys "sections" and "settings": how many there are.',
        {"input/settings.ini": f"; written by hand, release {n + 1}\n{ini}", "input/keys.txt": table},
        {
            "output/settings.json": as_json(new),
            "output/report.json": as_json({"sections": 3, "settings": 3 * len(RENAMED)}),
        },
        {
            **{
                f"section_{one}": ("json_value", {"path": "output/settings.json", "key": one, "expected": new[one]})
                for one in sections
            },
            "nothing_else": ("json_value", {"path": "output/settings.json", "expected": new}),
            "report": (
                "json_value",
                {"path": "output/report.json", "expected": {"sections": 3, "settings": 3 * len(RENAMED)}},
            ),
        },
    )


def _ini(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def contacts(draw: random.Random, n: int) -> Made:
    """Merge two lists of contacts by address."""
    people = draw.sample(NAMES, 6)
    mails = {one: f"{one.split()[0].lower()}@example.org" for one in people}
    phones = {one: f"0{draw.randrange(10**8, 10**9)}" for one in people}
    both = people[2:4]
    left = [[one, mails[one].upper() if one in both else mails[one], ""] for one in people[:4]]
    right = [[one, mails[one], f"{phones[one][:4]} {phones[one][4:7]}-{phones[one][7:]}"] for one in people[2:]]
    rows = [
        [mails[one], one, phones[one] if one in people[2:] else ""]
        for one in sorted(people, key=lambda one: mails[one])
    ]
    header = ["email", "name", "phone"]
    return Made(
        "contacts",
        "Productivity & Collaboration",
        "Merge input/club.csv and input/shop.csv (columns name, email, phone) into output/contacts.csv with the "
        "columns "
        "email,name,phone. Rows with the same e-mail address are one person; upper and lower case of an address do not "
        "matter, and the output has it in lower case. A phone number has digits only in the output; keep the one "
        "that is "
        "known. Sort by address. Write output/merged.txt: the number of people who were in both files.",
        {
            "input/club.csv": as_csv([["name", "email", "phone"], *left]),
            "input/shop.csv": as_csv([["name", "email", "phone"], *right]),
        },
        {"output/contacts.csv": as_csv([header, *rows]), "output/merged.txt": f"{len(both)}\n"},
        {
            "contacts_right": ("csv_rows", {"path": "output/contacts.csv", "rows": [header, *rows]}),
            "merged_right": ("lines", {"path": "output/merged.txt", "expected": [str(len(both))]}),
        },
    )


def organise(draw: random.Random, n: int) -> Made:
    """Sort files by what they say."""
    kinds, files, target = ("invoice", "letter", "recipe"), {}, {kind: [] for kind in ("invoice", "letter", "recipe")}
    for k in range(7 + n):
        kind = draw.choice(kinds)
        name = f"scan{draw.randrange(1000, 9999)}{k}.txt"
        files[f"inbox/{name}"] = f"Kind: {kind}\nYear: {draw.randrange(2019, 2026)}\nNumber {k}\n"
        target[kind].append(name)
    years = {name: text.split("Year: ")[1][:4] for name, text in files.items()}
    commands = [f"mkdir -p {' '.join(f'sorted/{kind}' for kind in kinds if target[kind])}"]
    commands += [f"cp inbox/{name} sorted/{kind}/" for kind in kinds for name in target[kind]]
    counts = {kind: len(target[kind]) for kind in kinds}
    oldest = min(sorted(years), key=lambda name: years[name]).removeprefix("inbox/")
    solution = {"sorted/counts.json": as_json(counts), "sorted/oldest.txt": f"{oldest}\n"}
    return Made(
        "organise",
        "Systems & Automation",
        "Copy each file of inbox/ to sorted/KIND/, where KIND is what its first line says; keep the names, and "
        "leave inbox/ "
        'as it is. Write sorted/counts.json: "invoice", "letter" and "recipe" -> the number of files. Write '
        "sorted/oldest.txt: the name of the file with the earliest year; of several, the first by name.",
        files,
        solution,
        {
            **{
                f"{kind}_copied": ("files_in", {"folder": f"sorted/{kind}", "names": target[kind]})
                for kind in kinds
                if target[kind]
            },
            "counts_right": ("json_value", {"path": "sorted/counts.json", "expected": counts}),
            "oldest_right": ("lines", {"path": "sorted/oldest.txt", "expected": [oldest]}),
        },
        commands=commands,
    )


FOODS = (("flour", "g"), ("milk", "ml"), ("butter", "g"), ("sugar", "g"), ("water", "ml"))


def recipe(draw: random.Random, n: int) -> Made:
    """Scale a recipe and total its price."""
    used = draw.sample(FOODS, 4)
    people, wanted = 4, draw.choice((2, 6, 8, 10))
    amounts = {name: draw.randrange(4, 40) * 20 for name, _ in used}
    prices = {name: draw.randrange(1, 9) for name, _ in used}
    scaled = {name: amounts[name] * wanted // people for name, _ in used}
    cost = sum(scaled[name] * prices[name] for name, _ in used) / 1000
    text = f"Dish {n + 1}, for {people} people\n\n" + "".join(
        f"- {amounts[name]} {unit} {name}\n" for name, unit in used
    )
    price_rows = [["food", "price per kg or l"], *([name, f"{prices[name]:.2f}"] for name, _ in used)]
    card = "".join(f"- {scaled[name]} {unit} {name}\n" for name, unit in used)
    return Made(
        "recipe",
        "Analysis & Reasoning",
        f"Scale recipe.txt to {wanted} people. Write output/scaled.json: food -> amount in g or ml, as a number. Write "
        f'output/card.txt: the line "For {wanted} people", then the foods as in recipe.txt with the new amounts. Write '
        "output/cost.txt: the total price by prices.csv, two decimals; 1000 g are a kg, 1000 ml are a l.",
        {"recipe.txt": text, "prices.csv": as_csv(price_rows)},
        {
            "output/scaled.json": as_json(scaled),
            "output/card.txt": f"For {wanted} people\n\n{card}",
            "output/cost.txt": f"{cost:.2f}\n",
        },
        {
            "scaled_right": ("json_value", {"path": "output/scaled.json", "expected": scaled, "tolerance": 1e-6}),
            "card_right": (
                "lines",
                {"path": "output/card.txt", "expected": [f"For {wanted} people", *card.splitlines()]},
            ),
            "cost_right": ("lines", {"path": "output/cost.txt", "expected": [f"{cost:.2f}"]}),
        },
    )


def invoice(draw: random.Random, n: int) -> Made:
    """Make an invoice from a timesheet."""
    client, rate = draw.choice(NAMES), draw.randrange(30, 90)
    rows = []
    for k in range(8 + n):
        hours = draw.randrange(1, 17) * 0.5
        rows.append([f"2026-05-{1 + k:02}", draw.choice(("review", "drawing", "travel")), hours, draw.random() < 0.75])
    billed: dict[str, float] = {}
    for _, job, hours, counts in rows:
        billed |= {job: billed.get(job, 0.0) + hours} if counts else {}
    ordered = sorted(billed)
    lines = [f"| {job} | {billed[job]:.1f} | {billed[job] * rate:.2f} |" for job in ordered]
    total = sum(billed.values()) * rate
    head = [f"# Invoice for {client}", "| job | hours | amount |", "|---|---|---|"]
    text = "\n".join([head[0], "", *head[1:], *lines, "", f"Total: {total:.2f}"]) + "\n"
    table = [["date", "job", "hours", "billable"], *([d, j, f"{h:.1f}", "yes" if b else "no"] for d, j, h, b in rows)]
    letter = f"Dear {client},\n\nplease find attached the invoice for May over {total:.2f}.\n\nKind regards\n"
    return Made(
        "invoice",
        "Productivity & Collaboration",
        "Make an invoice from input/hours.csv and input/client.json. Only billable rows count. output/invoice.md "
        "has the "
        'title "# Invoice for NAME", a Markdown table with the columns job, hours (one decimal) and amount (hours '
        "times "
        'rate, two decimals), one row a job, sorted by job, and the line "Total: AMOUNT". Write '
        "output/letter.txt, at most "
        "60 words: a polite letter to the client that names the total and the month May.",
        {"input/hours.csv": as_csv(table), "input/client.json": as_json({"name": client, "rate": rate})},
        {"output/invoice.md": text, "output/letter.txt": letter},
        {
            "invoice_right": (
                "lines",
                {"path": "output/invoice.md", "expected": [*head, *lines, f"Total: {total:.2f}"]},
            ),
            "letter_names_all": (
                "contains",
                {"path": "output/letter.txt", "phrases": [client, f"{total:.2f}", "May"]},
            ),
            "letter_short": ("at_most_words", {"path": "output/letter.txt", "n": 60}),
        },
        (
            rule(
                "polite letter",
                "output/letter.txt",
                {
                    0: "is missing, or is rude",
                    0.25: "is no letter, only facts",
                    0.75: "is a letter without greeting or close",
                    1: "greets, says what is attached, closes",
                },
            ),
        ),
    )


FAMILIES = (migrate, contacts, organise, recipe, invoice)
