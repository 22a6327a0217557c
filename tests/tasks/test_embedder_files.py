"""What a sentence-transformers checkpoint stores beside its weights."""

import json

import pytest

import bertfam_tf as bf
from bertfam_tf.checkpoints import CheckpointError

PREFIX = "sentence_transformers.models."
TRANSFORMER = {"type": f"{PREFIX}Transformer", "path": ""}
POOLING = {"type": f"{PREFIX}Pooling", "path": "1_Pooling"}
NORMALIZE = {"type": f"{PREFIX}Normalize", "path": "2_Normalize"}


def _write(directory, modules, pooling=None, length=None):
    (directory / "modules.json").write_text(json.dumps(modules))
    if pooling is not None:
        (directory / "1_Pooling").mkdir()
        (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    if length is not None:
        file = directory / "sentence_bert_config.json"
        file.write_text(json.dumps({"max_seq_length": length}))


@pytest.mark.parametrize(
    ("modules", "pooling", "expected"),
    [
        (
            [TRANSFORMER, POOLING, NORMALIZE],
            {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False},
            ("mean", True),
        ),
        ([TRANSFORMER, POOLING], {"pooling_mode_cls_token": True}, ("first", False)),
        ([TRANSFORMER], None, ("mean", False)),
    ],
)
def test_options(tiny_copy, modules, pooling, expected):
    _write(tiny_copy, modules, pooling, length=10)
    task = bf.TextEmbedder.from_pretrained(tiny_copy)
    assert (task.pooling, task.normalize, task.max_length) == (*expected, 10)
    assert bf.TextEmbedder.from_pretrained(tiny_copy, max_length=7).max_length == 7


@pytest.mark.parametrize(
    ("modules", "pooling", "error"),
    [
        ([TRANSFORMER, POOLING], {"pooling_mode_max_tokens": True}, "pools by .*max_tokens"),
        (
            [TRANSFORMER, POOLING],
            {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
            "pools by .*mean.*cls",
        ),
        ([TRANSFORMER, POOLING], None, r"pools by \[\]"),
        ([TRANSFORMER, {"type": f"{PREFIX}Dense"}], None, "has a module 'Dense'"),
        ({"a": 1}, None, "is not sentence-transformers' list of modules"),
        ([{}], None, "is not sentence-transformers' list of modules"),
    ],
)
def test_what_is_not_supported(tiny_copy, modules, pooling, error):
    _write(tiny_copy, modules, pooling)
    with pytest.raises(CheckpointError, match=error):
        bf.TextEmbedder.from_pretrained(tiny_copy)


def test_files_that_are_not_json(tiny_copy):
    (tiny_copy / "modules.json").write_text("[")
    with pytest.raises(CheckpointError, match=r"modules\.json is not JSON"):
        bf.TextEmbedder.from_pretrained(tiny_copy)
