"""The WHERE box: a boolean expression over step columns, parsed, checked node by node, and rendered anew.

DuckDB's own parser reads the text (``json_serialize_sql`` parses, it executes nothing). Only columns of the step
view, constants, comparisons and a list of harmless functions pass; constants become bound parameters. What runs
is the rendered expression, never the text.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import duckdb

from core.errors import InvalidInput
from core.pool.columns import STEP_COLUMNS

MAX_LENGTH = 10_000
MAX_DEPTH = 100

_COMPARE = {
    "COMPARE_EQUAL": "=",
    "COMPARE_NOTEQUAL": "<>",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
    "COMPARE_DISTINCT_FROM": "IS DISTINCT FROM",
    "COMPARE_NOT_DISTINCT_FROM": "IS NOT DISTINCT FROM",
}
_INFIX = {
    "+", "-", "*", "/", "//", "%", "^", "||", "~~", "!~~", "~~*", "!~~*", "@>", "<@", "&&",
}  # fmt: skip
FUNCTIONS = frozenset(
    {
        "abs", "ceil", "floor", "round", "ln", "log10", "sqrt", "exp", "greatest", "least", "sign",
        "lower", "upper", "length", "len", "trim", "contains", "starts_with", "prefix", "ends_with", "suffix",
        "regexp_matches", "left", "right", "substring", "replace",
        "list_contains", "array_contains", "list_has", "list_has_any", "list_has_all", "list_value", "array_length",
        "isnan", "isfinite", "coalesce", "ifnull", "nullif",
        "date_trunc", "date_part", "year", "month", "day", "hour", "minute", "epoch",
    }
)  # fmt: skip
_CASTS = frozenset(
    {"BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "DOUBLE", "FLOAT", "VARCHAR", "DATE", "TIMESTAMP"}
)
_TYPE_ALIASES = {"INT": "INTEGER", "TEXT": "VARCHAR", "STRING": "VARCHAR", "BOOL": "BOOLEAN", "REAL": "FLOAT"}
_NUMBERS = ("INTEGER", "NUMERIC", "DECIMAL", "DOUBLE", "FLOAT", "BIGINT")

HINT = "A condition over step columns, for instance: reward > 0.5 AND agent = 'openclaw' AND list_contains(tags, 'x')."

_parser_lock = threading.Lock()
_parser: list[Any] = []


def _parse(statement: str) -> dict[str, Any]:
    """The one SELECT that a text makes, as DuckDB's syntax tree. InvalidInput when it makes none or more."""
    try:
        with _parser_lock:
            if not _parser:
                _parser.append(duckdb.connect(config={"threads": 1, "autoinstall_known_extensions": False}))
            row = _parser[0].execute("SELECT json_serialize_sql(?)", [statement]).fetchone()
    except duckdb.Error as error:
        raise _refuse(f"The condition can't be read: {error}") from error
    parsed: dict[str, Any] = json.loads(row[0])
    if parsed.get("error"):
        raise _refuse(f"The condition can't be read: {parsed.get('error_message', 'syntax error')}.")
    statements = parsed.get("statements", [])
    node: dict[str, Any] = statements[0].get("node", {}) if len(statements) == 1 else {}
    if node.get("type") != "SELECT_NODE" or len(node.get("select_list", [])) != 1:
        raise _refuse("This is more than one condition.")
    return node


def _refuse(message: str, hint: str = HINT) -> InvalidInput:
    return InvalidInput(message, field="where", hint=hint)


@dataclass
class _Renderer:
    parameters: list[Any] = field(default_factory=list)
    needs_trajectory: bool = False
    depth: int = 0

    def render(self, node: Any) -> str:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _refuse("The condition is nested too deeply.")
        rule: Callable[[dict[str, Any]], str] | None = (
            getattr(self, f"_{str(node.get('class', '')).lower()}", None) if isinstance(node, dict) else None
        )
        if rule is None:
            kind = node.get("class", "?") if isinstance(node, dict) else "?"
            raise _refuse(f"{kind} is not allowed in a condition.")
        text = rule(node)
        self.depth -= 1
        return text

    def _all(self, nodes: list[Any], joiner: str = ", ") -> str:
        return joiner.join(self.render(node) for node in nodes)

    def _column_ref(self, node: dict[str, Any]) -> str:
        names = node["column_names"]
        column = STEP_COLUMNS.get(names[0].lower()) if len(names) == 1 else None
        if column is None:
            raise _refuse(f"No column {'.'.join(names)!r}.", f"Columns: {', '.join(STEP_COLUMNS)}.")
        self.needs_trajectory |= column.needs_trajectory
        return column.sql

    def _constant(self, node: dict[str, Any]) -> str:
        literal = node.get("literal")
        if literal is None or node["type"] != "VALUE_CONSTANT":
            raise _refuse("This kind of constant is not allowed in a condition.")
        kind, text = literal["kind"], literal.get("text")
        if kind in ("NULL", "NULL_LITERAL"):
            return "NULL"
        if kind == "BOOLEAN":
            return "TRUE" if text == "true" else "FALSE"
        if kind in _NUMBERS:
            try:
                value: Any = int(text) if text.lstrip("-").isdigit() else float(text)
            except ValueError as error:
                raise _refuse(f"{text!r} is not a number.") from error
            if isinstance(value, int) and abs(value) >= 2**63:
                value = float(value)
        elif kind == "STRING":
            value = text
        else:
            raise _refuse(f"A constant of kind {kind} is not allowed in a condition.")
        self.parameters.append(value)
        return "?"

    def _comparison(self, node: dict[str, Any]) -> str:
        symbol = _COMPARE.get(node["type"])
        if symbol is None:
            raise _refuse(f"{node['type']} is not allowed in a condition.")
        return f"({self.render(node['left'])} {symbol} {self.render(node['right'])})"

    def _conjunction(self, node: dict[str, Any]) -> str:
        joiner = {"CONJUNCTION_AND": " AND ", "CONJUNCTION_OR": " OR "}[node["type"]]
        return f"({self._all(node['children'], joiner)})"

    def _between(self, node: dict[str, Any]) -> str:
        value, lower = self.render(node["input"]), self.render(node["lower"])
        if node["type"] != "COMPARE_BETWEEN":
            raise _refuse(f"{node['type']} is not allowed in a condition.")
        return f"({value} BETWEEN {lower} AND {self.render(node['upper'])})"

    def _operator(self, node: dict[str, Any]) -> str:
        children, kind = node["children"], node["type"]
        if kind == "OPERATOR_NOT":
            return f"(NOT {self.render(children[0])})"
        if kind in ("OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"):
            return f"({self.render(children[0])} {'IS NULL' if kind == 'OPERATOR_IS_NULL' else 'IS NOT NULL'})"
        if kind in ("COMPARE_IN", "COMPARE_NOT_IN"):
            word = "IN" if kind == "COMPARE_IN" else "NOT IN"
            first = self.render(children[0])
            return f"({first} {word} ({self._all(children[1:])}))"
        if kind == "OPERATOR_COALESCE":
            return f"coalesce({self._all(children)})"
        if kind == "OPERATOR_NULLIF":
            return f"nullif({self._all(children)})"
        if kind == "ARRAY_EXTRACT":
            return f"{self.render(children[0])}[{self.render(children[1])}]"
        if kind == "ARRAY_CONSTRUCTOR":
            return f"[{self._all(children)}]"
        raise _refuse(f"{kind} is not allowed in a condition.")

    def _function(self, node: dict[str, Any]) -> str:
        name = node["function_name"].lower()
        if node.get("schema") or node.get("catalog") or node.get("filter") or node.get("distinct"):
            raise _refuse(f"{name} can't be used like this in a condition.")
        if (node.get("order_bys") or {}).get("orders"):
            raise _refuse(f"{name} can't be used like this in a condition.")
        arguments = [item.get("expression", item) for item in self._arguments(node)]
        if name in _INFIX and node.get("is_operator"):
            if len(arguments) == 1:
                return f"({name} {self.render(arguments[0])})"
            return f"({self._all(arguments, f' {name} ')})"
        if name in FUNCTIONS:
            return f"{name}({self._all(arguments)})"
        raise _refuse(
            f"The function {name!r} is not allowed in a condition.", f"Allowed: {', '.join(sorted(FUNCTIONS))}."
        )

    @staticmethod
    def _arguments(node: dict[str, Any]) -> list[Any]:
        found = node.get("arguments", node.get("children", []))
        if any(isinstance(item, dict) and item.get("name") for item in found):
            raise _refuse("Named arguments are not allowed in a condition.")
        return list(found)

    def _case(self, node: dict[str, Any]) -> str:
        checks = " ".join(
            f"WHEN {self.render(check['when_expr'])} THEN {self.render(check['then_expr'])}"
            for check in node["case_checks"]
        )
        return f"(CASE {checks} ELSE {self.render(node['else_expr'])} END)"

    def _cast(self, node: dict[str, Any]) -> str:
        kind = _cast_name(node)
        if kind not in _CASTS:
            raise _refuse(f"A cast to {kind} is not allowed in a condition.")
        word = "TRY_CAST" if node.get("try_cast") else "CAST"
        return f"{word}({self.render(node['child'])} AS {kind})"


def _cast_name(node: dict[str, Any]) -> str:
    kind = node.get("type_expr") or {}
    if kind.get("class") != "TYPE" or kind.get("schema") or kind.get("catalog") or kind.get("children"):
        return "this type"
    name = str(kind.get("type_name", "this type")).upper()
    return _TYPE_ALIASES.get(name, name)


@dataclass(frozen=True, slots=True)
class Condition:
    """SQL over ``s`` (and ``t``) with its bound parameters, in order."""

    sql: str
    parameters: tuple[Any, ...] = ()
    needs_trajectory: bool = False


def compile_where(text: str) -> Condition | None:
    """Compile the WHERE box; None when it is empty. InvalidInput (field ``where``) explains what is wrong."""
    if not text.strip():
        return None
    if len(text) > MAX_LENGTH:
        raise _refuse(f"The condition is longer than {MAX_LENGTH} characters.")
    node = _parse(f"SELECT 1 WHERE (\n{text}\n)")
    plain = (
        not node.get("modifiers")
        and not (node.get("cte_map") or {}).get("map")
        and (node.get("from_table") or {}).get("type") == "EMPTY"
        and not node.get("group_expressions")
        and not node.get("group_sets")
        and all(node.get(key) is None for key in ("having", "sample", "qualify"))
        and node.get("where_clause") is not None
    )
    # Between brackets, a text that closes the parenthesis and goes on can't be read.
    element = _parse(f"SELECT [\n{text}\n]")["select_list"][0]
    if not plain or len(element.get("children") or element.get("arguments") or ()) != 1:
        raise _refuse("This is more than one condition.")
    renderer = _Renderer()
    try:
        sql = renderer.render(node["where_clause"])
    except (KeyError, TypeError, IndexError, RecursionError) as error:
        raise _refuse("This form is not understood in a condition.") from error
    return Condition(sql, tuple(renderer.parameters), renderer.needs_trajectory)
