"""Schemas of KubeRay's objects: those of its custom resource definitions, and the part of them that our YAML uses.

No package has KubeRay's definitions, so ``kuberay.json`` holds the types, required fields and allowed values of the
fields in ``docker/*.yaml``, taken from the definitions of ``VERSION``. Pod templates are left out of it: they are
checked against Kubernetes' own schemas. A field that is not in it is refused. To write it anew, with a git directory
of github.com/ray-project/kuberay:

    python -m tests.cluster.kuberay KUBERAY_GIT
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

VERSION = "v1.7.0"
PLURALS = {"RayCluster": "rayclusters", "RayJob": "rayjobs"}
POD_TEMPLATES = ("template", "submitterPodTemplate")
DOCKER = Path(__file__).parents[2] / "docker"
EXCERPT = Path(__file__).with_name("kuberay.json")
KEPT = ("type", "required", "enum", "anyOf", "minimum", "maximum", "pattern")
"""What of a field's schema says which values are right."""


def shipped() -> list[dict[str, Any]]:
    """All objects of the YAML that we ship."""
    return [one for path in sorted(DOCKER.glob("*.yaml")) for one in yaml.safe_load_all(path.read_text())]


def pod_templates(value: Any) -> Iterator[dict[str, Any]]:
    """The pod templates somewhere in an object."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name in POD_TEMPLATES:
                yield inner
            else:
                yield from pod_templates(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from pod_templates(inner)


def definition(git_dir: Path, kind: str, *, version: str = VERSION) -> dict[str, Any]:
    """The whole schema of a kind in KubeRay's repository, as its API server applies it; unknown fields are refused."""
    path = f"{version}:ray-operator/config/crd/bases/ray.io_{PLURALS[kind]}.yaml"
    git = ["git", f"--git-dir={git_dir}", "show", path]
    crd = yaml.safe_load(subprocess.run(git, capture_output=True, text=True, check=True).stdout)
    (served,) = [one for one in crd["spec"]["versions"] if one["name"] == "v1"]
    return closed(served["schema"]["openAPIV3Schema"])


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema in which an object with named fields has no others, as ``kubectl`` asks the API server for."""
    made = dict(schema)
    if "properties" in made:
        made["properties"] = {name: closed(inner) for name, inner in made["properties"].items()}
        if not made.get("x-kubernetes-preserve-unknown-fields"):
            made["additionalProperties"] = False
    for name in ("items", "additionalProperties"):
        if isinstance(made.get(name), dict):
            made[name] = closed(made[name])
    return made


def excerpt(schema: dict[str, Any], values: Sequence[Any]) -> dict[str, Any]:
    """What a closed schema says of the fields that these values have, without the pods' templates."""
    made = {name: schema[name] for name in KEPT if name in schema}
    if "properties" in schema:
        present = [value for value in values if isinstance(value, dict)]
        made["additionalProperties"] = False
        made["properties"] = {
            name: {"type": "object"}
            if name in POD_TEMPLATES
            else excerpt(inner, [value[name] for value in present if name in value])
            for name, inner in schema["properties"].items()
            if any(name in value for value in present)
        }
    elif isinstance(schema.get("additionalProperties"), dict):
        made["additionalProperties"] = excerpt(schema["additionalProperties"], [])
    if "items" in schema:
        made["items"] = excerpt(schema["items"], [inner for value in values for inner in value])
    return made


def excerpts(git_dir: Path) -> dict[str, Any]:
    """What ``kuberay.json`` has to hold: by kind, the excerpt for the objects that we ship."""
    return {
        kind: excerpt(definition(git_dir, kind), [one for one in shipped() if one["kind"] == kind])
        for kind in PLURALS
    }  # fmt: skip


def problems(schema: dict[str, Any], value: Any) -> list[str]:
    """What is wrong with an object, each with its place."""
    return [f"{error.json_path}: {error.message}" for error in Draft202012Validator(schema).iter_errors(value)]


if __name__ == "__main__":
    head = f"From the custom resource definitions of KubeRay {VERSION}, Apache License 2.0: see kuberay.py"
    EXCERPT.write_text(json.dumps({"comment": head, **excerpts(Path(sys.argv[1]))}, indent=1) + "\n")
