"""Imports that a trainer's source names and its environment lacks (engines, GPU kernels), as modules of empty names.

Loaded by the programs that run inside a trainer's environment. What is installed is imported as ever: only what no
other finder knows becomes a stub, and only code that a test does not run may touch one.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any, ClassVar


class Anything(type):
    """A class whose attributes, items and instances are such classes: fit for bases, annotations and decorators."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (), {})

    def __getitem__(cls, _: Any) -> Any:
        return cls

    def __call__(cls, *args: Any, **named: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) and not named else super().__call__()

    def __or__(cls, _: Any) -> Any:
        return cls

    __ror__ = __or__


def decorated(self: Any, *args: Any, **_: Any) -> Any:
    """What an instance makes of a call: as a decorator with arguments it leaves the function as it is."""
    return args[0] if args else self


class Stub(types.ModuleType):
    """A module that has every name."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        body = {"__init__": lambda self, *a, **k: None, "__call__": decorated, "__module__": self.__name__}
        return Anything(name, (), body)


class Missing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The last finder: what nobody knows is a stub, but for modules of the trainer itself."""

    def __init__(self, own: str) -> None:
        self.own = own

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".", maxsplit=1)[0] == self.own or not self.asked_by_the_trainer():
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def asked_by_the_trainer(self) -> bool:
        """Whether the import stands in the trainer's own code: what libraries try to import may well be absent."""
        frame = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
            frame = frame.f_back
        return frame is not None and frame.f_globals.get("__name__", "").split(".")[0] == self.own

    def create_module(self, spec: Any) -> Stub:
        return Stub(spec.name)

    def exec_module(self, module: Any) -> None:
        pass


def stub_missing(own: str) -> None:
    """From here on an import of what is not installed gives a stub; ``own`` is the trainer's package."""
    sys.meta_path.append(Missing(own))
