"""What we ship to deploy a cluster: KubeRay's objects against the schemas of KubeRay and Kubernetes, and the commands.

``CLAW_UPSTREAM`` may name a folder with the git directory ``ray-project+kuberay/repo``: KubeRay's whole definitions.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.main

from core.cli import command_line
from core.cluster.commands import HUB_PORT
from core.config import Settings
from tests.clients.installed import python_of
from tests.cluster.installed import ROOT, ray_python
from tests.cluster.kuberay import EXCERPT, PLURALS, closed, definition, excerpts, pod_templates, problems, shipped

UPSTREAM = os.environ.get("CLAW_UPSTREAM")
KUBERAY = Path(UPSTREAM or "/nonexistent") / "ray-project+kuberay" / "repo"
KUBERNETES = ("1.28", "1.37")
"""The oldest and newest versions whose schemas the objects must fit."""
Edit = Callable[[dict[str, Any]], Any]


def one(kind: str, name: str | None = None) -> dict[str, Any]:
    """The shipped object of a kind."""
    (found,) = [it for it in shipped() if it["kind"] == kind and name in (None, it["metadata"]["name"])]
    return found


def edited(value: dict[str, Any], edit: Edit) -> dict[str, Any]:
    """A copy with a mistake in it."""
    made = copy.deepcopy(value)
    edit(made)
    return made


def workers(cluster: dict[str, Any]) -> dict[str, Any]:
    (group,) = cluster["spec"]["workerGroupSpecs"]
    assert isinstance(group, dict)
    return group


def renamed(value: dict[str, Any], old: str, new: str) -> None:
    value[new] = value.pop(old)


CLUSTER_MISTAKES: dict[str, Edit] = {
    "an unknown field": lambda it: renamed(it["spec"], "workerGroupSpecs", "workerGroups"),
    "an unknown field of a group": lambda it: renamed(workers(it), "maxReplicas", "maxReplica"),
    "a field too few": lambda it: workers(it).pop("groupName"),
    "no template": lambda it: it["spec"]["headGroupSpec"].pop("template"),
    "a number as text": lambda it: workers(it).update(replicas="3"),
    "a parameter that is no text": lambda it: it["spec"]["headGroupSpec"]["rayStartParams"].update({"num-cpus": 0}),
}
JOB_MISTAKES: dict[str, Edit] = {
    "an unknown field": lambda it: renamed(it["spec"], "entrypoint", "entryPoint"),
    "a selector that is no mapping": lambda it: it["spec"].update(clusterSelector="claw-studio"),
    "a command as a list": lambda it: it["spec"].update(entrypoint=["claw-studio", "cluster", "up"]),
}
MISTAKES = [
    (kind, edit) for kind, edits in zip(PLURALS, (CLUSTER_MISTAKES, JOB_MISTAKES), strict=True) for edit in edits
]


def mistaken(kind: str, what: str) -> dict[str, Any]:
    edits = {"RayCluster": CLUSTER_MISTAKES, "RayJob": JOB_MISTAKES}
    return edited(one(kind), edits[kind][what])


@pytest.mark.parametrize("kind", PLURALS)
def test_objects_have_the_fields_of_kuberays_definitions(kind: str) -> None:
    schema = json.loads(EXCERPT.read_text())[kind]
    assert one(kind)["apiVersion"] == "ray.io/v1"
    assert problems(schema, one(kind)) == []


@pytest.mark.parametrize(("kind", "what"), MISTAKES)
def test_a_mistake_is_found_by_the_excerpt(kind: str, what: str) -> None:
    assert problems(json.loads(EXCERPT.read_text())[kind], mistaken(kind, what))


needs_kuberay = pytest.mark.skipif(not KUBERAY.exists(), reason="CLAW_UPSTREAM names no folder with KubeRay")


@needs_kuberay
@pytest.mark.parametrize("kind", PLURALS)
def test_objects_fit_the_whole_definition(kind: str) -> None:
    schema = definition(KUBERAY, kind)
    assert problems(schema, one(kind)) == []
    for what in (what for its, what in MISTAKES if its == kind):
        assert problems(schema, mistaken(kind, what)), what
    # It has the pods' fields as well.
    assert problems(schema, edited(one(kind), lambda it: next(pod_templates(it))["spec"].update(container=[])))


@needs_kuberay
def test_the_excerpt_is_what_the_definitions_say() -> None:
    stored = json.loads(EXCERPT.read_text())
    assert {kind: stored[kind] for kind in PLURALS} == excerpts(KUBERAY)


def in_kubernetes(*objects: dict[str, Any]) -> list[list[str]]:
    """What Kubernetes' own schemas say against each object; unknown fields are mistakes."""
    program = Path(__file__).with_name("in_kubernetes.py")
    done = subprocess.run(
        [python_of("kubernetes", "kubernetes_validate"), program, *KUBERNETES],
        input=json.dumps(objects), capture_output=True, text=True, check=True, timeout=240,
    )  # fmt: skip
    found: list[list[str]] = json.loads(done.stdout)
    return found


def pods(kind: str) -> list[dict[str, Any]]:
    """The pod templates of an object, each as an object of Kubernetes."""
    return [
        {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": f"{kind.lower()}-{number}"}, "template": it}
        for number, it in enumerate(pod_templates(one(kind)))
    ]


@pytest.mark.beyond
def test_pods_and_volumes_fit_kubernetes_own_schemas() -> None:
    claims = [it for it in shipped() if it["kind"] == "PersistentVolumeClaim"]
    templates = [*pods("RayCluster"), *pods("RayJob")]
    assert (len(claims), len(templates)) == (2, 3)
    assert in_kubernetes(*claims, *templates) == [[]] * 5


def first_container(template: dict[str, Any]) -> dict[str, Any]:
    container = template["template"]["spec"]["containers"][0]
    assert isinstance(container, dict)
    return container


POD_MISTAKES: dict[str, Edit] = {
    "an unknown field": lambda it: renamed(first_container(it), "volumeMounts", "volumeMount"),
    "a port as text": lambda it: first_container(it)["ports"][0].update(containerPort="6379"),
    "a container without a name": lambda it: first_container(it).pop("name"),
    "a value that is no text": lambda it: first_container(it)["env"].append({"name": "X", "value": 1}),
    "an unknown kind of volume": lambda it: renamed(
        it["template"]["spec"]["volumes"][0], "persistentVolumeClaim", "persistentVolume"
    ),
}


@pytest.mark.beyond
def test_kubernetes_schemas_find_mistakes() -> None:
    head = pods("RayCluster")[0]
    claim = edited(
        one("PersistentVolumeClaim", "claw-journal"), lambda it: it["spec"].update(accessModes="ReadWriteMany")
    )
    found = in_kubernetes(claim, *(edited(head, edit) for edit in POD_MISTAKES.values()))
    for what, said in zip(("a text for a list", *POD_MISTAKES), found, strict=True):
        assert len(said) == len(KUBERNETES), what


@pytest.mark.trainers
def test_ray_reads_the_cluster() -> None:
    """Its autoscaler's reader for KubeRay; and KubeRay starts each node with these parameters."""
    cluster = one("RayCluster")
    cluster["metadata"]["namespace"] = "default"
    done = subprocess.run(
        [ray_python(), Path(__file__).with_name("in_ray_reading.py")],
        input=json.dumps(cluster), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout.splitlines()[-1])
    head, nodes = read["groups"]["headgroup"], read["groups"]["nodes"]
    assert head["resources"] == {"CPU": 0, "memory": 8 << 30}, "no tasks beside the studio"
    assert nodes["resources"] == {"CPU": 4, "memory": 8 << 30}
    assert (nodes["min_workers"], nodes["max_workers"]) == (1, 100)
    for group in (cluster["spec"]["headGroupSpec"], workers(cluster)):
        assert {f"--{name}" for name in group["rayStartParams"]} <= set(read["options"])
    for line in slurm_lines("ray start"):
        assert {word.partition("=")[0] for word in line[2:] if word.startswith("--")} <= set(read["options"])


def test_the_job_is_one_that_kuberays_operator_takes() -> None:
    """It refuses these beside ``clusterSelector``: ``ValidateRayJobSpec`` in ray-operator/controllers/ray/utils."""
    job = one("RayJob")["spec"]
    assert job["clusterSelector"] == {"ray.io/cluster": one("RayCluster")["metadata"]["name"]}
    assert job.keys().isdisjoint({"backoffLimit", "suspend", "rayClusterSpec", "deletionStrategy"})
    assert job["submissionMode"] == "K8sJobMode"


def arguments(words: list[str]) -> dict[str, Any]:
    """What our command line makes of a command; an unknown command or option is an error."""
    assert words[0] == "claw-studio", words
    command, name, rest = typer.main.get_command(command_line()), "claw-studio", words[1:]
    context = command.make_context(name, list(rest))
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)
    return dict(context.params)


def slurm_lines(command: str) -> list[list[str]]:
    """The lines of the guide's Slurm script that run a command, without what stands before it."""
    (script,) = re.findall(r"```bash\n(#!/bin/bash\n.*?)```", (ROOT / "docs" / "cluster.md").read_text(), re.S)
    found = re.findall(rf"{command} .*?(?= &$|$)", script, re.M)
    assert found, command
    return [shlex.split(line) for line in found]


def test_commands_of_yaml_and_guide_are_ours() -> None:
    up = arguments(shlex.split(one("RayJob")["spec"]["entrypoint"]))
    assert (up["data"], up["ray"], up["hub_port"], up["pages"]) == (Path("/data"), "auto", HUB_PORT, True)
    for line in slurm_lines("claw-studio cluster"):
        assert arguments(line)["ray"] == "$address:6379"
    guide = (ROOT / "docs" / "cluster.md").read_text()
    shown = re.findall(r"^\$ (claw-studio cluster .*)$", guide, re.M)
    shown += re.findall(r"ray job submit --address \S+ -- (claw-studio [^`]*)`", guide)
    assert len(shown) >= 4
    for line in shown:
        arguments(shlex.split(line))
    with pytest.raises(Exception, match="No such option: --datas"):
        arguments(shlex.split("claw-studio cluster up --datas /data"))


def test_names_paths_and_ports_agree() -> None:
    """Between the objects, the image and our defaults."""
    dockerfile = (ROOT / "docker" / "ray.Dockerfile").read_text()
    ci = (ROOT / ".ci" / "run").read_text()
    cluster, job = one("RayCluster"), one("RayJob")
    (ray,) = re.findall(r"^ARG RAY=(\S+)$", dockerfile, re.M)
    assert cluster["spec"]["rayVersion"] == ray
    assert f"ray=={ray} " in ci, "the version that the tests run with"
    containers = [it["spec"]["containers"][0] for it in (*pod_templates(cluster), *pod_templates(job))]
    (built,) = re.findall(r"docker build -t (\S+) -f docker/ray.Dockerfile", dockerfile)
    assert {it["image"] for it in containers} == {f"{built}:latest"}

    head, node, _ = containers
    exposed = {int(port) for line in re.findall(r"^EXPOSE (.*)$", dockerfile, re.M) for port in line.split()}
    ports = {it["name"]: it["containerPort"] for it in head["ports"]}
    assert set(ports.values()) == exposed
    assert (ports["gateway"], ports["hub"]) == (Settings.model_fields["port"].default, HUB_PORT)
    assert Settings.model_fields["node_port"].default == ports["gateway"]

    claims = {it["metadata"]["name"]: it["spec"] for it in shipped() if it["kind"] == "PersistentVolumeClaim"}
    mounts = {}
    for name, template in zip(("head", "node"), pod_templates(cluster), strict=True):
        volumes = {it["name"]: it["persistentVolumeClaim"]["claimName"] for it in template["spec"]["volumes"]}
        mounted = template["spec"]["containers"][0]["volumeMounts"]
        mounts[name] = {it["mountPath"]: volumes.pop(it["name"]) for it in mounted}
        assert volumes == {}, "every volume is used"
    made = set(re.findall(r"mkdir ([^&]*)&&", dockerfile)[0].split())
    assert set(mounts["head"]) <= made, "folders that belong to the image's user"
    (user,) = re.findall(r"useradd --uid (\d+) ", dockerfile)
    groups = [template["spec"]["securityContext"]["fsGroup"] for template in pod_templates(cluster)]
    assert groups == [int(user)] * 2, "else the volumes belong to root alone"
    environments = [{it["name"]: it for it in container["env"]} for container in (head, node)]
    assert environments[0] == environments[1]
    target = environments[0]["CLAW_STUDIO_JOURNAL_TARGET"]["value"]
    assert mounts["node"] == {target: mounts["head"][target]}
    assert claims[mounts["node"][target]]["accessModes"] == ["ReadWriteMany"], "all nodes write to it"
    assert mounts["head"].keys() == {"/data", target}
    assert all(name.removeprefix("CLAW_STUDIO_").lower() in Settings.model_fields for name in environments[0])
    secret = environments[0]["CLAW_STUDIO_API_KEY"]["valueFrom"]["secretKeyRef"]
    header = (ROOT / "docker" / "raycluster.yaml").read_text()
    assert f"create secret generic {secret['name']} --from-literal={secret['key']}=" in header


def test_closing_a_schema_closes_what_is_inside() -> None:
    """The check of the check: KubeRay's definitions allow unknown fields, which the API server drops in silence."""
    inner = {"type": "object", "properties": {"b": {"type": "array", "items": {"properties": {"c": {}}}}}}
    schema = closed(
        {"properties": {"a": inner, "open": {"x-kubernetes-preserve-unknown-fields": True, "properties": {}}}}
    )
    assert problems(schema, {"a": {"b": [{"c": 1}]}, "open": {"any": 1}}) == []
    for wrong in ({"A": 1}, {"a": {"B": 1}}, {"a": {"b": [{"d": 1}]}}):
        assert len(problems(schema, wrong)) == 1
