"""Embeddings in fewer bits."""

import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf

TEXTS = ["a good film", "it is bad", "", "the plot of the film is good"]


@pytest.fixture(scope="module")
def task(tiny):
    # 27 values do not fill whole bytes.
    return bf.TextEmbedder.from_pretrained(tiny, dimensions=27)


@pytest.mark.parametrize(("width", "columns"), [(16, 2), (19, 3), (3, 1)])
def test_bits(width, columns):
    vectors = np.random.default_rng(0).normal(size=(5, width)).astype("f4")
    vectors[0, 0] = 0.0
    expected = np.packbits(vectors > 0, axis=-1)
    found = bf.quantize_embeddings(vectors, "ubinary")
    assert found.shape == (5, columns)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, expected)
    signed = bf.quantize_embeddings(vectors, "binary")
    assert signed.dtype == np.int8
    np.testing.assert_array_equal(signed.astype(int), expected.astype(int) - 128)


def test_bytes():
    ranges = np.array([[-1, 0, 2], [1, 255, 2]], "f4")
    vectors = np.array([[-1, 0, 2], [1, 255, 3], [0, 1.5, 1], [-7, 300, 2]], "f4")
    # In float32 the first of the second row is 254.99998 steps above the smallest.
    expected = [[0, 0, 0], [254, 255, 1], [127, 1, 0], [0, 255, 0]]
    found = bf.quantize_embeddings(vectors, "uint8", ranges)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, expected)
    signed = bf.quantize_embeddings(vectors, "int8", ranges)
    assert signed.dtype == np.int8
    np.testing.assert_array_equal(signed.astype(int), np.array(expected) - 128)
    taken = bf.quantize_embeddings(vectors, "uint8", calibration_embeddings=ranges)
    np.testing.assert_array_equal(taken, expected)


def test_no_embeddings():
    empty = np.zeros((0, 12), "f4")
    assert bf.quantize_embeddings(empty, "ubinary").shape == (0, 2)
    assert bf.quantize_embeddings(empty, "int8", np.zeros((2, 12))).shape == (0, 12)
    assert bf.quantize_embeddings(empty, "float32").dtype == np.float32


V = np.ones((2, 4), "f4")
BAD = {
    "precision": (dict(precision="int4"), "precision 'int4'"),
    "no ranges": (dict(precision="int8"), r"int8 needs the ranges .*\(2, 4\).*ranges\(texts\)"),
    "shape": (dict(precision="int8", ranges=V[:, :3]), r"\(2, 4\) and finite, got \(2, 3\)"),
    "order": (dict(precision="int8", ranges=np.array([[1.0] * 4, [0.0] * 4])), "smallest and the"),
    "NaN": (dict(precision="int8", ranges=V * np.nan), "finite"),
    "ranges of bits": (dict(precision="binary", ranges=V), "ranges are for int8 and uint8"),
    "both": (
        dict(precision="int8", ranges=V, calibration_embeddings=V),
        "both given, expected one",
    ),
    "no calibration": (dict(precision="int8", calibration_embeddings=V[:0]), r"got \(0, 4\)"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_refused(case):
    given, error = BAD[case]
    with pytest.raises(ValueError, match=error):
        bf.quantize_embeddings(V, **given)


def test_bytes_are_not_embeddings():
    with pytest.raises(ValueError, match=r"must be floats \(texts, width\), got uint8 \(2, 4\)"):
        bf.quantize_embeddings(V.astype("uint8"), "binary")


@pytest.mark.extended
def test_predict(task):
    plain = task.predict(TEXTS)
    ranges = task.ranges(TEXTS)
    np.testing.assert_array_equal(ranges, [plain.min(0), plain.max(0)])
    for precision in ("int8", "uint8"):
        found = task.predict(TEXTS, precision=precision, ranges=ranges)
        expected = bf.quantize_embeddings(plain, precision, ranges)
        np.testing.assert_array_equal(found, expected)
    found = task.predict(TEXTS, precision="ubinary")
    np.testing.assert_array_equal(found, np.packbits(plain > 0, axis=-1))
    with pytest.raises(ValueError, match="int8 needs the ranges"):
        task.predict(TEXTS, precision="int8")


@pytest.mark.full
def test_export(task, tmp_path):
    file = task.export(tmp_path / "bits", precision="ubinary")
    loaded = tf.saved_model.load(str(file))
    found = loaded.signatures["serving_default"](text=tf.constant(TEXTS))["embedding"]
    assert found.dtype == tf.uint8
    np.testing.assert_array_equal(found, task.predict(TEXTS, precision="ubinary"))
    with pytest.raises(ValueError, match="int8 needs the ranges"):
        task.export(tmp_path / "bytes", precision="int8")


@pytest.mark.full
def test_prompts_export_bytes_too(tiny, tmp_path):
    prompts = {"query": "a good ", "document": ""}
    task = bf.TextEmbedder.from_pretrained(tiny, prompts=prompts)
    ranges = 1.1 * task.ranges(TEXTS)
    loaded = tf.saved_model.load(str(task.export(tmp_path, precision="int8", ranges=ranges)))
    for name in ("query", "document"):
        found = loaded.signatures[name](text=tf.constant(TEXTS))["embedding"]
        expected = task.predict(TEXTS, prompt=name, precision="int8", ranges=ranges)
        # A value at the edge of two codes is rounded either way.
        assert np.abs(found.numpy().astype(int) - expected).max() <= 1
        assert (found.numpy() == expected).mean() > 0.99
