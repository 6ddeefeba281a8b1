"""Reading files of JSON as a stream gives what reading them whole gives, and names what is broken."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.imports.base import Problem
from core.imports.files import records

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
objects = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), values, max_size=4)


def read(path: Path, **options: Any) -> list[Any]:
    return [record for _, record in records(path, **options)]


@given(
    elements=st.lists(objects, max_size=6),
    indent=st.sampled_from([None, 1]),
    n=st.integers(1, 40),
    packed=st.booleans(),
)
def test_arrays_and_lines(elements: list[Any], indent: int | None, n: int, packed: bool, tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("files")
    write = gzip.compress if packed else bytes
    array, lines, data = folder / "array.json", folder / "lines.jsonl", folder / "data.json"
    array.write_bytes(write(json.dumps(elements, indent=indent, ensure_ascii=False).encode()))
    lines.write_bytes(write("".join(json.dumps(element) + "\n" for element in elements).encode()))
    data.write_bytes(write(json.dumps({"data": elements, "meta": {}}, indent=1).encode()))
    assert read(array, read_chars=n) == elements
    assert read(lines) == elements
    assert read(data) == elements


def test_a_broken_line_is_named_and_the_next_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": \n\n\xff\xfe\n{"a": 2}')
    items = list(records(path))
    assert [record for _, record in items if not isinstance(record, Problem)] == [{"a": 1}, {"a": 2}]
    assert [where for where, record in items if isinstance(record, Problem)] == ["x.jsonl:2", "x.jsonl:4"]


@pytest.mark.parametrize("text", ['[{"a": 1}, {"a": ', '[{"a": 1}', '[{"a": 1}, nonsense]', '[{"a": 1}, {"a" 2}]'])
def test_a_broken_array_gives_what_came_before(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    first, broken = records(path)
    assert first == ("x.json[0]", {"a": 1})
    assert broken[0] == "x.json[1]"
    assert isinstance(broken[1], Problem)


def test_an_empty_file_has_no_records(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("\n\n")
    assert read(tmp_path / "x.jsonl") == []
