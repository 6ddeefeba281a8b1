"""Without the extra ``ray`` nothing needs Ray, and a studio on one machine imports nothing of ``core.cluster``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SERVED = """
import sys
from pathlib import Path
from core.config import Settings
from core.service import Service

service = Service.open(Settings(data_dir=Path(sys.argv[1]), port=0, gateways=0))
service.close()
assert not [name for name in sys.modules if name.startswith("core.cluster")]

import core.cli

core.cli.command_line()
assert "ray" not in sys.modules
"""
REFUSED = """
import importlib, pkgutil, sys

sys.modules["ray"] = None
import core.cluster

for module in pkgutil.iter_modules(core.cluster.__path__, "core.cluster."):
    importlib.import_module(module.name)
"""


def run(program: str, *args: str) -> None:
    done = subprocess.run([sys.executable, "-c", program, *args], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_one_machine_imports_neither_ray_nor_the_cluster(tmp_path: Path) -> None:
    run(SERVED, str(tmp_path))


def test_each_module_of_the_cluster_is_importable_without_ray() -> None:
    run(REFUSED)
