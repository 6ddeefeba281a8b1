"""Puts the studio's ``data_pool`` actor in the place of Claw-R1's, without a change to Claw-R1.

``setup`` is a ``worker_process_setup_hook`` of Ray: it runs in each worker process before anything of the job does. In
Claw-R1's settings::

    +ray_kwargs.ray_init.runtime_env.worker_process_setup_hook=core.cluster.claw_r1.setup
    +ray_kwargs.ray_init.runtime_env.env_vars.CLAW_DATA_POOL_URL=http://localhost:8100
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

MODULE = "claw_r1.data_pool.data_pool"
"""Claw-R1's module with the class ``DataPool``."""


def setup() -> None:
    """Replace Claw-R1's ``DataPool``: now, if it is imported, else when it is."""
    if MODULE in sys.modules:
        _replace(sys.modules[MODULE])
        package = sys.modules.get(MODULE.rpartition(".")[0])
        if package is not None and hasattr(package, "DataPool"):
            _replace(package)
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _replace(module: ModuleType) -> None:
    import ray

    from core.cluster.data_pool import DataPool

    module.DataPool = ray.remote(DataPool)  # type: ignore[attr-defined]


class _Finder(MetaPathFinder):
    """Finds Claw-R1's module where it is, and has it loaded by ``_Loader``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != MODULE:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    """Loads the module, then replaces its class."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _replace(module)
