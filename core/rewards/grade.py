"""A verifier that calls the ``grade`` function of a PinchBench task."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from core.rewards.base import Score, Unscored, as_reward, required
from core.rewards.run import check_box, output_of

VALUES = "values.json"
# Prints nothing: what grade() prints must not be mistaken for its result.
RUNNER = """
import json, sys
program, workspace, transcript, out = sys.argv[1:5]
space = {"__name__": "grade", "__file__": program}
with open(program, encoding="utf-8") as file:
    exec(compile(file.read(), program, "exec"), space)
with open(transcript, encoding="utf-8") as file:
    values = space["grade"](json.load(file), workspace)
with open(out, "w", encoding="utf-8") as file:
    json.dump(values, file)
"""


def verify(workspace: Path, spec: Mapping[str, Any]) -> Score:
    """Mean of the numbers that ``grade(transcript, workspace_path)`` of the file ``spec["program"]`` returns.

    As in PinchBench's ``lib_grading.py``, values that are no numbers do not count, and without any the score is 0. NaN
    and infinite values are failures of the check. ``transcript`` is ``spec["payload"]["transcript"]`` (chat messages)
    as PinchBench's events.
    """
    program = Path(required(spec, "program", (str, Path), "the file with the function grade"))
    if not program.is_file():
        raise Unscored("missing", f"the check has no {program.name}")
    transcript = (spec.get("payload") or {}).get("transcript") or []
    with check_box(workspace, spec) as box:
        lent = box.lend(program.parent) / program.name
        made = box.lend_files({"run.py": RUNNER, "transcript.json": json.dumps(events(transcript))})
        files = [made / "run.py", lent, box.workspace, made / "transcript.json", box.home / VALUES]
        if spec.get("watch"):
            box.watch()
        run = box.run(["python3", *map(str, files)])
        try:
            values = json.loads(box.result(VALUES) or b"")
        except (ValueError, RecursionError):
            raise Unscored("no_number", "grade() returned no JSON object", output_of(run)) from None
        if not isinstance(values, dict):
            raise Unscored("no_number", "grade() returned no JSON object", output_of(run))
        numbers = {str(name): float(one) for name, one in values.items() if isinstance(one, int | float)}
        if not all(map(math.isfinite, numbers.values())):
            raise Unscored("not_finite", "a value of grade() is not a finite number", output_of(run))
        mean = math.fsum(numbers.values()) / len(numbers) if numbers else 0.0
        return Score(
            as_reward(mean, "the mean of grade()"), {"values": numbers, **box.written()}, environment=box.environment()
        )


def events(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Chat messages as the events of an OpenClaw session, which PinchBench's checks read.

    ``{type: message, message: {role, content: [{type: text, text} or {type: toolCall, name, arguments}]}}``; the answer
    of a tool has the role ``toolResult``. Messages that are events already stay as they are.
    """
    return [dict(one) if one.get("type") == "message" else _event(one) for one in messages]


def _event(message: Mapping[str, Any]) -> dict[str, Any]:
    role = "toolResult" if message.get("role") == "tool" else message.get("role")
    content = message.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) and content else []
    if isinstance(content, list):
        parts = [dict(part) for part in content if isinstance(part, Mapping)]
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        arguments = function.get("arguments")
        try:
            arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        except ValueError:
            arguments = {"raw": arguments}
        known = {"id": call.get("id"), "name": function.get("name"), "arguments": arguments or {}}
        parts.append({"type": "toolCall", **known, "params": known["arguments"]})
    if role == "toolResult":
        texts = [part.get("text", "") for part in parts if part.get("type") == "text"]
        known = {"role": role, "content": texts, "toolCallId": message.get("tool_call_id")}
        return {"type": "message", "message": known}
    return {"type": "message", "message": {"role": role, "content": parts}}
