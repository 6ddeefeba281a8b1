"""Views: typed filters and the WHERE box, compiled to one bound condition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

from core.errors import InvalidInput
from core.pool.query.columns import FINDING_BITS, STEP_COLUMNS
from core.pool.query.textsearch import HOLDS_TEXT, Hits, pattern_of
from core.pool.query.where import Condition, compile_where
from core.pool.state.findings import FINDINGS, mask
from core.pool.state.policyversion import version_in_force_sql
from core.pool.state.sharedsql import READY, UNDONE, settled_sql
from core.pool.store.database import timestamp
from core.types import View

NO_VIEW = View()
"""All steps."""

INLINE_VALUES = 32
"""Up to this many values are compared one by one; longer lists are joined."""


@dataclass(frozen=True, slots=True)
class Filter:
    """One typed filter. ``kind`` selects the page's widget; ``compile`` checks the value."""

    name: str
    kind: str
    doc: str
    compile: Callable[[str, Any], Condition]


def _bad(name: str, expected: str) -> InvalidInput:
    return InvalidInput(f"The filter {name!r} does not fit.", field=f"filters.{name}", hint=expected)


def _column(name: str) -> tuple[str, bool]:
    column = STEP_COLUMNS[name]
    return column.sql, column.needs_trajectory


def _values(name: str, value: Any, kinds: type | tuple[type, ...], expected: str) -> list[Any]:
    values = list(value) if isinstance(value, list | tuple | set | frozenset) else [value]
    if any(not isinstance(item, kinds) and item is not None for item in values):
        raise _bad(name, expected)
    return values


def _one_of(name: str, value: Any) -> Condition:
    """Text columns: one value or a list of them; null in the list finds the unknown."""
    values = _values(name, value, str, "A text or a list of texts; null finds the unknown.")
    sql, needs = _column(name)
    known = [str(item) for item in values if item is not None]
    parts: list[str] = []
    parameters: list[Any] = []
    if len(known) > INLINE_VALUES:
        parts.append(f"{sql} IN (SELECT unnest(?::VARCHAR[]))")
        parameters.append(known)
    elif known:
        parts.append(f"{sql} IN ({', '.join('?' * len(known))})")
        parameters.extend(known)
    if len(known) < len(values):
        parts.append(f"{sql} IS NULL")
    return Condition(f"({' OR '.join(parts) or 'FALSE'})", tuple(parameters), needs)


def _bounds(name: str, value: Any, keys: tuple[str, str], expected: str) -> tuple[Any, Any]:
    if isinstance(value, Mapping):
        if set(value) - set(keys):
            raise _bad(name, expected)
        return value.get(keys[0]), value.get(keys[1])
    if isinstance(value, list | tuple) and len(value) == 2:
        return value[0], value[1]
    return value, value


def _range(name: str, value: Any) -> Condition:
    """Number columns: a number, ``[min, max]`` or ``{min, max}``, both ends included, either may be null."""
    expected = "A number, [min, max] or {min, max}."
    low, high = _bounds(name, value, ("min", "max"), expected)
    sql, needs = _column(name)
    parts, parameters = [], []
    for bound, symbol in ((low, ">="), (high, "<=")):
        if bound is None:
            continue
        if isinstance(bound, bool) or not isinstance(bound, int | float):
            raise _bad(name, expected)
        parts.append(f"{sql} {symbol} ?")
        parameters.append(bound)
    return Condition(f"({' AND '.join(parts) or 'TRUE'})", tuple(parameters), needs)


def _parse_time(name: str, value: Any) -> datetime:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return timestamp(float(value))
    if isinstance(value, datetime):
        parsed = value
    elif isinstance(value, str):
        try:
            parsed = datetime.fromisoformat(value)
        except ValueError as error:
            raise _bad(name, "A time in ISO 8601 or as UTC seconds.") from error
    else:
        raise _bad(name, "A time in ISO 8601 or as UTC seconds.")
    return parsed.astimezone(UTC).replace(tzinfo=None) if parsed.tzinfo else parsed


def _between(name: str, value: Any) -> Condition:
    """Time columns: ``[after, before]`` or ``{after, before}``; after is included, before is not."""
    if not isinstance(value, Mapping | list | tuple):
        raise _bad(name, "[after, before] or {after, before}; either may be null.")
    low, high = _bounds(name, value, ("after", "before"), "[after, before] or {after, before}.")
    sql, needs = _column(name)
    parts, parameters = [], []
    for bound, symbol in ((low, ">="), (high, "<")):
        if bound is not None:
            parts.append(f"{sql} {symbol} ?")
            parameters.append(_parse_time(name, bound))
    return Condition(f"({' AND '.join(parts) or 'TRUE'})", tuple(parameters), needs)


def _flag(name: str, value: Any) -> Condition:
    """Boolean columns."""
    if not isinstance(value, bool):
        raise _bad(name, "true or false.")
    sql, needs = _column(name)
    return Condition(sql if value else f"(NOT {sql})", (), needs)


def _state(column: str, known: str = "scored", unknown: str = "unscored") -> Callable[[str, Any], Condition]:
    def compile_state(name: str, value: Any) -> Condition:
        if value not in (known, unknown):
            raise _bad(name, f"{known} or {unknown}.")
        sql, needs = _column(column)
        return Condition(f"({sql} IS {'NOT NULL' if value == known else 'NULL'})", (), needs)

    return compile_state


_TAGGED = "contains(s.tags_json, chr(10) || to_json(?::VARCHAR)::VARCHAR)"
"""Whether a step has a tag, from the text that its tags stand as (migration 0010): no list is made of a million rows.

Each tag begins a line, and as JSON none holds a line break or ends before its own quotation mark.
"""


def _lists(name: str, value: Any) -> Condition:
    """List columns: a name or names (any of them), or ``{any, all, none}``."""
    expected = "A name, a list of names, or {any: [], all: [], none: []}."
    wanted = value if isinstance(value, Mapping) else {"any": value}
    sql, needs = _column(name)
    forms = {"any": (" OR ", ""), "all": (" AND ", ""), "none": (" OR ", "NOT ")}
    parts, parameters = [], []
    for key, names in wanted.items():
        if key not in forms:
            raise _bad(name, expected)
        texts = _values(name, names, str, expected)
        if None in texts:
            raise _bad(name, expected)
        joined, negated = forms[key]
        # One by one: a sixth of the time of list_has_any, which builds a table for each row.
        one = _TAGGED if name == "tags" else f"list_contains({sql}, ?)"
        one_by_one = joined.join([one] * len(texts)) or ("TRUE" if key == "all" else "FALSE")
        parts.append(f"{negated}({one_by_one})")
        parameters.extend(texts)
    return Condition(f"({' AND '.join(parts) or 'TRUE'})", tuple(parameters), needs)


def _findings(name: str, value: Any) -> Condition:
    """Findings by name, like list columns; an unknown name is refused, since it could match nothing."""
    expected = f"A finding, a list of findings, or {{any: [], all: [], none: []}}. Findings: {', '.join(FINDINGS)}."
    wanted = value if isinstance(value, Mapping) else {"any": value}
    forms = {"any": "{bits} & ? <> 0", "all": "{bits} & ? = ?", "none": "{bits} & ? = 0"}
    parts: list[str] = []
    parameters: list[Any] = []
    for key, names in wanted.items():
        texts = _values(name, names, str, expected)
        if key not in forms or any(text not in FINDINGS for text in texts):
            raise _bad(name, expected)
        bits = mask(texts)
        parts.append(forms[key].format(bits=FINDING_BITS))
        parameters += [bits] * (2 if key == "all" else 1)
    return Condition(f"({' AND '.join(parts) or 'TRUE'})", tuple(parameters), True)


def _ready(name: str, value: Any) -> Condition:
    """Batch-ready: see ``FILTERS``. ``true``, ``false``, or ``{n_rollouts?, max_staleness?}`` of the recipe."""
    expected = "true, false, or {n_rollouts: at least 1, max_staleness: versions}."
    if isinstance(value, Mapping):
        wanted, rule = True, dict(value)
    else:
        wanted, rule = value, {}
    n_rollouts, oldest = rule.pop("n_rollouts", 1), rule.pop("max_staleness", None)
    numbers = [n_rollouts] if oldest is None else [n_rollouts, oldest]
    fits = all(isinstance(item, int) and not isinstance(item, bool) for item in numbers)
    if not isinstance(wanted, bool) or rule or not fits or n_rollouts < 1:
        raise _bad(name, expected)
    fresh = "" if oldest is None else f" AND {version_in_force_sql('r.channel')} - r.policy_version_min <= ?"
    sql = f"""(s.trainable AND t.trajectory_id IN (
        SELECT unnest(members) FROM (
            SELECT list(r.trajectory_id) AS members FROM trajectory_state r
            WHERE {settled_sql("r")} AND r.trainable{fresh}
            GROUP BY r.prompt_uid, r.channel HAVING count(*) >= ?
        )
    ))"""
    parameters = (n_rollouts,) if oldest is None else (oldest, n_rollouts)
    return Condition(sql if wanted else f"(NOT {sql})", parameters, True)


def _notes(name: str, value: Any) -> Condition:
    """Steps with this text in a note or in the note of a label, on the step or on its trajectory."""
    if not isinstance(value, str) or not value:
        raise _bad(name, "A text.")
    notes = f"""FROM annotations n WHERE (contains(lower(n.note), lower(?)) OR
        n.kind IN ('note', 'correction') AND contains(lower(n.value_text), lower(?)))
        AND n.action_id NOT IN (
            {UNDONE}
        )"""
    sql = f"""(s.step_id IN (SELECT n.step_id {notes} AND n.step_id IS NOT NULL)
        OR s.trajectory_id IN (SELECT n.trajectory_id {notes} AND n.step_id IS NULL))"""
    return Condition(sql, (value,) * 4)


@dataclass(frozen=True, slots=True)
class ResolvedViews:
    """The resolved saved views of a view, in place of their names (``core.pool.query.viewreader``)."""

    views: tuple[View, ...]


def names_of_views(filters: Mapping[str, Any]) -> list[str]:
    """The saved views that a view names. InvalidInput when they are no names."""
    value = filters["saved_view"]
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or any(not isinstance(name, str) or not name.strip() for name in names):
        raise _bad("saved_view", "The name of a saved view, or several: all must hold.")
    return list(names)


def _saved_view(name: str, value: Any) -> Condition:
    if not isinstance(value, ResolvedViews):
        names_of_views({name: value})
        raise AssertionError("a saved view is looked up before it is compiled: core.pool.query.viewreader")
    parts = [compile_view(view) for view in value.views]
    return Condition(
        "(" + (" AND ".join(f"({part.sql})" for part in parts) or "TRUE") + ")",
        tuple(parameter for part in parts for parameter in part.parameters),
        any(part.needs_trajectory for part in parts),
    )


def _dataset_version(name: str, value: Any) -> Condition:
    """Members of a version, by its name or uid; an unknown version matches nothing."""
    if not isinstance(value, str) or not value.strip():
        raise _bad(name, "The name of a dataset version.")
    sql = """s.step_id IN (SELECT d.step_id FROM dataset_steps d JOIN dataset_versions v USING (version_id)
        WHERE v.name = ? OR v.version_uid = ?)"""
    return Condition(sql, (value, value))


def _text(name: str, value: Any) -> Condition:
    """Steps that added a message with this text, in their prompt or as their answer; case is ignored."""
    if isinstance(value, Hits):
        return Condition(f"s.step_id IN (SELECT step_id FROM {value.table})")
    if not isinstance(value, str) or not value:
        raise _bad(name, "A text.")
    sql = f"""s.step_id IN (
        WITH hit AS (SELECT message_id FROM messages WHERE {HOLDS_TEXT.format(body="body")})
        SELECT step_id FROM (SELECT step_id, unnest(new_message_ids) AS message_id FROM step_messages)
        SEMI JOIN hit USING (message_id)
        UNION ALL
        SELECT step_id FROM step_messages WHERE response_message_id IN (SELECT message_id FROM hit)
    )"""
    return Condition(sql, (pattern_of(value),))


def _metadata(name: str, value: Any) -> Condition:
    """``{path: value}``, dots go deeper; null finds steps without it. All paths must match."""
    if not isinstance(value, Mapping) or not value:
        raise _bad(name, "{path: value}, for instance {'task.id': 'x'}.")
    parts, parameters = [], []
    for path, wanted in value.items():
        if not isinstance(path, str) or '"' in path:
            raise _bad(name, "A path is names joined by dots.")
        parameters.append("$" + "".join(f'."{key}"' for key in path.split(".")))
        if wanted is None:
            parts.append("json_extract_string(metadata, ?) IS NULL")
            continue
        parts.append("json_extract_string(metadata, ?) = ?")
        parameters.append(wanted if isinstance(wanted, str) else orjson.dumps(wanted).decode("utf-8"))
    sql = f"s.step_id IN (SELECT step_id FROM steps WHERE {' AND '.join(parts)})"
    return Condition(sql, tuple(parameters))


def _has_notes(name: str, value: Any) -> Condition:
    if not isinstance(value, bool):
        raise _bad(name, "true or false.")
    return Condition("s.n_notes > 0" if value else "s.n_notes = 0")


def _registry() -> dict[str, Filter]:
    one_of = (
        "channel", "source", "agent", "run", "model", "engine", "token_source", "transition", "call_kind",
        "identity_source", "status", "finish_reason", "quality", "trajectory_quality",
        "trajectory_uid", "prompt_uid", "step_uid",
    )  # fmt: skip
    ranges = (
        "policy_version", "reward", "trajectory_reward", "n_prompt_tokens", "n_response_tokens", "latency_s",
        "step_index",
        "n_tokens", "n_steps", "trajectory_tokens", "difficulty", "staleness",
    )  # fmt: skip
    filters = [Filter(name, "one_of", STEP_COLUMNS[name].doc, _one_of) for name in one_of]
    filters += [Filter(name, "range", STEP_COLUMNS[name].doc, _range) for name in ranges]
    filters += [
        Filter(name, "flag", STEP_COLUMNS[name].doc, _flag)
        for name in ("trainable", "complete", "is_last", "correct", "trajectory_correct")
    ]
    filters += [
        Filter("created_at", "between", STEP_COLUMNS["created_at"].doc, _between),
        Filter("reward_state", "state", "Whether the step is scored", _state("reward")),
        Filter("trajectory_reward_state", "state", "Whether the trajectory is scored", _state("trajectory_reward")),
        Filter(
            "correct_state",
            "state",
            "Whether the step is labelled right or wrong",
            _state("correct", "labelled", "unlabelled"),
        ),
        Filter(
            "ready",
            "flag",
            f"{READY}; with n_rollouts and max_staleness also:"
            " in a group with so many of them that are trainable and not older",
            _ready,
        ),
        Filter("findings", "list", "Findings of automatic checks: " + ", ".join(FINDINGS), _findings),
        Filter("notes", "text", "Text in a note on the step or its trajectory, or beside a label", _notes),
        Filter("tags", "list", "Tags of the step", _lists),
        Filter("tool_names", "list", "Tools the answer calls", _lists),
        Filter("has_notes", "flag", "Whether the step has a note", _has_notes),
        Filter("text", "text", "Text in a new message of the step, or in its answer", _text),
        Filter("saved_view", "text", "A saved view by its name; the other filters narrow it", _saved_view),
        Filter(
            "dataset_version",
            "text",
            "Steps of a dataset version, with their current labels",
            _dataset_version,
        ),
        Filter("metadata", "metadata", "Values at paths of the step's metadata", _metadata),
    ]
    return {item.name: item for item in filters}


FILTERS: dict[str, Filter] = _registry()
"""Every typed filter by name."""


def parse_view(value: Any) -> View:
    """The wire shape ``{filters?, where?}`` -> View, checked. InvalidInput names the field."""
    if isinstance(value, View):
        view = value
    else:
        if value is None:
            value = {}
        if not isinstance(value, Mapping) or set(value) - {"filters", "where"}:
            raise InvalidInput("A view is {filters: {...}, where: text}.", field="view")
        filters, where = value.get("filters") or {}, value.get("where") or ""
        if not isinstance(filters, Mapping) or not isinstance(where, str):
            raise InvalidInput("A view is {filters: {...}, where: text}.", field="view")
        view = View(dict(filters), where)
    check_view(view)
    return view


def check_view(view: View) -> None:
    """Raises InvalidInput with the invalid field. Whether a saved view exists is checked when the view is read."""
    filters = dict(view.filters)
    if filters.get("saved_view") is not None:
        names_of_views(filters)
        del filters["saved_view"]
    compile_view(View(filters, view.where))


def compile_view(view: View) -> Condition:
    """One condition over ``s`` and, where ``needs_trajectory``, ``t``. A filter whose value is null is left out."""
    parts: list[Condition] = []
    for name, value in view.filters.items():
        known = FILTERS.get(name)
        if known is None:
            raise InvalidInput(f"No filter {name!r}.", field=f"filters.{name}", hint=f"Filters: {', '.join(FILTERS)}.")
        if value is not None:
            parts.append(known.compile(name, value))
    box = compile_where(view.where)
    if box is not None:
        parts.append(box)
    return Condition(
        " AND ".join(part.sql for part in parts) or "TRUE",
        tuple(parameter for part in parts for parameter in part.parameters),
        any(part.needs_trajectory for part in parts),
    )


def source_sql(condition: Condition, *, trajectory: bool = False) -> str:
    """FROM and WHERE of the steps a view holds; ``t`` is joined only when something needs it."""
    join = " JOIN trajectory_state t USING (trajectory_id)" if trajectory or condition.needs_trajectory else ""
    return f"FROM step_state s{join} WHERE {condition.sql}"
