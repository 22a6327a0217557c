"""Exports with smaller weights, and exports that batch requests in the graph."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf.export import BatchingOptions, saved_model
from bertfam_tf.export.in_graph_batching import batch_requests
from bertfam_tf.export.runtime import Code, ServingError, load
from bertfam_tf.text import WordTokenizer, load_tokenizer
from tests.selection import in_full, only_in
from tests.support.exports import nodes, perturbed

WORDS = WordTokenizer(["<eos>", "<unk>", *(f"w{i}" for i in range(998))])
TEXTS = ["the film was [MASK] good", "", "bad " * 50, "It [MASK] [MASK] !", "w1 w2 w77 w900"]
SHARE = {"bfloat16-weights": (0.5, 0.53), "int8-weights": (0.25, 0.31)}
# The most that a probability, or a log-likelihood relative to the largest, may move. When this was
# written it was 4e-6 and 2e-5 of MaskedLM, and 7e-4 of CausalLM.
LARGEST = {"bfloat16-weights": 1e-5, "int8-weights": 2e-3}


def _masked(smallest):
    shape = dict(vocab_size=1000, hidden_size=48, num_heads=4, intermediate_size=96, num_layers=2)
    backbone = bf.build("bert", "tiny", **shape)
    return perturbed(bf.MaskedLM(backbone, load_tokenizer(smallest), max_length=24), 0.05)


def _causal():
    shape = dict(vocab_size=1000, hidden_size=48, num_heads=2, intermediate_size=96, num_layers=2)
    return perturbed(bf.CausalLM(bf.build("xlnet", "tiny", **shape), WORDS, max_length=24), 0.05)


def _rounded(path, weight, dtype):
    """A weight after rounding to ``dtype``, computed by hand."""
    values = weight.astype("float64")
    if dtype == "bfloat16-weights":
        bits = weight.view(np.uint32).astype(np.uint64)
        bits += 0x7FFF + ((bits >> 16) & 1)
        return (bits & 0xFFFF0000).astype(np.uint32).view(np.float32)
    axis = -1 if path.rpartition("/")[2].startswith("embedding") else 0
    if values.shape[axis] < 16:
        return weight
    scale = np.abs(values).max(axis=axis, keepdims=True).astype("float32") / np.float32(127)
    return (np.rint(weight / np.where(scale > 0, scale, 1)) * scale).astype("float32")


def _stored(path):
    return sum(file.stat().st_size for file in (path / "variables").glob("*.data-*"))


def _check_stored(task, directory, dtype, monkeypatch, **options):
    """Exports, and compares with the task after rounding its weights by hand."""
    kept = []
    monkeypatch.setattr(saved_model, "load", lambda path: kept.append(load(path)) or kept[0])
    path = task.export(directory, dtype=dtype, **options)
    before = {variable.path: variable.numpy() for variable in task.weights}
    size = sum(value.nbytes for value in before.values())
    low, high = SHARE[dtype]
    assert low * size < _stored(path) < high * size
    assert json.loads((path / "assets.extra" / "bertfam.json").read_text())["dtype"] == dtype

    texts = [text.encode() for text in TEXTS]
    given = {"text": np.array(texts, object)}
    found = kept[0].run("", given)
    answer = tf.function(task.answer, autograph=False)
    whole = answer({"text": tf.constant(texts)})
    for variable in task.weights:
        if variable.ndim > 1:
            variable.assign(_rounded(variable.path, before[variable.path], dtype))
    rounded = answer({"text": tf.constant(texts)})
    for name, values in rounded.items():
        values = values.numpy()
        cut = found[name][:, : values.shape[1]] if values.ndim > 1 else found[name]
        if values.dtype == object:
            assert cut.tolist() == values.tolist()
        else:
            np.testing.assert_allclose(cut, values, atol=1e-5, rtol=1e-5)
    name = "scores" if "scores" in whole else "log_likelihood"
    largest = np.abs(rounded[name] - whole[name]).max() / max(1, np.abs(whole[name]).max())
    assert 0 < largest < LARGEST[dtype]
    return kept[0], given


@only_in("full", "int8-weights")
@pytest.mark.parametrize("dtype", in_full(["bfloat16-weights", "int8-weights"], ["int8-weights"]))
def test_weights_in_fewer_bytes(smallest, tmp_path, monkeypatch, dtype):
    _check_stored(_masked(smallest), tmp_path, dtype, monkeypatch)
    # Only the rows of an embedding table that are read become float32.
    gathered = {node.attr["dtype"].type for node in nodes(tmp_path / "1", "ResourceGather")}
    assert tf.as_dtype(dtype.removesuffix("-weights")).as_datatype_enum in gathered


@pytest.mark.full
def test_weights_in_fewer_bytes_inside_of_loops(tmp_path, monkeypatch):
    task = _causal()
    servable, given = _check_stored(task, tmp_path, "int8-weights", monkeypatch, max_new_tokens=3)
    found = servable.run("generate", given)["text"]
    # Its weights are rounded by now.
    assert [text.decode() for text in found] == task.generate(TEXTS, max_new_tokens=3)


@pytest.mark.extended
def test_another_dtype(smallest, tmp_path):
    with pytest.raises(
        ValueError,
        match="dtype must be one of float32, bfloat16, bfloat16-weights, int8-weights, int8, got "
        "'float16'",
    ):
        _masked(smallest).export(tmp_path, dtype="float16")
    assert not list(tmp_path.iterdir())


# In-graph batching ----------------------------------------------------------------------------

TAGS = ["O", "B-PER", "I-PER"]
BATCHING = BatchingOptions(
    max_batch_size=20, allowed_batch_sizes=(1, 2, 4), batch_timeout_micros=20_000
)


@pytest.fixture(scope="module")
def tagger(smallest):
    return perturbed(bf.TokenTagger.from_pretrained(smallest, TAGS), 0.05)


@pytest.fixture(scope="module")
def batching(tagger, tmp_path_factory):
    return tagger.export(
        tmp_path_factory.mktemp("export"), batching=BATCHING, max_tokens=30, max_entities=30
    )


@pytest.fixture(scope="module")
def batched(batching):
    return load(batching)


def _rows(count, first=0):
    words = ["good", "film", "unhappy", "the", "dull", "cast"]
    rng = np.random.default_rng(first)
    texts = [" ".join(rng.choice(words, rng.integers(0, 25))) for _ in range(count)]
    return texts, {"text": np.array([text.encode() for text in texts], object)}


def _check(tagger, texts, found):
    rows = tagger.predict(texts)
    assert found["count"].tolist() == list(map(len, rows))
    for i, row in enumerate(rows):
        tags = [tag.decode() for tag in found["tags"][i, : len(row)]]
        assert tags == [word["tag"] for word in row]
        scores = [word["score"] for word in row]
        np.testing.assert_allclose(found["scores"][i, : len(row)], scores, atol=2e-5)


@pytest.mark.full
@pytest.mark.parametrize("count", [0, 1, 3, 9, 20])
def test_requests_of_any_size(tagger, batched, count):
    texts, given = _rows(count)
    found = batched.run("", given)
    assert found["tokens"].shape == (count, 30)
    if count:
        _check(tagger, texts, found)


@pytest.mark.full
def test_a_request_that_is_too_large(batched):
    with pytest.raises(
        ServingError, match="21 is larger than maximum input batch size 20"
    ) as error:
        batched.run("", _rows(21)[1])
    assert error.value.code is Code.INVALID_ARGUMENT


@pytest.mark.extended
def test_requests_of_few_rows_only(smallest, tmp_path):
    batching = BatchingOptions(max_batch_size=2, allowed_batch_sizes=(1, 2))
    servable = load(bf.TextClassifier.from_pretrained(smallest).export(tmp_path, batching=batching))
    assert len(servable.run("", _rows(2)[1])["scores"]) == 2


@pytest.mark.full
def test_requests_at_one_time_get_their_own_answers(tagger, batched):
    requests = [(name, *_rows(1 + i % 3, i)) for i in range(12) for name in ("", "entities")]
    with ThreadPoolExecutor(len(requests)) as pool:
        found = list(pool.map(lambda request: batched.run(request[0], request[2]), requests))
    alone = [batched.run(name, given) for name, _, given in requests]
    for (name, texts, _), together, one in zip(requests, found, alone, strict=True):
        if not name:
            _check(tagger, texts, together)
        for output, values in one.items():
            if values.dtype == np.float32:
                np.testing.assert_allclose(together[output], values, atol=2e-5)
            else:
                assert (together[output] == values).all()


@pytest.mark.full
def test_requests_that_do_not_fit_fail_alone(tagger, batched):
    good = [_rows(2, i) for i in range(8)]
    wrong = [np.full(shape, b"good", object) for shape in ((), (1, 2), (2, 0), (1, 1, 1))]
    with ThreadPoolExecutor(12) as pool:
        refused = [pool.submit(batched.run, "", {"text": texts}) for texts in wrong]
        found = [pool.submit(batched.run, "", given) for _, given in good]
    for (texts, _), future in zip(good, found, strict=True):
        _check(tagger, texts, future.result())
    for future in refused:
        assert future.exception().code is Code.INVALID_ARGUMENT
        assert "is not compatible with expected shape" in future.exception().message


@pytest.mark.full
def test_queues_and_warm_up_of_batching(batching):
    found = nodes(batching, "BatchFunction")
    assert len({node.attr["shared_name"].s for node in found}) == len(found) == 2
    assert {tuple(node.attr["allowed_batch_sizes"].list.i) for node in found} == {(1, 2, 4)}
    card = json.loads((batching / "assets.extra" / "bertfam.json").read_text())
    assert card["batching"]["max_batch_size"] == 20
    assert card["signatures"]["serving_default"]["outputs"]["offsets"]["shape"] == [-1, 30, 2]


def test_functions_of_one_name_do_not_share_a_queue():
    """Names, such as those of prompts, may have characters that names in graphs do not have."""

    def function(sign):
        called = batch_requests(lambda x: {"y": sign * x, "z": x[:, 0]}, "a näme:", BATCHING)
        return tf.function(called, [tf.TensorSpec([None, 3], tf.float32)], autograph=False)

    functions = [function(sign) for sign in (1.0, -1.0)]
    x = np.arange(15, dtype="float32").reshape(5, 3)
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda i: functions[i % 2](tf.constant(x + i)), range(16)))
    for i, answers in enumerate(found):
        np.testing.assert_array_equal(answers["y"], (x + i) * (-1) ** i)
        np.testing.assert_array_equal(answers["z"], x[:, 0] + i)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (dict(max_batch_size=0), "max_batch_size must be at least 1, got 0"),
        (dict(num_batch_threads=0), "num_batch_threads must be at least 1, got 0"),
        (dict(max_enqueued_batches=-1), "max_enqueued_batches must be at least 1, got -1"),
        (dict(batch_timeout_micros=-1), "batch_timeout_micros must be at least 0, got -1"),
        (
            dict(allowed_batch_sizes=()),
            r"allowed_batch_sizes must be at least 1 and increase, got \(\)",
        ),
        (dict(allowed_batch_sizes=(0, 2)), r"must be at least 1 and increase, got \(0, 2\)"),
        (dict(allowed_batch_sizes=(4, 2)), r"must be at least 1 and increase, got \(4, 2\)"),
        (dict(max_batch_size=8), "The batch size 32 is above max_batch_size, 8"),
    ],
)
def test_wrong_settings_of_batching(options, error):
    with pytest.raises(ValueError, match=error):
        BatchingOptions(**options)


@pytest.mark.extended
def test_more_batch_sizes_than_warm_up_requests(smallest, tmp_path):
    task = bf.TextClassifier.from_pretrained(smallest)
    options = BatchingOptions(allowed_batch_sizes=tuple(range(1, 1002)))
    with pytest.raises(
        ValueError, match=r"allowed_batch_sizes must be at most \d+ for \d sig.*1001"
    ):
        task.export(tmp_path / "model", batching=options)
    assert not (tmp_path / "model").exists()
