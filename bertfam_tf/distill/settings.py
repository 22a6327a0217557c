"""Settings of distillations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bertfam_tf.training.settings import TrainConfig
from bertfam_tf.validation import check, check_unused, setting


@dataclass(frozen=True)
class StudentConfig:
    """The student of a distillation.

    Attributes:
        path: a checkpoint to start from, such as the model of a general distillation; None creates
            a model from the teacher, by the next four fields.
        family, size, num_layers, layers: the same as for ``bertfam_tf.distill.student_of``; layers
            ``none`` for random weights.
        overrides: config fields.
        word_vectors: a file of word vectors in GloVe's format that initializes the token embedding,
            or None.
    """

    path: str | None = None
    family: str | None = None
    size: str | None = None
    num_layers: int | None = setting(None, at_least=1)
    layers: str | list[int] = "every_other"
    overrides: dict[str, Any] = field(default_factory=dict)
    word_vectors: str | None = None

    def __post_init__(self):
        check(self, "student")
        if self.path is not None:
            why = "with student.path, whose checkpoint has it"
            check_unused(self, "student", ("family", "size", "num_layers", "layers"), why)


@dataclass(frozen=True)
class AugmentationConfig:
    """Copies of the training texts with replaced words; see ``bertfam_tf.distill.Augmentation``.

    Attributes:
        masked_lm: a checkpoint, or a saved ``MaskedLM``, that proposes words.
        word_vectors: a file in GloVe's format, for words of several tokens; None uses the masked
            language model's embeddings.
        copies: the number of copies of each text.
        candidates: the number of candidates of each word.
        probability: the probability that a word is replaced.
        pair_with_original: whether the masked language model also reads the original text, as in
            TinyBERT's code.
        seed: the seed of the draws.
    """

    masked_lm: str
    word_vectors: str | None = None
    copies: int = setting(20, at_least=1)
    candidates: int = setting(15, at_least=1)
    probability: float = setting(0.4, at_least=0, at_most=1)
    pair_with_original: bool = False
    seed: int = setting(0, at_least=0)

    def __post_init__(self):
        check(self, "augmentation")


@dataclass(frozen=True)
class DistillStage:
    """A stage of a distillation.

    Attributes:
        terms: the options of each term, by the names in ``bertfam_tf.distill.TERMS``.
        labels: the weight of the task's own loss.
        texts: ``original``, or ``augmented`` to add the copies of the augmentation.
        teacher_outputs: ``each_step`` computes them in each step; ``cached`` computes them once and
            stores them in the output directory until the run is finished.
        train: the training settings of this stage. The dev split is scored with ``train.metrics``
            of the last stage.
    """

    terms: dict[str, dict[str, Any]]
    labels: float = setting(0.0, at_least=0)
    texts: str = setting("original", choices=("original", "augmented"))
    teacher_outputs: str = setting("each_step", choices=("each_step", "cached"))
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self):
        check(self, "stages[i]")
        check_unused(self.train, "train", ("class_weights",), "in a stage of a distillation")
        if self.teacher_outputs == "cached" and self.train.batch_tokens is not None:
            raise ValueError(
                'train.batch_tokens must be null with teacher_outputs "cached", whose batches have '
                "train.batch_size examples."
            )
