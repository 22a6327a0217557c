"""Several models, version policies, labels, reloading, polling, and versions that swap."""

import concurrent.futures
import contextlib
import gc
import itertools
import pathlib
import shutil
import threading
import time

import grpc
import httpx
import pytest
from google.protobuf import text_format
from tensorflow_serving.apis import (
    get_model_status_pb2,
    model_management_pb2,
    prediction_log_pb2,
)
from tensorflow_serving.config import model_server_config_pb2

from bertfam_serve import Models, running_server
from bertfam_serve.model_server_config import read_config, versions_wanted
from bertfam_tf.export.runtime import Code, ServingError, load
from tests.serving import half_plus
from tests.serving.half_plus import Stubs, predict_request

State = get_model_status_pb2.ModelVersionStatus.State


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """SavedModels that add 2, 3 and 4, in directories of these names."""
    path = tmp_path_factory.mktemp("saved")
    for number in (2, 3, 4):
        half_plus.save(path, number, number)
    return path


@pytest.fixture
def put(saved, tmp_path):
    """Makes `model/version` add so much; as one does it, by a copy that is then renamed."""
    serial = itertools.count()

    def put(model, version, adds):
        (tmp_path / model).mkdir(exist_ok=True)
        copied = tmp_path / model / f"copying-{next(serial)}"
        shutil.copytree(saved / str(adds), copied)
        copied.rename(tmp_path / model / str(version))

    return put


def config(tmp_path, *models):
    """A ModelServerConfig of (name, more text)."""
    text = "".join(
        f'config {{ name: "{name}" base_path: "{tmp_path / name}" model_platform: "tensorflow" '
        f"{more} }} "
        for name, more in models
    )
    return parse(f"model_config_list {{ {text} }}")


def parse(text):
    return text_format.Parse(text, model_server_config_pb2.ModelServerConfig())


ALL = "model_version_policy { all {} }"


def states(models, name):
    return {
        entry.version: State.Name(entry.state) for entry in models.status(name).model_version_status
    }


def adds(models, name, **which):
    """What the servable that answers adds to half of x."""
    version, servable = models.find(name, **which)
    return version, float(servable.run("", {"x": half_plus.tf.make_tensor_proto([0.0])})["y"][0])


# ----------------------------------------------------------------------------------- policies


@pytest.mark.parametrize(
    ("policy", "versions"),
    [
        ("", {9}),
        ("latest {}", {9}),
        ("latest { num_versions: 0 }", {9}),
        ("latest { num_versions: 2 }", {8, 9}),
        ("latest { num_versions: 9 }", {1, 5, 8, 9}),
        ("all {}", {1, 5, 8, 9}),
        ("specific { versions: 5 }", {5}),
        ("specific { versions: 1 versions: 8 versions: 7 }", {1, 8}),
        ("specific { versions: 7 }", set()),
    ],
)
def test_version_policies(tmp_path, policy, versions):
    for name in ("1", "00005", "8", "9", "10.tmp", "-11", "v12", "latest", str(2**63)):
        (tmp_path / "m" / name).mkdir(parents=True)
    more = f"model_version_policy {{ {policy} }}"
    (model,) = config(tmp_path, ("m", more)).model_config_list.config
    wanted = versions_wanted(model)
    assert set(wanted) == versions
    if 5 in wanted:
        assert wanted[5] == tmp_path / "m" / "00005"


def test_several_models_and_versions(tmp_path, put):
    put("a", 1, 2)
    put("a", 2, 3)
    put("b", 7, 4)
    models = Models()
    models.configure(config(tmp_path, ("a", ALL), ("b", "")))
    assert adds(models, "a") == (2, 3.0)
    assert adds(models, "a", version=1) == (1, 2.0)
    assert adds(models, "b") == (7, 4.0)
    assert states(models, "a") == {1: "AVAILABLE", 2: "AVAILABLE"}
    models.close()
    assert states(models, "b") == {7: "END"}
    with pytest.raises(ServingError, match="Latest"):
        models.find("a")


# ----------------------------------------------------------------------------- configurations

REFUSED = [
    ('config { name: "m" base_path: "/a" model_platform: "tensorflow" } ' * 2,
     "Illegal to list model m multiple times in config list"),
    ('config { name: "m" base_path: "a/b" model_platform: "tensorflow" }',
     "Expected model m to have an absolute path or URI; got base_path()=a/b"),
    ('config { name: "m" base_path: "/a" }',
     "Illegal setting neither ModelServerConfig::model_type (deprecated) nor "
     "ModelServerConfig::model_platform, model name is m"),
    ('config { name: "m" base_path: "/a" model_platform: "tensorflow" model_type: TENSORFLOW }',
     "Illegal setting both ModelServerConfig::model_type (deprecated) and "
     "ModelServerConfig::model_platform, model name is m"),
    ('config { name: "m" base_path: "/a" model_type: OTHER }',
     "ModelServerConfig::model_type choice 2 not supported."),
    ('config { name: "m" base_path: "/a" model_platform: "other" }',
     "Model m requests unsupported platform other"),
    ('config { name: "served" base_path: "/a" model_platform: "other" }',
     "Illegal to change a model's platform. For model served platform was tensorflow and new "
     "platform requested is other"),
]  # fmt: skip


@pytest.mark.parametrize(("models_text", "message"), REFUSED)
def test_refused_configurations(tmp_path, put, models_text, message):
    put("served", 1, 2)
    models = Models()
    models.configure(config(tmp_path, ("served", "")))
    with pytest.raises(ServingError) as caught:
        models.configure(parse(f"model_config_list {{ {models_text} }}"))
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARGUMENT, message)
    assert models.names() == ["served"]
    assert models.find("served")[0] == 1


def test_only_lists_of_models_follow_each_other(tmp_path, put):
    put("m", 1, 2)
    models = Models()
    models.configure(config(tmp_path, ("m", "")))
    with pytest.raises(ServingError, match="It is only legal to transition") as caught:
        models.configure(parse("custom_model_config {}"))
    assert caught.value.code == Code.FAILED_PRECONDITION
    models.configure(parse(""))  # an empty one is no change
    assert models.names() == ["m"]


def test_the_old_way_to_say_tensorflow(tmp_path, put):
    put("m", 1, 2)
    models = Models()
    models.configure(
        parse(
            f'model_config_list {{ config {{ name: "m" base_path: "{tmp_path}/m" '
            "model_type: TENSORFLOW } }"
        )
    )
    assert models.find("m")[0] == 1


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        (b"improper file", Code.INVALID_ARGUMENT,
         "Error parsing text-format tensorflow.serving.ModelServerConfig: 1:1"),
        (b"\xff", Code.INVALID_ARGUMENT,
         "Error parsing text-format tensorflow.serving.ModelServerConfig: 'utf-8' codec"),
        (None, Code.NOT_FOUND, "No such file or directory"),
    ],
)  # fmt: skip
def test_unreadable_files(tmp_path, content, code, message):
    if content is not None:
        (tmp_path / "models.conf").write_bytes(content)
    with pytest.raises(ServingError) as caught:
        read_config(tmp_path / "models.conf")
    assert caught.value.code == code
    assert message in caught.value.message


def test_a_configuration_replaces_all_of_the_last(tmp_path, put):
    for name in ("a", "b", "c"):
        put(name, 1, 2)
    models = Models()
    models.configure(config(tmp_path, ("a", ""), ("b", "")))
    _, kept = models.find("b")
    models.configure(config(tmp_path, ("b", ""), ("c", "")))
    assert models.names() == ["b", "c"]
    assert models.find("b")[1] is kept
    with pytest.raises(ServingError) as caught:
        models.find("a")
    assert caught.value.message == "Servable not found for request: Latest(a)"
    assert states(models, "a") == {1: "END"}
    models.configure(config(tmp_path, ("a", "")))
    assert adds(models, "a") == (1, 2.0)
    assert states(models, "a") == {1: "AVAILABLE"}


def test_a_policy_may_change(tmp_path, put):
    for version in (1, 2, 3):
        put("m", version, 2)
    models = Models()
    models.configure(config(tmp_path, ("m", "")))
    assert states(models, "m") == {3: "AVAILABLE"}
    models.configure(config(tmp_path, ("m", "model_version_policy { specific { versions: 1 } }")))
    assert models.find("m")[0] == 1
    assert states(models, "m") == {1: "AVAILABLE", 3: "END"}


def test_new_models_that_are_not_there(tmp_path, put):
    put("good", 1, 2)
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken" / "1").mkdir(parents=True)
    models = Models()
    named = [("good", ""), ("broken", ""), ("empty", ""), ("absent", "")]
    with pytest.raises(ServingError) as caught:
        models.configure(config(tmp_path, *named))
    assert caught.value.code == Code.UNKNOWN
    text = caught.value.message
    assert text.startswith("3 model(s) did not become available: {{{name: absent} due to error: ")
    assert "{{name: broken} due to error: NOT_FOUND: Could not find SavedModel" in text
    assert "{{name: empty} due to error: NOT_FOUND: No versions of servable empty found" in text
    assert models.find("good")[0] == 1
    # All are polled; no new request is needed.
    put("empty", 1, 3)
    put("absent", 1, 4)
    models.poll()
    assert (adds(models, "empty"), adds(models, "absent")) == ((1, 3.0), (1, 4.0))


# -------------------------------------------------------------------------------------- labels


def labels(**assigned):
    return ALL + "".join(
        f' version_labels {{ key: "{label}" value: {version} }}'
        for label, version in assigned.items()
    )


UNAVAILABLE = (
    "Request to assign label to version {} of model m, "
    "which is not currently available for inference"
)


def test_labels(tmp_path, put):
    put("m", 1, 2)
    put("m", 2, 3)
    models = Models()
    with pytest.raises(ServingError) as caught:  # labels are given before anything is loaded
        models.configure(config(tmp_path, ("m", labels(stable=1))))
    assert (caught.value.code, caught.value.message) == (
        Code.FAILED_PRECONDITION, UNAVAILABLE.format(1),
    )  # fmt: skip
    assert models.names() == []
    models.configure(config(tmp_path, ("m", ALL)))
    models.configure(config(tmp_path, ("m", labels(stable=1, canary=2))))
    assert adds(models, "m", label="stable") == (1, 2.0)
    assert adds(models, "m", label="canary") == (2, 3.0)
    with pytest.raises(ServingError, match=UNAVAILABLE.format(3)):
        models.configure(config(tmp_path, ("m", labels(stable=3))))
    assert models.find("m", label="stable")[0] == 1
    models.configure(config(tmp_path, ("m", labels(stable=2))))
    assert models.find("m", label="stable")[0] == 2
    with pytest.raises(ServingError) as caught:
        models.find("m", label="canary")
    assert (caught.value.code, caught.value.message) == (
        Code.INVALID_ARGUMENT, "Unrecognized servable version label: canary",
    )  # fmt: skip


def test_labels_for_what_is_not_available(tmp_path, put):
    put("m", 1, 2)
    models = Models(labels_for_unavailable=True)
    models.configure(config(tmp_path, ("m", labels(stable=1, next=2))))
    assert models.find("m", label="stable")[0] == 1
    with pytest.raises(ServingError) as caught:
        models.find("m", label="next")
    assert caught.value.message == "Servable not found for request: Specific(m, 2)"
    # A label that is in use does not move to where nothing answers.
    with pytest.raises(ServingError, match=UNAVAILABLE.format(3)):
        models.configure(config(tmp_path, ("m", labels(stable=3))))
    put("m", 2, 3)
    models.poll()
    assert models.find("m", label="next")[0] == 2


# --------------------------------------------------------------------------- versions that come


def test_a_new_version_replaces_the_old(tmp_path, put):
    put("m", 1, 2)
    models = Models()
    models.add("m", tmp_path / "m")
    _, held = models.find("m")
    put("m", 2, 3)
    models.poll()
    assert adds(models, "m") == (2, 3.0)
    assert states(models, "m") == {1: "UNLOADING", 2: "AVAILABLE"}
    # Whoever holds the old one can use it to the end.
    assert held.run("", {"x": half_plus.tf.make_tensor_proto([2.0])})["y"] == [3.0]
    del held
    assert states(models, "m") == {1: "END", 2: "AVAILABLE"}


def test_an_older_version_comes_back(tmp_path, put):
    put("m", 1, 2)
    put("m", 2, 3)
    models = Models()
    models.add("m", tmp_path / "m")
    (tmp_path / "m" / "2").rename(tmp_path / "m" / "bad-2")
    models.poll()
    assert adds(models, "m") == (1, 2.0)
    (tmp_path / "m" / "bad-2").rename(tmp_path / "m" / "2")
    models.poll()
    assert adds(models, "m") == (2, 3.0)
    assert states(models, "m") == {1: "END", 2: "AVAILABLE"}


def test_a_base_path_that_is_a_link_may_lead_elsewhere(tmp_path, put):
    put("first", 1, 2)
    put("second", 2, 3)
    (tmp_path / "m").symlink_to("first")
    models = Models()
    models.add("m", tmp_path / "m")
    assert adds(models, "m") == (1, 2.0)
    (tmp_path / "new").symlink_to("second")
    (tmp_path / "new").rename(tmp_path / "m")
    models.poll()
    assert adds(models, "m") == (2, 3.0)


def test_the_last_version_goes(tmp_path, put, caplog):
    put("m", 1, 2)
    models = Models()
    models.add("m", tmp_path / "m")
    (tmp_path / "m").rename(tmp_path / "away")
    models.poll()  # a base path that cannot be read is not one without versions
    models.poll()
    assert models.find("m")[0] == 1
    assert caplog.text.count("Could not find base path") == 1
    (tmp_path / "m").mkdir()
    models.poll()
    with pytest.raises(ServingError):
        models.find("m")
    assert states(models, "m") == {1: "END"}


def test_no_version_is_loaded_before_the_old_one_may_go(tmp_path, put, monkeypatch):
    """The order of AvailabilityPreservingPolicy: never none, never more than one too many."""
    put("m", 1, 2)
    put("m", 2, 3)
    models = Models()
    two = "model_version_policy { latest { num_versions: 2 } }"
    models.configure(config(tmp_path, ("m", two)))
    steps = []
    watch(monkeypatch, lambda path: steps.append((path.name, states(models, "m"))))
    put("m", 3, 4)
    put("m", 4, 2)
    models.poll()
    here, loading, end = "AVAILABLE", "LOADING", "END"
    assert steps == [
        ("4", {1: end, 2: here, 3: "START", 4: loading}),
        ("3", {1: end, 2: end, 3: loading, 4: here}),
    ]
    assert states(models, "m") == {1: end, 2: end, 3: here, 4: here}


def watch(monkeypatch, before):
    """Calls `before` with each directory that is about to be loaded."""
    from bertfam_serve import models as module

    loads = module.load_for

    def watched(name, path, **hooks):
        before(pathlib.Path(path))
        return loads(name, path, **hooks)

    monkeypatch.setattr(module, "load_for", watched)


def test_a_version_that_does_not_load(tmp_path, put):
    put("m", 1, 2)
    models = Models(max_load_retries=2, retry_wait_s=0.0)
    models.add("m", tmp_path / "m")
    (tmp_path / "m" / "2").mkdir()

    def entry():
        (entry,) = models.status("m", 2).model_version_status
        return State.Name(entry.state), entry.status.error_code, entry.status.error_message[:14]

    models._retry_wait_s = 3600.0
    models.poll()
    assert adds(models, "m") == (1, 2.0)
    assert entry() == ("LOADING", 5, "Could not find")
    models.poll()
    models.retry()  # not before its time
    assert models._versions["m"][2].failures == 1
    models._versions["m"][2].retry_at = 0.0
    models.retry()
    assert entry() == ("LOADING", 5, "Could not find")
    models._versions["m"][2].retry_at = 0.0
    models.retry()
    assert entry() == ("END", 5, "Could not find")
    assert adds(models, "m") == (1, 2.0)
    # Given up, until it goes and comes back.
    shutil.rmtree(tmp_path / "m" / "2")
    models.poll()
    put("m", 2, 3)
    models.poll()
    assert entry() == ("AVAILABLE", 0, "")
    assert adds(models, "m") == (2, 3.0)


def test_a_version_that_fails_its_warm_up_is_let_go(tmp_path, put):
    put("m", 1, 2)
    models = Models(retry_wait_s=3600.0)
    models.add("m", tmp_path / "m")
    put("n", 2, 3)
    file = tmp_path / "n" / "2" / "assets.extra" / "tf_serving_warmup_requests"
    file.parent.mkdir()
    with half_plus.tf.io.TFRecordWriter(str(file)) as writer:
        log = prediction_log_pb2.PredictionLog()
        log.predict_log.request.model_spec.signature_name = "none"
        writer.write(log.SerializeToString())
    (tmp_path / "n" / "2").rename(tmp_path / "m" / "2")
    models.poll()
    assert models._versions["m"][2].error.code == Code.FAILED_PRECONDITION
    gc.collect()
    assert len(models._alive) == 1


def test_a_version_that_loads_at_the_second_try(tmp_path, put):
    put("m", 1, 2)
    models = Models(retry_wait_s=0.0, max_load_retries=10**9)
    models.add("m", tmp_path / "m")
    whole = tmp_path / "m" / "2"
    tried = threading.Event()

    def wrap(servable):
        if not tried.is_set():
            tried.set()
            raise MemoryError("no room")
        return servable

    models._wrap = wrap
    put("m", 2, 3)
    models.poll()
    assert whole.exists()
    assert adds(models, "m") == (2, 3.0)
    (entry,) = models.status("m", 2).model_version_status
    assert (entry.status.error_code, entry.status.error_message) == (0, "")


def test_look_ups_do_not_wait_for_a_load(tmp_path, put, monkeypatch):
    put("m", 1, 2)
    models = Models()
    models.add("m", tmp_path / "m")
    loading, go_on = threading.Event(), threading.Event()

    def before(path):
        loading.set()
        assert go_on.wait(60)

    watch(monkeypatch, before)
    put("m", 2, 3)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        polled = pool.submit(models.poll)
        assert loading.wait(60)
        try:
            assert adds(models, "m") == (1, 2.0)
            assert states(models, "m") == {1: "AVAILABLE", 2: "LOADING"}
        finally:
            go_on.set()
        polled.result()
    assert adds(models, "m") == (2, 3.0)


# -------------------------------------------------------------------------------------- servers


def until(condition):
    """Waits until a condition holds; what it asks for may not be known yet."""
    for _ in range(600):
        with contextlib.suppress(ServingError):
            if condition():
                return
        time.sleep(0.05)
    raise AssertionError("it did not come about")


def _replace(path, text):
    """Writes a file that is never read in part."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.rename(path)


def reload(stubs, new):
    return stubs.model.HandleReloadConfigRequest(
        model_management_pb2.ReloadConfigRequest(config=new, metric_names=["a"]), timeout=60
    )


def test_reloading_over_grpc(tmp_path, put):
    put("a", 1, 2)
    put("a b", 1, 3)
    with (
        running_server(config=config(tmp_path, ("a", "")), allow_reload_config=True) as server,
        Stubs(server.grpc_target) as stubs,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        response = reload(stubs, config(tmp_path, ("a b", "")))
        assert response.HasField("status")
        assert response.status.error_code == 0
        assert [(m.name, m.int64_value_increase) for m in response.metric] == [("a", 0)]
        answer = client.post("/v1/models/a%20b:predict", json={"instances": [2]})
        assert answer.json() == {"predictions": [4.0]}
        assert client.post("/v1/models/a:predict", json={"instances": [2]}).status_code == 404
        reload(stubs, config(tmp_path, ("a b", labels(stable=1))))
        answer = client.post("/v1/models/a%20b/labels/stable:predict", json={"instances": [2]})
        assert answer.json() == {"predictions": [4.0]}
        y = stubs.prediction.Predict(predict_request(2, model="a b", label="stable")).outputs["y"]
        assert y.float_val == [4.0]
        for wrong, code in [
            (config(tmp_path, ("a b", labels(stable=9))), grpc.StatusCode.FAILED_PRECONDITION),
            (config(tmp_path, ("a", ""), ("a", "")), grpc.StatusCode.INVALID_ARGUMENT),
            (config(tmp_path, ("a b", ""), ("absent", "")), grpc.StatusCode.UNKNOWN),
        ]:
            with pytest.raises(grpc.RpcError) as caught:
                reload(stubs, wrong)
            assert caught.value.code() == code


def test_the_file_of_the_configuration_is_polled(tmp_path, put, caplog):
    put("a", 1, 2)
    put("b", 1, 3)
    path = tmp_path / "models.conf"
    path.write_text(str(config(tmp_path, ("a", ""))))
    with running_server(config=path, config_poll_s=0.05) as server:
        assert server.models.names() == ["a"]
        _replace(path, "improper")
        until(lambda: "Error parsing text-format" in caplog.text)
        time.sleep(0.3)
        assert server.models.names() == ["a"]
        assert caplog.text.count("Error parsing text-format") == 1
        _replace(path, str(config(tmp_path, ("b", ""))))
        until(lambda: server.models.names() == ["b"])
        until(lambda: states(server.models, "b") == {1: "AVAILABLE"})


def test_the_file_is_read_once_unless_asked(tmp_path, put):
    put("a", 1, 2)
    put("b", 1, 3)
    path = tmp_path / "models.conf"
    path.write_text(str(config(tmp_path, ("a", ""))))
    with running_server(config=path) as server:
        path.write_text(str(config(tmp_path, ("b", ""))))
        time.sleep(0.3)
        assert server.models.names() == ["a"]


@pytest.mark.parametrize("wait_s", [0.05, 0])
def test_versions_are_polled(tmp_path, put, wait_s):
    put("m", 1, 2)
    with running_server(tmp_path / "m", file_system_poll_s=wait_s) as server:
        put("m", 2, 3)
        if wait_s:
            until(lambda: states(server.models, "model").get(2) == "AVAILABLE")
        else:
            time.sleep(0.3)
            assert states(server.models, "model") == {1: "AVAILABLE"}


def test_no_port_opens_when_a_model_does_not_load(tmp_path):
    (tmp_path / "m" / "1").mkdir(parents=True)
    for served in ({"base_path": tmp_path / "m"}, {"config": config(tmp_path, ("m", ""))}):
        with pytest.raises(ServingError, match="Could not find SavedModel"):
            running_server(**served).__enter__()


@pytest.mark.parametrize("given", [{}, {"base_path": "a", "config": "b"}])
def test_a_base_path_or_a_configuration(given):
    with pytest.raises(ValueError, match="either a base path or a configuration"):
        running_server(**given).__enter__()


@pytest.mark.extended
def test_no_request_fails_while_versions_swap(tmp_path, put):
    """Threads send REST and gRPC requests while new versions replace old ones."""
    number = {1: 2, 2: 3, 3: 4, 4: 2, 5: 3}
    put("m", 1, number[1])
    wrong, asked = [], itertools.count()
    stop = threading.Event()

    def ask_rest(url):
        with httpx.Client(base_url=url, timeout=60) as client:
            while not stop.is_set():
                next(asked)
                answer = client.post("/v1/models/m:predict", json={"instances": [0.0, 2.0]})
                if answer.status_code != 200:
                    wrong.append(answer.text)
                    continue
                first, second = answer.json()["predictions"]
                if first not in number.values() or second != first + 1:
                    wrong.append(answer.text)

    def ask_grpc(target):
        with Stubs(target) as stubs:
            while not stop.is_set():
                next(asked)
                try:
                    response = stubs.prediction.Predict(predict_request(0, 2))
                except grpc.RpcError as error:
                    wrong.append(error.details())
                    continue
                added = number[response.model_spec.version.value]
                if list(response.outputs["y"].float_val) != [added, added + 1]:
                    wrong.append(str(response))

    with running_server(tmp_path / "m", model_name="m", file_system_poll_s=0.02) as server:
        pool = concurrent.futures.ThreadPoolExecutor(6)
        for ask, where in [(ask_rest, server.url), (ask_grpc, server.grpc_target)] * 3:
            pool.submit(ask, where)
        try:
            for version in (2, 3, 4, 5):
                put("m", version, number[version])
                until(lambda version=version: server.models.find("m")[0] == version)
                now = next(asked)
                until(lambda now=now: next(asked) > now + 40)
        finally:
            stop.set()
            pool.shutdown()
        ended = dict.fromkeys((1, 2, 3, 4), "END")
        until(lambda: states(server.models, "m") == {**ended, 5: "AVAILABLE"})
    assert not wrong
    assert next(asked) > 200


def test_servables_are_let_go(tmp_path, put):
    """A model that was swapped out is gone, session and all."""
    import weakref

    put("m", 1, 2)
    sessions = []

    def wrap(servable):
        sessions.append(weakref.ref(servable._session))
        return servable

    with running_server(tmp_path / "m", wrap=wrap, file_system_poll_s=0.02) as server:
        httpx.post(f"{server.url}/v1/models/model:predict", json={"instances": [2]}, timeout=60)
        put("m", 2, 3)
        until(lambda: server.models.find("model")[0] == 2)
        gc.collect()
        until(lambda: sessions[0]() is None)
        assert sessions[1]() is not None
    assert load(tmp_path / "m" / "2")  # and the server's end does not end the process' others
