"""The order of the modules of `bertfam_tf.text`: each may import the modules of earlier lines."""

import ast
from pathlib import Path

import bertfam_tf.text

ROOM = Path(bertfam_tf.text.__file__).parent
ORDER = [
    {"kernels"},
    {"special_tokens", "pickles", "splitting"},
    {"files"},
    {"presets", "tokenizer_json_tokens"},
    {"tokenizer_json"},
    {"tokenizers"},
    {"by_language", "packing", "characters", "pretokenized", "loading", "json_writer", "training"},
    {"windows", "published", "serialization"},
    {"preprocessor"},
]


def _imports(file):
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("bertfam_tf.text"):
            parts = node.module.split(".")[2:]
            yield from parts[:1] or [alias.name for alias in node.names]


def test_modules_import_one_way():
    rank = {name: i for i, names in enumerate(ORDER) for name in names}
    wrong = []
    for file in sorted(ROOM.rglob("*.py")):
        name = file.relative_to(ROOM).with_suffix("").parts[0]
        if name == "__init__":
            continue
        for other in _imports(file):
            if other != name and rank[other] >= rank[name]:
                wrong.append(f"{name} imports {other}")
    assert not wrong
