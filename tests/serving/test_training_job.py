"""The JobSet of configs/cluster: its schema, and what its command gives each worker."""

import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import tensorflow as tf
import yaml

from bertfam_tf.recipes.reading import load_recipe
from bertfam_tf.training import replicas

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "configs" / "cluster"


def _object(required=(), **properties):
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


_RESTARTS = ["Recreate", "BlockingRecreate", "InPlaceRestart"]
_ACTIONS = ["FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts", "RestartJob"]
# Fields that are used here, from the definition in JobSet 0.12 (jobset.x-k8s.io_jobsets.yaml of
# kubernetes-sigs/jobset). The manifest was checked against all of it once, and of 0.7 to 0.11.
SCHEMA = _object(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "jobset.x-k8s.io/v1alpha2"},
    kind={"const": "JobSet"},
    metadata=_object(["name"], name={"type": "string"}),
    spec=_object(
        failurePolicy=_object(
            maxRestarts={"type": "integer"},
            restartStrategy={"enum": _RESTARTS},
            rules={
                "type": "array",
                "items": _object(
                    ["name", "action"],
                    name={"type": "string"},
                    action={"enum": _ACTIONS},
                    onJobFailureReasons={"type": "array", "items": {"type": "string"}},
                ),
            },
        ),
        replicatedJobs={
            "type": "array",
            "items": _object(
                ["name", "template"], name={"type": "string"}, template=_object(["spec"], spec={})
            ),
        },
    ),
)


@pytest.fixture
def job_set():
    return yaml.safe_load((CLUSTER / "jobset.yaml").read_text("utf-8"))


@pytest.fixture
def job(job_set):
    (worker,) = job_set["spec"]["replicatedJobs"]
    return {"apiVersion": "batch/v1", "kind": "Job", **worker["template"]}


@pytest.fixture
def container(job):
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return container


@pytest.mark.parametrize("version", ["1.31", kubernetes_validate.latest_version()])
def test_manifests_follow_the_schema(job_set, job, version):
    jsonschema.validate(job_set, SCHEMA)
    kubernetes_validate.validate(job, version, strict=True)
    volume = yaml.safe_load((CLUSTER / "volume.yaml").read_text("utf-8"))
    kubernetes_validate.validate(volume, version, strict=True)
    job_set["spec"]["failurePolicy"]["maxRestart"] = 3
    with pytest.raises(jsonschema.ValidationError, match="'maxRestart' was unexpected"):
        jsonschema.validate(job_set, SCHEMA)


def test_all_restart_but_after_a_wrong_recipe(job_set, job, container):
    """The command's statuses are in tests/test_cli.py; that of SIGTERM in tests/train."""
    spec = job["spec"]
    (rule,) = spec["podFailurePolicy"]["rules"]
    assert rule == {
        "action": "FailJob",
        "onExitCodes": {"containerName": container["name"], "operator": "In", "values": [2]},
    }
    assert spec["template"]["spec"]["restartPolicy"] == "Never"  # which that policy needs
    # One failure of a pod is one of the job, and so of the set, which restarts by default.
    assert spec["backoffLimit"] == 0
    policy = job_set["spec"]["failurePolicy"]
    assert policy["maxRestarts"] > 0
    (rule,) = policy["rules"]
    assert (rule["action"], rule["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])


def test_each_worker_gets_its_tf_config(job_set, job, container, tmp_path, monkeypatch):
    """The manifest's command is run with what Kubernetes and JobSet would set."""
    programs = {
        "tini": 'shift; exec "$@"',
        "bertfam": 'printf "%s\\n" "$TF_CONFIG" "$@"',
        "python": f'exec {sys.executable} "$@"',
    }
    for name, script in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    count = job["spec"]["completions"]
    given = {each["name"]: each.get("value") for each in container["env"]}
    assert [given["WORKERS"]] * 2 == [str(job["spec"]["parallelism"]), str(count)]
    name, worker = job_set["metadata"]["name"], job_set["spec"]["replicatedJobs"][0]["name"]
    (port,) = (each["containerPort"] for each in container["ports"])
    hosts = [f"{name}-{worker}-0-{index}.{name}:{port}" for index in range(count)]
    environment = {"JOBSET": name, "WORKERS": given["WORKERS"]}
    environment["PATH"] = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    for index in range(count):
        found, *arguments = subprocess.run(
            [*container["command"], *container["args"]],
            env={**environment, "JOB_COMPLETION_INDEX": str(index)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        assert arguments == ["train", *container["args"]]
        monkeypatch.setenv("TF_CONFIG", found)
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        assert resolver.cluster_spec().as_dict() == {"worker": hosts}
        assert (resolver.task_type, resolver.task_id) == ("worker", index)
        assert replicas.is_chief() == (index == 0)


def test_what_the_command_trains_is_on_the_volume(job, container, monkeypatch):
    pod = job["spec"]["template"]["spec"]
    for each in container["env"]:
        monkeypatch.setenv(each["name"], each.get("value", ""))
    file, *overrides = container["args"]
    recipe = load_recipe(ROOT / file, overrides)
    assert recipe.train.strategy == "multi_worker"
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    for path in (recipe.output, recipe.model.path, os.environ["BERTFAM_DATA"]):
        assert path.startswith(f"{mounts['training']}/")
    volume = yaml.safe_load((CLUSTER / "volume.yaml").read_text("utf-8"))
    claims = {each["name"]: each.get("persistentVolumeClaim") for each in pod["volumes"]}
    assert claims["training"] == {"claimName": volume["metadata"]["name"]}
    assert volume["spec"]["accessModes"] == ["ReadWriteMany"]


def test_the_image(job):
    lines = (CLUSTER / "Dockerfile").read_text("utf-8").splitlines()
    instructions = [line.split() for line in lines if line[:1].isupper()]
    copied = [path for name, *paths in instructions if name == "COPY" for path in paths[:-1]]
    assert all((ROOT / path).exists() for path in copied)
    (user,) = (rest[0] for name, *rest in instructions if name == "USER")
    security = job["spec"]["template"]["spec"]["securityContext"]
    assert user == f"{security['runAsUser']}:{security['runAsGroup']}"
