"""The origin of each setting, and the sizes of the data folder's parts, for the Settings page."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.config import ENV_PREFIX, TOML_NAME, Settings


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting as shown: ``origin`` is ``environment``, ``studio.toml``, ``argument`` or ``default``."""

    name: str
    value: Any
    origin: str
    env_name: str
    description: str


def toml_path(environ: Mapping[str, str]) -> Path:
    """The settings file that ``core.config`` reads."""
    return Path(environ.get(ENV_PREFIX + "CONFIG", TOML_NAME))


def setting_rows(settings: Settings, environ: Mapping[str, str]) -> list[SettingRow]:
    """Every field of ``Settings`` in its declared order, secrets reduced to whether they are set."""
    path = toml_path(environ)
    from_file: Mapping[str, Any] = tomllib.loads(path.read_text()) if path.is_file() else {}
    in_env = {name.upper() for name in environ}
    shown = settings.public()
    rows = []
    for name, field in Settings.model_fields.items():
        env_name = (ENV_PREFIX + name).upper()
        if env_name in in_env:
            origin = "environment"
        elif name in from_file:
            origin = path.name
        elif getattr(settings, name) != field.default:
            origin = "argument"
        else:
            origin = "default"
        rows.append(SettingRow(name, shown[name], origin, env_name, field.description or ""))
    return rows


@dataclass(frozen=True, slots=True)
class FolderSize:
    """One part of the data folder: its path, number of files and bytes on disk."""

    name: str
    path: Path
    n_files: int
    n_bytes: int


def folder_sizes(settings: Settings) -> list[FolderSize]:
    """Sizes of journal, pool, exports and embedded model; 0 when missing."""
    pool = settings.pool_path
    parts = (
        ("Journal", settings.journal_dir, _files(settings.journal_dir)),
        ("Pool", pool, [path for path in (pool, pool.with_name(pool.name + ".wal")) if path.is_file()]),
        ("Exports", settings.export_dir, _files(settings.export_dir)),
        ("Embedded model", settings.local_model_dir or settings.data_dir / "model", None),
    )
    sizes = []
    for name, path, files in parts:
        existing = _files(path) if files is None else files
        sizes.append(FolderSize(name, path, len(existing), sum(_size(file) for file in existing)))
    return sizes


def _files(folder: Path) -> list[Path]:
    return [Path(root) / name for root, _, names in os.walk(folder) for name in names]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # removed after listing, as DuckDB does with its log
        return 0
