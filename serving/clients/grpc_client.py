"""A gRPC client that uses TensorFlow Serving's published stubs.

    pip install tensorflow-serving-api
    python serving/clients/grpc_client.py 127.0.0.1:8500 model "a fine film"
    python serving/clients/grpc_client.py 127.0.0.1:8500 model --signature classify "a fine film"

Works with TensorFlow Serving and with `bertfam serve`.
"""

import argparse

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_status_pb2,
    model_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

# By default, gRPC clients receive at most 4 MB.
_OPTIONS = [("grpc.max_receive_message_length", 64 << 20)]


class Client:
    """A client for one model of a server. Reuse it, because it keeps its connection.

    Close it, or use it in a `with` statement. All methods raise `grpc.RpcError`, with the server's
    `code()` and `details()`.

    Args:
        address: HOST:PORT.
        model: the model's name.
        timeout: seconds for one request, after which it fails with DEADLINE_EXCEEDED.
    """

    def __init__(self, address: str, model: str, timeout: float = 30.0) -> None:
        self._channel = grpc.insecure_channel(address, _OPTIONS)
        self._predictions = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)
        self._models = model_service_pb2_grpc.ModelServiceStub(self._channel)
        self._model = model
        self._timeout = timeout

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection."""
        self._channel.close()

    def predict(
        self,
        inputs: dict[str, list[str | bytes]],
        signature: str = "serving_default",
        outputs: tuple[str, ...] = (),
    ) -> dict[str, np.ndarray]:
        """Returns output name to array, with a row for each text; strings are bytes.

        Args:
            inputs: input name to texts: `{"text": ["a fine film", …]}`.
            signature: the signature's name.
            outputs: names of the outputs to compute; empty means all.
        """
        request = predict_pb2.PredictRequest(
            model_spec=self._spec(signature), output_filter=outputs
        )
        for name, texts in inputs.items():
            request.inputs[name].CopyFrom(tf.make_tensor_proto(texts, tf.string))
        response = self._predictions.Predict(request, self._timeout)
        return {name: tf.make_ndarray(value) for name, value in response.outputs.items()}

    def classify(
        self, examples: list[dict[str, str]], signature: str = "classify"
    ) -> list[list[tuple[str, float]]]:
        """Returns (label, score) for each class of each example, e.g. `{"text": "a fine film"}`."""
        request = classification_pb2.ClassificationRequest(model_spec=self._spec(signature))
        for example in examples:
            features = request.input.example_list.examples.add().features
            for name, text in example.items():
                features.feature[name].bytes_list.value.append(text.encode())
        response = self._predictions.Classify(request, self._timeout)
        return [
            [(entry.label, entry.score) for entry in row.classes]
            for row in response.result.classifications
        ]

    def states(self) -> dict[int, str]:
        """Returns each version's state: `{1: "END", 2: "AVAILABLE"}`."""
        request = get_model_status_pb2.GetModelStatusRequest(model_spec=self._spec())
        response = self._models.GetModelStatus(request, self._timeout)
        name = get_model_status_pb2.ModelVersionStatus.State.Name
        return {entry.version: name(entry.state) for entry in response.model_version_status}

    def _spec(self, signature: str = "") -> model_pb2.ModelSpec:
        return model_pb2.ModelSpec(name=self._model, signature_name=signature)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("address")
    parser.add_argument("model")
    parser.add_argument("text", nargs="+")
    parser.add_argument("--signature", default="serving_default")
    options = parser.parse_args()
    with Client(options.address, options.model) as client:
        print("versions:", client.states())
        if options.signature == "classify":
            rows = client.classify([{"text": text} for text in options.text])
            for text, row in zip(options.text, rows, strict=True):
                print(text, *(f"{label}: {score:.3f}" for label, score in row))
        else:
            for name, value in client.predict({"text": options.text}, options.signature).items():
                print(name, value.tolist())


if __name__ == "__main__":
    main()
