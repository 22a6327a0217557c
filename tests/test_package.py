"""What importing the package loads, and that its imports have one direction."""

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


@pytest.mark.extended
@pytest.mark.parametrize(
    "statement",
    [
        "import bertfam_tf as bf; bf.TextClassifier, bf.TextEmbedder, bf.load, bf.load_tokenizer",
        pytest.param(
            "import bertfam_tf.export.tflite, bertfam_tf.recipes.pretraining, bertfam_serve.server",
            marks=pytest.mark.full,
        ),
    ],
)
def test_no_room_loads_the_reference_or_keras_2(statement):
    assert not _loaded_after(statement) & set(UNWANTED)


def test_names():
    import bertfam_tf as bf

    assert all(getattr(bf, name) is not None for name in bf.__all__)
    with pytest.raises(AttributeError, match="no attribute 'TextClasifier'"):
        bf.TextClasifier  # noqa: B018


@pytest.mark.extended
def test_packages_are_attributes_before_they_are_imported():
    import bertfam_tf as bf

    rooms = {init.parent.name for init in check_imports.ROOT.glob("bertfam_tf/*/__init__.py")}
    for name in rooms - {"cli", "serve", "train"}:
        assert bf.__getattr__(name) is sys.modules[f"bertfam_tf.{name}"]


def test_files_are_short():
    rooms = ("bertfam_tf", "tools", "tests/support")
    files = [file for room in rooms for file in (check_imports.ROOT / room).rglob("*.py")]
    files += check_imports.SERVER.rglob("*.py")
    assert len(files) > 300
    lines = {str(f): len(f.read_text("utf-8").splitlines()) for f in files}
    assert not {name: count for name, count in lines.items() if count > 500}


def test_imports_have_one_direction():
    assert check_imports.problems() == []


def test_the_check_finds_a_wrong_import(tmp_path):
    package = tmp_path / "bertfam_tf"
    (package / "layers").mkdir(parents=True)
    (package / "layers" / "bad.py").write_text("import tensorflow\nfrom bertfam_tf import tasks\n")
    assert len(check_imports.problems(package)) == 2


HIDDEN = {
    "in a function": "def save():\n    from bertfam_tf.checkpoints import saving\n",
    "relative": "def save():\n    from ..checkpoints.saving import save\n",
    "by name": "from importlib import import_module\n\n\ndef save():\n"
    "    import_module('bertfam_tf.checkpoints.saving')\n",
    "below a condition": "if True:\n    import bertfam_tf.checkpoints.saving\n",
}


@pytest.mark.parametrize("way", HIDDEN)
def test_the_check_finds_hidden_imports_and_cycles(way, tmp_path):
    package = tmp_path / "bertfam_tf"
    for room in ("models", "checkpoints"):
        (package / room).mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "models" / "base.py").write_text(HIDDEN[way])
    (package / "checkpoints" / "saving.py").write_text("from bertfam_tf.models import base\n")
    wrong, cycle = check_imports.problems(package)
    assert wrong.endswith("base.py: models imports checkpoints, which is not below it")
    assert cycle == "2 files in a cycle: checkpoints.saving, models.base"
    if way != "below a condition":
        assert not check_imports.problems(package, {("models.base", "save")})


def test_the_check_finds_a_cycle_within_a_package(tmp_path):
    package = tmp_path / "bertfam_tf"
    (package / "text").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "text" / "a.py").write_text("from bertfam_tf.text.b import x\n")
    (package / "text" / "b.py").write_text("def y():\n    from .a import z\n")
    assert check_imports.problems(package) == ["2 files in a cycle: text.a, text.b"]


@pytest.mark.parametrize(
    ("file", "line", "wrong"),
    [
        ("export/runtime/a.py", "from bertfam_tf.export import saved_model", "export.saved_model"),
        ("export/a.py", "def run():\n    import bertfam_serve", "export imports bertfam_serve"),
    ],
)
def test_the_check_keeps_what_runs_exports_apart(file, line, wrong, tmp_path):
    package = tmp_path / "bertfam_tf"
    (package / file).parent.mkdir(parents=True)
    (package / file).write_text(f"{line}\nfrom bertfam_tf.export.runtime import capi\n")
    [problem] = check_imports.problems(package)
    assert problem.endswith(wrong)


def test_the_check_finds_what_the_server_may_not_import(tmp_path):
    server = tmp_path / "bertfam_serve"
    server.mkdir()
    (server / "a.py").write_text("from bertfam_tf.export.runtime import capi\nimport grpc\n")
    (server / "b.py").write_text("def run():\n    from bertfam_tf.tasks import Task\n")
    [problem] = check_imports.server_problems(server)
    assert "b.py: imports bertfam_tf.tasks.Task" in problem
    assert check_imports.server_problems() == []


@pytest.mark.full
def test_every_exception_is_needed():
    for exception in check_imports.ALLOWED:
        assert check_imports.problems(allowed=check_imports.ALLOWED - {exception}) != []
