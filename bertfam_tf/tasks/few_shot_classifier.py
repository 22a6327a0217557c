"""Classification from a few examples for each label (SetFit, arXiv 2209.11055)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self, Unpack

import keras
import numpy as np
import tensorflow as tf

from bertfam_tf.data.errors import as_value_errors
from bertfam_tf.data.inputs import TEXT, TEXT_PAIR, batches
from bertfam_tf.data.labels import summary
from bertfam_tf.data.tables import Columns
from bertfam_tf.layers import Dense
from bertfam_tf.models import Backbone
from bertfam_tf.names import NO_TEXT, join_names
from bertfam_tf.sources import UnrepresentableError
from bertfam_tf.tasks.components import NO_LABELS, TaskComponents
from bertfam_tf.tasks.embedder_trainer import EmbedderTrainer
from bertfam_tf.tasks.logistic_regression import fit_logistic_regression
from bertfam_tf.tasks.options import LoadingArguments
from bertfam_tf.tasks.sentence_transformers import Modules
from bertfam_tf.tasks.text_classifier import (
    ClassTargets,
    SingleLabelOptions,
    TextClassifier,
    class_answers,
    classify_signature,
    cross_entropy,
    one_distribution,
)
from bertfam_tf.tasks.text_embedder import EmbedderArguments, EmbedderOptions, TextEmbedder
from bertfam_tf.tasks.text_learner import arguments, refuse
from bertfam_tf.tasks.text_learner import columns as members
from bertfam_tf.text import Tokenizer
from bertfam_tf.training import optimizers
from bertfam_tf.validation import check, in_range, setting

# The settings of SetFit's paper.
_PAIRS, _BATCH_SIZE, _LEARNING_RATE = 20, 16, 2e-5
_READ_AT_ONCE = 1024
_OWN = ("labels", "temperature")  # options that embedders do not have


@dataclass(frozen=True, kw_only=True)
class FewShotOptions(EmbedderOptions, SingleLabelOptions):
    """Options of ``FewShotClassifier``."""

    def __post_init__(self) -> None:
        EmbedderOptions.__post_init__(self)
        SingleLabelOptions.__post_init__(self)
        if self.pair:
            raise ValueError("pair must be false: a few-shot classifier has a vector for one text.")


class FewShotArguments(EmbedderArguments, total=False):
    """``FewShotOptions`` as keyword arguments."""

    temperature: float


class PretrainedFewShotArguments(FewShotArguments, LoadingArguments, total=False):
    """Keyword arguments of ``FewShotClassifier.from_pretrained``."""


@dataclass(frozen=True, kw_only=True)
class _Components(TaskComponents):
    embedder: TextEmbedder


class _PairTrainer(EmbedderTrainer):
    """Trains an embedder with SetFit's learning rate, if ``compile`` does not set another one."""

    def default_optimizer(self, steps: int | None = None) -> keras.optimizers.Optimizer:
        return optimizers.adamw(_LEARNING_RATE, total_steps=steps)


class Examples(NamedTuple):
    """Labelled texts in memory.

    Fields:
        texts: the texts.
        labels: int (texts,).
    """

    texts: list[bytes]
    labels: np.ndarray


class _Embedder(Modules):
    """The modules of the embedder; these files have no classifier."""

    @classmethod
    def matches(cls, directory: Path) -> bool:
        return False  # they are a TextEmbedder's

    @staticmethod
    def write(task: Any, directory: Path) -> None:
        raise UnrepresentableError(
            "Not written, because these files have no classifier on a sentence embedding. "
            "embedder.save_pretrained writes the embedder alone, for sentence-transformers; save "
            "and export write all of it."
        )


class FewShotClassifier(TextClassifier):
    """One label of a fixed list for each text, from about 4 to 50 examples for each label.

    A sentence embedder and a logistic regression on its vectors, as in SetFit. ``fit`` trains the
    embedder on pairs of examples: the cosine similarity is to be 1 for the same label and 0 for
    different ones. It then fits the logistic regression to convergence. Both are in one graph:
    ``predict``, ``evaluate``, ``save`` and the exports are the same as for ``TextClassifier``.
    Start from a checkpoint of sentence-transformers.

    Args:
        backbone: an encoder.
        tokenizer: its tokenizer.
        labels: names of the classes, in the order of the scores.
        temperature: the same as for ``TextClassifier``.
        pair: must be false.
        pooling, projections, dimensions, normalize, prompts, default_prompt, include_prompt: the
            same as for ``TextEmbedder``.
        max_length, padding, language_id, languages: the same as for ``Task``.

    Raises:
        ValueError, CheckpointError: as for ``TextClassifier`` and ``TextEmbedder``.
    """

    options_type = FewShotOptions
    head_name = None
    published_type = _Embedder
    # The trainer has pairs of texts, and is not evaluated on the dev split.
    unused_settings = ("batch_tokens", "class_weights", "patience")
    validates_epochs = False

    @dataclass(frozen=True)
    class Settings:
        """The section ``trainer`` of recipes.

        Attributes:
            pairs: the number of pairs with the same label, and of pairs with different ones, in
                which each example is the first text.
            regularization: the weight of the squared weights in the logistic regression.
        """

        pairs: int = setting(_PAIRS, at_least=1)
        regularization: float = setting(1.0, above=0)

        def __post_init__(self) -> None:
            check(self, "trainer")

    trainer_settings = Settings

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        labels: Sequence[str] | int,
        *,
        language_id: int | None = None,
        name: str | None = None,
        **options: Unpack[FewShotArguments],
    ):
        # TextClassifier lists its own options.
        super().__init__(  # type: ignore[misc]
            backbone, tokenizer, labels, language_id=language_id, name=name, **options
        )

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        labels: Sequence[str] | int | None = None,
        **options: Unpack[PretrainedFewShotArguments],
    ) -> Self:
        return super().from_pretrained(path, labels, **options)  # type: ignore[misc]

    def parts(self, backbone: Backbone, tokenizer: Tokenizer, options: Any) -> TaskComponents:
        stored = {name: value for name, value in options.stored().items() if name not in _OWN}
        embedder = TextEmbedder(backbone, tokenizer, **stored)
        inner = embedder.components
        # Zeros: without ``fit``, no label has a higher score than another.
        logits = Dense(
            len(options.labels), kernel_initializer="zeros", name="classifier", dtype="float32"
        )
        assert inner.read is not None
        read = inner.read
        return _Components(
            inputs=inner.inputs,
            outputs=logits(inner.outputs),  # (batch, labels)
            read=lambda found, given: logits(read(found, given)),
            source=inner.source,
            preprocessor=inner.preprocessor,
            targets=ClassTargets(options.labels),
            loss=cross_entropy,
            metrics=lambda: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
            distributions=one_distribution,
            signatures=lambda: classify_signature(options.labels),
            **class_answers(self, options.labels),
            embedder=embedder,
        )

    @property
    def embedder(self) -> TextEmbedder:
        """The embedder, which has the same weights."""
        return self._parts.embedder  # type: ignore[attr-defined]

    @property
    def language(self) -> str | int | None:
        return super().language

    @language.setter
    def language(self, language: str | int) -> None:
        TextClassifier.language.fset(self, language)  # type: ignore[attr-defined]
        # ``fit`` reads its vectors, from graphs and with options of its own.
        self.embedder.language = language

    @property
    def projection_layers(self) -> list[keras.layers.Dense]:
        """The dense layers on the pooled vector."""
        return self.embedder.projection_layers

    def fit(  # type: ignore[override]  # has no steps of the task itself
        self,
        x: Any,
        y: Any = None,
        *,
        batch_size: int = _BATCH_SIZE,
        epochs: int = 1,
        pairs: int = _PAIRS,
        regularization: float = 1.0,
        seed: int = 0,
        verbose: Any = "auto",
        callbacks: Any = None,
        validation_data: Any = None,
        columns: Columns | None = None,
        **others: Any,
    ) -> keras.callbacks.History:
        """Trains the embedder on pairs, and fits the logistic regression on its vectors.

        The same seed gives the same weights, on one machine.

        Args:
            x, y, verbose, callbacks, columns: the same as for ``TextClassifier.fit``. An optimizer
                that was passed to ``compile`` trains the embedder; the default is AdamW with a peak
                rate of 2e-5.
            batch_size: pairs in a batch.
            epochs: passes over the pairs; 0 keeps the embedder as it is.
            pairs, regularization: the same as for ``Settings``.
            seed: the seed for pairs, their order, and dropout.
            validation_data: examples to evaluate after the logistic regression is fitted; its
                losses and metrics are added to the history, as ``val_loss``, ….

        Returns:
            Keras' history of the training on pairs.

        Raises:
            ValueError: as for ``TextClassifier.fit``; and for a label without examples.
            TypeError: for an argument that does not exist.
        """
        refuse("fit", others, arguments(FewShotClassifier.fit))
        settings = self.Settings(pairs, regularization)
        in_range("epochs", epochs, at_least=0, integer=True)
        x, y, _ = self._selected((x, y, None), columns)
        examples = self._read(x, y)
        if verbose:
            counts = np.bincount(examples.labels, minlength=len(self.class_names)).tolist()
            print(summary(dict(zip(self.class_names, counts, strict=True)), "Labels"))
        history = keras.callbacks.History()
        history.set_model(self)
        history.on_train_begin()
        if epochs:
            trainer = self.trainer(settings)
            optimizer = self.optimizer if self._compiled_by_user else None
            if optimizer is not None:
                trainer.compile(optimizer)
            states = [v for v in trainer.variables if v.path.endswith("seed_generator_state")]
            for i, state in enumerate(states):
                state.assign([seed, i])
            first, second, similarities = self._pairs(examples, settings, seed)
            history = trainer.fit(
                {TEXT: first, TEXT_PAIR: second},
                similarities,
                batch_size=batch_size,
                epochs=epochs,
                verbose=verbose,
                callbacks=callbacks,
                shuffle=False,  # they are shuffled
            )
        self._fit_head(examples, settings)
        if validation_data is not None:
            x, y, weights = members(self._selected(validation_data, columns), self.fields)
            scores = self.evaluate(x, y, sample_weight=weights, return_dict=True, verbose=0)
            history.history |= {f"val_{name}": [value] for name, value in scores.items()}
        return history

    @property
    def _optimized_variables(self) -> list[keras.Variable]:
        return self.embedder.trainable_variables

    # Recipes ---------------------------------------------------------------------------------

    def trainer(self, settings: Any) -> EmbedderTrainer:
        return _PairTrainer(self.embedder, "cosine")

    def training_rows(self, rows: tf.data.Dataset, settings: Any, seed: int) -> tf.data.Dataset:
        examples = self._read(rows.batch(_READ_AT_ONCE))
        first, second, similarities = self._pairs(examples, settings, seed)
        return tf.data.Dataset.from_tensor_slices(({TEXT: first, TEXT_PAIR: second}, similarities))

    def finish_training(self, rows: tf.data.Dataset, settings: Any) -> None:
        self._fit_head(self._read(rows.batch(_READ_AT_ONCE)), settings)

    # -----------------------------------------------------------------------------------------

    def _read(self, x: Any, y: Any = None) -> Examples:
        """Reads labelled texts into memory.

        Raises:
            ValueError: for no labels, sample weights, or a label without examples.
        """
        targets = self._parts.targets
        x, y, _ = self.examples(x, y)
        x, y = targets.prepared(x, y)
        if y is not None:
            targets.check(y)
        stream = batches(x, y, batch_size=_READ_AT_ONCE, fields=self.fields)
        if len(stream.element_spec) != 2:
            weighted = "Sample weights are not supported by a few-shot classifier."
            raise ValueError(NO_LABELS if len(stream.element_spec) == 1 else weighted)
        texts: list[bytes] = []
        labels: list[int] = []
        pairs = stream.map(lambda features, y: (features[TEXT], targets.encode(y, {})))
        with as_value_errors():
            for batch, pair_labels in pairs.as_numpy_iterator():
                texts += batch.tolist()
                labels += pair_labels.tolist()
        if not texts:
            raise ValueError(NO_TEXT)
        present = set(labels)
        missing = [name for i, name in enumerate(self.class_names) if i not in present]
        if missing:
            raise ValueError(f"There are no examples of the labels {join_names(missing)}.")
        return Examples(texts, np.asarray(labels))

    def _pairs(
        self, examples: Examples, settings: Any, seed: int
    ) -> tuple[list[bytes], list[bytes], np.ndarray]:
        """Returns first texts, second texts and similarities of pairs, in random order."""
        random = np.random.default_rng(seed)
        texts, labels = examples
        pairs: list[tuple[int, int]] = []
        for i, label in enumerate(labels):
            same = labels == label
            others = np.flatnonzero(~same)
            same[i] = False
            # The only example of a label is paired with itself, under another dropout mask.
            positives = np.flatnonzero(same) if same.any() else np.array([i])
            for candidates in (positives, others):
                if len(candidates):
                    pairs += [(i, int(j)) for j in random.choice(candidates, settings.pairs)]
        order = np.array(pairs)[random.permutation(len(pairs))]
        first, second = ([texts[i] for i in column] for column in order.T)
        return first, second, (labels[order[:, 0]] == labels[order[:, 1]]).astype(np.float32)

    def _fit_head(self, examples: Examples, settings: Any) -> None:
        vectors = self.embedder.predict(examples.texts)
        kernel, bias = fit_logistic_regression(
            vectors, examples.labels, len(self.class_names), settings.regularization
        )
        layer = self.get_layer("classifier")
        layer.kernel.assign(kernel)
        layer.bias.assign(bias)
