"""Docs that are tested: every command, file and word that README and CONTRIBUTING name exists."""

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
    assert len(entries) > 30
    assert [path for path in entries if not (ROOT / path).exists()] == []


def test_the_tree_names_every_module_of_core_and_every_page() -> None:
    """The map has no blank spots: each module of core's first level and each page stands in it."""
    entries = set(tree_entries())
    here = {str(p.relative_to(ROOT)) for p in (ROOT / "core").iterdir() if p.name[0] not in "_."}
    here |= {str(p.relative_to(ROOT)) for p in (ROOT / "pages").glob("*.py")}
    assert sorted(here - entries) == []


@pytest.mark.parametrize("doc", DOCS)
def test_make_targets_exist(doc: str) -> None:
    targets = set(re.findall(r"^([a-z]+):", text_of("Makefile"), re.M))
    named = set(re.findall(r"\bmake ([a-z]+)\b", text_of(doc)))
    assert named, doc
    assert named <= targets | {"it", "sure"}


@pytest.mark.parametrize("doc", DOCS)
def test_links_and_pictures_exist(doc: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", text_of(doc)):
        if "://" not in target:
            assert (ROOT / target).exists(), f"{doc} names {target}"


def test_cli_commands_exist() -> None:
    named = set(re.findall(r"claw-studio ([a-z]+)", text_of("README.md")))
    shown = subprocess.run([sys.executable, "-m", "core.cli", "--help"], capture_output=True, text=True, check=True)
    assert named >= {"serve", "import", "export", "doctor"}
    assert [name for name in named if not re.search(rf"\b{name}\b", shown.stdout)] == []


def test_glossary_words_are_field_names() -> None:
    """Code words in README's glossary are names in ``core.types``."""
    section = re.search(r"## Words\n(.*?)\n## ", text_of("README.md"), re.S)
    assert section
    fields = {f.name for t in vars(core.types).values() if dataclasses.is_dataclass(t) for f in dataclasses.fields(t)}
    values = {
        m.value
        for t in vars(core.types).values()
        if isinstance(t, type) and issubclass(t, core.types.StrEnum)
        for m in t
    }
    named = set(re.findall(r"`([a-z_]+)`", section[1]))
    assert len(named) > 15
    assert sorted(named - fields - values) == []


def test_the_examples_of_contributing_are_python() -> None:
    for block in re.findall(r"```python\n(.*?)```", text_of("CONTRIBUTING.md"), re.S):
        compile(block, "CONTRIBUTING.md", "exec")


def test_nothing_private_is_committed() -> None:
    """No machine paths, registry hosts or keys in tracked text."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    patterns = re.compile(r"/work/(?:main|scratch|shared)|/root/|registry\.npmjs|pypi\.org/simple|sk-[A-Za-z0-9]{32,}")
    found = []
    for name in tracked:
        path = ROOT / name
        if (
            path.suffix in {".png", ".zst", ".parquet", ".safetensors"}
            or name == "tests/test_docs.py"
            or not path.exists()
        ):
            continue
        if patterns.search(path.read_text(errors="replace")):
            found.append(name)
    assert found == []


def test_the_measured_table_says_what_the_results_say() -> None:
    program = runpy.run_path(str(ROOT / "bench" / "table.py"))
    assert program["BEGIN"] + program["table"]() + program["END"] in text_of("README.md")
