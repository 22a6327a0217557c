"""SavedModels that compute half of x plus some number, by every kind of signature."""

import grpc
import tensorflow as tf
from tensorflow_serving.apis import (
    classification_pb2,
    inference_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

CLASSIFY = "tensorflow/serving/classify"
REGRESS = "tensorflow/serving/regress"


class HalfPlus(tf.Module):
    def __init__(self, number, wait_s=0.0):
        self.number = tf.Variable(float(number))
        self.wait_s = wait_s

    def y(self, x):
        return 0.5 * x + self.number

    def parsed(self, examples):
        features = {"x": tf.io.FixedLenFeature([1], tf.float32)}
        return tf.io.parse_example(examples, features)["x"]

    def signatures(self):
        x = tf.TensorSpec(None, tf.float32, name="x")
        examples = tf.TensorSpec([None], tf.string, name="inputs")
        labels = tf.constant([["low", "high"]])

        def made(spec, function):
            return tf.function(function, input_signature=[spec]).get_concrete_function()

        def rows(inputs):
            return tf.shape(inputs)[0]

        scores = lambda x: tf.concat([x, -x], 1)  # noqa: E731
        return {
            "serving_default": made(x, lambda x: {"y": self.y(x)}),
            "both": made(x, lambda x: {"y": self.y(x), "z": -x}),
            "regress_x_to_y": made(
                examples, lambda inputs: {"outputs": self.y(self.parsed(inputs))}
            ),
            "classify_x_to_y": made(
                examples, lambda inputs: {"scores": self.y(self.parsed(inputs))}
            ),
            "labelled": made(
                examples,
                lambda inputs: {
                    "scores": scores(self.y(self.parsed(inputs))),
                    "classes": tf.repeat(labels, rows(inputs), 0),
                },
            ),
            "labels_only": made(
                examples, lambda inputs: {"classes": tf.repeat(labels, rows(inputs), 0)}
            ),
            "flat_scores": made(
                examples, lambda inputs: {"scores": self.y(self.parsed(inputs))[:, 0]}
            ),
            "double_scores": made(
                examples,
                lambda inputs: {"scores": tf.cast(self.parsed(inputs), tf.float64)},
            ),
            "one_score": made(examples, lambda inputs: {"scores": self.parsed(inputs)[:1]}),
            "uneven": made(
                examples,
                lambda inputs: {
                    "scores": self.parsed(inputs),
                    "classes": tf.repeat(labels, rows(inputs), 0),
                },
            ),
            "wide": made(examples, lambda inputs: {"outputs": scores(self.parsed(inputs))}),
            "one_value": made(examples, lambda inputs: {"outputs": self.parsed(inputs)[:1, 0]}),
            "whole_values": made(
                examples, lambda inputs: {"outputs": tf.cast(self.parsed(inputs), tf.int64)}
            ),
            "pair": made_pair(),
        }


def made_pair():
    spec = tf.TensorSpec([None], tf.float32)
    pair = tf.function(lambda a, b: {"outputs": a + b}, input_signature=[spec, spec])
    return pair.get_concrete_function()


def save(base_path, version, number):
    """Writes the model as a version, which appears when it is complete."""
    module = HalfPlus(number)
    copied = base_path / f"copying-{version}"
    tf.saved_model.save(module, str(copied), signatures=module.signatures())
    copied.rename(base_path / str(version))


def example(**features):
    """A tf.Example; floats, ints or bytes, by the first value of each feature."""
    made = tf.train.Example()
    for name, values in features.items():
        kind = {float: "float_list", int: "int64_list", bytes: "bytes_list"}[type(values[0])]
        getattr(made.features.feature[name], kind).value.extend(values)
    return made


def examples(*xs):
    return [example(x=[float(x)]) for x in xs]


def predict_request(*xs, model="m", signature="", version=None, label="", outputs=()):
    request = predict_pb2.PredictRequest(output_filter=outputs)
    fill(request.model_spec, model, signature, version, label)
    request.inputs["x"].CopyFrom(tf.make_tensor_proto(list(xs), tf.float32))
    return request


def classify_request(*xs, model="m", signature="classify_x_to_y", version=None, label=""):
    request = classification_pb2.ClassificationRequest()
    fill(request.model_spec, model, signature, version, label)
    request.input.example_list.examples.extend(examples(*xs))
    return request


def regress_request(*xs, model="m", signature="regress_x_to_y", version=None, label=""):
    request = regression_pb2.RegressionRequest()
    fill(request.model_spec, model, signature, version, label)
    request.input.example_list.examples.extend(examples(*xs))
    return request


def multi_request(*tasks, xs=(2,)):
    """Tasks are (model, signature, method)."""
    request = inference_pb2.MultiInferenceRequest()
    for model, signature, method in tasks:
        task = request.tasks.add(method_name=method)
        fill(task.model_spec, model, signature)
    request.input.example_list.examples.extend(examples(*xs))
    return request


def fill(spec, model, signature="", version=None, label=""):
    spec.name, spec.signature_name = model, signature
    if version is not None:
        spec.version.value = version
    if label:
        spec.version_label = label


class Stubs:
    """TensorFlow Serving's published client, over one channel."""

    def __init__(self, target):
        self.channel = grpc.insecure_channel(target)
        self.prediction = prediction_service_pb2_grpc.PredictionServiceStub(self.channel)
        self.model = model_service_pb2_grpc.ModelServiceStub(self.channel)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.channel.close()
