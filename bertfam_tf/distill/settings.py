"""Settings of distillations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bertfam_tf.training.settings import TrainConfig
from bertfam_tf.validation import check, setting


@dataclass(frozen=True)
class StudentConfig:
    """A model that is trained to imitate a teacher.

    Attributes:
        path: a checkpoint that it starts from, such as the model of a general distillation; None
            for a model that is made for the teacher, by the other fields.
        family, size, num_layers, layers: as ``bertfam_tf.distill.student_of`` takes them; layers
            ``none`` for random weights.
        overrides: config fields.
        word_vectors: a file of word vectors in GloVe's format, with which the token embedding
            starts; None for none.
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


@dataclass(frozen=True)
class AugmentationConfig:
    """Copies of the training texts with replaced words; see ``bertfam_tf.distill.Augmentation``.

    Attributes:
        masked_lm: a checkpoint, or a saved ``MaskedLM``, that proposes words.
        word_vectors: a file in GloVe's format, for words of several pieces; None for the masked
            language model's embeddings.
        copies, candidates, probability: of each text its copies, of each word its candidates, and
            how often a word is replaced.
        pair_with_original: whether the masked language model also reads the original text, as in
            TinyBERT's code.
        seed: of the draws.
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
    """A part of a distillation.

    Attributes:
        terms: the options of each term, by the names in ``bertfam_tf.distill.TERMS``.
        labels: weight of the task's own loss.
        texts: ``original``, or ``augmented`` with the copies of the augmentation.
        teacher_outputs: ``each_step``, computed in each step; or ``cached``, computed once and
            stored in the output directory until the run is finished.
        train: of this stage; ``train.metrics`` of the last one are those of the dev split.
    """

    terms: dict[str, dict[str, Any]]
    labels: float = setting(0.0, at_least=0)
    texts: str = setting("original", choices=("original", "augmented"))
    teacher_outputs: str = setting("each_step", choices=("each_step", "cached"))
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self):
        check(self, "stages[i]")
        if self.train.class_weights is not None:
            raise ValueError("train.class_weights must be null in a stage of a distillation.")
        if self.teacher_outputs == "cached" and self.train.batch_tokens is not None:
            raise ValueError(
                'train.batch_tokens must be null with teacher_outputs "cached", whose batches have '
                "train.batch_size examples."
            )
