"""Finds the example programs: in a wheel they are inside ``core``, in a checkout beside it (setup.py)."""

from __future__ import annotations

from pathlib import Path

from core.errors import NotFound

_CORE = Path(__file__).resolve().parents[1]
EXAMPLES = _CORE / "examples" if (_CORE / "examples").is_dir() else _CORE.parent / "examples"


def example_program(name: str) -> Path:
    """Path of an example, such as ``train_policy.py``, to run with ``sys.executable``.

    Raises:
        NotFound: this installation has no such example.
    """
    path = EXAMPLES / name
    if not path.is_file():
        raise NotFound(f"the program {name} is missing", field="examples", hint="install claw-studio again")
    return path
