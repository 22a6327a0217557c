"""Prints the file of a new family: python -m tools.new_family NAME [--like bert]

    python -m tools.new_family deep_bert --like bert > bertfam_tf/models/deep_bert.py

The file is complete: it registers a copy of the family that it is like, under the new name, with a
TODO at each place to change. What registering gives is printed to stderr.
"""

import argparse
import ast
import inspect
import re
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from bertfam_tf import models, registry
from bertfam_tf.names import unknown

FILE = '''\
"""TODO: the name as it is written, authors and year, arXiv number."""

{imports}

LIKE = registry.get("{like}")


@dataclass(frozen=True)
class {config}({base}):
    """Differs from {title}: TODO, in one line.

    TODO: what each new field means.
    """

    # TODO: new fields, each with a default, and other defaults.


{wire}


registry.register(
    replace(
        LIKE,
        name="{name}",
        config={config},
        wire=wire,
        # Each published size: the fields that differ from the defaults above. Tests use "tiny".
        sizes={{"tiny": LIKE.sizes["tiny"]}},
        # TODO: tokenizer, heads, objectives, if they differ (replace(LIKE.tokenizer, ...)).
{tables}
    )
)
'''
HUGGINGFACE = """\
        huggingface=replace(
            LIKE.huggingface,
            model_type="{name}",
            model="{model}",
            # TODO: new fields and weights, under the names that checkpoints will have.
            config={{**LIKE.huggingface.config}},
            weights={{**LIKE.huggingface.weights}},
        ),
        formats={{}},"""
NO_HUGGINGFACE = """\
        huggingface=None,
        formats={{}},"""
GIVES = """
Save it as bertfam_tf/models/{name}.py and replace each TODO. This is all: the file is imported with
the others, and registering gives

  bf.build("{name}", "tiny"), and all tasks with the family's heads: fit, predict, save, export
  load_backbone, from_pretrained, save_pretrained and convert, with the names in `huggingface`
  bertfam pretrain with model.family={name}; train and distill with its checkpoints
  bertfam families, after python -m tools.make_family_table
  tests: .venv/bin/python -m pytest -n0 -m "not live and not slow" -k {name}

A published size, such as "base", also needs its number of parameters in tests/test_families.py, and
reference outputs (tools/make_goldens.py) if Hugging Face has the family.
"""


def skeleton(name: str, like: str = "bert") -> str:
    """The file of a family that differs from another one in nothing yet.

    Args:
        name: the new family's name.
        like: a registered family.

    Raises:
        ValueError: for a name that is taken or not a module's, and for an unknown family.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        raise ValueError(f"The name must be a module's, such as deep_bert; got {name!r}.")
    if name in registry.families() or hasattr(models, name):
        raise ValueError(f"bertfam_tf/models/{name}.py is there already.")
    if like not in registry.families():
        raise ValueError(unknown("family", like, registry.families()))
    record = registry.get(like)
    camel = "".join(map(str.capitalize, name.split("_")))
    of_config, of_wire = map(_module, (record.config, record.wire))
    base = f"{_last(of_config)}.{record.config.__name__}"
    wire = inspect.getsource(record.wire).rstrip()
    theirs = inspect.signature(record.wire).parameters["config"].annotation.__name__
    wire = re.sub(rf"\b{theirs}\b", f"{camel}Config", wire)
    used = dict(_globals(wire, of_wire))
    used |= {_last(of_config): of_config, "registry": registry}
    tables = HUGGINGFACE if record.huggingface else NO_HUGGINGFACE
    return FILE.format(
        name=name,
        like=like,
        config=f"{camel}Config",
        base=base,
        title=_title(of_config),
        imports=_imports(used, of_wire.__name__),
        wire=wire,
        tables=tables.format(name=name, model=camel),
    )


def _module(value: Any) -> ModuleType:
    return sys.modules[value.__module__]


def _last(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


def _title(module: ModuleType) -> str:
    """The family as its module's docstring writes it."""
    return (module.__doc__ or "").partition(":")[0]


def _globals(source: str, module: ModuleType) -> Iterator[tuple[str, Any]]:
    """The names of a module that a function of it reads."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and hasattr(module, node.id):
            yield node.id, getattr(module, node.id)


def _imports(used: dict[str, Any], constants: str) -> str:
    """Import statements of these names; constants do not know the module that they are of."""
    groups: dict[str, set[str]] = {"dataclasses": {"dataclass", "replace"}}
    plain = set()
    for name, value in used.items():
        if not isinstance(value, ModuleType):
            groups.setdefault(getattr(value, "__module__", constants), set()).add(name)
        elif value.__name__ == name:
            plain.add(name)
        else:
            groups.setdefault(value.__name__.rpartition(".")[0], set()).add(name)
    ours = {module: names for module, names in groups.items() if module.startswith("bertfam_tf")}
    other = {module: names for module, names in groups.items() if module not in ours}
    standard = {name: other.pop(name) for name in list(other) if name in sys.stdlib_module_names}
    third = [f"import {name}" for name in sorted(plain)] + _lines(other)
    return "\n\n".join("\n".join(x) for x in (_lines(standard), third, _lines(ours)) if x)


def _lines(groups: dict[str, set[str]]) -> list[str]:
    return [f"from {name} import {', '.join(sorted(groups[name]))}" for name in sorted(groups)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Prints the file of a new family.")
    parser.add_argument("name", help="such as deep_bert")
    parser.add_argument("--like", default="bert", help="the family to copy (%(default)s)")
    given = parser.parse_args()
    try:
        print(skeleton(given.name, given.like), end="")
    except ValueError as error:
        parser.error(str(error))
    print(GIVES.format(name=given.name), file=sys.stderr)
