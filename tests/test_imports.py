"""The import direction of docs/architecture.md, held by reading the code: lazy imports count as well."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Lower levels first. A module may import from lower levels, and inside its own part.
LEVELS: list[set[str]] = [
    {
        "core.types",
        "core.errors",
        "core.config",
        "core.checked",
        "core.logs",
        "core.scrub",
        "core.durable",
        "core.garbage",
        "core.freememory",
        "core.printable",
    },
    {
        "core.journal",
        "core.records",
        "core.tokens",
        "core.dialects",
        "core.serving",
        "core.tree",
        "core.credit",
        "core.rewards",
        "core.sandbox",
        "core.packs",
    },
    {"core.client", "core.rollout", "core.trainer", "core.trainer_rows"},
    {"core.pool"},
    {
        "core.trash",
        "core.linking",
        "core.ingest",
        "core.gateway",
        "core.batch",
        "core.tasks",
    },
    {"core.harnesses"},
    {"core.rollouts"},
    {"core.scoring", "core.report", "core.backup", "core.backup_folders", "core.editing"},
    {"core.synthesis"},
    {"core.export", "core.api", "core.imports"},
    {
        "core.owner",
        "core.doctor",
        "core.health",
        "core.supervise",
        "core.engine_host",
        "core.engine_changes",
        "core.demo_host",
        "core.learn_host",
        "core.rescore_host",
        "core.rollout_host",
        "core.synthesis_host",
        "core.supervisors",
        "core.workers",
        "core.cluster",
        "core.rebuild",
        "core.service",
        "core.commands",
        "core.pack_commands",
        "core.rollout_commands",
        "core.report_commands",
        "core.synthesis_commands",
        "core.cli",
    },
    {"studio"},
    {"pages"},
]
# Parts of one level that stand on another of the same level; everything else is refused.
SAME_LEVEL = {
    ("core.checked", "core.errors"),
    ("core.config", "core.errors"),
    ("core.logs", "core.printable"),
    ("core.rewards", "core.sandbox"),
    ("core.packs", "core.rewards"),
    ("core.client", "core.rollout"),
    ("core.trainer", "core.client"),
    ("core.trainer", "core.rollout"),
    ("core.trainer", "core.trainer_rows"),
    ("core.imports", "core.api"),
    ("core.backup", "core.backup_folders"),
    ("core.ingest", "core.linking"),
    ("core.api", "core.export"),
    ("core.service", "core.owner"),
    ("core.service", "core.doctor"),
    ("core.service", "core.health"),
    ("core.service", "core.supervise"),
    ("core.service", "core.engine_host"),
    ("core.service", "core.engine_changes"),
    ("core.engine_changes", "core.engine_host"),
    ("core.service", "core.demo_host"),
    ("core.service", "core.learn_host"),
    ("core.service", "core.rescore_host"),
    ("core.service", "core.rollout_host"),
    ("core.service", "core.synthesis_host"),
    ("core.rollout_host", "core.supervisors"),
    ("core.synthesis_host", "core.supervisors"),
    ("core.service", "core.workers"),
    ("core.service", "core.cluster"),
    ("core.service", "core.rebuild"),
    ("core.cli", "core.rebuild"),
    ("core.doctor", "core.rebuild"),
    ("core.workers", "core.engine_host"),
    ("core.cluster", "core.commands"),
    ("core.commands", "core.cluster"),
    ("core.cluster", "core.owner"),
    ("core.cluster", "core.workers"),
    ("core.cli", "core.cluster"),
    ("core.cli", "core.service"),
    ("core.cli", "core.workers"),
    ("core.cli", "core.owner"),
    ("core.cli", "core.doctor"),
    ("core.cli", "core.commands"),
    ("core.cli", "core.pack_commands"),
    ("core.cli", "core.rollout_commands"),
    ("core.cli", "core.report_commands"),
    ("core.pack_commands", "core.commands"),
    ("core.report_commands", "core.commands"),
    ("core.cli", "core.synthesis_commands"),
}
# The hot path must never wait for a query, whatever the levels allow.
FORBIDDEN = {("core.gateway", "core.pool")}
FORBIDDEN_LIBRARIES = {"core": {"streamlit", "plotly"}}
OWNED_LIBRARIES = {"duckdb": "core.pool", "ray": "core.cluster"}
LAZY_LIBRARIES = {"torch", "transformers", "litellm", "ray"}


def part_of(module: str) -> str | None:
    """The entry of LEVELS a dotted module belongs to, or None for other people's modules."""
    for level in LEVELS:
        for part in level:
            if module == part or module.startswith(part + "."):
                return part
    return None


def level_of(part: str) -> int:
    return next(i for i, level in enumerate(LEVELS) if part in level)


def sources() -> list[tuple[str, Path]]:
    modules = []
    for top in ("core", "studio", "pages"):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            modules.append((".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return modules


def imports(path: Path) -> list[tuple[str, bool]]:
    """Every imported module (dotted, with the names of ``from x import y`` appended) and whether at module level."""
    tree = ast.parse(path.read_text(), str(path))
    top_level = set(tree.body)
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [(alias.name, node in top_level) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names += [(f"{node.module}.{alias.name}", node in top_level) for alias in node.names]
    return names


def dependencies(modules: Sequence[tuple[str, Path]]) -> dict[str, set[str]]:
    """The modules of this list that each module imports.

    Imports inside functions and under ``if TYPE_CHECKING`` count: two modules that can't be understood without each
    other are a circle, also where Python loads them in some order. ``from package import name`` counts as an import of
    the module ``name`` if there is one, else of the package's ``__init__``. That a submodule loads its package's
    ``__init__`` first does not count.
    """
    known = {module for module, _ in modules}
    return {
        module: {name if name in known else name.rpartition(".")[0] for name, _ in imports(path)} & known
        for module, path in modules
    }


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The strongly connected components of more than one node, or of one that depends on itself (Tarjan)."""
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    components: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = lowest[node] = len(index)
        stack.append(node)
        for target in sorted(graph[node]):
            if target not in index:
                visit(target)
                lowest[node] = min(lowest[node], lowest[target])
            elif target in stack:
                lowest[node] = min(lowest[node], index[target])
        if lowest[node] == index[node]:
            place = stack.index(node)
            component = sorted(stack[place:])
            del stack[place:]
            if len(component) > 1 or node in graph[node]:
                components.append(component)

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return components


@pytest.mark.parametrize(("module", "path"), sources(), ids=lambda value: str(value))
def test_import_direction(module: str, path: Path) -> None:
    part = part_of(module)
    if part is None:
        assert module in {"core", "studio", "pages"}, f"{module} has no place in LEVELS"
        return
    for name, at_top in imports(path):
        library = name.split(".")[0]
        assert library not in FORBIDDEN_LIBRARIES.get(part.split(".")[0], set()), f"{module} imports {library}"
        owner = OWNED_LIBRARIES.get(library)
        assert owner is None or part == owner, f"{module} imports {library}, which only {owner} may"
        assert not (at_top and library in LAZY_LIBRARIES), f"{module} imports {library} at module level"
        target = part_of(name)
        if target is None or target == part:
            continue
        assert (part, target) not in FORBIDDEN, f"{module} imports {name}"
        higher, lower = level_of(part), level_of(target)
        assert lower < higher or (part, target) in SAME_LEVEL, f"{module} ({part}) imports {name}: wrong way"


def test_no_module_imports_itself_through_others() -> None:
    """No import circle, inside a part or between parts."""
    assert circles(dependencies(sources())) == []


def test_circles_are_found(tmp_path: Path) -> None:
    """Lazy imports and those for type checkers close a circle; a package that names its own modules doesn't."""
    texts = {
        "p": "from p import a\n",
        "p.a": "from p.b import f\n",
        "p.b": "def f():\n    from p.c import g\n    return g\n",
        "p.c": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p import a\n",
        "p.d": "import p.a\nimport os\n",
    }
    modules = []
    for number, (module, text) in enumerate(texts.items()):
        path = tmp_path / f"{number}.py"
        path.write_text(text)
        modules.append((module, path))
    assert dependencies(modules)["p.d"] == {"p.a"}
    assert circles(dependencies(modules)) == [["p.a", "p.b", "p.c"]]
    assert circles({"x": {"x"}, "y": {"x"}}) == [["x"]]


def test_the_test_can_fail(tmp_path: Path) -> None:
    """A lazy, upward import inside a function is seen."""
    file = tmp_path / "x.py"
    file.write_text("def f():\n    from core.pool import Pool\n    return Pool\n")
    assert imports(file) == [("core.pool.Pool", False)]
    assert part_of("core.pool.Pool") == "core.pool"
    assert level_of("core.pool") > level_of("core.journal")


PAGE_FOLDERS = {
    "batch",
    "collect",
    "consume",
    "curate",
    "datasets",
    "inspect",
    "optimise",
    "overview",
    "settings",
    "sql",
}


def test_page_folders_stand_alone() -> None:
    """The kit knows no page; a page's folder of widgets is imported by that page only; no widget imports a page."""
    for module, path in sources():
        for name, _ in imports(path):
            if module.startswith("studio.kit"):
                assert not name.startswith(("studio.widgets", "studio.frame")), f"{module} imports {name}"
            folder = name.split(".")[2] if name.startswith("studio.widgets.") else ""
            if folder in PAGE_FOLDERS and module.startswith(("studio.", "pages.")):
                own = (f"studio.widgets.{folder}", f"pages.{folder}")
                assert module.startswith(own), f"{module} imports {name}, which belongs to the page {folder}"


def test_pages_hold_no_sql() -> None:
    """Pages read widgets, call core and draw: no ``execute`` in them, nor in the studio's widgets.

    The SQL page hands on what its user wrote, to the one method that is made for that.
    """
    for module, path in sources():
        if module.startswith(("pages", "studio")):
            calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Attribute)]
            refused = {"execute", "executemany"} | (set() if module == "pages.sql" else {"sql"})
            assert not [n.attr for n in calls if n.attr in refused], path


def test_nothing_runs_at_import() -> None:
    """Module level of core holds definitions and constants: no calls as bare statements."""
    for module, path in sources():
        if not module.startswith("core"):
            continue
        for node in ast.parse(path.read_text()).body:
            is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
            assert not is_call, f"{path}:{node.lineno} runs at import"


def test_the_service_starts_without_what_takes_long_to_import() -> None:
    """Each of these takes seconds, or reserves a GB of address space."""
    slow = {"torch", "transformers", "litellm", "pandas", "plotly"}
    program = f"import sys, core.service; print(sorted({slow!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"
