"""Deployment files: read by their own formats' parsers, and consistent with each other."""

import json
import re
import shlex
import subprocess
from pathlib import Path, PurePosixPath

import kubernetes_validate
import pytest
import yaml
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf import wrappers_pb2 as wrappers
from tensorflow_serving.config import model_server_config_pb2

ROOT = Path(__file__).parents[2]
SERVING = ROOT / "serving"
USER = 65532

# Those of tensorflow_model_server 2.20 that are used here.
FLAGS = {
    *("port", "rest_api_port", "model_config_file", "model_config_file_poll_wait_seconds"),
    *("enable_batching", "batching_parameters_file", "monitoring_config_file"),
    *("enable_grpc_healthcheck_service", "tensorflow_intra_op_parallelism"),
    "tensorflow_inter_op_parallelism",
}


def _message(package, **messages):
    """The last of some messages, each `{field: type}`, that no published package has compiled."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto", package=package, syntax="proto3",
        dependency=[wrappers.DESCRIPTOR.name],
    )  # fmt: skip
    kinds = descriptor_pb2.FieldDescriptorProto
    for message, fields in messages.items():
        proto = file.message_type.add(name=message)
        for number, (field, kind) in enumerate(fields.items(), 1):
            entry = proto.field.add(name=field, number=number, label=kinds.LABEL_OPTIONAL)
            if kind.startswith("."):
                entry.type, entry.type_name = kinds.TYPE_MESSAGE, kind
            elif kind.startswith("repeated "):
                entry.label = kinds.LABEL_REPEATED
                entry.type = kinds.Type.Value(f"TYPE_{kind.split()[1].upper()}")
            else:
                entry.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{message}"))


# Fields and types of session_bundle_config.proto and monitoring_config.proto.
Batching = _message(
    "batching",
    BatchingParameters={
        "max_batch_size": ".google.protobuf.Int64Value",
        "batch_timeout_micros": ".google.protobuf.Int64Value",
        "max_enqueued_batches": ".google.protobuf.Int64Value",
        "num_batch_threads": ".google.protobuf.Int64Value",
        "thread_pool_name": ".google.protobuf.StringValue",
        "allowed_batch_sizes": "repeated int64",
        "pad_variable_length_inputs": "bool",
        "enable_large_batch_splitting": ".google.protobuf.BoolValue",
        "max_execution_batch_size": ".google.protobuf.Int64Value",
    },
)
Monitoring = _message(
    "monitoring",
    PrometheusConfig={"enable": "bool", "path": "string"},
    MonitoringConfig={"prometheus_config": ".monitoring.PrometheusConfig"},
)


def _parsed(name, message):
    return text_format.Parse((SERVING / "config" / name).read_text("utf-8"), message)


def _yaml(path):
    return yaml.safe_load((SERVING / path).read_text("utf-8"))


@pytest.fixture
def compose():
    (service,) = _yaml("compose.yaml")["services"].values()
    return service


@pytest.fixture
def pod():
    return _yaml("kubernetes/deployment.yaml")["spec"]["template"]["spec"]


@pytest.fixture
def container(pod):
    (container,) = pod["containers"]
    return container


def _dockerfile():
    """Its instructions: ("FROM", "tensorflow/serving:2.20.0"), …"""
    text = (SERVING / "Dockerfile").read_text("utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [tuple(line.split(" ", 1)) for line in joined.splitlines() if line]


# Configuration files ----------------------------------------------------------------------------


def test_models():
    config = _parsed("models.config", model_server_config_pb2.ModelServerConfig())
    (model,) = config.model_config_list.config
    assert model.model_platform == "tensorflow"
    assert PurePosixPath(model.base_path).is_absolute()


def test_what_the_comments_of_models_offer_is_valid_too():
    text = (SERVING / "config" / "models.config").read_text("utf-8")
    text = re.sub(r"# (?=model_version_policy|version_labels)", "", text)
    text = text.replace("model_version_policy { latest { num_versions: 2 } }", "", 1)
    config = text_format.Parse(text, model_server_config_pb2.ModelServerConfig())
    (model,) = config.model_config_list.config
    assert model.version_labels == {"stable": 1}
    assert list(model.model_version_policy.specific.versions) == [1]


def test_batching_keeps_servings_rules():
    config = _parsed("batching.config", Batching())
    assert config.enable_large_batch_splitting.value
    assert 1 <= config.max_execution_batch_size.value <= config.max_batch_size.value
    # One request of the largest size has to fit into the queue.
    batches = config.max_batch_size.value / config.max_execution_batch_size.value
    assert batches <= config.max_enqueued_batches.value
    assert config.num_batch_threads.value >= 1
    assert not config.pad_variable_length_inputs
    assert not config.allowed_batch_sizes


def test_monitoring(pod):
    config = _parsed("monitoring.config", Monitoring())
    assert config.prometheus_config.enable
    template = _yaml("kubernetes/deployment.yaml")["spec"]["template"]
    annotations = template["metadata"]["annotations"]
    assert annotations["prometheus.io/path"] == config.prometheus_config.path


def test_a_field_that_does_not_exist_is_an_error():
    with pytest.raises(text_format.ParseError, match="max_batch"):
        text_format.Parse("max_batch { value: 1 }", Batching())


# How the server is started ----------------------------------------------------------------------


def test_all_start_the_server_alike(compose, container):
    instructions = _dockerfile()
    entry = [json.loads(rest) for name, rest in instructions if name == "ENTRYPOINT"]
    (command,) = [json.loads(rest) for name, rest in instructions if name == "CMD"]
    assert entry == [compose["entrypoint"]] == [["tensorflow_model_server"]]
    assert set(command) <= set(compose["command"])
    assert set(command) <= set(container["args"])  # which replace those of the image
    for flags in (command, compose["command"], container["args"]):
        names = [flag.removeprefix("--").partition("=")[0] for flag in flags]
        assert set(names) <= FLAGS
        assert len(set(names)) == len(names)
        for flag in flags:
            path = PurePosixPath(flag.partition("=")[2])
            if path.is_absolute():
                assert path.parent == PurePosixPath("/config")
                assert (SERVING / "config" / path.name).is_file()


def test_one_version_of_serving(compose):
    (image,) = [rest for name, rest in _dockerfile() if name == "FROM"]
    assert image == compose["image"] == "tensorflow/serving:2.20.0"


def test_the_model_lies_where_the_configuration_looks(compose):
    (model,) = _parsed(
        "models.config", model_server_config_pb2.ModelServerConfig()
    ).model_config_list.config
    copies = dict(shlex.split(rest)[-2:] for name, rest in _dockerfile() if name == "COPY")
    assert copies == {"config": "/config", ".": model.base_path}
    assert (SERVING / "config").is_dir()
    mounts = [volume.rsplit(":", 2)[1:] for volume in compose["volumes"]]
    assert mounts == [["/config", "ro"], [model.base_path, "ro"]]


def test_nobody_is_root(compose, pod, container):
    users = [rest for name, rest in _dockerfile() if name == "USER"]
    assert users == [compose["user"]] == [f"{USER}:{USER}"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] == USER
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert compose["read_only"]
    assert compose["cap_drop"] == ["ALL"]


def test_compose_is_reached_from_this_machine_alone(compose):
    assert compose["ports"] == ["127.0.0.1:8500:8500", "127.0.0.1:8501:8501"]


@pytest.mark.full
@pytest.mark.parametrize("model", ["m", "unknown"])
def test_the_health_check_of_compose(compose, export_server, model):
    """It is run as it is, but for the name and the port."""
    *command, script = compose["healthcheck"]["test"][1:]
    script = script.replace("8501", str(export_server.port))
    script = script.replace("/v1/models/model", f"/v1/models/{model}")
    status = subprocess.run([*command, script], timeout=60).returncode
    assert (status == 0) == (model == "m")


# Kubernetes -------------------------------------------------------------------------------------

MANIFESTS = ["deployment", "service", "autoscaler", "disruption"]


@pytest.mark.parametrize("name", MANIFESTS)
@pytest.mark.parametrize("version", ["1.27", kubernetes_validate.latest_version()])
def test_manifests_follow_the_schema(name, version):
    kubernetes_validate.validate(_yaml(f"kubernetes/{name}.yaml"), version, strict=True)


def test_the_schema_finds_a_mistyped_field():
    manifest = _yaml("kubernetes/disruption.yaml")
    manifest["spec"]["maxUnavailible"] = manifest["spec"].pop("maxUnavailable")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest, "1.27", strict=True)


def test_kustomize_lists_every_manifest(container):
    kustomization = _yaml("kubernetes/kustomization.yaml")
    assert kustomization["resources"] == [f"{name}.yaml" for name in MANIFESTS]
    files = {path.name for path in (SERVING / "kubernetes").iterdir()}
    assert files == {*kustomization["resources"], "kustomization.yaml"}
    (image,) = kustomization["images"]
    assert container["image"] == image["name"]


def test_selectors_find_the_pods():
    deployment, service, autoscaler, disruption = (
        _yaml(f"kubernetes/{name}.yaml") for name in MANIFESTS
    )
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    (spread,) = deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert service["spec"]["selector"] == labels
    assert disruption["spec"]["selector"]["matchLabels"] == labels
    assert spread["labelSelector"]["matchLabels"] == labels
    assert autoscaler["spec"]["scaleTargetRef"] == {
        "apiVersion": deployment["apiVersion"],
        "kind": deployment["kind"],
        "name": deployment["metadata"]["name"],
    }
    # What is given here would be taken back from the autoscaler at each apply.
    assert "replicas" not in deployment["spec"]
    assert autoscaler["spec"]["minReplicas"] > disruption["spec"]["maxUnavailable"]


def test_ports_and_probes(container):
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    flags = dict(flag.partition("=")[::2] for flag in container["args"])
    assert ports == {"grpc": int(flags["--port"]), "rest": int(flags["--rest_api_port"])}
    service = _yaml("kubernetes/service.yaml")["spec"]["ports"]
    assert {port["targetPort"]: port["port"] for port in service} == ports
    (model,) = _parsed(
        "models.config", model_server_config_pb2.ModelServerConfig()
    ).model_config_list.config
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = container[name]["httpGet"]
        assert probe == {"path": f"/v1/models/{model.name}", "port": "rest"}


def test_threads_are_the_cores_asked_for(container):
    cores = container["resources"]["requests"]["cpu"]
    assert "--tensorflow_intra_op_parallelism=1" in container["args"]  # of each batch thread
    assert f"--tensorflow_inter_op_parallelism={cores}" in container["args"]
    assert _parsed("batching.config", Batching()).num_batch_threads.value == int(cores)
