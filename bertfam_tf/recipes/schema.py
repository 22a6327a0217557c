"""Typed recipes, composed of the settings dataclasses next to the code that reads them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import yaml

from bertfam_tf.corpora.settings import CorpusConfig, MaskingConfig
from bertfam_tf.data.settings import DataConfig
from bertfam_tf.distill.settings import AugmentationConfig, DistillStage, StudentConfig
from bertfam_tf.training.settings import Stage, TrainConfig
from bertfam_tf.validation import check, check_unused, setting


class _Yaml:
    def to_yaml(self) -> str:
        """Returns the recipe as YAML with all defaults."""
        return yaml.safe_dump(dataclasses.asdict(self), sort_keys=False, allow_unicode=True)  # type: ignore[call-overload]


@dataclass(frozen=True)
class ModelConfig:
    """The model to fine-tune.

    Attributes:
        path: a checkpoint: a directory, ``package:NAME``, or a hub id.
        max_length: the maximum number of tokens of an example; None for the model's number of
            positions.
        overrides: config fields of the backbone, such as ``{dropout: 0.0}``.
        frozen: the layers to freeze: ``"backbone"``, to train only the head on fixed features; or a
            number, for the embeddings and this many blocks.
        lora_rank: the rank of low-rank updates of attention's weights (LoRA), which are trained
            instead of the backbone's weights; None trains the weights.
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
    """The model to pretrain.

    Attributes:
        family, size: the same as for ``bertfam_tf.build``.
        tokenizer: a directory that ``bertfam vocabulary`` wrote, or a checkpoint; ``characters``
            for ELMo's, which needs no files.
        overrides: config fields; the size of the vocabulary is the tokenizer's.
        checkpoint: a checkpoint of such a model, to start from its weights and its heads that are
            trained again; None for random weights.
    """

    family: str
    size: str
    tokenizer: str
    overrides: dict[str, Any] = field(default_factory=dict)
    checkpoint: str | None = None


@dataclass(frozen=True)
class PretrainRecipe(_Yaml):
    """A pretraining run.

    Attributes:
        output: the directory to write.
        model: the model.
        data: the text files.
        objectives: the weight of each loss: ``clm`` (causal language modeling) on a stream; on
            sentences ``mlm`` (masked language modeling), ``nsp`` or ``sop`` (next sentence
            prediction, sentence order prediction), ``sbo`` (span boundary objective), ``rtd``
            (replaced token detection), ``plm`` (permutation language modeling), ``tlm``
            (translation language modeling), or ``bilm`` (bidirectional language modeling).
        masking: the masking for objectives on sentences.
        generator: for ``rtd``, the config fields in which the generator differs from the model; by
            default a quarter of the model's attention heads (at least one) and width, as ELECTRA's
            generators have a quarter or a third.
        stages: on sentences, stages with different lengths, batch sizes and numbers of layers
            (progressive stacking), instead of ``train.epochs`` and ``train.steps``; see
            ``bertfam_tf.training.train_in_stages``.
        train: the settings of training.
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
        unused = ("metrics", "class_weights", "layer_decay")
        check_unused(self.train, "train", unused, "for pretraining")
        if self.stages:
            # Not epochs: a recipe that is based on one without stages cannot omit them.
            check_unused(self.train, "train", ("steps",), "with stages, which have their own")
        if self.prompts and self.data.format != "stream":
            raise ValueError("prompts must be empty unless data.format is stream.")
        if self.generator and "rtd" not in self.objectives:
            raise ValueError("generator must be empty without the objective rtd.")


@dataclass(frozen=True)
class Recipe(_Yaml):
    """A fine-tuning run.

    Attributes:
        output: the directory to write.
        model: the model.
        data: the files.
        task: the task's class.
        options: arguments of the task's ``from_pretrained``, such as ``{stride: 128}``.
        trainer: settings of the model that trains the task, if it is another one, such as
            ``EmbedderTrainer.Settings`` for ``TextEmbedder``.
        train: the settings of training.
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
        metrics: names of metrics that replace the task's.
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
    """A run of several tasks on one backbone; see ``bertfam_tf.MultiTask``.

    Attributes:
        output: the directory to write.
        model: the backbone.
        tasks: the tasks by name.
        sampling: how often each task is trained, as for ``MultiTask.fit``: an exponent, or the
            proportions of the tasks by name.
        train: the settings of training, without ``metrics`` and ``class_weights``.
    """

    output: str
    model: ModelConfig
    tasks: dict[str, TaskConfig]
    sampling: float | dict[str, float] = setting(1.0, at_least=0)
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self):
        check(self)
        check_unused(self.train, "train", ("metrics", "class_weights"), "for several tasks")

    def of(self, name: str) -> Recipe:
        """Returns the recipe of a single task."""
        config = self.tasks[name]
        train = dataclasses.replace(self.train, metrics=config.metrics)
        return Recipe(
            self.output, self.model, config.data, config.task, config.options, train=train
        )


@dataclass(frozen=True)
class DistillRecipe(_Yaml):
    """A distillation run.

    Attributes:
        output: the directory to write.
        teacher: a saved task, or a checkpoint with the task's head; or several of them.
        student: the model to train.
        data: the same as for fine-tuning; for ``MaskedLM``, files with a text in each line.
        stages: the stages, in order.
        task: the class of teacher and student.
        augmentation: the augmentation of the training texts, or None.
        max_length: the maximum number of tokens of an example; None for the teacher's.
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
        for name in ("strategy", "precision"):
            values = {str(getattr(stage.train, name)) for stage in self.stages}
            if len(values) > 1:
                raise ValueError(
                    f"train.{name} must be the same in all stages, got "
                    f"{' and '.join(sorted(values))}."
                )
        for stage in self.stages if self.train.strategy == "multi_worker" else ():
            for name, value in (("texts", "augmented"), ("teacher_outputs", "cached")):
                if getattr(stage, name) == value:
                    raise ValueError(
                        f"stages[i].{name} must not be {value} with strategy multi_worker, which "
                        "one process has to write."
                    )

    @property
    def train(self) -> TrainConfig:
        """The settings of the last stage."""
        return self.stages[-1].train
