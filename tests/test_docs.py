"""Docs that are tested: every command, file and word that the pages name exists."""

from __future__ import annotations

import dataclasses
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import core.types

ROOT = Path(__file__).resolve().parent.parent
DOCS = ["README.md", "CONTRIBUTING.md"]


def text_of(doc: str) -> str:
    return (ROOT / doc).read_text()


def tree_entries() -> list[str]:
    """Paths of README's file tree: the fenced block that starts with ``claw-studio/``, two spaces a level."""
    block = re.search(r"```text\nclaw-studio/\n(.*?)```", text_of("README.md"), re.S)
    assert block, "README has no file tree"
    stack: list[str] = []
    paths = []
    for line in block[1].splitlines():
        name = line.split("#")[0].rstrip()
        if not name.strip():
            continue
        depth = (len(name) - len(name.lstrip())) // 2 - 1
        stack[depth:] = [name.strip().rstrip("/")]
        paths.append("/".join(stack))
    return paths


def test_every_entry_of_the_tree_exists() -> None:
    entries = tree_entries()
    assert len(entries) > 10
    assert [path for path in entries if not (ROOT / path).exists()] == []


def test_readme_is_a_map_and_not_a_manual() -> None:
    assert len(text_of("README.md").splitlines()) <= 150


def owned() -> set[str]:
    """Paths below ``core`` that the table of folders in docs/architecture.md names."""
    section = re.search(r"\n## Folders\n(.*?)\n## ", text_of("docs/architecture.md"), re.S)
    assert section
    named: set[str] = set()
    for row in section[1].splitlines():
        if row.startswith("| `"):
            for name in re.findall(r"`([\w/.]+)`", row.split("|")[1]):
                named.add(name if name.split("/")[0] in {"core", "studio", "pages"} else f"core/{name}")
    return named


def test_the_architecture_names_every_part_of_core() -> None:
    here = {f"core/{p.name}" for p in (ROOT / "core").iterdir() if p.name[0] not in "_."}
    assert sorted(here - owned()) == []


def test_files_that_the_architecture_names_exist() -> None:
    """A bare file name belongs to the folder of the path before it on its line."""
    for line in text_of("docs/architecture.md").splitlines():
        folder = Path()
        for name in re.findall(r"`([\w/]+\.py|(?:core|studio|pages|tests)(?:/\w+)*)`", line):
            path = Path(name)
            if len(path.parts) == 1 and path.suffix:
                path = folder / path
            folder = path.parent if path.suffix else path
            assert (ROOT / path).exists(), f"docs/architecture.md names {path}"


@pytest.mark.parametrize("page", ["cli", "http", "settings", "glossary"])
def test_reference_pages_say_what_the_code_says(page: str) -> None:
    made = runpy.run_path(str(ROOT / "docs" / "make_reference.py"))["PAGES"][page]()
    assert text_of(f"docs/{page}.md").rstrip() == made.rstrip(), "run python docs/make_reference.py"


@pytest.mark.parametrize("doc", DOCS)
def test_make_targets_exist(doc: str) -> None:
    targets = set(re.findall(r"^([a-z]+):", text_of("Makefile"), re.M))
    named = set(re.findall(r"\bmake ([a-z]+)\b", text_of(doc)))
    assert named, doc
    assert named <= targets | {"it", "sure"}


@pytest.mark.parametrize("doc", [*DOCS, "SECURITY.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_links_and_pictures_exist(doc: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", text_of(doc)):
        if "://" not in target:
            assert ((ROOT / doc).parent / target).exists(), f"{doc} names {target}"


def test_tests_that_docs_name_exist() -> None:
    """A promise names the test that holds it."""
    for doc in [ROOT / "README.md", ROOT / "SECURITY.md", *(ROOT / "docs").glob("*.md")]:
        for name in re.findall(r"`((?:tests|bench)/[\w/.]+)(?:::[\w\[\]]+)?`", doc.read_text()):
            assert (ROOT / name).exists(), f"{doc.name} names {name}"


def test_cli_commands_exist() -> None:
    named = set(re.findall(r"claw-studio ([a-z]+)", text_of("README.md")))
    shown = subprocess.run([sys.executable, "-m", "core.cli", "--help"], capture_output=True, text=True, check=True)
    assert named >= {"serve", "import", "export", "doctor"}
    assert [name for name in named if not re.search(rf"\b{name}\b", shown.stdout)] == []


def test_glossary_words_are_field_names() -> None:
    """Code words in the glossary are names in ``core.types``."""
    fields = {f.name for t in vars(core.types).values() if dataclasses.is_dataclass(t) for f in dataclasses.fields(t)}
    values = {
        m.value
        for t in vars(core.types).values()
        if isinstance(t, type) and issubclass(t, core.types.StrEnum)
        for m in t
    }
    named = set(re.findall(r"`([a-z_]+)`", text_of("docs/glossary.md")))
    assert len(named) > 15
    assert sorted(named - fields - values) == []


def test_the_examples_of_contributing_are_python() -> None:
    for block in re.findall(r"```python\n(.*?)```", text_of("CONTRIBUTING.md"), re.S):
        compile(block, "CONTRIBUTING.md", "exec")


def test_nothing_private_is_committed() -> None:
    """No machine paths, registry hosts or keys in tracked text. ClawGym's own workspace path is part of its format."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    patterns = re.compile(
        r"/work/(?:main|scratch|shared)|/root/(?!\.openclaw/workspace)|registry\.npmjs|pypi\.org/simple|sk-[A-Za-z0-9]{32,}"
    )
    paths = []
    for name in tracked:
        path = ROOT / name
        if (
            path.suffix in {".png", ".zst", ".parquet", ".safetensors"}
            or name == "tests/test_docs.py"
            or not path.exists()
        ):
            continue
        if patterns.search(path.read_text(errors="replace")):
            paths.append(name)
    assert paths == []


def test_the_measured_table_says_what_the_results_say() -> None:
    program = runpy.run_path(str(ROOT / "bench" / "table.py"))
    assert program["BEGIN"] + program["table"]() + program["END"] in text_of("docs/benchmarks.md")
