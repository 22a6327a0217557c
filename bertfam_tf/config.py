"""Typed recipes: YAML in, one key for one dataclass field, unknown keys refused."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import typing
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dacite
import yaml

from bertfam_tf import parsing
from bertfam_tf.names import unknown

# The default batch size.
EXAMPLES = 32
STRATEGIES = ("none", "mirrored", "multi_worker", "tpu")
OPTIMIZERS = ("adamw", "adamw_uncorrected", "lamb", "lamb_uncorrected")


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
    max_length: int | None = None
    overrides: dict[str, Any] = field(default_factory=dict)
    frozen: str | int | None = None
    lora_rank: int | None = None

    def __post_init__(self):
        if isinstance(self.frozen, str) and self.frozen != "backbone":
            raise ValueError(
                f'model.frozen must be "backbone" or a number of blocks, got {self.frozen!r}.'
            )


@dataclass(frozen=True)
class DataConfig:
    """Local files, relative to the working directory; ``$NAME`` reads the environment.

    Attributes:
        train, dev, test: a file or a list of files; only ``bertfam evaluate``
            reads the test split. Names of splits if ``tfds`` is given.
        dev_languages, test_languages: tables of such files by language, such as
            ``{fr: dev.fr.tsv, de: dev.de.tsv}``, which are scored too, each in its language if the
            model has language embeddings; the metrics are ``fr_accuracy`` and so on.
        text, text_pair, label: columns, by name in the first line or by number from 0; label None
            for pairs of texts that belong together, which have none.
        labels: names of the classes in order; or a table from labels in the file to names, of
            tasks whose labels are numbers to these, such as ``{relevant: "1", other: "0"}``; None
            for the distinct labels of the training file, sorted.
        limit: maximum number of training examples.
        format: tsv, csv, jsonl, conll, squad, race or tfds; None decides by the files' names.
        columns: columns of tasks with other texts, such as ``{question: q, context: passage}``
            or ``{text: start, choices: [ending0, ending1]}``; used in place of ``text`` and
            ``text_pair``. The column ``language`` has the code of each example's language, for
            models with language embeddings. In JSON ``a.b`` is the key b in the object at a. Files
            of SQuAD's format have the columns ``question`` and ``context``.
        on_error: ``raise`` stops at the first invalid row; ``skip`` skips invalid rows and logs
            the number of each kind of error.
        tag_scheme: ``iob2`` converts IOB1 tags in files of CoNLL's format to IOB2.
        tfds: a data set of tensorflow-datasets, such as ``glue/mrpc``.
        data_dir: the directory of its prepared files; None for tensorflow-datasets' default.
    """

    train: str | list[str]
    dev: str | list[str] | None = None
    test: str | list[str] | None = None
    dev_languages: dict[str, str | list[str]] | None = None
    test_languages: dict[str, str | list[str]] | None = None
    text: str | int = "text"
    text_pair: str | int | None = None
    label: str | int | None = "label"
    labels: list[str] | dict[str, str] | None = None
    limit: int | None = None
    format: str | None = None
    columns: dict[str, str | int | list[str | int]] | None = None
    on_error: str = "raise"
    tag_scheme: str | None = None
    tfds: str | None = None
    data_dir: str | None = None

    def __post_init__(self):
        for name, known in (("on_error", ("raise", "skip")), ("tag_scheme", (None, "iob2"))):
            if getattr(self, name) not in known:
                choices = " or ".join("null" if each is None else each for each in known)
                raise ValueError(f"data.{name} must be {choices}, got {getattr(self, name)!r}.")


@dataclass(frozen=True)
class TrainConfig:
    """Settings of fine-tuning; see ``bertfam_tf.optimizers.adamw`` for the optimizer's fields.

    Attributes:
        recompute: ``blocks``, what a block computes is not kept but computed once more for its
            gradients (gradient checkpointing), which saves memory; or ``none``.
        strategy: of ``tf.distribute``: ``none``; ``mirrored``, all devices of this machine;
            ``multi_worker``, the workers of ``TF_CONFIG``, each of which runs the same command with
            the same output directory on a shared disk; or ``tpu`` (not run). Batches are those of
            all devices together.
        schedule: the learning rate after its linear rise: ``linear`` and ``cosine`` fall to 0,
            ``constant`` keeps the peak.
        batch_size: examples in a batch; None for 32 if ``batch_tokens`` is None.
        batch_tokens: tokens that a batch may have, in place of ``batch_size``, as
            ``bertfam_tf.data.TokenBatches`` makes batches of fine-tuning, and
            ``bertfam_tf.objectives.Corpus.batches`` of pretraining on sentences.
        accumulation_steps: parts into which a step splits each device's part of a batch, whose
            gradients it adds up (gradient accumulation): the memory of a part, and the weights that
            the whole batch gives. ``batch_size`` and ``batch_tokens`` are those of the whole batch.
        optimizer: ``adamw`` or ``lamb``; ``adamw_uncorrected`` as in BERT's code and
            ``lamb_uncorrected`` as in ALBERT's, without correction of the moments' bias.
        layer_decay: each block's learning rate is that of the next block times this factor, and
            the embeddings' that of the first block; 1 for one rate.
        patience: stops after this many epochs without improvement on the dev split, and keeps the
            best epoch; None trains to the end and keeps the last.
        monitor: the metric of the dev split by which epochs are compared, such as ``accuracy``.
        class_weights: factors of the loss of each label's examples.
        metrics: names of metrics in place of the task's own, such as ``[accuracy, matthews]``.
        steps: the number of steps, in place of passes over the data; ``epochs`` is then how often
            the model is evaluated. None for passes.
        backup_steps: steps between training checkpoints, from which a killed run resumes; each
            epoch ends with one as well.
        log_steps: steps between lines of ``metrics.jsonl``.
        on_divergence: ``stop``, a loss that is not finite ends the run with an error that shows the
            texts of its batch; or ``skip``, batches whose gradients are not finite are left out
            with a warning, and several in a row end it.
    """

    epochs: int = 3
    batch_size: int | None = None
    batch_tokens: int | None = None
    accumulation_steps: int = 1
    learning_rate: float = 5e-5
    warmup: float = 0.1
    weight_decay: float = 0.01
    clip_norm: float | None = 1.0
    epsilon: float = 1e-6
    beta_2: float = 0.999
    seed: int = 0
    layer_decay: float = 1.0
    patience: int | None = None
    monitor: str = "loss"
    class_weights: dict[str, float] | None = None
    metrics: list[str] | None = None
    backup_steps: int = 500
    log_steps: int = 50
    on_divergence: str = "stop"
    steps: int | None = None
    optimizer: str = "adamw"
    schedule: str = "linear"
    strategy: str = "none"
    recompute: str = "none"

    def __post_init__(self):
        if self.recompute not in ("none", "blocks"):
            raise ValueError(f"train.recompute must be none or blocks, got {self.recompute!r}.")
        if self.on_divergence not in ("stop", "skip"):
            raise ValueError(
                f"train.on_divergence must be stop or skip, got {self.on_divergence!r}."
            )
        check_strategy(self.strategy, "train.strategy")
        if self.schedule not in ("linear", "cosine", "constant"):
            raise ValueError(
                f"train.schedule must be linear, cosine or constant, got {self.schedule!r}."
            )
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(
                f"train.optimizer must be one of {', '.join(OPTIMIZERS)}, got {self.optimizer!r}."
            )
        if self.batch_tokens is None and self.batch_size is None:
            object.__setattr__(self, "batch_size", EXAMPLES)
        elif self.batch_tokens is not None and self.batch_size is not None:
            raise ValueError(
                "Either train.batch_size or train.batch_tokens must be null or omitted, got "
                f"{self.batch_size} and {self.batch_tokens}."
            )
        for name in (
            *("epochs", "batch_size", "batch_tokens", "accumulation_steps", "backup_steps"),
            *("patience", "steps", "log_steps"),
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"train.{name} must be at least 1, got {value}.")
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
        if not 0 < self.layer_decay <= 1:
            raise ValueError(
                f"train.layer_decay must be above 0 and at most 1, got {self.layer_decay}."
            )


@dataclass(frozen=True)
class Stage:
    """A part of a pretraining run; see ``train.train_in_stages``.

    Attributes:
        layers: the number of layers, to which the model grows; None for those it has.
        steps: the number of training steps.
        learning_rate: the peak of a rise and fall of this stage alone; None to follow the one line
            of the whole run.
        warmup: with a learning rate, the fraction of the stage's steps in which it rises.
        length: the number of tokens of an example; None for ``data.length``.
        batch_size: the number of examples in a batch; None for ``train.batch_size``.
        epochs: the number of parts of equal length, after each of which the model is evaluated.
    """

    layers: int | None = None
    steps: int = 0
    learning_rate: float | None = None
    warmup: float = 0.0
    length: int | None = None
    batch_size: int | None = None
    epochs: int = 1

    def __post_init__(self):
        for name in ("layers", "steps", "length", "batch_size", "epochs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} of a stage must be at least 1, got {value}.")
        if self.steps % self.epochs:
            raise ValueError(
                f"steps of a stage must be a multiple of its {self.epochs} epochs, got "
                f"{self.steps}."
            )
        if not 0 <= self.warmup < 1:
            raise ValueError(
                f"warmup of a stage must be at least 0 and below 1, got {self.warmup}."
            )
        if self.warmup and self.learning_rate is None:
            raise ValueError("warmup of a stage must be 0 without a learning_rate of its own.")


class _Yaml:
    def to_yaml(self) -> str:
        """The recipe with every default written out."""
        return yaml.safe_dump(dataclasses.asdict(self), sort_keys=False, allow_unicode=True)  # type: ignore[call-overload]


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
class CorpusConfig:
    """Text of pretraining; ``$NAME`` reads the environment.

    Attributes:
        train, dev: text files, or patterns such as ``books/*.txt``; or folders of shards, whose
            examples were formed before (``serving/batch/corpus.py``): for these ``format`` and
            ``length`` have to be the same, and ``documents`` and ``sentences`` are not read; or a
            table of them by language.
        format: ``stream``, all text as one stream of tokens, for causal models; ``sentences``,
            each sentence alone, for models that read characters (``bilm``); or examples of
            sentences in one of the formats of ``bertfam_tf.objectives``: ``full_sentences``,
            ``doc_sentences``, ``segment_pairs`` or ``sentence_pairs``.
        length: the number of tokens of an example, special tokens included; of a stream, of a
            segment, which is processed in one step.
        end: of a stream, a token after each line, such as ``<eos>``; None for none.
        documents: ``blank_line``, a document is the lines up to an empty one; ``file``; or
            ``line``.
        sentences: ``line``, each line is a sentence; or ``split``, lines are split after full
            stops.
        shuffle: the number of examples among which the next one is drawn; of shards, that are
            shuffled at a time.
        train_translations, dev_translations: for ``tlm``, by pairs of languages such as ``en-fr``,
            two files whose lines are translations of each other, or one TSV file with two columns.
        words: for ``bilm``, the number of words that are predicted, the most frequent ones.
        exponent: of the frequencies of languages, to whose powers they are proportional in
            training: 1 for those of the text, 0 for equal ones.
    """

    train: list[str] | dict[str, list[str]]
    dev: list[str] | dict[str, list[str]]
    format: str = "stream"
    length: int = 128
    end: str | None = None
    documents: str = "blank_line"
    sentences: str = "line"
    shuffle: int = 10_000
    train_translations: dict[str, list[str]] = field(default_factory=dict)
    dev_translations: dict[str, list[str]] = field(default_factory=dict)
    exponent: float = 0.7
    words: int = 100_000

    def __post_init__(self):
        if not 0 <= self.exponent <= 1:
            raise ValueError(f"data.exponent must be from 0 to 1, got {self.exponent}.")
        formats = (
            *("stream", "sentences", "full_sentences", "doc_sentences"),
            *("segment_pairs", "sentence_pairs"),
        )
        if self.words < 1:
            raise ValueError(f"data.words must be at least 1, got {self.words}.")
        if self.format not in formats:
            raise ValueError(
                f"data.format must be one of {', '.join(formats)}, got {self.format!r}."
            )


@dataclass(frozen=True)
class MaskingConfig:
    """How tokens are masked; see ``bertfam_tf.objectives.Masking``.

    Attributes:
        unit: ``piece``; ``word``, whole words; ``ngram``, some consecutive words, as ALBERT and
            XLNet; ``span``, up to ten words that are replaced together, as SpanBERT; or
            ``tagged``, spans that a tagger finds, such as named entities or noun phrases, and
            words, with which SpanBERT is compared (arXiv 1907.10529, table 6).
        longest: of ``ngram``, the largest number of words: ALBERT's is 3, XLNet's 5.
        rate: the share of tokens that are predicted.
        max_predictions: the largest number of predicted tokens of an example; None for no maximum.
        masked, random: of these, the shares that become the mask and a random token; ``plm``
            replaces none.
        copies: the number of copies of the text whose masks, and pairs of segments, differ: passes
            read them in turns, each in an order of its own. 1 for masks that are drawn once (static
            masking); None for new masks in each pass (dynamic masking). Shards have their pairs
            already, which are the same in all copies.
        tagger: of ``tagged``, the directory of a saved ``TokenTagger``, which reads each sentence
            in each pass.
        labels: of ``tagged``, the labels of the spans that are taken; None for all.
        words: of ``tagged``, the share of draws that select a word instead of a span.
    """

    unit: str = "piece"
    rate: float = 0.15
    masked: float = 0.8
    random: float = 0.1
    copies: int | None = None
    longest: int = 3
    max_predictions: int | None = None
    tagger: str | None = None
    labels: list[str] | None = None
    words: float = 0.5

    def __post_init__(self):
        if self.longest < 1:
            raise ValueError(f"masking.longest must be at least 1, got {self.longest}.")
        units = ("piece", "word", "ngram", "span", "tagged")
        if self.unit not in units:
            raise ValueError(f"masking.unit must be one of {', '.join(units)}, got {self.unit!r}.")
        if (self.tagger is None) == (self.unit == "tagged"):
            raise ValueError(
                "masking.tagger is required by masking.unit tagged and allowed only with it, got "
                f"{self.tagger!r} and {self.unit}."
            )


_RENAMED_OBJECTIVES = {"masked_lm": "mlm", "causal_lm": "clm"}


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
            ``bertfam_tf.train.train_in_stages``.
        prompts: texts that a causal model continues.
    """

    output: str
    model: NewModelConfig
    data: CorpusConfig
    objectives: dict[str, float] = field(default_factory=lambda: {"clm": 1.0})
    masking: MaskingConfig = field(default_factory=MaskingConfig)
    generator: dict[str, Any] = field(default_factory=dict)
    stages: list[Stage] = field(default_factory=list)
    train: TrainConfig = field(default_factory=TrainConfig)
    prompts: list[str] = field(default_factory=list)

    def __post_init__(self):
        named = {}
        for name, weight in self.objectives.items():
            renamed = _RENAMED_OBJECTIVES.get(name, name)
            if renamed in named:
                raise ValueError(f"objectives must have one weight for {renamed}, got two.")
            if renamed != name:
                warnings.warn(
                    f"The objective {name} is called {renamed}; the old name is for version 0.1 "
                    "only.",
                    FutureWarning,
                    stacklevel=2,
                )
            named[renamed] = weight
        object.__setattr__(self, "objectives", named)


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
    weight: float = 1.0


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
    sampling: float | dict[str, float] = 1.0
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self):
        for name in ("metrics", "class_weights"):
            if getattr(self.train, name) is not None:
                raise ValueError(f"train.{name} must be null for several tasks.")

    def of(self, name: str) -> Recipe:
        """Returns the recipe of one task alone."""
        each = self.tasks[name]
        train = dataclasses.replace(self.train, metrics=each.metrics)
        return Recipe(self.output, self.model, each.data, each.task, each.options, train=train)


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
    num_layers: int | None = None
    layers: str | list[int] = "every_other"
    overrides: dict[str, Any] = field(default_factory=dict)
    word_vectors: str | None = None


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
    copies: int = 20
    candidates: int = 15
    probability: float = 0.4
    pair_with_original: bool = False
    seed: int = 0


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
    labels: float = 0.0
    texts: str = "original"
    teacher_outputs: str = "each_step"
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self):
        for name, known in (
            ("texts", ("original", "augmented")),
            ("teacher_outputs", ("each_step", "cached")),
        ):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name} of a stage must be {' or '.join(known)}, got {getattr(self, name)!r}."
                )
        if self.train.class_weights is not None:
            raise ValueError("train.class_weights must be null in a stage of a distillation.")
        if self.teacher_outputs == "cached" and self.train.batch_tokens is not None:
            raise ValueError(
                'train.batch_tokens must be null with teacher_outputs "cached", whose batches have '
                "train.batch_size examples."
            )


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
    max_length: int | None = None

    def __post_init__(self):
        if not self.stages:
            raise ValueError("stages must be at least one.")
        if self.augmentation is None and any(s.texts == "augmented" for s in self.stages):
            raise ValueError("texts of a stage must be original without an augmentation.")
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
                        f"{name} of a stage must not be {value} with strategy multi_worker: it is "
                        "computed by one process."
                    )

    @property
    def train(self) -> TrainConfig:
        """The settings of the last stage."""
        return self.stages[-1].train


def check_strategy(name: str, where: str = "strategy") -> None:
    """Raises ValueError for a name that is none of ``STRATEGIES``.

    Args:
        where: what the error calls it.
    """
    if name not in STRATEGIES:
        why = ""
        if "parameter" in name:
            why = "; parameter servers train asynchronously, which Keras 3 cannot do in fit"
        raise ValueError(f"{where} must be one of {', '.join(STRATEGIES)}, got {name!r}{why}.")


def load_recipe(
    file: str | Path, overrides: list[str] | tuple[str, ...] = (), kind: type = Recipe
) -> Any:
    """Reads a recipe.

    Args:
        file: YAML.
        kind: ``Recipe``, ``PretrainRecipe`` or ``DistillRecipe``.
        overrides: ``key=value`` with dots into sections, such as ``train.epochs=1``; the value is
            YAML.

    Raises:
        ValueError: when the file is missing or not a YAML mapping, a key is unknown (the text
            names the nearest one), missing, or has a value of another type.
    """
    path = Path(file)
    if not path.is_file():
        raise ValueError(f"There is no recipe {path}.")
    values = parsing.read_yaml(path)
    if not isinstance(values, dict):
        raise ValueError(f"{path} is not a mapping of keys to values.")
    for override in overrides:
        _override(values, override)
    return _build(values, path, kind)


def load_run(file: str | Path, overrides: list[str] | tuple[str, ...] = ()) -> Any:
    """The ``Recipe``, ``MultiTaskRecipe`` or ``DistillRecipe`` in a file, as ``load_recipe``."""
    values = parsing.read_yaml(Path(file)) if Path(file).is_file() else None
    kinds = {"teacher": DistillRecipe, "tasks": MultiTaskRecipe}
    found = [kinds[key] for key in kinds if isinstance(values, dict) and key in values]
    return load_recipe(file, overrides, found[0] if found else Recipe)


def with_defaults(text: str, kind: type) -> str:
    """Returns the YAML of a recipe with every default written out.

    Recipes of an earlier version lack fields that were added since. What is not a valid recipe is
    returned unchanged.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of names that were changed since
            return _build(parsing.parse_yaml(text, "recipe"), Path("recipe"), kind).to_yaml()
    except (ValueError, AttributeError):
        return text


def expand(path: str) -> Path:
    """A path of a recipe, with ``$NAME`` and ``~`` replaced.

    Raises:
        ValueError: when a variable is not set.
    """
    expanded = os.path.expanduser(os.path.expandvars(path))
    unset = re.search(r"\$\{?(\w+)", expanded)
    if unset:
        raise ValueError(f"The environment variable {unset[1]} in {path!r} is not set.")
    return Path(expanded)


def _override(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ValueError(
            f"An override must be key=value, such as train.epochs=1, got {override!r}."
        )
    *sections, last = key.split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise ValueError(f"{override!r}: {section} is not a section.")
    values[last] = parsing.parse_yaml(text, f"The value of {override!r}")


def build_section(values: dict[str, Any], kind: type, name: str) -> Any:
    """Returns the dataclass of a section whose type the recipe does not know.

    Args:
        values: the section.
        kind: the dataclass.
        name: the section's name, for errors.

    Raises:
        ValueError: for unknown keys or values of another type.
    """
    _check_keys(values, kind, None, name)
    try:
        return dacite.from_dict(kind, values, dacite.Config(type_hooks={float: _number}))
    except dacite.DaciteError as error:
        raise ValueError(f"{name}: {error}") from None


def _renamed(values: dict[str, Any], kind: type) -> dict[str, Any]:
    """The values of a recipe, with the name of a section that was changed since version 0.1."""
    if kind is not Recipe or "embedder" not in values:
        return values
    values = dict(values)
    section = values.pop("embedder")
    if section is not None:
        warnings.warn(
            "The section embedder is called trainer; the old name is for version 0.1 only.",
            FutureWarning,
            stacklevel=2,
        )
        values.setdefault("trainer", section)
    return values


def _build(values: dict[str, Any], path: Path, kind: type) -> Any:
    values = _renamed(values, kind)
    _check_keys(values, kind, path)
    try:
        return dacite.from_dict(kind, values, dacite.Config(type_hooks={float: _number}))
    except (dacite.DaciteError, ValueError) as error:
        hint = ""
        if getattr(error, "field_path", None) == "data.labels":
            hint = '; numbers need quotes, as in {"0": negative}'
        raise ValueError(f"{path}: {error}{hint}") from None


def _check_keys(values: dict[str, Any], kind: type, path: Path | None, section: str = "") -> None:
    """Raises ValueError for a key that is no field of ``kind``, in sections and lists of them."""
    types = typing.get_type_hints(kind)
    file = "" if path is None else f"{path}: "
    for key, value in values.items():
        if key not in types:
            where = f"key in section {section}" if section else "key"
            raise ValueError(f"{file}{unknown(where, str(key), types)}")
        name = f"{section}.{key}" if section else key
        # To Python a bool is an integer, and to YAML a bare "no" is a bool.
        if isinstance(value, bool) and types[key] is not bool:
            raise ValueError(f"{file}{name} is {value}; a name such as no needs quotes.")
        inner = [each for each in (types[key], *typing.get_args(types[key])) if _is_section(each)]
        if inner:
            for at, each in _sections(value, types[key], name):
                _check_keys(each, inner[0], path, at)


def _sections(value: Any, kind: Any, name: str) -> list[tuple[str, dict[str, Any]]]:
    """The sections in a value, a list of them or a table of them, with their names."""
    if typing.get_origin(kind) is dict and isinstance(value, dict):
        found = [(f"{name}.{key}", each) for key, each in value.items()]
    elif isinstance(value, list):
        found = [(f"{name}.{i}", each) for i, each in enumerate(value)]
    else:
        found = [(name, value)]
    return [(at, each) for at, each in found if isinstance(each, dict)]


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def _number(value: Any) -> Any:
    # YAML 1.1 reads 5e-5 as a string and 1 as an integer where a float is meant. Other
    # values are kept, and dacite names the field that does not take them.
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return value
    if not math.isfinite(number):
        raise ValueError(f"{value} is not a finite number.")
    return number
