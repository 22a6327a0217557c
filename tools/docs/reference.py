"""Pages made from code: of each family, task and public module, from registry and docstrings."""

import dataclasses
import inspect
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import bertfam_tf as bf
from bertfam_tf import models, registry, tasks
from tools.make_family_table import FILE as FAMILY_TABLE

# What an export answers, of each task; python -m tools.docs.signatures writes it.
SIGNATURES = Path(__file__).with_name("signatures.json")

TOKENIZERS = {
    "wordpiece": "WordPiece",
    "byte_bpe": "byte-level BPE",
    "bpe": "BPE with end-of-word symbols",
    "sentencepiece": "SentencePiece",
    "words": "a vocabulary of words",
    "characters": "words as characters",
}
_OBJECTIVES = {
    "mlm": "masked tokens",
    "nsp": "next sentence",
    "sop": "order of sentences",
    "sbo": "span boundaries",
    "rtd": "replaced tokens",
    "clm": "next token",
    "plm": "permuted tokens",
    "tlm": "masked tokens of translations",
    "bilm": "next and previous token",
    "distillation": "distillation",
    "mpnet": "masked and permuted tokens",
}
_LIBRARIES = {
    "tf1": "Google's TF1 releases",
    "keras_hub": "KerasHub presets",
    "model_garden": "TF Model Garden",
    "allennlp": "AllenNLP",
}
# Public modules, beside the package itself, as pages of the reference.
MODULES = (
    "models",
    "text",
    "data",
    "tasks",
    "heads",
    "layers",
    "objectives",
    "corpora",
    "training",
    "training.tuning",
    "training.optimizers",
    "training.layouts",
    "metrics",
    "recipes",
    "plan",
    "distill",
    "analysis",
    "checkpoints",
    "export",
    "export.runtime",
    "search",
    "bertfam_serve",
    "registry",
)


def pages() -> dict[str, str]:
    """The text of each page, by its path in the site's sources."""
    return {**family_pages(), **task_pages(), **api_pages()}


# Families and tasks -------------------------------------------------------------------------------


def family_pages() -> dict[str, str]:
    """A page for each family, and their list."""
    sizes = json.loads(FAMILY_TABLE.read_text("utf-8"))
    made, rows = {}, []
    for name in models.families():
        record = registry.get(name)
        title, paper = _title(record)
        made[f"families/{name}.md"] = _family_page(record, sizes[name]["parameters"])
        counts = sizes[name]["parameters"].values()
        rows.append(
            [
                f"[{title}]({name}.md)",
                f"{_millions(min(counts))} to {_millions(max(counts))}",
                TOKENIZERS[record.tokenizer.kind],
                paper.split(",")[0],
            ]
        )
    text = (
        "# Families\n\nEach page has the published sizes, the config, tasks and formats of "
        "checkpoints. `bertfam families` prints the sizes; `bf.build(name, size)` makes a model "
        "with random weights and `bf.load_backbone(path)` loads one.\n\n"
    )
    made["families/index.md"] = (
        text
        + _table(["family", "parameters", "tokenizer", "paper"], rows)
        + _contents(models.families())
    )
    return made


def _family_page(record: registry.Family, parameters: dict[str, int]) -> str:
    title, paper = _title(record)
    size = next(iter(parameters))
    rows = []
    for each, count in parameters.items():
        differs = ", ".join(f"`{k}={v!r}`" for k, v in record.sizes[each].items())
        rows.append([f"`{each}`", f"{count:,}", differs or "the defaults"])
    fields = [
        [f"`{each.name}`", f"`{each.type}`", f"`{each.default!r}`"]
        for each in dataclasses.fields(record.config)
    ]
    formats = [_LIBRARIES[name] for name in record.formats]
    if record.huggingface:
        formats.insert(0, f"Hugging Face (`{record.huggingface.model_type}`)")
    objectives = [_OBJECTIVES.get(name, name) for name in record.objectives]
    facts = [
        ["paper", paper],
        ["tokenizer", f"{TOKENIZERS[record.tokenizer.kind]} (`{record.tokenizer.class_name}`)"],
        ["pretrained on", ", ".join(objectives)],
        ["heads", ", ".join(f"`{name}`" for name in record.heads)],
        ["checkpoints", ", ".join(formats) or "none are published"],
        ["tasks", ", ".join(f"[{t}](../tasks/{t}.md)" for t in tasks_of(record.name))],
    ]
    summary, _, details = inspect.cleandoc(record.config.__doc__ or "").partition("\n\n")
    wiring = inspect.cleandoc(record.wire.__doc__ or "").split("\n\n")[0]
    code = f"""```python
import bertfam_tf as bf

backbone = bf.build("{record.name}", "{size}")  # random weights
backbone = bf.load_backbone("path/to/checkpoint")
tokenizer = bf.load_tokenizer("path/to/checkpoint")
```"""
    parts = [
        f"# {title}",
        summary,
        wiring,
        _table(["", ""], facts),
        "## Sizes",
        _table(["size", "parameters", "config"], rows),
        "## Build and load",
        code,
        "Fields of the config are arguments of both: `dropout=0.0`. The files of each format: "
        "[checkpoints](../guides/checkpoints.md).",
        "## Config",
        details,
        _table(["field", "type", "default"], fields),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _title(record: registry.Family) -> tuple[str, str]:
    """The name of a family as its paper has it, and the paper."""
    title, _, paper = inspect.cleandoc(
        sys.modules[record.config.__module__].__doc__ or record.name
    ).partition(": ")
    return title, paper.removesuffix(".")


def task_names() -> list[str]:
    """The tasks, in the order of the package's list."""
    found = [name for name in bf.__all__ if inspect.isclass(getattr(bf, name, None))]
    return [name for name in found if issubclass(getattr(bf, name), tasks.Task)]


def tasks_of(family: str) -> list[str]:
    """The tasks that a family has the head for, or that need none."""
    found = []
    for name in task_names():
        try:
            head = getattr(tasks, name).head_of(family)
        except ValueError:
            continue
        if head is None or head in registry.get(family).heads:
            found.append(name)
    return found


def task_pages() -> dict[str, str]:
    """A page for each task, and their list."""
    signatures = json.loads(SIGNATURES.read_text("utf-8"))
    made, rows = {}, []
    for name in task_names():
        cls = getattr(tasks, name)
        made[f"tasks/{name}.md"] = _task_page(cls, signatures[name])
        rows.append([f"[{name}]({name}.md)", _summary(cls), _texts_of(cls)])
    text = (
        "# Tasks\n\nA task is a Keras model that takes raw text. All have the same methods: "
        "[Task](../api/tasks.md). Several tasks with one backbone are a "
        "[MultiTask](../guides/multi-task.md).\n\n"
    )
    made["tasks/index.md"] = (
        text + _table(["task", "what it answers", "texts"], rows) + _contents(task_names())
    )
    return made


def _task_page(cls: type, signatures: dict[str, Any]) -> str:
    families = [
        f"[{_title(registry.get(name))[0]}](../families/{name}.md)"
        for name in models.families()
        if cls.__name__ in tasks_of(name)
    ]
    labels = cls.labels_type
    facts = [
        ["texts of an example", _texts_of(cls)],
        ["labels in files", _first_line(labels) if labels else "recipes do not train it"],
        ["head", f"`{cls.head_name}`" if cls.head_name else "none, or the family's"],
        ["families", ", ".join(families)],
    ]
    rows = []
    for name, each in signatures.items():
        method = "" if each["method"] == "predict" else f" ({each['method']})"
        rows.append([f"`{name}`{method}", _specs(each["inputs"]), _specs(each["outputs"])])
    name = cls.__name__
    members = "   :members:\n   :exclude-members: parts, options_type, labels_type, published_type"
    parts = [
        f"# {name}",
        _table(["", ""], facts),
        _directive(f".. autoclass:: bertfam_tf.{name}\n{members}"),
        "## Signatures of an export",
        "Of a task with two labels or choices, and the default widths. `?` is any size; the first "
        "one is the batch.",
        _table(["signature", "inputs", "outputs"], rows),
    ]
    return "\n\n".join(parts) + "\n"


def _texts_of(cls: type) -> str:
    optional = [f"`{name}` (optional)" for name in cls.fields.optional]
    return ", ".join([*(f"`{name}`" for name in cls.fields.required), *optional])


def _specs(specs: dict[str, list]) -> str:
    sizes = [
        (name, dtype, ", ".join("?" if size is None else str(size) for size in shape))
        for name, (dtype, shape) in specs.items()
    ]
    return "<br>".join(f"`{name}` {dtype} ({shape})" for name, dtype, shape in sizes)


# Reference ----------------------------------------------------------------------------------------


def api_pages() -> dict[str, str]:
    """A page for the package, and one for each public module."""
    functions = [name for name in bf.__all__ if name not in task_names()]
    made = {"api/bertfam_tf.md": _members("bertfam_tf", functions)}
    for name in MODULES:
        made[f"api/{name}.md"] = _module_page(name)
    modules = {name: _module(name) for name in MODULES}
    rows = [[f"[{each.__name__}]({name}.md)", _first_line(each)] for name, each in modules.items()]
    first = ["[bertfam_tf](bertfam_tf.md)", _first_line(bf)]
    made["api/index.md"] = (
        "# Reference\n\n"
        + _table(["module", "contents"], [first, *rows])
        + _contents(["bertfam_tf", *MODULES])
    )
    return made


def _module_page(name: str) -> str:
    module = _module(name)
    names = list(getattr(module, "__all__", ())) or [
        key
        for key, value in vars(module).items()
        if not key.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]
    return _members(module.__name__, [each for each in names if each not in task_names()])


def _members(module: str, names: list[str]) -> str:
    found = import_module(module)
    text = [f"# {module}", inspect.cleandoc(found.__doc__ or "")]
    for name in names:
        value = getattr(found, name)
        path = f"{module}.{name}"
        # A name of the package is documented there, once.
        if module != "bertfam_tf" and name in bf.__all__:
            text.append(f"`{path}`: see [bertfam_tf](bertfam_tf.md).")
        elif inspect.isclass(value):
            text.append(_directive(f".. autoclass:: {path}\n   :members:"))
        elif callable(value):
            text.append(_directive(f".. autofunction:: {path}"))
        elif isinstance(value, dict):
            text.append(f"`{path}`: a {type(value).__name__} of {', '.join(map(repr, value))}.")
    return "\n\n".join(text) + "\n"


def _module(name: str) -> Any:
    return import_module(name if name == "bertfam_serve" else f"bertfam_tf.{name}")


# Markdown -----------------------------------------------------------------------------------------


def _first_line(value: Any) -> str:
    return inspect.cleandoc(value.__doc__ or "").split("\n")[0]


def _summary(cls: type) -> str:
    return inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0].replace("\n", " ")


def _millions(count: int) -> str:
    return f"{count / 1e6:.1f} M"


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line).replace("\n", " ") + " |" for line in lines)


def _contents(names: list[str]) -> str:
    return "\n\n```{toctree}\n:hidden:\n\n" + "\n".join(names) + "\n```\n"


def _directive(text: str) -> str:
    return f"```{{eval-rst}}\n{text}\n```"
