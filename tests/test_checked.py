"""What is wrong with a JSON object is said with its field and what it should hold."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from msgspec import Meta, Struct

from core.checked import checked
from core.errors import InvalidInput


class Author(Struct):
    name: str


class Asked(Struct):
    name: str
    n: Annotated[int, Meta(ge=1, le=8)] = 1
    bias: dict[int, float] = {}
    messages: list[dict[str, Any]] = []
    stream: bool = False
    author: Author | None = None


@pytest.mark.parametrize(
    ("body", "field", "says"),
    [
        ({}, "name", "missing"),
        ({"name": None}, "name", "missing"),
        ({"name": 3}, "name", "expected str, got int"),
        ({"name": "a", "n": 0}, "n", "expected int >= 1"),
        ({"name": "a", "n": True}, "n", "expected int, got bool"),
        ({"name": "a", "n": 2.5}, "n", "expected int, got float"),
        ({"name": "a", "n": 10**30}, "n", "expected int <= 8"),
        ({"name": "a", "author": {}}, "author.name", "missing"),
        ({"name": "a", "author": {"name": 1}}, "author.name", "expected str, got int"),
        ({"name": "a", "stream": 1}, "stream", "expected bool"),
        ({"name": "a", "messages": [{}, 1]}, "messages", "expected object, got int"),
        ({"name": "a", "bias": {"x": 1}}, "bias", "expected int"),
        ({"name": "a", "bias": {"3": "x"}}, "bias", "expected float"),
    ],
)
def test_the_field_is_named(body: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        checked(Asked, body)
    assert refused.value.field == field
    assert refused.value.message.startswith(f"{field}: ")
    assert says in refused.value.message


def test_null_is_absent_and_further_fields_are_left_out() -> None:
    request = checked(Asked, {"name": "a", "n": None, "bias": {"3": 1}, "temperature": 0.5})
    assert request == Asked("a", 1, {3: 1.0})
