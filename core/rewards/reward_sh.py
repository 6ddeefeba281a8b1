"""A verifier that runs a task's ``reward.sh``, as ClawGym's own rollouts do."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.errors import InvalidInput
from core.rewards.base import Score, Unscored, as_reward, required
from core.rewards.run import CheckBox, check_box, output_of

SCRIPT = "reward.sh"
_HOME = "/root"
WORKSPACE = f"{_HOME}/.openclaw/workspace"
"""The workspace in ClawGym's containers; ``reward.sh`` names it."""
REWARD = "reward"
GATED = "reward"
"""The value of ClawGym's skill route that is 0 unless the necessary checks hold. The canonical mean includes it."""
PAYLOAD = ".openclaw_reward_payload.json"
PLACEMENTS = {
    "workspace": "the checker's folder is copied to reward/ in the workspace, as ClawGym does",
    "outside": "the checker's folder is outside the workspace; the checker can't find its own files",
}
VALUES = "values.json"
_AVERAGING = re.compile(r"\|\s*python3\s+-c\b")
_RELATIVE = re.compile(r"(?<![\w/.$}{-])(?:\./)?reward/")
_PLACES = re.compile(
    r"\{\{reward_dir\}\}|\{\{input_dir\}\}|\$\{BASH_SOURCE(?:\[0\])?\}|\$BASH_SOURCE\b"
    rf"|{re.escape(WORKSPACE)}(?:/reward)?\b"
    r"|(?<![\w.-])/workspace(?:/reward)?\b"
)


def verify(workspace: Path, spec: Mapping[str, Any]) -> Score:
    """The number in the last line that ``reward.sh`` of the folder ``spec["folder"]`` prints, in [0, 1].

    ``spec["placement"]`` is a key of ``PLACEMENTS``, by default ``workspace``. ``spec["gated"]`` makes the gated value
    the reward where the checker prints one. The script gets the workspace as its argument. It runs in an empty folder,
    and ClawGym's path of the workspace in it is replaced by the real one.

    ``details`` has ``canonical`` (the printed number), ``values`` (what the check printed as JSON, by name), ``gated``
    (its value ``reward``, or None) and ``mean_without_gated``. The values are known if the script pipes them to
    ``python3 -c``, as ClawGym's does.
    """
    folder = Path(required(spec, "folder", (str, Path), "the folder with reward.sh"))
    placement = spec.get("placement", "workspace")
    if placement not in PLACEMENTS:
        raise InvalidInput(f"no placement {placement!r}", field="check.placement", hint=", ".join(PLACEMENTS))
    script = folder / SCRIPT
    if not script.is_file():
        raise Unscored("missing", f"the check has no {SCRIPT}")
    with check_box(workspace, spec) as box:
        reward = box.place(folder, REWARD) if placement == "workspace" else box.lend(folder)
        text = rewritten(script.read_text(encoding="utf-8", errors="surrogateescape"), reward, box.workspace)
        lent = box.lend_files({SCRIPT: text}) / SCRIPT
        # Sourced, so that $0 is the script's own path.
        command = ["bash", "-c", '. "$1" "$2"', str(reward / SCRIPT), str(lent), str(box.workspace)]
        env = {"CLAW_STUDIO_VALUES": str(box.home / VALUES), **_payload(box, spec, placement)}
        if spec.get("watch"):
            box.watch()
        run = box.run(command, env=env, cwd=box.workspace if _RELATIVE.search(text) else box.home)
        lines = [line.strip() for line in run.stdout.decode(errors="replace").splitlines() if line.strip()]
        details = {**details_of(box.result(VALUES), placement), **box.written()}
        if not lines:
            raise Unscored("no_number", f"{SCRIPT} printed nothing", {**details, **output_of(run)})
        canonical = as_reward(lines[-1], f"the last line of {SCRIPT}", {**details, **output_of(run)})
        value = canonical
        if spec.get("gated") and details["gated"] is not None:
            value = as_reward(details["gated"], "the gated value", details)
        return Score(value, {"canonical": canonical, **details}, environment=box.environment())


def rewritten(script: str, reward: Path, workspace: Path) -> str:
    """``reward.sh`` with the real paths, and with a copy of the values that it averages.

    ``python3 -c`` finds modules in its working folder, which can be the agent's: ``-P`` keeps it from that.
    """

    def real(match: re.Match[str]) -> str:
        place = match[0]
        if "BASH_SOURCE" in place:
            return str(reward / SCRIPT)
        if place == "{{input_dir}}":
            return str(workspace / "input")
        return str(reward if place.strip("{}").endswith(("/reward", "reward_dir")) else workspace)

    return _AVERAGING.sub('| tee "$CLAW_STUDIO_VALUES" | python3 -P -c', _PLACES.sub(real, script), count=1)


def details_of(printed: bytes | None, placement: str) -> dict[str, Any]:
    """Details of what the checker printed: ``values``, ``gated``, ``mean_without_gated``; None where unknown."""
    try:
        values = json.loads(printed or b"null", parse_constant=str)
    except (ValueError, RecursionError):
        values = None
    details: dict[str, Any] = {"placement": placement, "values": values, "gated": None, "mean_without_gated": None}
    if not isinstance(values, dict):
        return details
    gated = values.get(GATED)
    numbers = [float(one) for name, one in values.items() if name != GATED and isinstance(one, int | float)]
    if isinstance(gated, int | float):
        details["gated"] = float(gated)
        details["mean_without_gated"] = sum(numbers) / len(numbers) if numbers else None
    return details


def _payload(box: CheckBox, spec: Mapping[str, Any], placement: str) -> dict[str, str]:
    """Writes what is known of the attempt to a file, and names it as ClawGym does; nothing if nothing is known."""
    payload = spec.get("payload")
    if not payload:
        return {}
    content = json.dumps({name: payload.get(name) for name in ("final_message", "metadata", "transcript")})
    if placement == "workspace":
        return {"OPENCLAW_REWARD_PAYLOAD": str(box.put(PAYLOAD, content.encode()))}
    return {"OPENCLAW_REWARD_PAYLOAD": str(box.lend_files({PAYLOAD: content}) / PAYLOAD)}
