"""Options of tasks as people, editors and type checkers see them."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

import bertfam_tf as bf
from bertfam_tf import registry
from bertfam_tf.tasks.options import BackboneOverrides, LoadingArguments, Options, names
from bertfam_tf.tasks.task import Task
from tools.docs.reference import task_names

_OWN = {"self", "cls", "backbone", "tokenizer", "path", "name", "options", "language"}
_SNIPPET = """
import bertfam_tf as bf
from bertfam_tf.models import Backbone
from bertfam_tf.text import Tokenizer

def typed(backbone: Backbone, tokenizer: Tokenizer) -> None:
    bf.TextClassifier(backbone, tokenizer, ["a", "b"], temperature=2.0, max_length=8)
    bf.TextClassifier.from_pretrained("x", ["a", "b"], temperature=2.0, dropout=0.0)
    bf.MultiLabelClassifier(backbone, tokenizer, ["a", "b"], threshold=0.1)
    bf.TextEmbedder.from_pretrained("x", pooling="first", language="de")
    bf.TextClassifier(backbone, tokenizer, ["a", "b"], temprature=2.0)
    bf.TextClassifier.from_pretrained("x", ["a", "b"], temprature=2.0)
    bf.MultiLabelClassifier(backbone, tokenizer, ["a", "b"], temperature=2.0)
    bf.TextEmbedder.from_pretrained("x", pooling="frist")
"""


def _typed(function):
    """The keyword arguments that a type checker sees, with their types."""
    hints = get_type_hints(function)
    [keywords] = get_args(hints["options"])
    explicit = set(inspect.signature(function).parameters) - _OWN
    return {**get_type_hints(keywords), **{name: hints[name] for name in explicit}}


@pytest.mark.parametrize("name", task_names())
def test_typed_arguments_are_the_options(name):
    cls = getattr(bf, name)
    declared = get_type_hints(cls.options_type)
    assert _typed(cls.__init__) == declared
    # Names of classes and, for an export of its own, the language may be those of the checkpoint.
    loaded = _typed(cls.from_pretrained)
    more = get_type_hints(LoadingArguments)
    assert loaded.keys() == (declared.keys() - {"language_id"}) | more.keys()
    for option in declared.keys() & loaded.keys():
        assert loaded[option] in (declared[option], declared[option] | None)


@pytest.mark.parametrize("name", task_names())
def test_signatures_and_docstrings_have_each_option(name):
    cls = getattr(bf, name)
    shown = inspect.signature(cls).parameters
    assert list(shown)[:2] == ["backbone", "tokenizer"]
    assert set(shown) == {"backbone", "tokenizer", "name", *names(cls.options_type)}
    own = set(names(cls.options_type)) - set(names(Options))
    listed = r"\n        (\w+, )*{}(, \w+)*: "
    assert [x for x in own if not re.search(listed.format(x), cls.__doc__)] == []
    assert all(f"\n        {option}: " in Task.__doc__ for option in names(Options))
    assert "{options}" not in cls.__doc__


def test_overrides_are_fields_of_configs():
    fields = {f for name in bf.families() for f in registry.get(name).config.__dataclass_fields__}
    assert BackboneOverrides.__annotations__.keys() <= fields
    dropouts = {field for field in fields if field.endswith("dropout")}
    assert dropouts <= BackboneOverrides.__annotations__.keys()


def test_type_checkers_see_all_public_names():
    tree = ast.parse(Path(bf.__file__).read_text("utf-8"))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.asname for node in block.body for alias in node.names}
    assert seen >= set(bf.__all__) - {"__version__"}


@pytest.mark.extended
def test_a_misspelt_option_is_a_type_error(tmp_path):
    pytest.importorskip("mypy")
    file = tmp_path / "snippet.py"
    file.write_text(_SNIPPET, "utf-8")
    root = Path(bf.__file__).parent.parent
    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", root / "pyproject.toml", file],
        cwd=root,
        capture_output=True,
        text=True,
    ).stdout
    lines = {int(line.split(":")[1]) for line in found.splitlines() if "snippet.py" in line}
    assert lines == {11, 12, 13, 14}, found
