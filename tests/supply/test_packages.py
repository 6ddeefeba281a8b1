"""What is pinned: no version with a known weakness, and no licence that the project can't be shipped with."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
ADVISORIES = tomllib.loads((Path(__file__).parent / "advisories.toml").read_text())["advisory"]

# Families of licences that allow use in an Apache-2.0 program without conditions on our own code. MPL-2.0 binds the
# files of its own package only.
ALLOWED = re.compile(r"apache|\bmit\b|bsd|\bisc\b|mpl|mozilla|psf|python software foundation|cnri", re.I)
REFUSED = re.compile(r"\b[al]?gpl\b|affero|sspl|business source|non.?commercial|creative commons.*nc", re.I)


def pinned() -> dict[str, str]:
    """Canonical package name -> version, as ``requirements.lock`` says."""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    requirements = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(one.name): next(iter(one.specifier)).version for one in requirements}


def weak(versions: dict[str, str]) -> list[str]:
    """The advisories that speak of a version in ``versions``."""
    return [
        f"{one['package']} {version}: {one['id']}, {one['what']}"
        for one in ADVISORIES
        if (version := versions.get(canonicalize_name(one["package"])))
        and SpecifierSet(one["affected"]).contains(version, prereleases=True)
    ]


def licence_of(package: str) -> str:
    """What the installed package says of its licence: the expression, else the classifiers, else the first line."""
    metadata = importlib.metadata.metadata(package)
    classifiers = [c.rpartition(" :: ")[2] for c in metadata.get_all("Classifier", []) if c.startswith("License ::")]
    written = (metadata.get("License") or "").strip().splitlines() or [""]
    return metadata.get("License-Expression") or "; ".join(classifiers) or written[0]


def test_no_pinned_version_has_a_known_weakness() -> None:
    assert weak(pinned()) == []


@pytest.mark.parametrize("package, version", [("litellm", "1.82.7"), ("starlette", "0.46.2"), ("torch", "2.5.1")])
def test_a_weak_version_is_found(package: str, version: str) -> None:
    assert len(weak({package: version})) >= 1


def test_every_advisory_names_a_pinned_package() -> None:
    """An entry about a package that is no longer pinned can be taken out."""
    assert sorted({one["package"] for one in ADVISORIES} - set(pinned())) == []


def test_every_pinned_package_has_a_licence_that_can_be_shipped() -> None:
    licenses = {}
    for name in pinned():
        try:
            licenses[name] = licence_of(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # of another extra than the ones installed here
    assert len(licenses) > 100
    assert {n: t for n, t in licenses.items() if REFUSED.search(t) or not ALLOWED.search(t)} == {}
