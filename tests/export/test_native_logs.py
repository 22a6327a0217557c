"""What C++ code writes to standard error: known messages are hidden, all others are kept."""

import os

import pytest

import bertfam_tf as bf
from bertfam_tf.export.native_logs import known_messages_hidden

KNOWN = b"W0000 00:00:1.1  1 tf_tfl_flatbuffer_helpers.cc:364] Ignored output_format.\n"


def test_known_messages_are_hidden(capfd, monkeypatch):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)

    def fail():
        with known_messages_hidden():
            os.write(2, KNOWN + b"an error\n")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert capfd.readouterr().err == "an error\n"
    os.write(2, b"later\n")
    assert capfd.readouterr().err == "later\n"
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    with known_messages_hidden():
        os.write(2, KNOWN)
    assert capfd.readouterr().err == KNOWN.decode()


@pytest.mark.extended
def test_an_export_for_phones_prints_nothing(tiny, tmp_path, capfd):
    task = bf.TextClassifier.from_pretrained(tiny, pair=False)
    task.export_tflite(tmp_path / "m.tflite", inputs="ids", length=16)
    captured = capfd.readouterr()
    assert not captured.err
    assert not captured.out
