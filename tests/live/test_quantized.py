"""Embeddings in fewer bits are those of sentence-transformers, bit by bit."""

import numpy as np
import pytest

import bertfam_tf as bf

pytestmark = pytest.mark.live


@pytest.mark.parametrize("precision", ["float32", "int8", "uint8", "binary", "ubinary"])
@pytest.mark.parametrize("width", [384, 61])
def test_bytes(precision, width):
    theirs = pytest.importorskip("sentence_transformers.util.quantization")
    rng = np.random.default_rng(0)
    vectors, typical = rng.normal(size=(2, 400, width)).astype("f4")
    vectors[0], typical[:, 3] = 0, 0.5
    given = dict(calibration_embeddings=typical) if precision.endswith("int8") else {}
    expected = theirs.quantize_embeddings(vectors, precision, **given)
    found = bf.quantize_embeddings(vectors, precision, **given)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
