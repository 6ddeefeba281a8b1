"""Generates ``demo_data/pack/``: 44 small tasks in ClawGym's folder form, with checks and reference solutions.

    python demo_data/make_pack.py [--seed 0] [--each 4] [--out demo_data/pack]

Eleven families with four tasks each: six of the persona route (the query ends with ClawGym's sentence about paths, and
the check has its ``grade`` function), five of the skill route (the check also prints a gated ``reward``). The last task
of each family is for validation. Sixteen have rules for a judge beside the check.

``solution/`` is a reference solution: ``files/`` has the files that it writes, ``solve.sh`` copies them into the folder
in which it runs, and does what else is needed.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
from pathlib import Path

import pack_persona
import pack_skill
from pack_base import Made

from core.packs.clawgym import reward_script, write
from core.packs.model import REWARD_SH, Pack, PackFile, PackTask

SEED, EACH = 0, 4
PROGRAM = Path(__file__).with_name("pack_checks.py")
SOLVE = '#!/usr/bin/env bash\nset -euo pipefail\n\ncp -R "$(dirname "$0")/files/." .\n'
TIMEOUT_S = 300.0


def checker(made: Made, *, gated: bool) -> str:
    """The check's program: ``pack_checks.py`` with the task's own checks."""
    text = PROGRAM.read_text(encoding="utf-8")
    checks = json.dumps({name: list(one) for name, one in made.checks.items()}, ensure_ascii=False)
    text = text.replace("CHECKS = {}\n", f"CHECKS = json.loads({checks!r})\n")
    return text.replace("GATED = False\n", f"GATED = {gated}\n")


def task_of(made: Made, number: int, *, route: str, split: str) -> PackTask:
    """The task of a pack."""
    script = SOLVE + "".join(f"{line}\n" for line in made.commands)
    files = {f"files/{path}": PackFile(text.encode()) for path, text in made.solution.items()}
    return PackTask(
        f"demo_{number:03}",
        made.query,
        input_files={path: PackFile(text.encode()) for path, text in made.inputs.items()},
        checker=REWARD_SH,
        checker_files={
            "reward.sh": reward_script(),
            "check.py": PackFile(checker(made, gated=route == "skill").encode()),
        },
        rules=tuple(made.rules),
        category=made.category,
        tags=(route, made.family),
        split=split,
        timeout_s=TIMEOUT_S,
        solution_files={"solve.sh": PackFile(script.encode(), executable=True), **files},
    )


def make_pack(seed: int = SEED, each: int = EACH) -> Pack:
    """The pack. ``each`` tasks a family; the same seed gives the same pack."""
    tasks: list[PackTask] = []
    for route, families in (("persona", pack_persona.FAMILIES), ("skill", pack_skill.FAMILIES)):
        for family in families:
            for n in range(each):
                made = family(random.Random(f"{seed}/{family.__name__}/{n}"), n)
                split = "val" if n == each - 1 else "train"
                tasks.append(task_of(made, len(tasks) + 1, route=route, split=split))
    return Pack("demo", tasks, "clawgym")


def main() -> None:
    """Write the pack's folder anew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--each", type=int, default=EACH, help="tasks of each family")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("pack"))
    given = parser.parse_args()
    pack = make_pack(given.seed, given.each)
    shutil.rmtree(given.out, ignore_errors=True)
    write(pack, given.out, {task.task_id: task.task_id for task in pack.tasks})
    print(f"{len(pack.tasks)} tasks, version {pack.version}, in {given.out}")


if __name__ == "__main__":
    main()
