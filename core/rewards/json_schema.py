"""A verifier for a JSON document that must be valid by a JSON schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from core.errors import InvalidInput
from core.rewards.base import Score, answer_text, required

MAX_ERRORS = 20


def verify(workspace: Path, spec: Mapping[str, Any]) -> Score:
    """1.0 if the JSON of the answer is valid by ``spec["schema"]``, else 0.0, with the errors by path.

    The answer is ``spec["text"]``, the file ``spec["path"]``, or the agent's final message (also in a code fence).
    ``$schema`` names the draft; without it, 2020-12 applies. References to other documents are not loaded.
    """
    from jsonschema import SchemaError
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    schema = required(spec, "schema", dict, "a JSON schema")
    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        raise InvalidInput(
            f"the schema is not valid: {error.message}", field="check.schema", hint=f"see {error.json_path}"
        ) from None
    text = answer_text(workspace, spec)
    if text is None:
        return Score(0.0, {"problem": "no such text file"})
    try:
        document = json.loads(unfenced(text), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        return Score(0.0, {"problem": f"not JSON: {error}"})
    # An empty registry: nothing is fetched from the network.
    validator = kind(schema, registry=Registry(), format_checker=kind.FORMAT_CHECKER)
    try:
        errors = sorted(validator.iter_errors(document), key=lambda one: (one.json_path, one.message))
    except Unresolvable as error:
        raise InvalidInput(
            f"the schema refers to another document: {error}", field="check.schema", hint="put it into $defs"
        ) from None
    listed = [{"path": one.json_path, "message": one.message[:300]} for one in errors[:MAX_ERRORS]]
    return Score(float(not errors), {"n_errors": len(errors), "errors": listed})


def unfenced(text: str) -> str:
    """The content of the only code fence of a text, or the text itself."""
    parts = text.split("```")
    if len(parts) != 3:
        return text
    first, _, rest = parts[1].partition("\n")
    return rest if first.strip().lower() in {"", "json"} else parts[1]


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
