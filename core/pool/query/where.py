"""The WHERE box: parses a boolean expression over step columns, checks each node, and renders it to SQL.

DuckDB's own parser reads the text (``json_serialize_sql`` parses, it executes nothing). Only columns of the step
view, constants, comparisons and a list of harmless functions pass; constants become bound parameters. What runs
is the rendered expression, never the text.

The checks bound the cost per row: no function returns more than the sum of its arguments, functions get only the
beginning of a long text, patterns are constants and matched in linear time, the numbers of functions and patterns are
limited, and the text is not nested so deeply that the parser takes long. DuckDB can be interrupted only between
batches of about two thousand rows, so each batch has to be bounded. ``watched`` interrupts the query after that.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import duckdb

from core.errors import InvalidInput, PoolError
from core.pool.query.columns import STEP_ALIASES, STEP_COLUMNS, Column
from core.pool.store.database import Cursor, Database
from core.pool.store.memoryuse import database_memory, own_memory

MAX_LENGTH = 10_000
MAX_DEPTH = 100
MAX_RUN = 100
"""The most signs and spaces in a row: a long row of minus signs takes the parser long."""
MAX_PATTERN = 1000
"""The most states of all patterns together, about: characters times the product of counted repetitions. At worst each
state reads each character."""
MAX_CALLS = 200
"""The most functions, casts and lists; each holds its results for two thousand rows at a time."""
MAX_CHARS = 1000
"""Functions and patterns get this many first characters of an unbounded text; plain comparisons get all of it."""
MAX_GROWTH = 1 << 30
"""Bytes by which the process may grow while a condition runs, without the memory that DuckDB counts itself."""
TIMEOUT_S = 60.0
"""Seconds that a query with the condition may take."""
POLL_S = 0.1

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
    "+", "-", "*", "/", "//", "%", "^", "||", "@>", "<@", "&&",
}  # fmt: skip
FUNCTIONS = frozenset(
    {
        "abs", "ceil", "floor", "round", "ln", "log10", "sqrt", "exp", "greatest", "least", "sign",
        "lower", "upper", "length", "len", "trim", "contains", "starts_with", "prefix", "ends_with", "suffix",
        "left", "right", "substring",
        "list_contains", "array_contains", "list_has", "list_has_any", "list_has_all", "list_value", "array_length",
        "isnan", "isfinite", "coalesce", "ifnull", "nullif",
        "date_trunc", "date_part", "year", "month", "day", "hour", "minute", "epoch",
    }
)  # fmt: skip
_LIKE = {"~~": ("", ""), "!~~": ("NOT ", ""), "~~*": ("", "i"), "!~~*": ("NOT ", "i")}
_PATTERNS = frozenset({"regexp_matches"})
_CASTS = frozenset(
    {"BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "DOUBLE", "FLOAT", "VARCHAR", "DATE", "TIMESTAMP"}
)
_TYPE_ALIASES = {"INT": "INTEGER", "TEXT": "VARCHAR", "STRING": "VARCHAR", "BOOL": "BOOLEAN", "REAL": "FLOAT"}
LONG_TEXTS = frozenset(
    {"agent", "channel", "engine", "error", "finish_reason", "identity_source", "mismatch", "model", "run"}
)
"""Columns that hold whatever an agent, an engine or a producer sent."""
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
        parsed: dict[str, Any] = json.loads(row[0])
    except duckdb.Error as error:
        raise _refuse(f"The condition can't be read: {first_line(error)}") from error
    except RecursionError as error:
        raise _refuse("The condition is nested too deeply.") from error
    if parsed.get("error"):
        raise _refuse(f"The condition can't be read: {_syntax_error(parsed)}.")
    statements = parsed.get("statements", [])
    node: dict[str, Any] = statements[0].get("node", {}) if len(statements) == 1 else {}
    if node.get("type") != "SELECT_NODE" or len(node.get("select_list", [])) != 1:
        raise _refuse("This is more than one condition.")
    return node


def first_line(error: Exception) -> str:
    """A database error without the SQL that it quotes: people see the condition that they wrote, and no other."""
    return str(error).partition("\n")[0].strip()


def _syntax_error(parsed: dict[str, Any]) -> str:
    message = str(parsed.get("error_message", "syntax error"))
    # The bracket that ends the statement around the condition.
    return "it ends too early, or has a bracket too many" if message.endswith('at or near ")"') else message


def _refuse(message: str, hint: str = HINT) -> InvalidInput:
    return InvalidInput(message, field="where", hint=hint)


@dataclass
class _Renderer:
    parameters: list[Any] = field(default_factory=list)
    needs_trajectory: bool = False
    depth: int = 0
    n_calls: int = 0
    n_states: int = 0

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

    def _count_call(self) -> None:
        """Count a function call. InvalidInput for too many."""
        self.n_calls += 1
        if self.n_calls > MAX_CALLS:
            raise _refuse(f"A condition has at most {MAX_CALLS} functions.")

    def _count_pattern(self, n_states: int) -> None:
        """Add the size of a pattern. InvalidInput for too much."""
        self.n_states += n_states
        if self.n_states > MAX_PATTERN:
            raise _refuse(f"The patterns are too long together, or repeat too much: over {MAX_PATTERN} characters.")

    def _compared(self, node: Any) -> str:
        """A side of a comparison: a plain column is not shortened, since a comparison makes no new value."""
        is_column = isinstance(node, dict) and node.get("class") == "COLUMN_REF"
        return self._column(node).sql if is_column else self.render(node)

    def _column_ref(self, node: dict[str, Any]) -> str:
        column = self._column(node)
        if column.name not in LONG_TEXTS:
            return column.sql
        text = column.sql
        return f"(CASE WHEN strlen({text}) > {MAX_CHARS} THEN left({text}, {MAX_CHARS}) ELSE {text} END)"

    def _column(self, node: dict[str, Any]) -> Column:
        names = node["column_names"]
        name = names[0].lower() if len(names) == 1 else ""
        column = STEP_COLUMNS.get(STEP_ALIASES.get(name, name))
        if column is None:
            raise _refuse(f"No column {'.'.join(names)!r}.", f"Columns: {', '.join(STEP_COLUMNS)}.")
        self.needs_trajectory |= column.needs_trajectory
        return column

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
        return f"({self._compared(node['left'])} {symbol} {self._compared(node['right'])})"

    def _conjunction(self, node: dict[str, Any]) -> str:
        joiner = {"CONJUNCTION_AND": " AND ", "CONJUNCTION_OR": " OR "}[node["type"]]
        return f"({self._all(node['children'], joiner)})"

    def _between(self, node: dict[str, Any]) -> str:
        value, lower = self._compared(node["input"]), self._compared(node["lower"])
        if node["type"] != "COMPARE_BETWEEN":
            raise _refuse(f"{node['type']} is not allowed in a condition.")
        return f"({value} BETWEEN {lower} AND {self._compared(node['upper'])})"

    def _operator(self, node: dict[str, Any]) -> str:
        children, kind = node["children"], node["type"]
        if kind == "OPERATOR_NOT":
            return f"(NOT {self.render(children[0])})"
        if kind in ("OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"):
            return f"({self._compared(children[0])} {'IS NULL' if kind == 'OPERATOR_IS_NULL' else 'IS NOT NULL'})"
        if kind in ("COMPARE_IN", "COMPARE_NOT_IN"):
            word = "IN" if kind == "COMPARE_IN" else "NOT IN"
            first = self._compared(children[0])
            return f"({first} {word} ({self._all(children[1:])}))"
        self._count_call()
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
        self._count_call()
        if name in _INFIX and node.get("is_operator"):
            if len(arguments) == 1:
                return f"({name} {self.render(arguments[0])})"
            return f"({self._all(arguments, f' {name} ')})"
        if name in _LIKE and node.get("is_operator"):
            return self._like(name, arguments)
        if name in _PATTERNS:
            if not 2 <= len(arguments) <= 3:
                raise _refuse(f"{name} takes a text, a pattern and, if need be, options.")
            self._count_pattern(_states(_text_of(arguments[1])))
            _text_of(arguments[-1])
        if name in FUNCTIONS | _PATTERNS:
            return f"{name}({self._all(arguments)})"
        raise _refuse(
            f"The function {name!r} is not allowed in a condition.",
            f"Allowed: {', '.join(sorted(FUNCTIONS | _PATTERNS))}.",
        )

    def _like(self, name: str, arguments: list[Any]) -> str:
        """LIKE as a regular expression: LIKE's own matching tries every place of every ``%``."""
        word, options = _LIKE[name]
        pattern = _text_of(arguments[1])
        self._count_pattern(len(pattern))
        value = self.render(arguments[0])
        self.parameters.append("".join({"%": ".*", "_": "."}.get(each) or _literal(each) for each in pattern))
        return f"({word}regexp_full_match({value}, ?, 's{options}'))"

    @staticmethod
    def _arguments(node: dict[str, Any]) -> list[Any]:
        arguments = node.get("arguments", node.get("children", []))
        if any(isinstance(item, dict) and item.get("name") for item in arguments):
            raise _refuse("Named arguments are not allowed in a condition.")
        return list(arguments)

    def _case(self, node: dict[str, Any]) -> str:
        self._count_call()
        checks = " ".join(
            f"WHEN {self.render(check['when_expr'])} THEN {self.render(check['then_expr'])}"
            for check in node["case_checks"]
        )
        return f"(CASE {checks} ELSE {self.render(node['else_expr'])} END)"

    def _cast(self, node: dict[str, Any]) -> str:
        kind = _cast_name(node)
        if kind not in _CASTS:
            raise _refuse(f"A cast to {kind} is not allowed in a condition.")
        self._count_call()
        word = "TRY_CAST" if node.get("try_cast") else "CAST"
        return f"{word}({self.render(node['child'])} AS {kind})"


_COUNTED = re.compile(r"\{\s*(\d*)\s*,?\s*(\d*)\s*\}")


def _literal(character: str) -> str:
    """A character as a regular expression that matches it alone."""
    return character if character.isalnum() or character in " _" or ord(character) > 127 else f"\\{character}"


def _states(pattern: str) -> int:
    """At least as many states as RE2 makes of a pattern, about."""
    n = len(pattern)
    for low, high in _COUNTED.findall(pattern):
        n *= max(int(low[:6] or 1), int(high[:6] or 1), 1)
    return n


def _text_of(node: Any) -> str:
    literal = node.get("literal") if isinstance(node, dict) and node.get("type") == "VALUE_CONSTANT" else None
    if literal is None or literal.get("kind") != "STRING":
        raise _refuse("A pattern is a text in quotes, and no expression.")
    return str(literal["text"])


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


def _check_form(text: str) -> None:
    """InvalidInput for a text that would take the parser long; it can't be stopped."""
    if len(text) > MAX_LENGTH:
        raise _refuse(f"The condition is longer than {MAX_LENGTH} characters.")
    depth = deepest = run = longest = 0
    for each in text:
        depth = max(0, depth + (each in "([{") - (each in ")]}"))
        deepest = max(deepest, depth)
        run = 0 if each.isalnum() or each in "_'\".," else run + 1
        longest = max(longest, run)
    if deepest > MAX_DEPTH:
        raise _refuse("The condition is nested too deeply.")
    if longest > MAX_RUN:
        raise _refuse(f"More than {MAX_RUN} signs or spaces in a row.")


@contextmanager
def watched(database: Database, cursor: Cursor) -> Iterator[None]:
    """Interrupt what the cursor does after ``TIMEOUT_S``, when the process grows by more than ``MAX_GROWTH``, or when
    the database is about to be closed: InvalidInput then.
    """
    done = threading.Event()
    deadline = time.monotonic() + TIMEOUT_S
    over: list[str] = []

    def uncounted() -> int:
        # DuckDB enforces its own limit on the memory that it counts.
        with database.read() as another:
            return own_memory() - database_memory(another)

    def has_grown(before: tuple[int, int]) -> bool:
        return own_memory() - before[0] > MAX_GROWTH and uncounted() - before[1] > MAX_GROWTH

    def watch() -> None:
        if done.wait(POLL_S):
            return
        try:
            look((own_memory(), uncounted()))
        except PoolError as error:
            # The file is being closed, or is damaged: the query that reads it raises its own error.
            over.append(error.message)

    def look(before: tuple[int, int]) -> None:
        while not done.wait(POLL_S):
            if database.stopping.is_set():
                over.append("Stopped: the service ends.")
            elif time.monotonic() >= deadline:
                over.append(f"Stopped after {TIMEOUT_S:g} seconds.")
            elif has_grown(before):
                over.append(f"Stopped: the service grew by more than {MAX_GROWTH >> 20} MiB meanwhile.")
            if over:
                cursor.interrupt()
                return

    watcher = threading.Thread(target=watch, name="where-watch", daemon=True)
    watcher.start()
    try:
        yield
    except duckdb.InterruptException as error:
        raise _refuse(over[0] if over else "The condition was stopped.", "Narrow it by filters first.") from error
    finally:
        done.set()
        watcher.join()


_OPENING = "SELECT 1 WHERE (\n"


def parsed_condition(text: str) -> tuple[dict[str, Any], int]:
    """The syntax tree of a condition, and how many bytes stand before the text in the tree's ``query_location``."""
    return _parse(f"{_OPENING}{text}\n)"), len(_OPENING)


@lru_cache(maxsize=256)
def compile_where(text: str) -> Condition | None:
    """Compile the WHERE box; None when it is empty. InvalidInput (field ``where``) explains the error."""
    if not text.strip():
        return None
    _check_form(text)
    node, _ = parsed_condition(text)
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
