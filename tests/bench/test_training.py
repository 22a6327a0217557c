"""The measurement of training on a GPU, here in a small size on a CPU."""

import json

import numpy as np
import pytest

from tools.bench import training


def test_rows_have_predictions_among_their_tokens():
    found = training.rows(50, 40, 100)
    lengths = found["padding_mask"].sum(axis=1)
    assert lengths.min() >= 20
    assert lengths.max() <= 40
    counts = found["weights"].sum(axis=1)
    np.testing.assert_allclose(counts, 0.15 * lengths, atol=1)
    for row in range(50):
        places = found["positions"][row, found["weights"][row] > 0]
        assert len(set(places.tolist())) == len(places)
        assert (places < lengths[row]).all()
    np.testing.assert_array_equal(found["token_ids"] > 0, found["padding_mask"] > 0)


def test_the_table(monkeypatch, tmp_path, capsys):
    """Rates of all repetitions but the first, and ratios of their medians."""

    def measure(engine, *case):
        if engine == "scatter":
            return {"milliseconds": {"float32": 0.1, "bfloat16": 9.0}, "device": "a device"}
        seconds = {"bertfam_tf": [9, 1, 2, 4], "transformers": [9, 4, 4, 4], "compiled": []}
        return {"seconds": seconds[engine], "loss": 1.0, "device": "a device"}

    monkeypatch.setattr(training, "measure", measure)
    file = tmp_path / "table.md"
    monkeypatch.setattr("sys.argv", ["training", "--sizes", "tiny", "--save", str(file)])
    training.main()
    text = file.read_text("utf-8")
    assert text in capsys.readouterr().out
    assert "a device" in text
    cells = ("4 × 16", "float32 (TF32 products)", "80 (40 to 160)", "40 (40 to 40)", "not run")
    assert f"| {' | '.join(cells)} | 2.00 × |  |" in text.splitlines()
    assert text.endswith("into two rows: float32 0.10 ms, bfloat16 9.00 ms.\n")
    monkeypatch.setattr("sys.argv", ["training", "--sizes", "tiny", "--seconds", "-1"])
    training.main()
    assert capsys.readouterr().out.count("not run") == 3 * len(training.PRECISIONS)


@pytest.mark.full
def test_a_measurement():
    pytest.importorskip("jax", reason="needs JAX: pip install 'bertfam_tf[test]'")
    found = training.measure("bertfam_tf", "tiny", "bfloat16", 4, 16, 1)
    assert len(found["seconds"]) == 2
    assert np.isfinite(found["loss"])
    assert "cpu" in json.dumps(found["device"]).lower()
    assert training.measure("scatter")["milliseconds"].keys() == {"float32", "bfloat16"}
