"""Exports: their files, answers equal to the task's, and what is refused."""

import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import bertfam_tf as bf
from bertfam_tf.export import (
    ExportError,
    endpoints,
    export_saved_model,
    model_card,
    saved_model,
)
from bertfam_tf.export.runtime import Code, ServingError, load
from bertfam_tf.sources import sha256
from bertfam_tf.text import load_tokenizer
from tests.export.test_single_example import check_operations
from tests.support.exports import objects

TEXTS = [
    "The film was very good!",
    "a dull, unhappy story.",
    "",
    "good " * 300,
    "[SEP] good [MASK]",
    "日本語 🙂 é",
    "good\0",
]
HOSTILE = [*(text.encode() for text in TEXTS), b"\xff\xfe good \xc3", b"\0", b"x" * 1_000_000]


@pytest.fixture(scope="module")
def task(smallest):
    return bf.TextClassifier.from_pretrained(smallest, pair=False)


@pytest.fixture(scope="module")
def base(task, tmp_path_factory):
    """A base path with one version, written by the task's own verb."""
    directory = tmp_path_factory.mktemp("exports") / "made" / "model"
    assert task.export(directory) == directory / "1"
    return directory


@pytest.fixture(scope="module")
def served(base):
    return load(base / "1")


def _answers(servable, **inputs):
    return servable.run("", {name: objects(texts) for name, texts in inputs.items()})


# Files ------------------------------------------------------------------------------


@pytest.mark.extended
def test_files(base, task):
    assert [child.name for child in base.iterdir()] == ["1"]
    assets = base / "1" / "assets"
    assert (assets / "labels.txt").read_text("utf-8").splitlines() == task.labels
    again = load_tokenizer(assets)
    assert again.get_config() == task.tokenizer.get_config()
    assert again.vocabulary == task.tokenizer.vocabulary
    assert {f.name for f in (base / "1" / "assets.extra").iterdir()} == {
        "bertfam.json",
        "tf_serving_warmup_requests",
    }


def test_scores_of_other_libraries_in_the_card(task, tmp_path):
    metrics = {"f1": np.float32(0.5), "rows": np.int64(3), "loss": tf.constant(0.25)}
    metrics |= {"mcc": float("nan"), "each": [np.float32("inf")]}
    (tmp_path / "assets.extra").mkdir()
    model_card.write_card(tmp_path, task, {}, dtype="float32", batching=None, metrics=metrics)
    card = json.loads((tmp_path / "assets.extra" / "bertfam.json").read_text("utf-8"))
    assert card["metrics"] == {"f1": 0.5, "rows": 3, "loss": 0.25, "mcc": None, "each": [None]}


def test_the_card(base, task):
    directory = base / "1"
    card = json.loads((directory / "assets.extra" / "bertfam.json").read_text("utf-8"))
    assert card.items() >= task.describe().items()
    assert card["labels"] == task.labels == card["options"]["labels"]
    assert card["versions"]["tensorflow"] == tf.__version__
    assert set(card["versions"]) == {"bertfam_tf", "tensorflow", "tensorflow-text", "keras"}
    assert (card["dtype"], card["batching"], card["metrics"]) == ("float32", None, None)
    files = {str(f.relative_to(directory)): f for f in directory.rglob("*") if f.is_file()}
    files.pop("assets.extra/bertfam.json")
    assert card["sha256"] == {name: sha256(file) for name, file in files.items()}
    assert card["signatures"]["classify"] == {
        "method": "classify",
        "inputs": {"inputs": {"dtype": "string", "shape": [-1]}},
        "outputs": {
            "classes": {"dtype": "string", "shape": [-1, 3]},
            "scores": {"dtype": "float32", "shape": [-1, 3]},
        },
    }
    assert card["signatures"]["ids"]["inputs"]["token_ids"] == {"dtype": "int32", "shape": [-1, -1]}


def test_signature(served):
    signatures = {name for name in served.signatures if not name.startswith("__")}
    assert signatures == {"serving_default", "classify", "ids"}
    signature = served.signatures["serving_default"]
    assert {n: tf.as_dtype(i.dtype) for n, i in signature.inputs.items()} == {"text": tf.string}
    assert {n: tf.as_dtype(i.dtype) for n, i in signature.outputs.items()} == {
        "label": tf.string,
        "scores": tf.float32,
    }
    shapes = {n: [d.size for d in i.tensor_shape.dim] for n, i in signature.outputs.items()}
    assert shapes == {"label": [-1], "scores": [-1, 3]}


def test_weights_are_stored_once(base, task):
    size = sum(v.numpy().nbytes for v in task.weights)
    stored = sum(file.stat().st_size for file in (base / "1" / "variables").iterdir())
    assert size <= stored < 1.2 * size


def _logs(path):
    from tensorflow_serving.apis import prediction_log_pb2

    records = tf.data.TFRecordDataset(str(path / "assets.extra" / "tf_serving_warmup_requests"))
    return [prediction_log_pb2.PredictionLog.FromString(r) for r in records.as_numpy_iterator()]


def test_warm_up_records_cover_a_row_and_a_batch_of_each_signature(base):
    seen = {"serving_default": [], "classify": [], "ids": []}
    for log in _logs(base / "1"):
        kind = log.WhichOneof("log_type")
        request = getattr(log, kind).request
        name = request.model_spec.signature_name
        assert kind == ("classify_log" if name == "classify" else "predict_log")
        if kind == "classify_log":
            examples = request.input.example_list.examples
            (text,) = {e.features.feature["text"].bytes_list.value[0] for e in examples}
            assert text.startswith(b"It arrived")
            seen[name].append(len(examples))
        else:
            seen[name].append(next(iter(request.inputs.values())).tensor_shape.dim[0].size)
    assert list(seen.values()) == [[1, 16]] * 3


@pytest.mark.full
def test_bad_warm_up_records_are_run(base, tmp_path):
    path = Path(shutil.copytree(base / "1", tmp_path / "1"))
    file = path / "assets.extra" / "tf_serving_warmup_requests"
    for log in _logs(path):
        if log.WhichOneof("log_type") == "classify_log":
            for example in log.classify_log.request.input.example_list.examples:
                del example.features.feature["text"]
            with tf.io.TFRecordWriter(str(file)) as writer:
                writer.write(log.SerializeToString())
            with pytest.raises(ServingError, match="text"):
                load(path)


# What it answers ------------------------------------------------------------------------------


def test_answers_equal_predict(served, task):
    found = _answers(served, text=HOSTILE)
    expected = task.predict(HOSTILE)
    np.testing.assert_allclose(found["scores"], [a["scores"] for a in expected], atol=1e-6)
    assert [v.decode() for v in found["label"]] == [a["label"] for a in expected]


def test_a_batch_does_not_change_answers(served):
    together = _answers(served, text=TEXTS)["scores"]
    alone = np.concatenate([_answers(served, text=[text])["scores"] for text in TEXTS])
    np.testing.assert_allclose(together, alone, atol=2e-6)
    assert _answers(served, text=[])["scores"].shape == (0, 3)


def test_a_text_alone_executes_few_operations(base, task):
    check_operations(base / "1", task)


def test_wrong_inputs_are_the_clients_errors(served):
    with pytest.raises(ServingError) as error:
        _answers(served, words=TEXTS)
    assert error.value.code is Code.INVALID_ARGUMENT
    with pytest.raises(ServingError) as error:
        served.run("", {"text": np.array([1.0], "float32")})
    assert error.value.code is Code.INVALID_ARGUMENT


CLEAN = """
    import sys
    import numpy as np
    from bertfam_tf.export.runtime import load

    servable = load(sys.argv[1])
    texts = np.array([bytes.fromhex(line) for line in sys.stdin.read().split(",")], object)
    scores = servable.run("", {"text": texts})["scores"]
    print(scores.tobytes().hex())
    rooms = {name.split(".")[1] for name in sys.modules if name.startswith("bertfam_tf.")}
    assert not rooms & {"layers", "models", "tasks", "training"}, rooms
"""


@pytest.mark.full
def test_a_process_without_the_models_answers_the_same(base, task):
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CLEAN), str(base / "1")],
        input=",".join(text.hex() for text in HOSTILE),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    found = np.frombuffer(bytes.fromhex(result.stdout.strip()), "float32").reshape(-1, 3)
    expected = [answer["scores"] for answer in task.predict(HOSTILE)]
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.full
def test_pairs(smallest, tmp_path):
    task = bf.TextClassifier.from_pretrained(smallest, pair=True)
    servable = load(task.export(tmp_path))
    assert set(servable.signatures["serving_default"].inputs) == {"text", "text_pair"}
    found = _answers(servable, text=TEXTS, text_pair=TEXTS[::-1])["scores"]
    expected = [answer["scores"] for answer in task.predict((TEXTS, TEXTS[::-1]))]
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.full
def test_an_embedder(smallest, tmp_path):
    task = bf.TextEmbedder.from_pretrained(smallest)
    servable = load(task.export(tmp_path))
    found = _answers(servable, text=HOSTILE)
    assert found.keys() == {"embedding"}
    assert found["embedding"].dtype == np.float32
    np.testing.assert_allclose(found["embedding"], task.predict(HOSTILE), atol=1e-6)


@pytest.mark.full
def test_a_task_compiled_by_xla_exports_without_it(smallest, tmp_path):
    task = bf.TextClassifier.from_pretrained(smallest)
    task.compile(jit_compile=True)
    assert task.jit_compile
    path = task.export(tmp_path)
    assert b"_XlaMustCompile" not in (path / "saved_model.pb").read_bytes()
    assert _answers(load(path), text=TEXTS)["scores"].shape == (len(TEXTS), 3)


@pytest.mark.full
def test_mixed_precision(smallest, tmp_path):
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        task = bf.TextClassifier.from_pretrained(smallest)
        servable = load(task.export(tmp_path))
    finally:
        keras.config.set_dtype_policy("float32")
    assert _answers(servable, text=TEXTS)["scores"].dtype == np.float32


@pytest.mark.parametrize(
    ("policy", "dtype", "own"),
    [
        ("mixed_bfloat16", "bfloat16", "bfloat16"),
        ("mixed_float16", "int8", "float16"),
        ("float16", "int8-weights", "float16"),
    ],
)
def test_another_dtype_of_a_task_in_another_precision(smallest, tmp_path, policy, dtype, own):
    keras.config.set_dtype_policy(policy)
    try:
        task = bf.TextClassifier.from_pretrained(smallest)
    finally:
        keras.config.set_dtype_policy("float32")
    with pytest.raises(
        ValueError, match=f"'{dtype}' is for tasks in float32, this one is in {own}"
    ):
        task.export(tmp_path, dtype=dtype, calibration=TEXTS if dtype == "int8" else None)


# Versions, and what is refused ----------------------------------------------------------------


def _no_export(monkeypatch, base):
    """Copies an export instead of writing one, which is slow."""

    def write(task, path, traced):
        shutil.copytree(base / "1", path)
        shutil.rmtree(path / "assets.extra")

    monkeypatch.setattr(saved_model, "_write", write)


@pytest.fixture
def quick(monkeypatch):
    """Replaces the slow steps, for tests of directories alone."""
    monkeypatch.setattr(saved_model, "endpoints", lambda *args, **options: {})
    monkeypatch.setattr(saved_model, "_write", lambda task, path, traced: path.mkdir())
    monkeypatch.setattr(saved_model, "_check_graph", lambda path: None)
    monkeypatch.setattr(saved_model, "load", lambda path: None)


def test_versions(quick, task, tmp_path):
    for name in ("00000007", "being-copied", "notes.txt", ".export-1"):
        (tmp_path / name).mkdir()
    assert export_saved_model(task, tmp_path).name == "8"
    assert export_saved_model(task, tmp_path).name == "9"
    assert export_saved_model(task, str(tmp_path), version=20).name == "20"
    assert export_saved_model(task, tmp_path).name == "21"
    assert export_saved_model(task, tmp_path, version=0).name == "0"
    for version in (7, 20, 0):
        with pytest.raises(FileExistsError, match=f"already has a version {version}"):
            export_saved_model(task, tmp_path, version=version)
    for version in (-1, 2**63):  # Serving ignores them
        with pytest.raises(ValueError, match="version must be from 0 to 9223372036854775807"):
            export_saved_model(task, tmp_path, version=version)
    with pytest.raises(ValueError, match="version must be an integer"):
        export_saved_model(task, tmp_path, version=2.5)


def test_what_a_killed_export_left_goes_even_if_its_version_is_there(quick, task, tmp_path):
    export_saved_model(task, tmp_path, version=1)
    left_over = tmp_path / f".{tmp_path.name}.abcdefgh.tmp"
    (left_over / "version").mkdir(parents=True)
    (left_over / ".lock").touch()
    with pytest.raises(FileExistsError):
        export_saved_model(task, tmp_path, version=1)
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


@pytest.mark.parametrize(
    "step", ["endpoints", "_write", "_check_graph", "write_card", "load", "_compare"]
)
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_failed_export_leaves_nothing(quick, task, tmp_path, monkeypatch, step, error):
    write = saved_model._write

    def fail(*args, **options):
        if step == "_write":
            write(*args)
        raise error("no space left")

    (tmp_path / "3").mkdir()
    monkeypatch.setattr(saved_model, step, fail)
    with pytest.raises(error):
        export_saved_model(task, tmp_path)
    assert [child.name for child in tmp_path.iterdir()] == ["3"]


@pytest.mark.extended
def test_an_op_that_xla_must_compile_is_refused(smallest, tmp_path, monkeypatch):
    task = bf.TextClassifier.from_pretrained(smallest)
    softmax = tf.function(tf.nn.softmax, jit_compile=True)
    labels = tf.constant(task.labels)
    monkeypatch.setattr(
        task,
        "postprocess",
        lambda logits, _: {"label": labels[: tf.shape(logits)[0]], "scores": softmax(logits)},
    )
    with pytest.raises(ExportError, match=r"is compiled by XLA .*every request would fail"):
        task.export(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.extended
def test_an_op_that_calls_python_is_refused(smallest, tmp_path, monkeypatch):
    task = bf.TextEmbedder.from_pretrained(smallest)
    monkeypatch.setattr(
        task,
        "postprocess",
        lambda x, _: {"embedding": tf.numpy_function(lambda v: v, [x], tf.float32)},
    )
    with pytest.raises(ExportError, match=r"calls Python \(PyFunc\)"):
        task.export(tmp_path)
    assert not list(tmp_path.iterdir())


class _Liar:
    def __init__(self, servable, of, change):
        self._servable, self._of, self._change = servable, of, change

    def run(self, signature, inputs):
        answers = self._servable.run(signature, inputs)
        return self._change(answers) if signature == self._of else answers


@pytest.fixture(scope="module")
def traced(task):
    return saved_model.endpoints(task, saved_model.StoredWeights(task), None)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda a: {**a, "scores": a["scores"] + 1e-4}, "'scores' .* differs"),
        (lambda a: {**a, "scores": a["scores"] * np.nan}, "'scores' .* differs"),
        (
            lambda a: {**a, "scores": a["scores"][:, :2]},
            r"'scores' .* shape \(5, 2\), .*\(5, 3\)",
        ),
        (lambda a: {k: v[::-1] for k, v in a.items()}, "of 'serving_default' differs"),
        (
            lambda a: {"scores": a["scores"]},
            r"returns \['scores'\], the task \['label', 'scores'\]",
        ),
    ],
)
@pytest.mark.parametrize("of", ["serving_default", "classify", "ids"])
def test_a_wrong_answer_is_caught(
    base, served, traced, task, tmp_path, monkeypatch, of, change, error
):
    _no_export(monkeypatch, base)
    monkeypatch.setattr(saved_model, "endpoints", lambda *args, **options: traced)
    monkeypatch.setattr(saved_model, "load", lambda path: _Liar(served, of, change))
    error = error.replace("serving_default", of)
    if of == "classify":
        error = error.replace("'label'", "'classes'")
    with pytest.raises(ExportError, match=error):
        export_saved_model(task, tmp_path)
    assert not list(tmp_path.iterdir())


class _Credulous:
    """Answers where the model refuses."""

    def __init__(self, servable, of):
        self._servable, self._of = servable, of

    def run(self, signature, inputs):
        try:
            return self._servable.run(signature, inputs)
        except ServingError:
            if signature == self._of:
                return {}
            raise


@pytest.mark.parametrize(
    ("of", "wrong"),
    [
        ("serving_default", r"text of shape \(\)"),
        ("ids", r"token_ids of shape \(\)"),
        ("classify", r"inputs of shape \(\)"),
    ],
)
def test_an_export_that_answers_what_does_not_fit_is_refused(
    base, served, traced, task, tmp_path, monkeypatch, of, wrong
):
    _no_export(monkeypatch, base)
    monkeypatch.setattr(saved_model, "endpoints", lambda *args, **options: traced)
    monkeypatch.setattr(saved_model, "load", lambda path: _Credulous(served, of))
    with pytest.raises(ExportError, match=f"The signature .{of}. accepts a request .* {wrong}"):
        export_saved_model(task, tmp_path)
    assert not list(tmp_path.iterdir())


def test_no_part_of_the_long_text_repeats(task):
    """Equal windows have equal scores, and rounding would decide which answer is the best."""
    [texts] = endpoints.edge_case_texts(task).values()
    words = max(texts, key=len).split()
    parts = {tuple(words[i : i + 8]) for i in range(len(words) - 7)}
    assert len(words) == len(parts) + 7 == 600


def test_each_graph_of_the_task_is_run_for_the_first_time_once(
    base, served, traced, task, tmp_path, monkeypatch
):
    _no_export(monkeypatch, base)
    monkeypatch.setattr(saved_model, "endpoints", lambda *args, **options: traced)
    monkeypatch.setattr(saved_model, "load", lambda path: served)
    runs, run = [], endpoints.Endpoint.run

    def counted(self, inputs):
        runs.append((self.signature.method, len(inputs["text"])))
        return run(self, inputs)

    monkeypatch.setattr(endpoints.Endpoint, "run", counted)
    export_saved_model(task, tmp_path)
    # A long text is not in a batch with the others, which would be padded to it.
    assert runs == [("predict", 5), ("predict", 1)]


@pytest.mark.full
def test_blocks_are_in_the_graph_once(tiny, smallest, base, tmp_path):
    export = bf.TextClassifier.from_pretrained(tiny, pair=False).export(tmp_path)
    nodes = {}
    for directory in (export, base / "1"):
        model = saved_model_pb2.SavedModel.FromString((directory / "saved_model.pb").read_bytes())
        functions = model.meta_graphs[0].graph_def.library.function
        nodes[directory] = [n.op for each in functions for n in each.node_def].count("Softmax")
    assert json.loads((tiny / "config.json").read_text())["num_hidden_layers"] > 1
    # The only block of the other computes the first tokens alone. Attention has four groups, and
    # none for a text alone.
    assert nodes[export] == nodes[base / "1"] + 5


@pytest.mark.extended
def test_an_export_without_checks_of_shapes_is_refused(smallest, tmp_path, monkeypatch):
    task = bf.TextEmbedder.from_pretrained(smallest)
    monkeypatch.setattr(endpoints, "with_input_checks", lambda function, specs, limits: function)
    with pytest.raises(ExportError, match="without a check of its shape"):
        task.export(tmp_path)
    assert not list(tmp_path.iterdir())


def test_ids_that_the_model_does_not_have(served, task):
    good = {"token_ids": [[2, 5, 3]], "padding_mask": [[1, 1, 1]], "segment_ids": [[0, 0, 0]]}
    vocabulary = task.backbone.config.vocab_size
    for name, value, largest in [
        ("token_ids", -1, vocabulary - 1),
        ("token_ids", vocabulary, vocabulary - 1),
        ("segment_ids", 2, 1),
        ("segment_ids", -1, 1),
        ("padding_mask", 2, 1),
        ("padding_mask", -1, 1),
    ]:
        wrong = {**good, name: [[0, value, 0]]}
        with pytest.raises(ServingError, match=f"{name} must be from 0 to {largest}; ") as error:
            served.run("ids", {name: np.array(ids, "int32") for name, ids in wrong.items()})
        assert error.value.code is Code.INVALID_ARGUMENT
        assert f"[{value}]" in error.value.message


def test_an_export_that_does_not_run_is_an_export_error(quick, task, tmp_path, monkeypatch):
    def fail(path):
        raise ServingError(Code.INTERNAL, "op is missing")

    monkeypatch.setattr(saved_model, "load", fail)
    with pytest.raises(ExportError, match="does not run in Serving: INTERNAL: op is missing"):
        export_saved_model(task, tmp_path)
