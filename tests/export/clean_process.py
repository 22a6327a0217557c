"""Answers of exports in a process that cannot import what made them, and the rules of batching.

    python tests/export/clean_process.py QUESTIONS ANSWERS

QUESTIONS is a file of JSON, a list of ``{"model": DIR, "signature": …, "inputs": {name: rows}}``;
bytes are strings as Python's "surrogateescape" makes them. ANSWERS gets a list of ``{output:
rows}``. Fails where an answer depends on the batch, or an operation is not TensorFlow's or
tensorflow-text's.
"""

import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import list_ops
from run_saved_model import BLOCKED, Model, _library


def _decoded(values):
    if isinstance(values, list):
        return [_decoded(value) for value in values]
    return values.encode("utf-8", "surrogateescape") if isinstance(values, str) else values


def _check_same(what, found, expected):
    assert found.keys() == expected.keys(), what
    for name, values in expected.items():
        one, other = np.array(found[name]), np.array(values)
        assert one.shape == other.shape, (what, name, one.shape, other.shape)
        if one.dtype.kind == "f":
            np.testing.assert_allclose(one, other, atol=2e-5, err_msg=f"{what} {name}")
        else:
            np.testing.assert_array_equal(one, other, err_msg=f"{what} {name}")


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
    assert not any(sys.modules.get(name) for name in BLOCKED)


if __name__ == "__main__":
    main()
