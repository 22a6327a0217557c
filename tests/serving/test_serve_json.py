"""The number formats against a plain, slow statement of the rule, and the JSON edge of tensors."""

from fractions import Fraction

import numpy as np
import pytest

from bertfam_serve.json_tensor import encode_predict
from bertfam_tf.export.runtime import Code, ServingError


def read_float32(text):
    """The float32 nearest to a decimal, ties to even, with no double in between."""
    number = Fraction(text)
    near = np.float32(float(number))
    around = [np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf))]
    finite = [n for n in around if np.isfinite(n)]
    return min(finite, key=lambda n: (abs(Fraction(float(n)) - number), n.view(np.uint32) % 2))


def plain(value):
    text = f"{float(value):.6g}"
    if value.dtype == np.float32:
        full, back = f"{float(value):.9g}", read_float32(text)
    else:
        full, back = f"{float(value):.17g}", float(text)
    text = text if back == value else full
    return text if "." in text or "e" in text else text + ".0"


def format_floats(array):
    text = encode_predict({"y": array}, row=True).decode()
    return text.split("[")[1].split("\n")[0].split(", ")


def samples(dtype):
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**64, 3000, np.uint64)
    any_bits = bits.view(dtype) if dtype == np.float64 else bits.astype(np.uint32).view(dtype)
    digits = rng.integers(1, 10 ** rng.integers(1, 8, 3000)).astype(np.float64)
    with np.errstate(over="ignore"):
        few_digits = (digits * 10.0 ** rng.integers(-50, 40, 3000)).astype(dtype)
        halfway = (np.arange(671089, 999999, 101) * 100.0).astype(dtype)  # between two float32s
        powers = (10.0 ** np.arange(-45, 39)).astype(dtype)
    neighbours = [np.nextafter(powers, dtype(end)) for end in (0, np.inf)]
    subnormal = (np.arange(1, 2000, 7) * 1e-45).astype(dtype)
    normal = rng.standard_normal(3000).astype(dtype)
    rounded = np.round(normal, 3)
    every = (any_bits, few_digits, halfway, powers, *neighbours, subnormal, normal, rounded)
    return np.concatenate([part[np.isfinite(part)] for part in every])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_number_formats_follow_the_rule(dtype):
    values = samples(dtype)
    assert format_floats(values) == [plain(value) for value in values]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_read_back_as_they_were(dtype):
    values = samples(dtype)
    np.testing.assert_array_equal(np.array(format_floats(values), np.float64).astype(dtype), values)


@pytest.mark.parametrize("row", [True, False])
@pytest.mark.parametrize("dtype", [np.float16, np.uint16, np.complex64])
def test_unwritable_dtypes(dtype, row):
    with pytest.raises(ServingError) as caught:
        encode_predict({"y": np.ones(2, dtype)}, row)
    assert caught.value.code == Code.INVALID_ARGUMENT
    assert f"'y' has the type {dtype.__name__}" in caught.value.message


def test_no_outputs():
    with pytest.raises(ServingError, match="no outputs"):
        encode_predict({}, row=True)


@pytest.mark.parametrize(
    ("shape", "row", "text"),
    [
        ((0,), True, '{\n    "predictions": []\n}'),
        ((0, 3), True, '{\n    "predictions": []\n}'),
        ((1, 0), True, '{\n    "predictions": [[]\n    ]\n}'),
        ((0, 3), False, '{\n    "outputs": []\n}'),
        ((1, 0), False, '{\n    "outputs": [\n        []\n    ]\n}'),
    ],
)
def test_empty_tensors(shape, row, text):
    assert encode_predict({"y": np.zeros(shape, np.float32)}, row).decode() == text
