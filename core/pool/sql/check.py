"""Checks a query of the SQL console and finds the tables it reads, with DuckDB's parser; nothing is executed.

The tree that ``json_serialize_sql`` gives is walked, and only known kinds of nodes, known functions and the pool's
tables pass. So ``INSERT`` inside a ``WITH``, ``read_csv``, ``FROM 'file'``, ``query()``, ``getenv``, ``nextval`` and
raw scans of memory are refused before anything is bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from core.errors import InvalidInput

Cursor = Any

NODES = frozenset(
    {
        "SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE",
        "BASE_TABLE", "SUBQUERY", "JOIN", "TABLE_FUNCTION", "EXPRESSION_LIST", "EMPTY", "PIVOT", "SHOW_REF",
        "ORDER_MODIFIER", "LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER", "DISTINCT_MODIFIER",
        "ORDER_DEFAULT", "ORDER_ASCENDING", "ORDER_DESCENDING", "ASCENDING", "DESCENDING",
    }
)  # fmt: skip
"""Parts of a parsed query that read."""

TABLE_FUNCTIONS = frozenset({"unnest", "range", "generate_series", "json_each", "json_tree"})

HARMLESS = frozenset({"random", "uuid", "uuidv4", "uuidv7", "gen_random_uuid"})
"""Of the functions that DuckDB marks as volatile."""
REFUSED = frozenset(
    {
        "getenv", "getvariable", "current_setting", "current_query", "pg_sleep", "sleep_ms", "repeat",
        "lpad", "rpad", "list_resize", "array_resize", "bar", "printf", "format",
        "inet_client_addr", "inet_client_port", "inet_server_addr", "inet_server_port",
    }
)  # fmt: skip
"""Functions with outside access, that wait, or that make large values of small ones."""
ONLY_TABLES = frozenset({"range", "generate_series"})
"""Streams as tables, whole lists as scalars: as lists they are refused."""
SPECIAL = frozenset({"unnest", "list_comprehension", "grouping"})
"""Written like functions, and not in the catalog."""
ROW_WISE = frozenset({"COLUMN_REF", "STAR", "CONSTANT", "COMPARISON", "CONJUNCTION", "OPERATOR", "CAST", "BETWEEN"})
"""Expressions that give one value for each row."""

Tables = Mapping[str, Mapping[str, str]]
"""Table -> column -> type; names in lower case."""


@dataclass(frozen=True, slots=True)
class TableRead:
    """The columns and rows of one table that a query needs.

    Attributes:
        columns: at least those that it names; in the table's order.
        keep: ``(column, comparison, constant)`` that hold for every row that it uses.
        limit: the most first rows that it uses; None: all.
    """

    table: str
    columns: tuple[str, ...]
    keep: tuple[tuple[str, str, str | int], ...] = ()
    limit: int | None = None


def check(cursor: Cursor, text: str, tables: Tables, hidden: Iterable[str], limit: int) -> list[TableRead]:
    """The tables, columns and rows that the query reads for at most ``limit`` rows of its result.

    Raises:
        InvalidInput: it is no single SELECT that only reads these tables.
    """
    tree = _parse(cursor, text)
    named: set[str] = set()
    for node, _ in _walk(tree):
        named.update(entry["key"].lower() for entry in (node.get("cte_map") or {}).get("map", ()))
        if isinstance(node.get("cte_name"), str):
            named.add(node["cte_name"].lower())
    taken = named & (tables.keys() | set(hidden))
    if taken:
        raise InvalidInput(f"{min(taken)!r} is a table's name already.", field="sql")
    scalars, functions = _functions(cursor)
    for node, in_from in _walk(tree):
        _check_node(node, in_from, tables.keys() | named, functions)
    return _reads(tree, tables, limit, scalars)


def _parse(cursor: Cursor, text: str) -> dict[str, Any]:
    statements = cursor.extract_statements(text)
    if len(statements) != 1:
        raise InvalidInput(f"One query at a time; these are {len(statements)}.", field="sql")
    try:
        tree = orjson.loads(cursor.execute("SELECT json_serialize_sql(?::VARCHAR)", [text]).fetchall()[0][0])
    except orjson.JSONDecodeError as error:
        raise InvalidInput("The query is nested too deeply.", field="sql") from error
    if tree.get("error"):
        raise InvalidInput(f"Only SELECT is answered here: {tree.get('error_message')}", field="sql")
    if len(tree["statements"]) != 1:
        raise InvalidInput("One query at a time.", field="sql")
    statement: dict[str, Any] = tree["statements"][0]
    return statement


def _check_node(node: Mapping[str, Any], in_from: bool, readable: set[str], functions: frozenset[str]) -> None:
    kind, name = node.get("type"), node.get("function_name")
    if isinstance(kind, str) and kind and "class" not in node and kind not in NODES:
        raise InvalidInput(f"{kind} is not answered here: queries only read.", field="sql")
    if kind == "SHOW_REF" and not node.get("query"):
        raise InvalidInput("SHOW is not answered here.", field="sql", hint="GET /api/v1/sql lists the tables.")
    if kind == "BASE_TABLE":
        foreign = node.get("catalog_name") or node.get("schema_name", "") not in ("", "main") or node.get("at_clause")
        if foreign or node["table_name"].lower() not in readable:
            raise InvalidInput(
                f"No table {node['table_name']!r} to read here.", field="sql", hint="GET /api/v1/sql lists the tables."
            )
    if isinstance(name, str) and name:
        foreign = node.get("catalog") or node.get("schema") not in (None, "", "main")
        if foreign or name.lower() not in (TABLE_FUNCTIONS if in_from else functions):
            where = f" Tables are made by {', '.join(sorted(TABLE_FUNCTIONS))}." if in_from else ""
            raise InvalidInput(f"{name}() is not answered here.{where}", field="sql")


def _walk(tree: Any) -> Iterator[tuple[dict[str, Any], bool]]:
    """Every object of the tree, and whether it is the function of a FROM clause."""
    stack = [(tree, False)]
    while stack:
        at, in_from = stack.pop()
        if isinstance(at, dict):
            yield at, in_from
            makes_table = at.get("type") == "TABLE_FUNCTION"
            stack.extend((value, makes_table and key == "function") for key, value in at.items())
        elif isinstance(at, list):
            stack.extend((value, False) for value in at)


_FUNCTIONS = """
SELECT lower(function_name), bool_or(coalesce(has_side_effects, FALSE) OR coalesce(stability = 'VOLATILE', FALSE)),
    bool_and(function_type = 'scalar')
FROM duckdb_functions() WHERE function_type IN ('scalar', 'aggregate', 'macro', 'window') AND internal
GROUP BY ALL
"""


def _functions(cursor: Cursor) -> tuple[frozenset[str], frozenset[str]]:
    """Scalar functions, and all functions that a query may call: none has side effects or outside access."""
    functions = cursor.execute(_FUNCTIONS).fetchall()
    pure = {name: scalar for name, volatile, scalar in functions if not volatile and not name.startswith("__internal")}
    called = frozenset((pure.keys() | HARMLESS | SPECIAL) - REFUSED - ONLY_TABLES)
    return frozenset(name for name in called if pure.get(name)), called


# What is read --------------------------------------------------------------------------------------------------


def _reads(tree: dict[str, Any], tables: Tables, limit: int, scalars: frozenset[str]) -> list[TableRead]:
    bases = [node for node, _ in _walk(tree) if node.get("type") == "BASE_TABLE"]
    used = {node["table_name"].lower() for node in bases} & tables.keys()
    names = used | {str(node.get("alias", "")).lower() for node in bases}
    words = _words(tree)
    every = any(_takes_all(node, names) for node, _ in _walk(tree))
    top = tree["node"]
    single = len(bases) == 1 and (top.get("from_table") or {}).get("type") == "BASE_TABLE" and len(used) == 1
    reads = []
    for table in sorted(used):
        columns = tables[table]
        needed = tuple(columns) if every else tuple(name for name in columns if name.lower() in words)
        keep = _keep(top, columns) if single else ()
        max_rows = _limit(top, limit, scalars) if single and not top.get("where_clause") else None
        # A table whose rows are only counted needs a column too.
        reads.append(TableRead(table, needed or (min(columns, key=lambda name: len(columns[name])),), keep, max_rows))
    return reads


def _words(tree: Any) -> set[str]:
    """Every text of the tree, in lower case: it includes all columns that the query uses."""
    words: set[str] = set()
    stack = [tree]
    while stack:
        at = stack.pop()
        if isinstance(at, str):
            words.add(at.lower())
        elif isinstance(at, dict):
            words.update(key.lower() for key in at)
            stack.extend(at.values())
        elif isinstance(at, list):
            stack.extend(at)
    return words


def _takes_all(node: Mapping[str, Any], names: set[str]) -> bool:
    """Whether it uses columns that it does not name."""
    if node.get("class") == "COLUMN_REF":
        return any(name.lower() in names for name in node["column_names"][-1:])
    renamed = node.get("type") == "BASE_TABLE" and node.get("column_name_alias")
    return bool(renamed) or (
        node.get("class") in ("STAR", "POSITIONAL_REFERENCE")
        or node.get("type") in ("SHOW_REF", "PIVOT")
        or node.get("ref_type") in ("NATURAL", "POSITIONAL")
    )


def _limit(node: Mapping[str, Any], limit: int, scalars: frozenset[str]) -> int | None:
    """How many of its table's first rows a plain SELECT uses; None where it may be more."""
    if node.get("type") != "SELECT_NODE" or node["from_table"].get("sample") or (node.get("cte_map") or {}).get("map"):
        return None
    if any(node.get(key) for key in ("group_expressions", "group_sets", "having", "sample", "qualify")):
        return None
    if node.get("aggregate_handling") != "STANDARD_HANDLING":
        return None
    for part, _ in _walk(node["select_list"]):
        kind = part.get("class")
        scalar = kind == "FUNCTION" and part["function_name"].lower() in scalars - SPECIAL
        if kind is not None and kind != "TYPE" and not (kind in ROW_WISE or scalar):
            return None
    max_rows = limit + 1
    for modifier in node.get("modifiers") or ():
        if modifier.get("type") != "LIMIT_MODIFIER":
            return None
        offset = _constant(modifier.get("offset"))
        if modifier.get("offset") is not None and not isinstance(offset, int):
            return None
        max_rows += offset if isinstance(offset, int) else 0
    return max_rows


def _constant(node: Any) -> str | int | None:
    literal = (
        (node or {}).get("literal") if isinstance(node, Mapping) and node.get("type") == "VALUE_CONSTANT" else None
    )
    if literal is None:
        return None
    if literal["kind"] == "INTEGER" and str(literal["text"]).isdigit() and len(literal["text"]) <= 18:
        return int(literal["text"])
    return str(literal["text"]) if literal["kind"] == "STRING" else None


_COMPARE = {
    "COMPARE_EQUAL": "=",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
}
_MIRRORED = {"=": "=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}


def _keep(node: Mapping[str, Any], columns: Mapping[str, str]) -> tuple[tuple[str, str, str | int], ...]:
    """Comparisons of a column with a constant that every used row fulfils: there is no need to carry the others."""
    if node.get("type") != "SELECT_NODE" or node["from_table"].get("column_name_alias"):
        return ()
    aliases = {str(part.get("alias", "")).lower() for part in node["select_list"]}
    conditions: list[tuple[str, str, str | int]] = []
    open_ = [node.get("where_clause")]
    while open_:
        at = open_.pop()
        if not at:
            continue
        if at.get("type") == "CONJUNCTION_AND":
            open_.extend(at["children"])
        elif at.get("type") in _COMPARE:
            symbol = _COMPARE[at["type"]]
            for one, other, way in (
                (at["left"], at["right"], symbol),
                (at["right"], at["left"], _MIRRORED[symbol]),
            ):
                value = _constant(other)
                name = one["column_names"][-1].lower() if one.get("class") == "COLUMN_REF" else ""
                plain = len(one.get("column_names", ())) == 1 and name in columns and name not in aliases
                # A constant of another type is converted by rules that are the database's own.
                wanted = {str: ("VARCHAR",), int: ("BIGINT", "INTEGER")}.get(type(value), ())
                if value is not None and plain and columns[name] in wanted:
                    conditions.append((name, way, value))
    return tuple(conditions)
