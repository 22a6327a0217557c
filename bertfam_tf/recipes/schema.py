"""Typed recipes, composed of the settings beside the code that they are for."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import yaml

from bertfam_tf.corpora.settings import CorpusConfig, MaskingConfig
from bertfam_tf.data.settings import DataConfig
from bertfam_tf.distill.settings import AugmentationConfig, DistillStage, StudentConfig
from bertfam_tf.training.settings import Stage, TrainConfig
from bertfam_tf.validation import check, setting


class _Yaml:
    def to_yaml(self) -> str:
        """The recipe with every default written out."""
        return yaml.safe_dump(dataclasses.asdict(self), sort_keys=False, allow_unicode=True)  # type: ignore[call-overload]


@dataclass(frozen=True)
class ModelConfig:
    """The model that is fine-tuned.

    Attributes:
        path: a checkpoint: a directory, ``package:NAME``, or a hub id.
        max_length: maximum number of tokens of an example; None for the model's number of
            positions.
        overrides: config fields of the backbone, such as ``{dropout: 0.0}``.
        frozen: what is not trained: ``"backbone"``, to train only the head on fixed features; or
            a number, for the embeddings and that many blocks.
        lora_rank: trains low-rank products that are added to attention's weights (LoRA), of this
            rank, instead of the backbone's weights; None trains these.
    """

    path: str
    max_length: int | None = setting(None, at_least=1)
    overrides: dict[str, Any] = field(default_factory=dict)
    frozen: str | int | None = None
    lora_rank: int | None = setting(None, at_least=1)

    def __post_init__(self):
        check(self, "model")
        if isinstance(self.frozen, str) and self.frozen != "backbone":
            raise ValueError(
                f'model.frozen must be "backbone" or a number of blocks, got {self.frozen!r}.'
            )


@dataclass(frozen=True)
class NewModelConfig:
    """A model that is pretrained.

    Attributes:
        family, size: as ``bertfam_tf.build`` takes them.
        tokenizer: a directory that ``bertfam vocabulary`` wrote, or a checkpoint; ``characters``
            for ELMo's, which needs no files.
        overrides: config fields; the size of the vocabulary is the tokenizer's.
        checkpoint: a checkpoint of such a model, whose weights it starts from, and those of its
            heads that are trained again; None for random weights.
    """

    family: str
    size: str
    tokenizer: str
    overrides: dict[str, Any] = field(default_factory=dict)
    checkpoint: str | None = None


@dataclass(frozen=True)
class PretrainRecipe(_Yaml):
    """One pretraining run. ``output`` is the directory that it writes into.

    Attributes:
        objectives: the weight of each loss: ``clm`` (causal language modeling) on a stream; on
            sentences ``mlm`` (masked language modeling), ``nsp`` or ``sop`` (next sentence
            prediction, sentence order prediction), ``sbo`` (span boundary objective), ``rtd``
            (replaced token detection), ``plm`` (permutation language modeling), or ``tlm``
            (translation language modeling).
        masking: for all objectives on sentences.
        generator: for ``rtd``, the config fields in which the generator differs from the model.
            Without any, it has a quarter of the model's attention heads (at least one) and of its
            width, as ELECTRA's generators have a quarter or a third.
        stages: on sentences, parts with lengths, batch sizes and numbers of layers of their own
            (progressive stacking), in place of ``train.epochs`` and ``train.steps``; see
            ``bertfam_tf.training.train_in_stages``.
        prompts: texts that a causal model continues.
    """

    output: str
    model: NewModelConfig
    data: CorpusConfig
    objectives: dict[str, float] = setting(default_factory=lambda: {"clm": 1.0}, at_least=0)
    masking: MaskingConfig = field(default_factory=MaskingConfig)
    generator: dict[str, Any] = field(default_factory=dict)
    stages: list[Stage] = field(default_factory=list)
    train: TrainConfig = field(default_factory=TrainConfig)
    prompts: list[str] = field(default_factory=list)

    def __post_init__(self):
        check(self)


@dataclass(frozen=True)
class Recipe(_Yaml):
    """One fine-tuning run. ``output`` is the directory that it writes into.

    ``options`` are arguments of the task's ``from_pretrained``, such as ``{stride: 128}``;
    ``trainer`` has the settings of the model that trains the task, if that is another one: for
    ``TextEmbedder`` they are ``EmbedderTrainer.Settings``.
    """

    output: str
    model: ModelConfig
    data: DataConfig
    task: str = "TextClassifier"
    options: dict[str, Any] = field(default_factory=dict)
    trainer: dict[str, Any] = field(default_factory=dict)
    train: TrainConfig = field(default_factory=TrainConfig)


@dataclass(frozen=True)
class TaskConfig:
    """One of several tasks that are trained together.

    Attributes:
        task: the task's class.
        data: its files.
        options: arguments of the task's ``from_pretrained``, such as ``{stride: 128}``.
        metrics: names of metrics in place of the task's own.
        weight: the factor of its loss.
    """

    data: DataConfig
    task: str = "TextClassifier"
    options: dict[str, Any] = field(default_factory=dict)
    metrics: list[str] | None = None
    weight: float = setting(1.0, above=0)

    def __post_init__(self):
        check(self, "tasks[name]")


@dataclass(frozen=True)
class MultiTaskRecipe(_Yaml):
    """One run of several tasks on one backbone; see ``bertfam_tf.MultiTask``.

    Attributes:
        output: the directory that it writes into.
        model: the backbone.
        tasks: the tasks by name.
        sampling: how often each task is trained, as ``MultiTask.fit`` takes it: an exponent, or
            the tasks' shares by name.
        train: as for one task, except for its ``metrics`` and ``class_weights``.
    """

    output: str
    model: ModelConfig
    tasks: dict[str, TaskConfig]
    sampling: float | dict[str, float] = setting(1.0, at_least=0)
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self):
        check(self)
        for name in ("metrics", "class_weights"):
            if getattr(self.train, name) is not None:
                raise ValueError(f"train.{name} must be null for several tasks.")

    def of(self, name: str) -> Recipe:
        """Returns the recipe of one task alone."""
        each = self.tasks[name]
        train = dataclasses.replace(self.train, metrics=each.metrics)
        return Recipe(self.output, self.model, each.data, each.task, each.options, train=train)


@dataclass(frozen=True)
class DistillRecipe(_Yaml):
    """One distillation. ``output`` is the directory that it writes into.

    Attributes:
        task: of teacher and student.
        teacher: a saved task, or a checkpoint that has its head; or several of them.
        student: the model that is trained.
        data: as for fine-tuning; for ``MaskedLM`` files with a text in each line.
        stages: one after the other.
        augmentation: of the training texts; None for none.
        max_length: maximum number of tokens of an example; None for the teacher's.
    """

    output: str
    teacher: str | list[str]
    student: StudentConfig
    data: DataConfig
    stages: list[DistillStage]
    task: str = "TextClassifier"
    augmentation: AugmentationConfig | None = None
    max_length: int | None = setting(None, at_least=1)

    def __post_init__(self):
        check(self)
        if not self.stages:
            raise ValueError("stages must not be empty.")
        for i, stage in enumerate(self.stages):
            if self.augmentation is None and stage.texts == "augmented":
                raise ValueError(f'stages[{i}].texts: "augmented" needs an augmentation section.')
        strategies = {stage.train.strategy for stage in self.stages}
        if len(strategies) > 1:
            raise ValueError(
                "train.strategy must be the same in all stages, got "
                f"{' and '.join(sorted(strategies))}."
            )
        for stage in self.stages:
            written = (("texts", "augmented"), ("teacher_outputs", "cached"))
            for name, value in written if "multi_worker" in strategies else ():
                if getattr(stage, name) == value:
                    raise ValueError(
                        f"stages[i].{name} must not be {value} with strategy multi_worker: it is "
                        "computed by one process."
                    )

    @property
    def train(self) -> TrainConfig:
        """The settings of the last stage."""
        return self.stages[-1].train
