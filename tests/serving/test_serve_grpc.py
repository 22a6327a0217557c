"""gRPC by TensorFlow Serving's published stubs: answers, codes, texts, deadlines, the hooks."""

import contextlib
import shutil
import threading

import grpc
import httpx
import numpy as np
import pytest
import tensorflow as tf
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from tensorflow.core.framework import tensor_pb2, types_pb2
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_management_pb2,
    predict_pb2,
    prediction_log_pb2,
)

from bertfam_serve import running_server
from bertfam_serve.grpc_api import parse_channel_arguments
from bertfam_tf.export.runtime import Code, requests, tensor_protos
from tests.serving.half_plus import (
    CLASSIFY,
    REGRESS,
    Stubs,
    classify_request,
    example,
    examples,
    fill,
    multi_request,
    predict_request,
    regress_request,
)
from tests.serving.test_serve_loader import write_warmup


@pytest.fixture(scope="module")
def zoo(server):
    with Stubs(server.grpc_target) as stubs:
        yield stubs


def spec_of(response):
    spec = response.model_spec
    return spec.name, spec.signature_name, spec.version.value


def test_predict(stubs):
    response = stubs.prediction.Predict(predict_request(2, 3, 4))
    y = response.outputs["y"]
    assert y.dtype == types_pb2.DT_FLOAT
    assert [dim.size for dim in y.tensor_shape.dim] == [3]
    assert list(y.float_val) == [3.0, 3.5, 4.0]
    assert not y.tensor_content
    assert spec_of(response) == ("m", "serving_default", 5)


def test_the_shape_is_free(stubs):
    request = predict_request()
    request.inputs["x"].CopyFrom(tf.make_tensor_proto([[1.0, 2.0], [3.0, 4.0]]))
    y = stubs.prediction.Predict(request).outputs["y"]
    np.testing.assert_array_equal(tf.make_ndarray(y), [[2.5, 3.0], [3.5, 4.0]])


@pytest.mark.parametrize(
    ("outputs", "names"), [([], {"y", "z"}), (["z"], {"z"}), (["z", "y"], {"y", "z"})]
)
def test_output_filter(stubs, outputs, names):
    response = stubs.prediction.Predict(predict_request(2, signature="both", outputs=outputs))
    assert set(response.outputs) == names
    assert spec_of(response) == ("m", "both", 5)


FIELDS = {
    "float32": "float_val", "float64": "double_val", "float16": "half_val",
    "bfloat16": "half_val", "int8": "int_val", "int16": "int_val", "int32": "int_val",
    "int64": "int64_val", "uint8": "int_val", "uint16": "int_val", "uint32": "uint32_val",
    "uint64": "uint64_val", "bool": "bool_val", "string": "string_val",
}  # fmt: skip


@pytest.mark.parametrize("dtype", FIELDS)
def test_answers_are_in_the_field_of_their_type(zoo, dtype):
    x = tf.constant([[b"a", b"\xff\x00"]]) if dtype == "string" else tf.cast([[1, 0]], dtype)
    request = predict_request(model="zoo", signature=f"echo_{dtype}")
    request.inputs["x"].CopyFrom(tf.make_tensor_proto(x))
    y = zoo.prediction.Predict(request).outputs["y"]
    assert len(getattr(y, FIELDS[dtype])) == 2
    assert {f.name for f, _ in y.ListFields()} == {"dtype", "tensor_shape", FIELDS[dtype]}
    np.testing.assert_array_equal(tf.make_ndarray(y), x.numpy())


@pytest.mark.parametrize("shape", [(), (0,), (2, 0)])
def test_scalars_and_empty_tensors(zoo, shape):
    request = predict_request(model="zoo", signature="echo_float32")
    request.inputs["x"].CopyFrom(tf.make_tensor_proto(np.ones(shape, np.float32)))
    y = zoo.prediction.Predict(request).outputs["y"]
    assert y.HasField("tensor_shape")
    assert tf.make_ndarray(y).shape == shape


def test_classify(stubs):
    response = stubs.prediction.Classify(classify_request(20, 10, 2))
    rows = [[(c.label, c.score) for c in row.classes] for row in response.result.classifications]
    assert rows == [[("", 12.0)], [("", 7.0)], [("", 3.0)]]
    assert spec_of(response) == ("m", "classify_x_to_y", 5)


@pytest.mark.parametrize(
    ("signature", "row"),
    [
        ("labelled", [("low", 3.0), ("high", -3.0)]),
        ("labels_only", [("low", 0.0), ("high", 0.0)]),
    ],
)
def test_classify_labels(stubs, signature, row):
    response = stubs.prediction.Classify(classify_request(2, signature=signature))
    assert [(c.label, c.score) for c in response.result.classifications[0].classes] == row


def test_regress(stubs):
    response = stubs.prediction.Regress(regress_request(80, 2))
    assert [r.value for r in response.result.regressions] == [42.0, 3.0]
    assert spec_of(response) == ("m", "regress_x_to_y", 5)


def test_multi_inference(stubs):
    request = multi_request(("m", "regress_x_to_y", REGRESS), ("m", "labelled", CLASSIFY))
    first, second = stubs.prediction.MultiInference(request).results
    assert [r.value for r in first.regression_result.regressions] == [3.0]
    (row,) = second.classification_result.classifications
    assert [(c.label, c.score) for c in row.classes] == [("low", 3.0), ("high", -3.0)]
    assert spec_of(first) == ("m", "regress_x_to_y", 5)
    assert spec_of(second) == ("m", "labelled", 5)


@pytest.mark.parametrize("own", [{}, {"x": [4.0]}, {"other": [1]}])
def test_context_is_merged_under_each_example(stubs, own):
    request = regress_request()
    given = request.input.example_list_with_context
    given.context.CopyFrom(example(x=[80.0]))
    given.examples.extend([example(**own), example()])
    values = [r.value for r in stubs.prediction.Regress(request).result.regressions]
    assert values == [4.0 if "x" in own else 42.0, 42.0]


def test_examples_are_merged_as_protos_are():
    context, own = example(a=[1], b=[b"c"]), example(b=[b"own"], d=[2.0])
    given = classification_pb2.ClassificationRequest().input
    given.example_list_with_context.context.CopyFrom(context)
    given.example_list_with_context.examples.append(own)
    (serialized,) = requests.serialized_examples(given)
    merged = tf.train.Example.FromString(serialized)
    context.MergeFrom(own)
    assert merged == context == example(a=[1], b=[b"own"], d=[2.0])


def test_metadata(stubs, half):
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    fill(request.model_spec, "m")
    response = stubs.prediction.GetModelMetadata(request)
    assert spec_of(response) == ("m", "", 5)
    signatures = get_model_metadata_pb2.SignatureDefMap()
    assert response.metadata["signature_def"].Unpack(signatures)
    over_rest = httpx.get(f"{half.url}/v1/models/m/metadata", timeout=60).json()
    names = set(over_rest["metadata"]["signature_def"]["signature_def"])
    assert set(signatures.signature_def) == names
    assert signatures.signature_def["both"].outputs["z"].dtype == types_pb2.DT_FLOAT


@pytest.mark.parametrize("version", [None, 5])
def test_status(stubs, version):
    request = get_model_status_pb2.GetModelStatusRequest()
    fill(request.model_spec, "m", version=version, label="" if version else "ignored")
    (entry,) = stubs.model.GetModelStatus(request).model_version_status
    assert (entry.version, entry.state) == (5, get_model_status_pb2.ModelVersionStatus.AVAILABLE)
    assert (entry.status.error_code, entry.status.error_message) == (0, "")


def without_spec(request):
    request.ClearField("model_spec")
    return request


def wrong_inputs(**inputs):
    request = predict_request()
    request.ClearField("inputs")
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    return request


def unparsable():
    request = predict_request()
    request.inputs["x"].Clear()
    return request


def metadata_request(*fields, model="m", **spec):
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=fields)
    fill(request.model_spec, model, **spec)
    return request


def status_request(model="m", **spec):
    request = get_model_status_pb2.GetModelStatusRequest()
    fill(request.model_spec, model, **spec)
    return request


def reload_request(kind):
    request = model_management_pb2.ReloadConfigRequest()
    if kind == "custom":
        request.config.custom_model_config.SetInParent()
    return request


INVALID = grpc.StatusCode.INVALID_ARGUMENT
MISSING = grpc.StatusCode.NOT_FOUND
ONLY_LISTS = (
    "ServerModelConfig type not supported by HandleReloadConfigRequest. "
    "Only ModelConfigList is currently supported"
)
NO_LATEST = "Servable not found for request: Latest(x)"
NO_SPECIFIC = "Servable not found for request: Specific(m, 9)"
NO_LABEL = "Unrecognized servable version label: new"

REFUSED = [
    # Which model: the same for every API that runs one.
    *(
        case
        for api, made in [
            ("Predict", predict_request),
            ("Classify", classify_request),
            ("Regress", regress_request),
        ]
        for case in [
            (api, without_spec(made(2)), INVALID, "Missing ModelSpec"),
            (api, made(2, model=""), INVALID, "ModelSpec has no name specified."),
            (api, made(2, model="x"), MISSING, NO_LATEST),
            (api, made(2, version=9), MISSING, NO_SPECIFIC),
            (api, made(2, label="new"), INVALID, NO_LABEL),
        ]
    ),
    ("GetModelMetadata", without_spec(metadata_request("signature_def")), INVALID,
     "Missing ModelSpec"),
    ("GetModelMetadata", metadata_request(), INVALID,
     "GetModelMetadataRequest must specify at least one metadata_field"),
    ("GetModelMetadata", metadata_request("signature_def", "assets"), INVALID,
     "Metadata field assets is not supported"),
    ("GetModelMetadata", metadata_request("signature_def", model=""), INVALID,
     "ModelSpec has no name specified."),
    ("GetModelMetadata", metadata_request("signature_def", model="x"), MISSING, NO_LATEST),
    ("GetModelMetadata", metadata_request("signature_def", version=9), MISSING, NO_SPECIFIC),
    ("GetModelStatus", without_spec(status_request()), INVALID, "Missing ModelSpec"),
    ("GetModelStatus", status_request(""), MISSING, "Could not find any versions of model "),
    ("GetModelStatus", status_request("x"), MISSING, "Could not find any versions of model x"),
    ("GetModelStatus", status_request(version=9), MISSING, "Could not find version 9 of model m"),
    ("HandleReloadConfigRequest", reload_request("none"), INVALID, ONLY_LISTS),
    ("HandleReloadConfigRequest", reload_request("custom"), INVALID, ONLY_LISTS),
    # Predict
    ("Predict", predict_request(2, signature="x"), grpc.StatusCode.FAILED_PRECONDITION,
     'Serving signature key "x" not found.'),
    ("Predict", wrong_inputs(), INVALID,
     "input size does not match signature: 0!=1 len({}) != len({x}). Sent extra: {}. "
     "Missing but required: {x}."),
    ("Predict", wrong_inputs(z=2.0), INVALID,
     "Signature input alias: x(feed name: serving_default_x:0) not found in request and no "
     "default value provided. Inputs expected to be in the request {z}, "
     "or default input alias set: "),
    ("Predict", wrong_inputs(x="2"), INVALID, "Expects arg[0] to be float but string is provided"),
    ("Predict", unparsable(), INVALID, "tensor parsing error: x"),
    ("Predict", predict_request(2, signature="both", outputs=["w"]), INVALID,
     "output tensor alias not found in signature: w Outputs expected to be in the set {y,z}."),
    ("Predict", predict_request(2, signature="both", outputs=["y", "y"]), INVALID,
     "duplicate output tensor alias: y"),
    # Classify and Regress
    ("Classify", classify_request(2, signature="x"), INVALID,
     "No signature was found with the name: x"),
    ("Regress", regress_request(2, signature="x"), INVALID,
     "No signature was found with the name: x"),
    ("Classify", classify_request(), INVALID, "Input is empty."),
    ("Regress", regress_request(), INVALID, "Input is empty."),
    ("Classify", classify_request(2, signature="pair"), INVALID, "Expected one input Tensor."),
    ("Regress", regress_request(2, signature="pair"), INVALID, "Expected one input Tensor."),
    ("Regress", regress_request(2, signature="labelled"), INVALID, "Expected one output Tensor."),
    ("Classify", classify_request(2, signature="flat_scores"), INVALID,
     "Expected Tensor shape: [batch_size num_classes] but got [1]"),
    ("Classify", classify_request(2, signature="double_scores"), INVALID,
     "Expected scores Tensor of DT_FLOAT. Got: DT_DOUBLE"),
    ("Classify", classify_request(2, 4, signature="one_score"), INVALID,
     "Expected scores output batch size of 2. Got: 1"),
    ("Classify", classify_request(2, signature="uneven"), INVALID,
     "Tensors class and score should match in dim_size(1). Got 2 vs. 1"),
    ("Regress", regress_request(2, signature="wide"), INVALID,
     "Expected output Tensor shape to be either [batch_size] or [batch_size, 1] but got [1,2]"),
    ("Regress", regress_request(2, 4, signature="one_value"), INVALID,
     "Input batch size did not match output batch size: 2 vs. 1"),
    ("Regress", regress_request(2, signature="whole_values"), INVALID,
     "Expected output Tensor of DT_FLOAT.  Got: DT_INT64"),
    # MultiInference
    ("MultiInference", multi_request(), INVALID, "ModelSpec has no name specified."),
    ("MultiInference", multi_request(("x", "a", CLASSIFY)), MISSING, NO_LATEST),
    ("MultiInference", multi_request(("m", "labelled", CLASSIFY), ("", "a", CLASSIFY)), INVALID,
     "Found ModelSpec with an empty model name."),
    ("MultiInference", multi_request(("m", "labelled", CLASSIFY), ("n", "a", CLASSIFY)), INVALID,
     "All ModelSpecs in a MultiInferenceRequest must access the same model name."),
    ("MultiInference", multi_request(*[("m", "labelled", CLASSIFY)] * 2), INVALID,
     "Duplicate evaluation of signature: labelled"),
    ("MultiInference", multi_request(("m", "x", CLASSIFY)), INVALID,
     "Requested signature not found in model graph: x"),
    ("MultiInference", multi_request(("m", "labelled", "tensorflow/serving/predict")),
     grpc.StatusCode.UNIMPLEMENTED,
     "Unsupported signature method_name: tensorflow/serving/predict"),
    ("MultiInference", multi_request(("m", "labelled", CLASSIFY), xs=()), INVALID,
     "Input is empty."),
]  # fmt: skip


@pytest.mark.parametrize(("api", "request_", "code", "text"), REFUSED)
def test_refusals(stubs, api, request_, code, text):
    stub = getattr(stubs.prediction, api, None) or getattr(stubs.model, api)
    with pytest.raises(grpc.RpcError) as caught:
        stub(request_)
    assert (caught.value.code(), caught.value.details()) == (code, text)


@pytest.mark.parametrize(
    ("api", "request_", "start"),
    [
        ("Classify", classify_request(2, signature="regress_x_to_y"),
         'Expected classification signature outputs to contain at least one of "classes" or '
         '"scores". Signature was: '),
        ("Classify", classify_request(2, signature="serving_default"),
         "No classification inputs found in SignatureDef: "),
        ("Regress", regress_request(2, signature="classify_x_to_y"),
         "No regression outputs found in SignatureDef: "),
        ("Regress", regress_request(2, signature=""),
         "No regression inputs found in SignatureDef: "),
    ],
)  # fmt: skip
def test_refusals_that_show_the_signature(stubs, api, request_, start):
    with pytest.raises(grpc.RpcError) as caught:
        getattr(stubs.prediction, api)(request_)
    assert caught.value.code() == INVALID
    assert caught.value.details().startswith(start)


def test_an_example_that_lacks_a_feature(stubs):
    request = regress_request()
    request.input.example_list.examples.append(example(y=[1.0]))
    with pytest.raises(grpc.RpcError, match="Feature: x \\(data type: float\\) is required"):
        stubs.prediction.Regress(request)


@pytest.mark.parametrize("size", [1, 1000, 1002, 5000])
def test_long_messages_are_cut(stubs, size):
    with pytest.raises(grpc.RpcError) as caught:
        stubs.prediction.Classify(classify_request(2, signature="s" * size))
    full = "No signature was found with the name: " + "s" * size
    expected = full if len(full) <= 1024 else full[:1024] + "...TRUNCATED"
    assert caught.value.details() == expected


def test_large_messages(stubs):
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    request = predict_request()
    # Three times what gRPC allows by default.
    x = np.arange(3 << 20, dtype=np.float32).reshape(3 << 10, 1 << 10)
    request.inputs["x"].CopyFrom(tf.make_tensor_proto(x))
    with pytest.raises(grpc.RpcError) as caught:
        stubs.prediction.Predict(request)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED  # this client's own limit
    target = stubs.channel._channel.target().decode()
    with grpc.insecure_channel(target, options) as channel:
        predict = channel.unary_unary(
            "/tensorflow.serving.PredictionService/Predict",
            request_serializer=predict_pb2.PredictRequest.SerializeToString,
            response_deserializer=predict_pb2.PredictResponse.FromString,
        )
        y = predict(request).outputs["y"]
    np.testing.assert_array_equal(tf.make_ndarray(y), 0.5 * x + 2)


def shaped(*sizes, values=1):
    request = predict_request()
    x = request.inputs["x"]
    x.ClearField("tensor_shape")
    x.ClearField("float_val")
    x.ClearField("tensor_content")
    x.float_val.extend([2.0] * values)
    for size in sizes:
        x.tensor_shape.dim.add(size=size)
    return request


def test_the_last_value_is_repeated(stubs):
    y = stubs.prediction.Predict(shaped(2, 3)).outputs["y"]
    assert list(y.float_val) == [3.0] * 6


@pytest.mark.parametrize("values", [0, 1, 3])
@pytest.mark.parametrize("sizes", [(2**40,), (2**62,), (2**63 - 1,), (2**21, 2**21), (2**22, 8)])
def test_a_small_message_is_no_large_tensor(stubs, sizes, values):
    with pytest.raises(grpc.RpcError) as caught:
        stubs.prediction.Predict(shaped(*sizes, values=values))
    assert (caught.value.code(), caught.value.details()) == (INVALID, "tensor parsing error: x")


@pytest.mark.parametrize("sizes", [(-1,), (2, -3), (-(2**63), 2**40)])
def test_negative_sizes(stubs, sizes):
    with pytest.raises(grpc.RpcError) as caught:
        stubs.prediction.Predict(shaped(*sizes))
    assert (caught.value.code(), caught.value.details()) == (INVALID, "tensor parsing error: x")


@pytest.mark.parametrize("dtype", [tf.resource, tf.variant])
def test_dtypes_that_numpy_lacks_are_not_read(dtype):
    proto = tensor_pb2.TensorProto(dtype=dtype.as_datatype_enum)
    proto.tensor_shape.dim.add(size=1)
    assert tensor_protos.read(proto) is None


def test_the_deadline_of_the_client_ends_the_run(zoo, server):
    request = predict_request(model="zoo", signature="endless")
    request.inputs["x"].CopyFrom(tf.make_tensor_proto([1], tf.int64))
    with pytest.raises(grpc.RpcError) as caught:
        zoo.prediction.Predict(request, timeout=0.3)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    # Not only the client stopped waiting: more than there are threads come through.
    codes = []
    for call in [zoo.prediction.Predict.future(request, timeout=0.3) for _ in range(80)]:
        codes.append(call.exception().code())
    assert set(codes) == {grpc.StatusCode.DEADLINE_EXCEEDED}
    tokens = predict_request(model="zoo", signature="echo_float32")
    tokens.inputs["x"].CopyFrom(tf.make_tensor_proto([1.0]))
    assert zoo.prediction.Predict(tokens, timeout=30).outputs["y"].float_val == [1.0]


def test_the_end_of_the_server_is_the_end_of_every_run(base_path):
    """One without a deadline as well: its thread would keep the process from ending."""
    request = predict_request(model="m", signature="endless")
    request.inputs["x"].CopyFrom(tf.make_tensor_proto([1], tf.int64))
    ended = []
    threads = set(threading.enumerate())
    observe = lambda *call: ended.append(call[3])  # noqa: E731
    with running_server(base_path, model_name="m", grace_s=0.1, observe=observe) as made:
        stubs = Stubs(made.grpc_target)
        call = stubs.prediction.Predict.future(request)
        working = []
        while not working:
            working = [t for t in set(threading.enumerate()) - threads if "grpc" in t.name]
    for thread in working:
        thread.join(60)
    assert not any(thread.is_alive() for thread in working)
    assert ended in ([], [Code.CANCELLED])  # none: it had not got to its run
    assert call.exception() is not None
    stubs.channel.close()


def test_warm_up_records_of_every_kind(half_path, tmp_path):
    logs = [prediction_log_pb2.PredictionLog() for _ in range(4)]
    logs[0].predict_log.request.CopyFrom(predict_request(2, model="other"))
    logs[1].classify_log.request.CopyFrom(classify_request(2))
    logs[2].regress_log.request.CopyFrom(regress_request(2))
    logs[3].multi_inference_log.request.CopyFrom(multi_request(("m", "labelled", CLASSIFY)))
    ran = []

    class Recording:
        def __init__(self, servable):
            assert servable.model == "m"
            self.signatures = servable.signatures
            self._servable = servable

        def run(self, signature, inputs, **kwargs):
            ran.append(signature)
            return self._servable.run(signature, inputs, **kwargs)

        def run_together(self, signatures, inputs, **kwargs):
            ran.append(list(signatures))
            return self._servable.run_together(signatures, inputs, **kwargs)

    copied = shutil.copytree(half_path / "5", tmp_path / "1")
    write_warmup(copied, *[log.SerializeToString() for log in logs])

    @contextlib.contextmanager
    def around(path):
        ran.append(f"in {path.name}")
        yield
        ran.append("out")

    hooks = {"wrap": Recording, "around_warm_up": around}
    with running_server(tmp_path, model_name="m", **hooks) as server:
        assert ran[1:5] == ["", "classify_x_to_y", "regress_x_to_y", ["labelled"]]
        with Stubs(server.grpc_target) as stubs:
            stubs.prediction.Predict(predict_request(2, signature="both"))
        url = f"{server.url}/v1/models/m:predict"
        httpx.post(url, json={"instances": [1]}, timeout=60)
    assert (ran[0], ran[5:]) == ("in 1", ["out", "both", ""])


def test_the_observer_hears_of_each_request_once(half_path):
    heard = []
    with (
        running_server(half_path, model_name="m", observe=lambda *call: heard.append(call)) as made,
        Stubs(made.grpc_target) as stubs,
        httpx.Client(base_url=made.url, timeout=60) as client,
    ):
        stubs.prediction.Predict(predict_request(2))
        stubs.prediction.Classify(classify_request(2))
        stubs.prediction.Regress(regress_request(2))
        stubs.prediction.MultiInference(multi_request(("m", "labelled", CLASSIFY)))
        with pytest.raises(grpc.RpcError):
            stubs.prediction.Predict(predict_request(2, model="x"))
        with pytest.raises(grpc.RpcError):
            stubs.prediction.Predict(without_spec(predict_request(2)))
        client.post("/v1/models/m:predict", json={"instances": [2]})
        client.post("/v1/models/m:regress", json={})
        client.post("/v1/models/x:classify", json={"examples": [{}]})
        client.get("/v1/models/m")
        stubs.model.GetModelStatus(status_request())
    ok, bad, missing = Code.OK, Code.INVALID_ARGUMENT, Code.NOT_FOUND
    assert [call[:4] for call in heard] == [
        ("m", "Predict", "GRPC", ok),
        ("m", "Classify", "GRPC", ok),
        ("m", "Regress", "GRPC", ok),
        ("m", "MultiInference", "GRPC", ok),
        ("x", "Predict", "GRPC", missing),
        ("", "Predict", "GRPC", bad),
        ("m", "predict", "REST", ok),
        ("m", "regress", "REST", bad),
        ("x", "classify", "REST", missing),
    ]
    assert all(0 < call[4] < 60 for call in heard)


class Key(grpc.ServerInterceptor):
    """Asks for a key."""

    def intercept_service(self, continuation, details):
        if ("key", "k") in details.invocation_metadata:
            return continuation(details)
        refuse = lambda _, context: context.abort(grpc.StatusCode.UNAUTHENTICATED, "no")  # noqa: E731
        return grpc.unary_unary_rpc_method_handler(refuse)


def test_hooks_around_requests(half_path, tmp_path):
    socket_path = tmp_path / "grpc.sock"
    with (
        running_server(
            half_path,
            model_name="m",
            interceptors=[Key()],
            middleware=[Middleware(GZipMiddleware, minimum_size=1)],
            routes=[Route("/v1/page", lambda request: PlainTextResponse("a page"))],
            grpc_socket_path=str(socket_path),
            tensor_content=True,
        ) as made,
        Stubs(f"unix:{socket_path}") as stubs,
    ):
        answer = httpx.get(f"{made.url}/v1/page", timeout=60)
        assert (answer.text, answer.headers["content-encoding"]) == ("a page", "gzip")
        with pytest.raises(grpc.RpcError) as caught:
            stubs.prediction.Predict(predict_request(2))
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        y = stubs.prediction.Predict(predict_request(2, 4), metadata=[("key", "k")]).outputs["y"]
        assert (len(y.float_val), tf.make_ndarray(y).tolist()) == (0, [3.0, 4.0])


def test_health(half_path):
    health = pytest.importorskip("grpc_health.v1.health_pb2")
    from grpc_health.v1 import health_pb2_grpc

    with (
        running_server(half_path, health=True) as made,
        grpc.insecure_channel(made.grpc_target) as channel,
    ):
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", "ModelService", "PredictionService"):
            status = stub.Check(health.HealthCheckRequest(service=service)).status
            assert status == health.HealthCheckResponse.SERVING


def test_no_health_service_unless_asked_for(stubs):
    check = stubs.channel.unary_unary("/grpc.health.v1.Health/Check")
    with pytest.raises(grpc.RpcError) as caught:
        check(b"")
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_no_grpc(half_path):
    with running_server(half_path, grpc_port=None) as made:
        assert (made.grpc_port, made.grpc_target) == (None, "")


def test_a_port_that_is_taken(half, half_path):
    with (
        pytest.raises(OSError, match=f"gRPC cannot listen on 127.0.0.1:{half.grpc_port}"),
        running_server(half_path, grpc_port=half.grpc_port),
    ):
        pass


def test_surprises_are_not_shown_to_the_client(half_path, caplog):
    class Broken:
        def __init__(self, servable):
            self.signatures = servable.signatures

        def run(self, *_, **__):
            raise KeyError("a detail of ours")

    with (
        running_server(half_path, model_name="m", wrap=Broken) as made,
        Stubs(made.grpc_target) as stubs,
        pytest.raises(grpc.RpcError) as caught,
    ):
        stubs.prediction.Predict(predict_request(2))
    assert caught.value.code() == grpc.StatusCode.INTERNAL
    assert caught.value.details() == "Internal error"
    assert "a detail of ours" in caplog.text


def test_channel_arguments():
    text = "grpc.max_connection_age_ms=2000,grpc.lb_policy_name=grpclb,"
    expected = [("grpc.max_connection_age_ms", 2000), ("grpc.lb_policy_name", "grpclb")]
    assert parse_channel_arguments(text) == expected
    with pytest.raises(ValueError, match="expected name=value"):
        parse_channel_arguments("grpc.max_connection_age_ms")


def test_multi_inference_is_one_run_of_the_graph(half_path):
    seen = []

    class Counting:
        def __init__(self, servable):
            self.signatures = servable.signatures
            run = servable._session.run
            servable._session.run = lambda *given: seen.append(given) or run(*given)
            self.run_together = servable.run_together

    with (
        running_server(half_path, model_name="m", wrap=Counting) as made,
        Stubs(made.grpc_target) as stubs,
    ):
        request = multi_request(("m", "regress_x_to_y", REGRESS), ("m", "labelled", CLASSIFY))
        request.input.example_list.examples.extend(examples(4))
        stubs.prediction.MultiInference(request)
    assert len(seen) == 1
