"""What an installation has, and lacks."""

import importlib.util

import pytest

import bertfam_tf
from bertfam_tf import doctor
from bertfam_tf.cli import main


@pytest.mark.extended
def test_here(capsys):
    findings = doctor.check()
    assert [each for each in findings if each.problem is not None] == []
    names = {each.name: each.found for each in findings}
    assert names["a small model in a graph"].startswith("answers with (1, ")
    assert "CPU" in names["devices"]
    assert main(["doctor"]) == 0
    assert "tensorflow-text" in capsys.readouterr().out


@pytest.mark.extended
def test_it_logs_no_warnings(capfd):
    """Of TensorFlow's C++ code, which would stand between the lines."""
    assert doctor._answer().problem is None
    assert capfd.readouterr().err == ""


def test_what_is_missing_is_named(monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found = {each.name: each for each in doctor.check()}
    assert found["pictures"].found == "no: pip install 'bertfam_tf[plots]'"
    assert found["pictures"].problem is None
    monkeypatch.setattr(doctor, "_version", lambda name: None)
    assert main(["doctor"]) == 2
    captured = capsys.readouterr()
    assert "→ pip install bertfam_tf" in captured.out
    assert "does not run" in captured.err


@pytest.mark.full
def test_what_fails_is_shown(monkeypatch):
    monkeypatch.setattr("bertfam_tf.models.build", lambda *args, **kwargs: 1 / 0)
    [found] = [each for each in doctor.check() if each.problem is not None]
    assert found.problem == "ZeroDivisionError: division by zero"


def test_extras_are_those_of_the_package():
    """Every extra for users is named, with modules that its packages install."""
    known = {each.extra for each in doctor.EXTRAS} - {None}
    assert known == {"serve", "ui", "plots", "onnx", "search", "tfds", "vocabulary", "xlm"}
    assert bertfam_tf.__version__
