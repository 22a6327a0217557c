"""An export of the smallest classifier, and servers over it."""

import concurrent.futures

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

import bertfam_tf as bf
from bertfam_tf.serve import load, running_server


@pytest.fixture(scope="session")
def export(smallest, tmp_path_factory):
    """A base path with version 1."""
    directory = tmp_path_factory.mktemp("exports") / "model"
    bf.TextClassifier.from_pretrained(smallest, pair=False).export(directory)
    return directory


@pytest.fixture(scope="session")
def servable(export):
    return load(export / "1")


@pytest.fixture(scope="session")
def export_server(export):
    with running_server(export, model_name="m") as running:
        yield running


class Servicer(
    prediction_service_pb2_grpc.PredictionServiceServicer,
    model_service_pb2_grpc.ModelServiceServicer,
):
    """As much of the contract as the client asks for; version 1 of the model "m"."""

    def __init__(self, servable):
        self._servable = servable

    def _check(self, request, context):
        if request.model_spec.name != "m":
            reason = f"Servable not found for request: Latest({request.model_spec.name})"
            context.abort(grpc.StatusCode.NOT_FOUND, reason)

    def Predict(self, request, context):
        self._check(request, context)
        response = predict_pb2.PredictResponse()
        outputs = self._servable.run(request.model_spec.signature_name, dict(request.inputs))
        for name in request.output_filter or outputs:
            response.outputs[name].CopyFrom(tf.make_tensor_proto(outputs[name]))
        return response

    def Classify(self, request, context):
        self._check(request, context)
        assert request.model_spec.signature_name == "classify"
        examples = request.input.example_list.examples
        texts = [example.features.feature["text"].bytes_list.value[0] for example in examples]
        response = classification_pb2.ClassificationResponse()
        outputs = self._servable.run("", {"text": np.array(texts, object)})
        for row in outputs["scores"]:
            classes = response.result.classifications.add().classes
            for index, score in enumerate(row):
                classes.add(label=str(index), score=score)
        return response

    def GetModelStatus(self, request, context):
        self._check(request, context)
        response = get_model_status_pb2.GetModelStatusResponse()
        response.model_version_status.add(version=1, state="AVAILABLE")
        return response


@pytest.fixture(scope="session")
def address(servable):
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    servicer = Servicer(servable)
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(servicer, server)
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None)
