"""The package as a whole: what importing it loads, and which way imports go."""

import subprocess
import sys

import pytest

from tools import check_imports

UNWANTED = ("torch", "transformers", "tf_keras", "official")


def _loaded_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_import_is_light():
    loaded = _loaded_after("import bertfam_tf")
    assert "bertfam_tf" in loaded
    assert not loaded & {*UNWANTED, "tensorflow", "keras", "keras_hub"}


@pytest.mark.parametrize(
    "statement",
    [
        "import bertfam_tf as bf; bf.TextClassifier, bf.TextEmbedder, bf.load, bf.load_tokenizer",
        "import bertfam_tf.export, bertfam_tf.train, bertfam_tf.cli, bertfam_tf.serve.server",
    ],
)
def test_no_room_loads_the_reference_or_keras_2(statement):
    assert not _loaded_after(statement) & set(UNWANTED)


def test_names():
    import bertfam_tf as bf

    assert all(getattr(bf, name) is not None for name in bf.__all__)
    with pytest.raises(AttributeError, match="no attribute 'TextClasifier'"):
        bf.TextClasifier  # noqa: B018


def test_imports_go_one_way():
    assert check_imports.problems() == []


def test_the_check_finds_a_wrong_import(tmp_path):
    package = tmp_path / "bertfam_tf"
    (package / "layers").mkdir(parents=True)
    (package / "layers" / "bad.py").write_text("import tensorflow\nfrom bertfam_tf import tasks\n")
    assert len(check_imports.problems(package)) == 2
