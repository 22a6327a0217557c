"""The README of a published task: a model card as the Hugging Face hub reads it."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from bertfam_tf.tasks.options import class_option, positional

if TYPE_CHECKING:
    from bertfam_tf.tasks.task import Task

CARD = "README.md"
_EXAMPLE = "a fine film"
# Tasks for which transformers 5 has no pipeline.
_CLASSES = {
    "multiple-choice": "AutoModelForMultipleChoice",
    "question-answering": "AutoModelForQuestionAnswering",
}


@dataclass(frozen=True)
class CardInfo:
    """Details of a model card that a task does not know.

    Attributes:
        language: the code of the texts' language, such as ``"en"``, or several.
        license: an identifier of the hub, such as ``"apache-2.0"``.
        metrics: scores by name, as in ``metrics.json`` of a run.
        base_model: the hub id of the checkpoint that was fine-tuned.
        dataset: the name of the data that ``metrics`` are for.
    """

    language: str | Sequence[str] | None = None
    license: str | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    base_model: str | None = None
    dataset: str | None = None

    @property
    def scores(self) -> dict[str, float]:
        """The metrics that are finite numbers."""
        return {
            name: float(value)
            for name, value in (self.metrics or {}).items()
            if isinstance(value, numbers.Real)
            and not isinstance(value, bool)
            and math.isfinite(value)
        }


def card(task: Task, name: str, info: CardInfo) -> str:
    """Returns the text of a model card, with front matter in YAML.

    Args:
        task: the task.
        name: the name of the model.
        info: facts that the task does not know.
    """
    header = {key: value for key, value in _front_matter(task, name, info).items() if value}
    text = yaml.safe_dump(header, sort_keys=False, allow_unicode=True)
    sections = [f"---\n{text}---\n", f"# {_cell(name)}\n", _summary(task, info)]
    if task.class_names:
        rows = [[str(i), label] for i, label in enumerate(task.class_names)]
        sections += ["## Labels\n", _table(["index", "label"], rows)]
    if info.scores:
        rows = [[metric, f"{value:.4g}"] for metric, value in info.scores.items()]
        sections += ["## Scores\n"]
        sections += [f"On {info.dataset}:\n"] if info.dataset else []
        sections += [_table(["metric", "value"], rows)]
    sections += ["## Use\n", _usage(task, name)]
    return "\n".join(sections)


def _front_matter(task: Task, name: str, info: CardInfo) -> dict[str, Any]:
    language = info.language
    languages = [language] if isinstance(language, str) else list(language or [])
    data = info.dataset or "evaluation data"
    results = [
        {"type": metric, "name": metric, "value": value} for metric, value in info.scores.items()
    ]
    index = {
        "name": name,
        "results": [
            {
                "task": {"type": task.pipeline_tag},
                "dataset": {"name": data, "type": data},
                "metrics": results,
            }
        ],
    }
    return {
        "language": languages[0] if len(languages) == 1 else languages,
        "license": info.license,
        "library_name": task.published_type.library,
        "pipeline_tag": task.pipeline_tag,
        "tags": ["bertfam_tf", task.backbone.family],
        "base_model": info.base_model,
        "metrics": list(info.scores),
        "model-index": [index] if results and task.pipeline_tag else None,
    }


def _summary(task: Task, info: CardInfo) -> str:
    source = f", fine-tuned from `{info.base_model}`" if info.base_model else ""
    return (
        f"A `{type(task).__name__}` of bertfam_tf on a backbone of the family "
        f"`{task.backbone.family}`{source}: {task.count_params():,} parameters, texts of up to "
        f"{task.max_length} tokens.\n"
    )


def _usage(task: Task, name: str) -> str:
    loader = task.published_type.loader
    if loader is not None:
        other = f"from sentence_transformers import {loader}\n\nmodel = {loader}({name!r})"
    elif task.pipeline_tag in _CLASSES or task.pipeline_tag is None:
        auto = _CLASSES.get(task.pipeline_tag or "", "AutoModel")
        other = f"from transformers import {auto}\n\nmodel = {auto}.from_pretrained({name!r})"
    else:
        other = (
            f"from transformers import pipeline\n\nmodel = pipeline({task.pipeline_tag!r}, "
            f"model={name!r})"
        )
    library = task.published_type.library
    kind, options_type = type(task).__name__, task.options_type
    # The checkpoint stores the names of the classes.
    needed = [n for n in positional(options_type) if n != class_option(options_type)]
    options = "".join(f", {name}={getattr(task.options, name)!r}" for name in needed)
    ours = f"import bertfam_tf as bf\n\ntask = bf.{kind}.from_pretrained({name!r}{options})"
    if task.feature_names == ("text",):
        ours += f"\ntask.predict([{_EXAMPLE!r}])"
    return (
        f"With {library}:\n\n```python\n{other}\n```\n\nWith bertfam_tf, in TensorFlow, also for "
        f"exports that take raw text:\n\n```python\n{ours}\n```\n"
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
