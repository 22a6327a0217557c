"""Settings of training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bertfam_tf.names import truncated_repr
from bertfam_tf.validation import check, one_of, setting

DEFAULT_BATCH_SIZE = 32
STRATEGIES = ("none", "mirrored", "multi_worker", "tpu")
OPTIMIZERS = ("adamw", "adamw_uncorrected", "lamb", "lamb_uncorrected", "muon")
SCHEDULES = ("linear", "cosine", "constant")
# Keras' dtype policies.
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16", "bfloat16", "float16", "float64")
CALLBACKS = "train.callbacks"


@dataclass(frozen=True)
class TrainConfig:
    """Settings of training; ``optimizers.adamw`` documents the optimizer's fields.

    Attributes:
        gradient_checkpointing: whether training keeps only each block's input and computes the
            rest again for its gradients, which saves memory (arXiv 1604.06174).
        strategy: the ``tf.distribute`` strategy: ``none``; ``mirrored``, all devices of this
            machine; ``multi_worker``, the workers of ``TF_CONFIG``, each of which runs the same
            command with the same output directory on a shared disk; or ``tpu`` (untested). Batch
            sizes are global.
        schedule: the learning rate after its linear rise: ``linear`` and ``cosine`` fall to 0,
            ``constant`` keeps the peak.
        batch_size: the number of examples in a batch; None for 32 if ``batch_tokens`` is None.
        batch_tokens: the maximum number of tokens in a batch, instead of ``batch_size``; see
            ``bertfam_tf.data.TokenBatches`` for fine-tuning and
            ``bertfam_tf.corpora.Corpus.batches`` for pretraining on sentences.
        accumulation_steps: the number of micro-batches into which a step splits each device's
            batch, whose gradients it adds up (gradient accumulation). ``batch_size`` and
            ``batch_tokens`` are the sizes of the full batch.
        optimizer: ``adamw`` or ``lamb``; or without bias correction of the moments,
            ``adamw_uncorrected`` as in BERT's code and ``lamb_uncorrected`` as in ALBERT's; or
            ``muon``, for pretraining.
        layer_decay: the ratio of the learning rates of a block and the next block, and of the
            embeddings and the first block; 1 for one rate.
        patience: stops after this many epochs without improvement on the dev split, and keeps the
            best epoch; None trains to the end and keeps the last.
        monitor: the metric of the dev split by which epochs are compared, such as ``accuracy``.
        class_weights: factors of the loss of each label's examples.
        metrics: names of metrics that replace the task's, such as ``[accuracy, matthews]``.
        steps: the number of steps, instead of passes over the data; ``epochs`` is then the maximum
            number of evaluations, at equal distances. None for passes.
        minutes: stops after the step at which training reaches this time, without evaluation,
            summed over interruptions. ``epochs`` or ``steps``, which determine the learning rate,
            are then the maximum. In a distillation, for each stage. None for no limit.
        backup_steps: the number of steps between training checkpoints, which a killed run resumes
            from; epochs also end with one.
        log_steps: the number of steps between lines of ``metrics.jsonl``.
        on_divergence: ``stop`` ends the run at a loss that is not finite, with an error that shows
            the texts of its batch; ``skip`` skips batches whose gradients are not finite with a
            warning, and ends the run after several in a row.
        precision: the Keras dtype policy of model and training, such as ``mixed_bfloat16``; None
            for Keras' global policy, which is float32 unless something sets another one.
        callbacks: Keras callbacks by import path, such as ``keras.callbacks.TerminateOnNaN``, or
            ``{path: {argument: value}}``. They see the logs before the run's own files are written,
            and start anew in a resumed run. Naming a class executes its module's code.
    """

    epochs: int = setting(3, at_least=1)
    batch_size: int | None = setting(None, at_least=1)
    batch_tokens: int | None = setting(None, at_least=1)
    accumulation_steps: int = setting(1, at_least=1)
    learning_rate: float = setting(5e-5, at_least=0)
    warmup: float = setting(0.1, at_least=0, below=1)
    weight_decay: float = setting(0.01, at_least=0)
    clip_norm: float | None = setting(1.0, above=0)
    epsilon: float = setting(1e-6, above=0)
    beta_2: float = setting(0.999, at_least=0, below=1)
    seed: int = setting(0, at_least=0)
    layer_decay: float = setting(1.0, above=0, at_most=1)
    patience: int | None = setting(None, at_least=1)
    monitor: str = "loss"
    class_weights: dict[str, float] | None = setting(None, at_least=0)
    metrics: list[str] | None = None
    backup_steps: int = setting(500, at_least=1)
    log_steps: int = setting(50, at_least=1)
    on_divergence: str = setting("stop", choices=("stop", "skip"))
    steps: int | None = setting(None, at_least=1)
    minutes: float | None = setting(None, above=0)
    optimizer: str = setting("adamw", choices=OPTIMIZERS)
    schedule: str = setting("linear", choices=SCHEDULES)
    strategy: str = "none"
    gradient_checkpointing: bool = False
    precision: str | None = setting(None, choices=PRECISIONS)
    callbacks: list[Any] = field(default_factory=list)

    def __post_init__(self):
        check(self, "train")
        callback_entries(self.callbacks)
        check_strategy(self.strategy, "train.strategy")
        if self.batch_tokens is None and self.batch_size is None:
            object.__setattr__(self, "batch_size", DEFAULT_BATCH_SIZE)
        elif self.batch_tokens is not None and self.batch_size is not None:
            raise ValueError(
                "Either train.batch_size or train.batch_tokens must be null or omitted, got "
                f"{self.batch_size} and {self.batch_tokens}."
            )
        if self.batch_size is not None and self.accumulation_steps > self.batch_size:
            raise ValueError(
                f"train.accumulation_steps must be at most the {self.batch_size} examples of "
                f"train.batch_size, which it splits, got {self.accumulation_steps}."
            )
        if self.strategy == "tpu" and self.accumulation_steps > 1:
            raise ValueError(
                "train.accumulation_steps must be 1 with strategy tpu, whose shapes are fixed, got "
                f"{self.accumulation_steps}."
            )


@dataclass(frozen=True)
class Stage:
    """A stage of a pretraining run; see ``training.train_in_stages``.

    Attributes:
        layers: the number of layers that the model grows to; None keeps its layers.
        steps: the number of training steps.
        learning_rate: the peak of a schedule for this stage only, of the kind ``train.schedule``;
            None follows the schedule of the whole run.
        warmup: with a learning rate, the fraction of the stage's steps in which it rises.
        length: the number of tokens of an example; None for ``data.length``.
        batch_size: the number of examples in a batch; None for ``train.batch_size``.
        epochs: the number of evaluations, at equal distances; at most ``steps``.
    """

    layers: int | None = setting(None, at_least=1)
    steps: int = setting(0, at_least=1)
    learning_rate: float | None = setting(None, above=0)
    warmup: float = setting(0.0, at_least=0, below=1)
    length: int | None = setting(None, at_least=1)
    batch_size: int | None = setting(None, at_least=1)
    epochs: int = setting(1, at_least=1)

    def __post_init__(self):
        check(self, "stages[i]")
        if self.steps < self.epochs:
            raise ValueError(
                f"stages[i].epochs must be at most its {self.steps} steps, got {self.epochs}."
            )
        if self.warmup and self.learning_rate is None:
            raise ValueError("stages[i].warmup must be 0 without stages[i].learning_rate.")


def callback_entries(callbacks: Sequence[Any]) -> list[tuple[str, dict[str, Any]]]:
    """Returns the import paths and arguments of a recipe's callbacks, without importing them.

    Args:
        callbacks: import paths such as ``keras.callbacks.TerminateOnNaN``, or mappings of one path
            to its arguments.

    Raises:
        ValueError: if an entry is neither.
    """
    entries = []
    for i, entry in enumerate(callbacks):
        paths = {entry: None} if isinstance(entry, str) else entry
        if not isinstance(paths, dict) or len(paths) != 1:
            raise ValueError(
                f"{CALLBACKS}.{i} must be an import path, or one import path with its arguments, "
                "such as {keras.callbacks.CSVLogger: {filename: log.csv}}, got "
                f"{truncated_repr(entry)}."
            )
        [(path, arguments)] = paths.items()
        names = path.split(".") if isinstance(path, str) else []
        if len(names) < 2 or not all(name.isidentifier() for name in names):
            raise ValueError(
                f"{CALLBACKS}.{i} must be the import path of a class, such as "
                f"keras.callbacks.TerminateOnNaN, got {truncated_repr(path)}."
            )
        if not isinstance(arguments, dict | None):
            raise ValueError(
                f"The arguments of {path} in {CALLBACKS}.{i} must be a mapping of names to values, "
                f"got {truncated_repr(arguments)}."
            )
        entries.append((path, arguments or {}))
    return entries


def check_strategy(name: str, where: str = "strategy") -> None:
    """Raises ``ValueError`` for a name that is not in ``STRATEGIES``.

    Args:
        name: the name.
        where: the name of the setting, for the error.
    """
    why = ""
    if "parameter" in name:
        why = "; parameter servers train asynchronously, which Keras 3 cannot do in fit"
    one_of(where, name, STRATEGIES, why)
