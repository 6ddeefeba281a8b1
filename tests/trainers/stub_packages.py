"""Imports that a trainer's own code makes and a test of its data path doesn't need: GPUs' and clusters' packages."""

from __future__ import annotations

import importlib.machinery
import sys
import types
from typing import Any


class _Anything(types.ModuleType):
    """A module in which every name is a class that takes whatever it is given."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "remote":
            made: Any = lambda *given, **_: given[0] if given and callable(given[0]) else (lambda value: value)  # noqa: E731
        else:
            body = {"__init__": lambda self, *_, **__: None, "__class_getitem__": classmethod(lambda cls, _: cls)}
            made = type(name, (), body)
        setattr(self, name, made)
        return made


class _Finder:
    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".", maxsplit=1)[0] in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        made = _Anything(spec.name)
        made.__path__ = []
        return made

    def exec_module(self, module: Any) -> None:
        pass


def stub(*names: str) -> None:
    """Let these packages be imported where they are not installed."""
    sys.meta_path.append(_Finder(names))
