"""Answers of exports in a process without this package, and that batches do not change them.

    python tests/export/clean_process.py QUESTIONS ANSWERS REFUSALS

QUESTIONS is a file of JSON, a list of ``{"model": DIR, "signature": …, "inputs": {name: rows}}``;
bytes are strings as Python's "surrogateescape" makes them. ANSWERS gets a list of ``{output:
rows}``. Fails where an answer depends on the batch, or an operation is not TensorFlow's or
tensorflow-text's.

Then requests that do not fit the signatures are sent. REFUSALS gets a line of JSON for each model
and signature, ``{"model": …, "signature": …, "refused": COUNT, "wrong": [texts]}``; where such a
request ends the process, that line is missing.
"""

import itertools
import json
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import list_ops
from run_saved_model import BLOCKED, Model, _library


def _decoded(values):
    if isinstance(values, list):
        return [_decoded(value) for value in values]
    return values.encode("utf-8", "surrogateescape") if isinstance(values, str) else values


def _check_same(what, found, expected):
    assert found.keys() == expected.keys(), what
    decided = _decided(expected)
    for name, values in expected.items():
        one, other = np.array(found[name]), np.array(values)
        assert one.shape == other.shape, (what, name, one.shape, other.shape)
        if one.dtype.kind == "f":
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=5e-5, err_msg=f"{what} {name}")
        else:
            one, other = one[decided], other[decided]
            np.testing.assert_array_equal(one, other, err_msg=f"{what} {name}")


def _decided(answers):
    """Returns the index of rows whose two highest scores differ by more than rounding."""
    scores = np.array(answers.get("scores", []))
    if scores.dtype.kind != "f" or scores.ndim != 2 or scores.shape[1] < 2:
        return slice(None)
    second, first = np.sort(scores, axis=1)[:, -2:].T
    return first - second > 1e-4


# Signatures of serialized tf.Examples.
_OF_EXAMPLES = ("classify", "regress")
_HOSTILE = [
    b"",
    b"word " * 1000,
    b"\0" * 100,
    b"\xff\xfe\xc3" * 100,
    b" " * 1000,
    ("e" + "\u0301" * 2000).encode(),
    b"[MASK]<mask>" * 50,
]


def _check_batching(model, signature, inputs, answers):
    rows = len(next(iter(inputs.values())))
    assert {len(values) for values in answers.values()} == {rows}, signature

    def of(first, last):
        return {name: values[first:last] for name, values in answers.items()}

    for row in range(rows):
        alone = {name: values[row : row + 1] for name, values in inputs.items()}
        _check_same(f"{signature} alone", model.run(alone, signature), of(row, row + 1))
    padded = {name: values[:3] + values[:1] * 5 for name, values in inputs.items()}
    found = model.run(padded, signature)
    kept = {name: values[:3] for name, values in found.items()}
    _check_same(f"{signature} padded", kept, of(0, 3))
    if all(_is_text(values[0]) for values in inputs.values()) and signature not in _OF_EXAMPLES:
        beside = {
            name: values + [_filled(values[0], text) for text in _HOSTILE]
            for name, values in inputs.items()
        }
        found = model.run(beside, signature)
        kept = {name: values[:rows] for name, values in found.items()}
        _check_same(f"{signature} beside hostile texts", kept, of(0, rows))


def _is_text(value):
    return _is_text(value[0]) if isinstance(value, list) else isinstance(value, bytes)


def _filled(value, text):
    return [_filled(each, text) for each in value] if isinstance(value, list) else text


_SHAPES = [shape for rank in range(4) for shape in itertools.product((0, 1, 2), repeat=rank)]
_SHAPES += [(1, 1, 1, 1), (2, 1, 1, 2)]
_INVALID_ARGUMENT = 3


def _hostile(signature, name, good):
    """Requests that must be refused: what is wrong, and the inputs."""
    two = {key: values[:2] for key, values in good.items()}
    for key, info in signature.inputs.items():
        declared = tf.TensorShape(info.tensor_shape)
        for shape in _SHAPES:
            if not declared.is_compatible_with(shape):
                value = np.full(shape, b"a") if info.dtype == tf.string else np.zeros(shape, "i")
                yield f"{key} of shape {shape}", {**two, key: value}
                yield f"all of shape {shape}", dict.fromkeys(good, value)
        if len(good) > 1:
            yield f"3 rows of {key}", {**two, key: good[key][:3]}
            yield f"1 row of {key}", {**two, key: good[key][:1]}
            yield f"no rows of {key}", {**two, key: np.array(good[key])[:0]}
    if name == "ids":
        packed = {key: np.array(values, "int32") for key, values in two.items()}
        for key, value in {"token_ids": -1, "padding_mask": 2}.items():
            for wrong in (value, -2, 10**6, 2**31 - 1, -(2**31)):
                changed = packed[key].copy()
                changed.flat[-1] = wrong
                yield f"{key} of {wrong}", {**packed, key: changed}
            yield f"shorter {key}", {**packed, key: packed[key][..., :1]}


def _unusual(signature, name, good):
    """Requests that fit only some examples: a description, their number, whether they may be
    refused, and the inputs."""
    arrays = {key: np.array(values)[:2] for key, values in good.items()}
    yield "no rows", 0, False, {key: values[:0] for key, values in arrays.items()}
    if name == "ids":
        packed = {key: values.astype("int32") for key, values in arrays.items()}
        yield "rows of padding", 2, False, {**packed, "padding_mask": 0 * packed["padding_mask"]}
        yield "long rows", 2, True, {key: np.repeat(x, 20, axis=-1) for key, x in packed.items()}
        arrays = packed
    # Dimensions that are the same in all inputs that have them: tokens, documents, labels.
    shapes = {key: tf.TensorShape(x.tensor_shape) for key, x in signature.inputs.items()}
    axes = {axis for s in shapes.values() for axis in range(1, min(s.rank, 3)) if s[axis] is None}
    for axis, size, rows in itertools.product(sorted(axes), (0, 1, 3), (0, 1, 2)):
        inputs = {
            key: np.take(x[:rows], np.zeros(size, int), axis=axis) if x.ndim > axis else x[:rows]
            for key, x in arrays.items()
        }
        yield f"{rows} rows of {size} in dimension {axis}", rows, size == 0, inputs


def _refused(model, name, inputs):
    """The error of a request that is refused, else "", and the answers."""
    try:
        return "", model.run(inputs, name)
    except RuntimeError as error:
        code = model.lib.TF_GetCode(model.status)
        assert code == _INVALID_ARGUMENT, (name, code)
        return str(error), {}


def _refusals(model, name, good):
    """The number of hostile requests that were refused, and those answered wrongly."""
    refused, wrong = 0, []
    for what, inputs in _hostile(model.signatures[name], name, good):
        error, _ = _refused(model, name, inputs)
        refused += bool(error)
        wrong += [] if error else [what]
    for what, rows, may_refuse, inputs in _unusual(model.signatures[name], name, good):
        error, answers = _refused(model, name, inputs)
        # Ours say how it must be.
        if error and not (may_refuse and "must" in error):
            wrong.append(f"{what}: {error}")
        for output, values in answers.items():
            if len(values) != rows:
                wrong.append(f"{what}: {len(values)} of {output}")
            if np.array(values).dtype.kind == "f" and not np.isfinite(values).all():
                wrong.append(f"{what}: {output} is not finite")
    return refused, wrong


def main() -> None:
    core = list_ops._registered()
    _library()
    known = list_ops._registered() - list_ops.PYTHON
    assert core < known | list_ops.PYTHON
    models, answers = {}, []
    for question in json.loads(Path(sys.argv[1]).read_text()):
        directory, signature = question["model"], question["signature"]
        if directory not in models:
            unknown = list_ops.operations(directory) - known
            assert not unknown, (directory, unknown)
            assert b"_XlaMustCompile" not in (Path(directory) / "saved_model.pb").read_bytes()
            models[directory] = Model(directory)
        inputs = {name: _decoded(values) for name, values in question["inputs"].items()}
        found = models[directory].run(inputs, signature)
        _check_batching(models[directory], signature, inputs, found)
        answers.append(found)
    Path(sys.argv[2]).write_text(json.dumps(answers))
    with Path(sys.argv[3]).open("w") as file:
        for question in json.loads(Path(sys.argv[1]).read_text()):
            directory, signature = question["model"], question["signature"]
            good = {name: _decoded(values) for name, values in question["inputs"].items()}
            refused, wrong = _refusals(models[directory], signature, good)
            line = {"model": directory, "signature": signature, "refused": refused, "wrong": wrong}
            print(json.dumps(line), file=file, flush=True)
    assert not any(sys.modules.get(name) for name in BLOCKED)


if __name__ == "__main__":
    main()
