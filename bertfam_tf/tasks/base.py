"""The base class of tasks: a Keras model that takes raw text."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import keras
import numpy as np
import tensorflow as tf

from bertfam_tf.data.batching import TokenBatches
from bertfam_tf.data.errors import as_value_errors
from bertfam_tf.data.inputs import (
    LANGUAGE,
    TEXT_PAIR,
    TEXTS,
    batches,
    examples,
    split_rows,
    texts_of,
)
from bertfam_tf.data.targets import Target
from bertfam_tf.metrics import by_name
from bertfam_tf.models import Backbone
from bertfam_tf.names import unexpected, unknown
from bertfam_tf.objectives.objective import Supervised
from bertfam_tf.tasks import options as declared
from bertfam_tf.tasks import pretrained, publish, storage
from bertfam_tf.tasks.attention import attention_signature
from bertfam_tf.tasks.languages import Languages
from bertfam_tf.tasks.options import Options
from bertfam_tf.tasks.parts import Parts, Signature
from bertfam_tf.tasks.preprocessing import PACKED, POOLED, Packed, token_counts
from bertfam_tf.text import Tokenizer
from bertfam_tf.training import optimizers
from bertfam_tf.training.learner import Learner

_TASKS: dict[str, type[Task]] = {}
# More examples than a batch of `train_on_batch` has.
_ONE_BATCH = 1 << 20
# The signature of exports that takes the language of each text.
_IN_LANGUAGE = "in_language"
_TAKES = {TEXT_PAIR: ("single texts", "pairs")}
NO_DATA = "There is no text in the input."


class Task(Learner):
    """A model from text to answers: tokenizer, packing, backbone and head.

    ``fit``, ``evaluate`` and ``predict`` take raw text, in the structures that
    ``bertfam_tf.data.batches`` lists. A task is a subclass that defines its options and its
    components in ``options_type``, ``parts`` and the attributes below; ``load`` and recipes find
    it by its class name.

    Texts of a backbone with language embeddings have a language: that of their own column
    ``language`` in dicts, frames and data sets of dicts, the argument ``language`` of ``predict``
    and ``evaluate``, or else the attribute ``language``, which can be changed.

    Attributes:
        options_type: the dataclass of its options.
        fields: names of the texts that an example may have.
        head_name: the head's name in the family's ``heads``; None if there is none.
        answer_name: the key of an answer in JSON, if ``predict`` does not return a dict for each
            example.
        labels_type: the type of labels in files; None for a task without labels.
        file_labels_type: the type of labels in files of recipes; None for ``labels_type``. A task
            with neither cannot be trained by recipes.
        trainer_settings: a dataclass of the settings of the model that trains the task, if that is
            not the task itself; the section ``trainer`` of recipes.
        unused_settings: keys of the section ``train`` of recipes that its training does not have.
        problem_type: ``problem_type`` in Hugging Face's config, or None.
        ranked_scores: whether ``scores`` of an answer has one for each of ``class_names``.
        needs_head: whether ``from_pretrained`` rejects checkpoints without the head.
        unpublished_inputs: inputs of the backbone that are constant in this task.
        published_type: what published checkpoints have beside a model, its head and a tokenizer.

    Raises:
        ValueError: for a ``max_length`` beyond the backbone's positions, a tokenizer with more
            pieces than the backbone has embeddings, or a ``language_id`` that is missing, out of
            range, or given for a backbone without languages.
        TypeError: for an option that does not exist.
    """

    options_type: ClassVar[type[Options]] = Options
    fields = TEXTS
    head_name: ClassVar[str | None] = None
    answer_name: ClassVar[str] = "answer"
    labels_type: ClassVar[type[Target] | None] = None
    file_labels_type: ClassVar[type[Target] | None] = None
    trainer_settings: ClassVar[type[Any] | None] = None
    unused_settings: ClassVar[tuple[str, ...]] = ()
    problem_type: ClassVar[str | None] = None
    ranked_scores: ClassVar[bool] = False
    needs_head: ClassVar[bool] = False
    unpublished_inputs: ClassVar[tuple[str, ...]] = ()
    published_type: ClassVar[type[pretrained.Published]] = pretrained.Published
    # For tasks without an optional text.
    pair: bool | None = False
    # The ``heads.Head`` on the backbone; None for a task without a head with weights.
    head: Any = None

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        _TASKS[cls.__name__] = cls
        kind = cls.options_type
        cls.__signature__ = declared.constructor_signature(kind)  # type: ignore[attr-defined]
        cls.__doc__ = declared.documented(cls.__doc__ or "", kind)

        def from_pretrained(cls: type[Task], path: str | Path, *args: Any, **kwargs: Any) -> Task:
            return pretrained.open_task(cls, path, args, kwargs)

        from_pretrained.__doc__ = declared.documented(
            Task.from_pretrained.__doc__ or "", kind, pretrained=True
        )
        from_pretrained.__signature__ = declared.pretrained_signature(kind)  # type: ignore[attr-defined]
        if "from_pretrained" not in vars(cls):
            cls.from_pretrained = classmethod(from_pretrained)  # type: ignore[assignment, method-assign]
        for name in declared.names(kind):
            if name not in vars(cls):
                setattr(cls, name, _option(name, name in declared.settable(kind)))

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        *args: Any,
        name: str | None = None,
        **options: Any,
    ):
        made = declared.make(self.options_type, type(self).__name__, args, options)
        made = made.resolved(backbone)
        Languages(backbone, tokenizer, made.language_id, made.languages)
        _check_sizes(backbone, tokenizer, made)
        parts = self.parts(backbone, tokenizer, made)
        super().__init__(
            parts.inputs,
            parts.outputs,
            parts.objectives or ([] if parts.loss is None else [Supervised(parts.loss)]),
            name=name,
        )
        self.options = made
        self.backbone = backbone
        self.tokenizer = parts.preprocessor.tokenizer
        if parts.preprocessor.languages.count:
            self.fields = type(self).fields._replace(described=(LANGUAGE,))
        self.head = parts.head
        self._parts = parts
        self._compiled_by_user = False
        self._validation: tf.data.Dataset | None = None
        layers = () if parts.head is None else parts.head.layers
        read = {id(variable) for variable in backbone.weights_of(parts.source, layers=layers)}
        self._unread = frozenset(id(v) for v in backbone.weights if id(v) not in read)
        self.forget_graphs()

    def parts(self, backbone: Backbone, tokenizer: Tokenizer, options: Any) -> Parts:
        """Returns the components of this task.

        It is called before the Keras model exists: it may pass on bound methods, but must not read
        or set attributes.
        """
        raise NotImplementedError

    @classmethod
    def from_pretrained(cls, path: str | Path, *args: Any, **kwargs: Any) -> Self:
        """Loads a published checkpoint as this task, for ``fit`` (or ``predict``).

        The checkpoint's head is loaded if it has one (for classifiers and taggers: one for the
        same labels, or for as many without names, which then have the given ones in order);
        otherwise the head is initialized at random, which is logged. Without ``max_length``, it is
        the one that is stored: with the modules of sentence-transformers, with KerasHub's
        preprocessor, or as the tokenizer's ``model_max_length``; at most the number of positions.

        Args:
            path: a directory, ``package:NAME``, or a hub id.
            {options}
            **overrides: config fields of the backbone, such as ``dropout=0.0``.

        Raises:
            CheckpointError: as ``bertfam_tf.load_backbone`` raises it.
            ValueError: as the constructor raises it, and for labels that are needed, a language
                that the checkpoint does not have, or files of a tokenizer that are not valid.
        """
        return pretrained.open_task(cls, path, args, kwargs)

    @classmethod
    def head_of(cls, family: str) -> str | None:
        """The name of the head for backbones of a family."""
        return cls.head_name

    # From text to answers, as graphs ---------------------------------------------------------

    @tf.autograph.experimental.do_not_convert
    def preprocess(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Converts string tensors (batch,) to the model's inputs, int32 (batch, longest)."""
        preprocessor = self._parts.preprocessor
        return preprocessor.inputs(preprocessor(features))

    @tf.autograph.experimental.do_not_convert
    def encode(self, features: dict[str, tf.Tensor]) -> dict[str, Any]:
        """Converts string tensors (batch,) to what the model's inputs and answers require."""
        return self._parts.preprocessor(features)

    def forward(self, encoded: dict[str, Any]) -> Any:
        """The model's outputs for what ``encode`` returned."""
        inputs = self._parts.preprocessor.inputs(encoded)
        if self._parts.forward is not None:
            return self._parts.forward(inputs)
        return self._parts.preprocessor.run(self, inputs)

    def postprocess(self, outputs: Any, encoded: dict[str, Any] | None = None) -> Any:
        """Converts the model's outputs to answers; dimension 0 of each is the batch.

        Args:
            outputs: from ``forward``.
            encoded: from ``encode``; None if answers only depend on the outputs.
        """
        return self._parts.postprocess(outputs, encoded or {})

    def answer(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Maps string tensors (batch,) to answers, from end to end, as in the exported model."""
        encoded = self.encode(features)
        return self.postprocess(self.forward(encoded), encoded)

    def answer_ids(self, inputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Maps packed token ids to answers, or to logits if answers contain parts of the text.

        Args:
            inputs: int32 (batch, length), as in ``packed_specs``.
        """
        given = self._parts.preprocessor.inputs(inputs)
        outputs = self(given, training=False)
        if self._parts.answer_ids is not None:
            return self._parts.answer_ids(outputs, given)
        return self.postprocess(outputs, given)

    @property
    def answers_from_ids(self) -> bool:
        """Whether ``answer_ids`` returns the same as ``answer`` does for texts."""
        return self._parts.answer_ids is None

    def signatures(self, *, attention: int | None = None, **options: Any) -> dict[str, Signature]:
        """The signatures of an export by name: ``serving_default`` takes texts, ``ids`` token ids.

        If the backbone has languages, both answer in the task's language, and ``in_language`` takes
        texts and ``language``, string (batch,), the code of each text's language.

        Args:
            attention: adds a signature ``attention``, which takes texts, with maps of this number
                of tokens: ``attention.attention_signature``.
            **options: options of this task's export, which the class documents.

        Raises:
            TypeError: for an option that does not exist.
            ValueError: as ``attention_signature`` raises it.
        """
        make = self._parts.signatures
        known = inspect.signature(make).parameters
        if not any(each.kind is each.VAR_KEYWORD for each in known.values()):
            _refuse("export", options.keys() - known.keys(), known)
        more = {} if attention is None else {"attention": attention_signature(self, attention)}
        found = {
            "serving_default": Signature(self.answer),
            "ids": Signature(self.answer_ids, self.packed_specs),
            **make(**options),
            **more,
        }
        if self._parts.preprocessor.languages.count:
            found[_IN_LANGUAGE] = self._in_language(found["serving_default"])
        return found

    def _in_language(self, default: Signature) -> Signature:
        """A signature that takes the code of each text's language too."""
        codes = np.array([code.encode() for code in self._parts.preprocessor.languages.ids], object)

        def with_codes(texts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            rows = len(next(iter(texts.values())))
            return {**texts, LANGUAGE: np.resize(codes, rows)}

        specs = {**self.feature_specs, LANGUAGE: tf.TensorSpec([None], tf.string, LANGUAGE)}
        return default._replace(inputs=specs, of_texts=with_codes)

    def with_backbone(self, backbone: Backbone) -> Self:
        """A new task with the same tokenizer and options on another backbone; its head is new."""
        return type(self)(backbone, self.tokenizer, **self.options.stored())

    @property
    def language(self) -> str | int | None:
        """The language of texts that come without one: its code, or its id if it has no code;
        None if the backbone has no language embeddings.

        Answers, training and exports after a change use the new one. A tokenizer whose rules depend
        on the language changes with it.

        Raises:
            ValueError: when it is set to a language that the backbone does not have.
        """
        return self._parts.preprocessor.languages.language

    @language.setter
    def language(self, language: str | int) -> None:
        for each in (self._parts.preprocessor, self._parts.training_preprocessor):
            if each is not None:
                each.languages.set(language)
        languages = self._parts.preprocessor.languages
        self.tokenizer = languages.tokenizer
        self.options = dataclasses.replace(self.options, language_id=languages.language_id)
        self.forget_graphs()

    @property
    def components(self) -> Parts:
        """The components that ``parts`` returned."""
        return self._parts

    @property
    def one_input_per_example(self) -> bool:
        """Whether each example is one of the model's inputs, which windows of a text are not."""
        return (
            type(self._parts.preprocessor) is Packed and self._parts.training_preprocessor is None
        )

    @property
    def class_names(self) -> list[str]:
        """Names of the labels or tags, in the order of the scores; empty if there are none."""
        name = declared.class_option(self.options_type)
        return [] if name is None else getattr(self.options, name)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the text inputs, such as ``text``, and ``text_pair`` in pair models."""
        return (*self.fields.required, *(self.fields.optional if self.pair else ()))

    @property
    def feature_specs(self) -> dict[str, tf.TensorSpec]:
        """The text inputs by name: (batch,), or (batch, strings) if an example has several."""
        counts = self._parts.feature_counts
        return {
            name: tf.TensorSpec([None, *([counts[name]] if name in counts else [])], "string", name)
            for name in self.feature_names
        }

    @property
    def packed_specs(self) -> dict[str, tf.TensorSpec]:
        """The model's inputs by name, packed token ids: int32 (batch, …, length), or with
        characters after these."""
        inputs = self._parts.inputs
        return {n: tf.TensorSpec(inputs[n].shape, tf.int32, n) for n in PACKED if n in inputs}

    @property
    def packed_value_counts(self) -> dict[str, int]:
        """The number of valid values, from 0, of inputs in ``packed_specs``, if limited."""
        config = self.backbone.config
        counts = {
            "token_ids": config.vocab_size,
            "padding_mask": 2,
            "segment_ids": getattr(config, "num_segments", None),
            POOLED: 2,
        }
        return {name: counts[name] for name in self.packed_specs if counts[name]}

    @property
    def published_inputs(self) -> tuple[str, ...]:
        """The backbone's inputs that are not constant in this task."""
        inputs = self.backbone.token_inputs.keys() - set(self.unpublished_inputs)
        return tuple(name for name in PACKED if name in inputs)

    # Keras' methods, on text -----------------------------------------------------------------

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        """Excludes variables of the backbone that no output uses, such as an unused pooler's."""
        return [v for v in super().trainable_variables if id(v) not in self._unread]

    @property
    def trainable_weights(self) -> list[keras.Variable]:
        return [v for v in super().trainable_weights if id(v) not in self._unread]

    def compile(self, optimizer: Any = None, loss: Any = None, **kwargs: Any) -> None:
        """As ``keras.Model.compile``; omitted arguments get the task's defaults.

        ``metrics`` accepts the names in ``bertfam_tf.metrics.METRICS`` as well as Keras' names.

        ``jit_compile`` is off by default: examples are padded to the longest of their batch, and
        XLA would compile once for every length. With the option ``padding`` they are padded to a
        few lengths, or to one.
        """
        self._compiled_by_user = True
        self._compile(optimizer, loss, **kwargs)

    def _compile(
        self, optimizer: Any = None, loss: Any = None, *, steps: int | None = None, **kwargs: Any
    ) -> None:
        # `fit` may be called outside of the scope that the weights were made in.
        with self.distribute_strategy.scope():
            if isinstance(kwargs.get("metrics"), list | tuple):
                kwargs["metrics"] = [by_name(metric) for metric in kwargs["metrics"]]
            for name in ("metrics", "weighted_metrics"):
                make = getattr(self._parts, name)
                if make is not None and name not in kwargs:
                    kwargs[name] = make()
            if optimizer is None:
                optimizer = optimizers.adamw(total_steps=steps)
            super().compile(optimizer, loss, **kwargs)
        self.forget_graphs()

    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        batch_size: int | None = None,
        batch_tokens: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: Mapping[Any, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: Any = 1,
        **others: Any,
    ) -> keras.callbacks.History:
        """As ``keras.Model.fit``, on raw text and labels.

        If ``compile`` was not called, the task is compiled with ``optimizers.adamw`` for the steps
        of this call (with a constant learning rate if the data set's cardinality is unknown).

        Args:
            batch_size: examples in a batch, 32 by default.
            batch_tokens: tokens that a batch may have, in place of ``batch_size``: many short
                examples or few long ones, of similar length. Lists and arrays are tokenized once
                beforehand, so that the number of steps is known; a data set, of single examples, is
                not, and an epoch ends where it does. See ``bertfam_tf.data.TokenBatches``.
            validation_batch_size: None for ``batch_size``; validation takes no ``batch_tokens``.
            class_weight: for classifiers, the factor of the loss of each label's examples, by the
                label's name or index; 1 for omitted labels.

        Raises:
            ValueError: for no data, data of an unknown structure, missing values, an unknown
                label, both sample weights and class weights, both ``batch_size`` and
                ``batch_tokens``, or an example of more than ``batch_tokens`` tokens.
            TypeError: for an argument that does not exist.
        """
        _refuse("fit", others, _arguments(Task.fit))
        if batch_tokens is not None and batch_size is not None:
            raise ValueError(
                "Either batch_size or batch_tokens must be None, got "
                f"{batch_size=} and {batch_tokens=}."
            )
        batch_size = 32 if batch_size is None else batch_size
        given = examples(x, y, sample_weight, self.fields, self._parts.targets.prepared)
        if validation_split and validation_data is None:
            given, validation_data = split_rows(*given, validation_split, self.fields)
        dataset = self.training_batches(
            *given, batch_size, shuffle=shuffle, batch_tokens=batch_tokens, training=True
        )
        if validation_data is not None:
            data = validation_data if isinstance(validation_data, tuple) else (validation_data,)
            x, y, weights = (*data, None, None)[:3]
            validation_data = self.training_batches(
                x, y, weights, validation_batch_size or batch_size
            )
        if not self._compiled_by_user:
            steps = steps_per_epoch or int(dataset.cardinality())
            steps *= epochs - initial_epoch
            self._compile_defaults(steps if steps > 0 else None)
        if class_weight is not None:
            class_weight = self._parts.targets.class_weights(class_weight)
        self._validation = validation_data
        try:
            with as_value_errors():
                history = super().fit(
                    dataset,
                    epochs=epochs,
                    verbose=verbose,
                    callbacks=callbacks,
                    validation_data=validation_data,
                    shuffle=False,  # the stream is shuffled; Keras warns that it cannot
                    class_weight=class_weight,
                    initial_epoch=initial_epoch,
                    steps_per_epoch=steps_per_epoch,
                    validation_steps=validation_steps,
                    validation_freq=validation_freq,
                )
        finally:
            self._validation = None
        if history.epoch and not history.history:
            raise ValueError(NO_DATA)
        return history

    def evaluate(
        self,
        x: Any,
        y: Any = None,
        *,
        batch_size: int = 32,
        verbose: Any = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Any = None,
        return_dict: bool = False,
        language: str | int | None = None,
        **others: Any,
    ) -> Any:
        """As ``keras.Model.evaluate``, on raw text and labels; or scores of the answers.

        The class documents whether this returns the loss and the metrics that it was compiled
        with, or scores of the answers that ``predict`` returns.

        Args:
            language: as for ``predict``.

        Raises:
            ValueError, TypeError: as for ``fit``.
        """
        if x is not None and x is self._validation:
            # Keras' fit() evaluates the data set that our fit() made.
            return super().evaluate(
                x,
                verbose=verbose,
                steps=steps,
                callbacks=callbacks,
                return_dict=return_dict,
                **others,
            )
        _refuse("evaluate", others, _arguments(Task.evaluate))
        scoring = self._parts.evaluation
        if scoring is not None:
            if sample_weight is not None:
                raise TypeError("evaluate takes no 'sample_weight' if it scores answers.")
            x, y, _ = examples(x, y, None, self.fields, scoring.prepared)
            x, y = scoring.prepared(x, y)
            stream = batches(x, y, batch_size=batch_size, fields=self.fields)
            if len(stream.element_spec) == 1:
                self._parts.targets.check(None)
            loop = dict(verbose=verbose, steps=steps, callbacks=callbacks, mode="test")
            scored = self._traced(scoring.function, labelled=True, language=language)
            results = scoring.score(self._run(scored, stream, **loop))
            return results if return_dict else list(results.values())
        dataset = self.training_batches(x, y, sample_weight, batch_size, language=language)
        if not self.compiled:
            self._compile_defaults()
        with as_value_errors():
            results = super().evaluate(
                dataset, verbose=verbose, steps=steps, callbacks=callbacks, return_dict=return_dict
            )
        if results in ([], {}):
            raise ValueError(NO_DATA)
        return results

    def predict(
        self,
        x: Any,
        *,
        batch_size: int = 32,
        verbose: Any = 0,
        steps: int | None = None,
        callbacks: Any = None,
        language: str | int | None = None,
        **others: Any,
    ) -> Any:
        """Returns the exported model's answers for raw texts; labels in a data set are ignored.

        Args:
            x: texts; a single string (or a dict of strings) is treated as a list of one.
            batch_size: examples in a batch.
            verbose, callbacks: as in Keras.
            steps: number of batches; None for all.
            language: the code or the id of the language of all texts, for backbones with language
                embeddings; None for the texts' own column, or for the task's ``language``.

        Returns:
            a list, or an array, with an answer for each example, as the class documents.

        Raises:
            ValueError: for data of an unknown structure, missing values, no data, a language that
                the backbone does not have, or both a language and a column of languages.
            TypeError: for an argument that does not exist.
        """
        _refuse("predict", others, _arguments(Task.predict))
        loop: dict[str, Any] = dict(
            batch_size=batch_size,
            verbose=verbose,
            steps=steps,
            callbacks=callbacks,
            language=language,
        )
        return self._answered(
            self._parts.predicted or self.answer, self._parts.to_python, x, **loop
        )

    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Mapping[Any, float] | None = None,
        return_dict: bool = False,
    ) -> Any:
        """As ``keras.Model.train_on_batch``, on the raw texts and labels of one batch.

        Preparing a batch alone takes some tenths of a second; ``fit`` prepares batches beside its
        steps.

        Args:
            x: texts in memory, as ``fit`` takes them; or packed token ids by name.
            class_weight: as for ``fit``.

        Raises:
            ValueError: as for ``fit``; and for a data set.
        """
        batch = self._one_batch(x, y, sample_weight, training=True)
        if class_weight is not None:
            class_weight = self._parts.targets.class_weights(class_weight)
        with as_value_errors():
            return super().train_on_batch(
                *batch, class_weight=class_weight, return_dict=return_dict
            )

    def test_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False
    ) -> Any:
        """As ``keras.Model.test_on_batch``: the loss and Keras' metrics, also where ``evaluate``
        scores answers.

        Args:
            x: as for ``train_on_batch``.

        Raises:
            ValueError: as for ``train_on_batch``.
        """
        batch = self._one_batch(x, y, sample_weight)
        with as_value_errors():
            return super().test_on_batch(*batch, return_dict=return_dict)

    def predict_on_batch(self, x: Any) -> Any:
        """The answers of ``predict``; of packed token ids, the Keras model's outputs.

        Args:
            x: as for ``train_on_batch``, without labels.

        Raises:
            ValueError: as for ``predict``; and for a data set.
        """
        if _is_packed_batch(x):
            return super().predict_on_batch(x)
        _refuse_data_set(x)
        return self.predict(x, batch_size=_ONE_BATCH)

    def _one_batch(
        self, x: Any, y: Any, sample_weight: Any, *, training: bool = False
    ) -> tuple[Any, ...]:
        """Inputs, targets and weights of one batch, as far as given."""
        if not self.compiled:
            self._compile_defaults()
        if _is_packed_batch(x):
            return x, y, sample_weight
        _refuse_data_set(x)
        batches = self.training_batches(x, y, sample_weight, _ONE_BATCH, training=training)
        return next(iter(batches))

    # Running the model ------------------------------------------------------------------------

    def _answered(
        self,
        function: Callable,
        to_python: Callable,
        x: Any,
        *,
        batch_size: int,
        language: str | int | None = None,
        **loop: Any,
    ) -> Any:
        """Answers of ``function`` for texts of any structure, converted by ``to_python``."""
        prepare = self._parts.targets.prepared
        texts, _ = prepare(texts_of(x, self.fields, prepare), None)
        stream = batches(texts, batch_size=batch_size, fields=self.fields)
        run = self._run(self._traced(function, language=language), stream, **loop)
        parts = [to_python(outputs, batch[0]) for outputs, batch in run]
        if isinstance(parts[0], np.ndarray):
            return np.concatenate(parts)
        return [answer for part in parts for answer in part]

    def _traced(
        self,
        function: Callable,
        *,
        labelled: bool = False,
        language: str | int | None = None,
    ) -> Any:
        """A ``tf.function`` of a batch ``(features, …)``, one for each function and language.

        Args:
            function: takes the features; or the whole batch if ``labelled``.
            language: of the texts; None for their own or the task's.
        """
        languages = self._parts.preprocessor.languages
        language_id = None if language is None else languages.id_of(language)
        key = (function, language_id)
        if key not in self._graphs:

            def of_batch(features: dict[str, tf.Tensor], *rest: Any) -> Any:
                described = _with_language(features, language_id)
                return function(described, *rest) if labelled else function(described)

            self._graphs[key] = tf.function(of_batch, autograph=False)
        return self._graphs[key]

    def forget_graphs(self) -> None:
        """Discards traced functions, after a change of the layers or of an option."""
        self._graphs: dict[Any, Any] = {}

    def _run(
        self,
        function: Any,
        stream: tf.data.Dataset,
        *,
        verbose: Any = 0,
        steps: int | None = None,
        callbacks: Any = None,
        mode: str = "predict",
    ) -> Iterator[tuple[Any, tuple]]:
        """Yields the output of a ``tf.function`` for each batch, and the batch, for each replica.

        Keras' own loop takes some tenths of a second to set up: for few texts, most of the time.
        """
        self._settle_pair(stream)
        stream = stream if steps is None else stream.take(steps)
        count = int(stream.cardinality())
        # With None, Keras' progress bar counts batches without a total.
        hooks = keras.callbacks.CallbackList(
            callbacks,
            add_progbar=verbose != 0,
            verbose=verbose,
            epochs=1,
            steps=count if count > 0 else None,
            model=self if callbacks else None,
        )
        run = self._on_replicas(function, stream.element_spec)
        number = -1
        getattr(hooks, f"on_{mode}_begin")()
        with as_value_errors():
            for number, batch in enumerate(stream.prefetch(2)):
                getattr(hooks, f"on_{mode}_batch_begin")(number)
                found = run(batch)
                yield from found
                logs = {"outputs": found[0][0] if len(found) == 1 else [each[0] for each in found]}
                getattr(hooks, f"on_{mode}_batch_end")(number, logs if mode == "predict" else {})
        getattr(hooks, f"on_{mode}_end")()
        if number < 0:
            raise ValueError(NO_DATA)

    def _on_replicas(self, function: Any, spec: Any) -> Callable[[tuple], list[tuple[Any, tuple]]]:
        """Runs a function on batches, of which each replica of this process gets a part."""
        strategy = self.distribute_strategy
        if strategy.num_replicas_in_sync == 1:
            # Traced for batches of any size: the last one is often smaller.
            traced = function.get_concrete_function(*spec)
            return lambda batch: [(traced(*batch), batch)]
        replicas = len(strategy.extended.worker_devices)

        def part(batch: tuple, replica: Any) -> tuple:
            size = -(-tf.shape(tf.nest.flatten(batch)[0])[0] // replicas)
            return tf.nest.map_structure(lambda x: x[replica * size : (replica + 1) * size], batch)

        def on_replica(*batch: Any) -> Any:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            return function(*part(batch, replica % replicas))

        key = (function, "replicas")
        if key not in self._graphs:
            self._graphs[key] = tf.function(
                lambda *batch: strategy.run(on_replica, batch), autograph=False
            )
        traced = self._graphs[key].get_concrete_function(*spec)

        def run(batch: tuple) -> list[tuple[Any, tuple]]:
            found = strategy.experimental_local_results(traced(*batch))
            return [(each, part(batch, i)) for i, each in enumerate(found)]

        return run

    # Training data ---------------------------------------------------------------------------

    def _compile_defaults(self, steps: int | None = None) -> None:
        if self._parts.loss is None and not self._parts.objectives:
            raise ValueError(f"{type(self).__name__} has no default loss; call compile(loss=…).")
        self._compile(steps=steps)

    def count_tokens(self, features: dict[str, tf.Tensor]) -> tf.Tensor:
        """The number of tokens of each example in ``fit``: those of all windows, without padding.

        Args:
            features: string tensors (batch,) by name.

        Returns:
            int32 (batch,).
        """
        return token_counts(self._parts.training_preprocessor or self._parts.preprocessor, features)

    def training_batches(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        batch_size: int = 32,
        *,
        shuffle: bool = False,
        batch_tokens: int | None = None,
        training: bool = False,
        seed: int | None = None,
        labelled: bool = True,
        language: str | int | None = None,
        extend: Callable[[dict[str, tf.Tensor], dict[str, Any], tuple], tuple] | None = None,
    ) -> tf.data.Dataset:
        """Batches as the Keras model takes them: inputs, targets, weights, as far as given.

        Args:
            x, y, sample_weight, batch_size, shuffle, batch_tokens: as for ``fit``.
            training: whether random numbers for masks are redrawn in each epoch; else they are
                always the same.
            seed: of those random numbers, which are then the same in each epoch.
            labelled: whether examples must have labels.
            language: as for ``predict``.
            extend: function of texts, of what ``encode`` returns for them, and of a batch, whose
                result is the batch instead.

        Raises:
            ValueError: as for ``fit``.
        """
        targets = self._parts.targets
        x, y, sample_weight = examples(x, y, sample_weight, self.fields, targets.prepared)
        x, y = targets.prepared(x, y)
        if y is not None:
            targets.check(y)
        stream = batches(
            x,
            y,
            sample_weight,
            batch_size=batch_size,
            by_tokens=None
            if batch_tokens is None
            else TokenBatches(batch_tokens, self.count_tokens),
            shuffle=shuffle,
            fields=self.fields,
        )
        if len(stream.element_spec) == 1 and labelled:
            targets.check(None)
        self._settle_pair(stream)
        preprocessor: Any = self._parts.training_preprocessor or self._parts.preprocessor
        language_id = None if language is None else preprocessor.languages.id_of(language)

        @tf.autograph.experimental.do_not_convert
        def encode(features, *rest, **drawn):
            features = _with_language(features, language_id)
            encoded = preprocessor(features, **drawn)
            batch = (preprocessor.inputs(encoded), *labels_of(encoded, *(rest or (None,))))
            return batch if extend is None else extend(features, encoded, batch)

        def labels_of(encoded, labels, *weights):
            target = targets.encode(labels, encoded) if labels is not None or labelled else None
            if isinstance(target, tuple):
                return target
            spread = [targets.weights(preprocessor.spread(each, encoded)) for each in weights]
            return (*([] if labels is None else [target]), *spread)

        if not self._parts.draws:
            return stream.map(encode, num_parallel_calls=tf.data.AUTOTUNE).prefetch(2)

        @tf.autograph.experimental.do_not_convert
        def encode_drawn(number, batch):
            count = tf.shape(tf.nest.flatten(batch)[0])[0]
            seeds = tf.stack([tf.fill([count], number), tf.range(count)], axis=1)
            return encode(*batch, seeds=seeds)

        numbers = tf.data.Dataset.random(
            0 if seed is None and not training else seed,
            rerandomize_each_iteration=training and seed is None,
        ).map(lambda number: tf.cast(number % (1 << 31), tf.int32))
        drawn = tf.data.Dataset.zip(numbers, stream)
        return drawn.map(encode_drawn, num_parallel_calls=tf.data.AUTOTUNE).prefetch(2)

    def _settle_pair(self, stream: tf.data.Dataset) -> None:
        given = any(name in stream.element_spec[0] for name in self.fields.optional)
        if self.pair is None:
            self.pair = given
        if given != self.pair:
            name = self.fields.optional[0]
            takes = _TAKES.get(name, (f"examples without {name!r}", f"examples with {name!r}"))
            has = "a" if given else "no"
            raise ValueError(
                f"This task takes {takes[bool(self.pair)]}; the data has {has} {name!r}."
            )

    # Recipes ---------------------------------------------------------------------------------

    @classmethod
    def file_labels(cls) -> type[Target] | None:
        """Returns the type of labels in files of recipes; None if recipes cannot train the task."""
        return cls.file_labels_type or cls.labels_type

    @classmethod
    def takes_labels(cls, settings: Any) -> bool:
        """Returns whether training needs labels.

        Args:
            settings: of type ``trainer_settings``, or None.
        """
        return True

    @classmethod
    def options_of_data(cls, features: Mapping[str, Any], labels: list[str]) -> dict[str, Any]:
        """Returns the options that training data decide: pairs, and the names of labels.

        Args:
            features: the ``tf.TensorSpec`` of each column of texts.
            labels: the names of the labels.

        Raises:
            ValueError: for columns that are not the task's.
        """
        cls.fields.check(features.keys() - {LANGUAGE})
        found: dict[str, Any] = {}
        if "pair" in declared.names(cls.options_type):
            found["pair"] = any(name in features for name in cls.fields.optional)
        classes = declared.class_option(cls.options_type)
        return found if classes is None else {**found, classes: labels}

    @classmethod
    def rows_per_example(cls, columns: Mapping[str, int]) -> int:
        """Returns the number of rows of tokens that the training of an example computes.

        Args:
            columns: the number of texts in each column.
        """
        return 1

    def trainer(self, settings: Any) -> Learner:
        """Returns the model whose ``fit`` trains this task on raw texts: the task itself.

        Args:
            settings: of type ``trainer_settings``, or None.
        """
        return self

    def score(
        self,
        rows: tf.data.Dataset,
        settings: Any = None,
        *,
        batch_size: int = 32,
        language: str | int | None = None,
    ) -> dict[str, float]:
        """Scores the task in recipes: the loss and metrics of ``evaluate``.

        Args:
            rows: single examples, ``(features, label)``.
            settings: of type ``trainer_settings``, or None.
            batch_size: examples in a batch.
            language: as for ``predict``.
        """
        batches = rows.batch(batch_size)
        return self.evaluate(batches, return_dict=True, verbose=0, language=language)

    # Storing ---------------------------------------------------------------------------------

    # Not a property: Keras would follow it back to the task when it stores weights.
    def served_tasks(self) -> dict[str, Task]:
        """The tasks that an export answers for, by the names of their signatures: this one."""
        return {"": self}

    def describe(self) -> dict[str, Any]:
        """The task's description that ``save`` and ``export`` store, sufficient to rebuild it."""
        return storage.describe(self)

    def save(self, directory: str | Path, overwrite: bool = True, **kwargs: Any) -> None:
        """Writes weights, config and tokenizer into ``directory``; ``bertfam_tf.load`` reads it.

        The directory is written atomically; an existing one is only replaced by a complete one.

        Raises:
            FileExistsError: if it exists and ``overwrite`` is false, or it is not a saved task.
            OSError: if writing fails, for example on a full disk; an existing directory is kept.
        """
        storage.save(self, Path(directory), overwrite)

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy, also by way of a pickle, has what ``save`` writes, and is not compiled.
        return storage.unpacked, (storage.packed(self),)

    def save_pretrained(self, directory: str | Path) -> None:
        """Writes a model that transformers reads: backbone, head, labels and tokenizer.

        ``transformers.pipeline(task, model=directory)`` gives the same answers, and so does this
        class's ``from_pretrained``. Options that choose answers and are not part of a model
        there are omitted: a threshold, ``top_k``, windows and the like. ``max_length`` becomes the
        tokenizer's ``model_max_length``.

        Args:
            directory: new or empty; it is written atomically.

        Raises:
            FileExistsError: if it exists and is not an empty directory.
            CheckpointError: for options that the format cannot express, a tokenizer without an
                equivalent in transformers, or weights that are not finite. Nothing is written
                then.
        """
        publish.save_pretrained(self, directory)

    def export(self, directory: str | Path, version: int | None = None, **kwargs: Any) -> Path:
        """Writes a SavedModel for TF Serving: ``directory/<version>``, the next one if None.

        Args:
            directory: the model's base path.
            version: a number.
            **kwargs: ``dtype``, ``calibration``, ``fallback``, ``batching`` and ``metrics``, as
                ``bertfam_tf.export.export_saved_model`` documents them, and the arguments of this
                task's ``signatures``.

        Raises:
            FileExistsError, ValueError, ExportError: as ``export_saved_model`` does.
        """
        from bertfam_tf.export import export_saved_model

        return export_saved_model(self, directory, version=version, **kwargs)

    def export_tflite(self, file: str | Path, **kwargs: Any) -> Path:
        """Writes a ``.tflite`` file for mobile devices, as ``bertfam_tf.export.export_tflite``.

        Args:
            file: the path, which ends in ``.tflite``.
            **kwargs: ``inputs``, ``quantize``, ``length`` and ``calibration``.

        Raises:
            ValueError, ExportError: as ``bertfam_tf.export.export_tflite`` does.
        """
        from bertfam_tf.export import export_tflite

        return export_tflite(self, file, **kwargs)


def task_class(name: str) -> type[Task]:
    """The task of that name.

    Raises:
        ValueError: if there is none; the message suggests the most similar name.
    """
    if name not in _TASKS:
        raise ValueError(unknown("task", name, _TASKS))
    return _TASKS[name]


def trainable_tasks() -> list[str]:
    """Names of the tasks that recipes can train."""
    return [name for name, cls in _TASKS.items() if cls.file_labels() is not None]


def _option(name: str, settable: bool) -> property:
    """A task's attribute for one of its options."""

    def get(self: Task) -> Any:
        return getattr(self.options, name)

    def change(self: Task, value: Any) -> None:
        self.options = dataclasses.replace(self.options, **{name: value})
        self.forget_graphs()

    return property(get, change if settable else None)


def _arguments(function: Callable) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [each.name for each in parameters if each.name not in ("self", "others")]


def _refuse(function: str, others: Any, known: Any) -> None:
    if others:
        raise TypeError(unexpected(function, sorted(others), known))


def _is_packed_batch(x: Any) -> bool:
    return isinstance(x, Mapping) and "token_ids" in x


def _refuse_data_set(x: Any) -> None:
    if isinstance(x, tf.data.Dataset):
        raise ValueError("Expected the texts of one batch, got a tf.data.Dataset.")


def _check_sizes(backbone: Backbone, tokenizer: Tokenizer, options: Options) -> None:
    positions, length = backbone.max_length, options.max_length
    if positions and length is not None and length > positions:
        raise ValueError(f"max_length {length} exceeds the model's {positions} positions.")
    read = tuple(backbone.input["token_ids"].shape[2:])
    if tokenizer.token_shape != read:
        raise ValueError(
            f"{type(tokenizer).__name__} makes {_ids(tokenizer.token_shape)} of each token, the "
            f"{backbone.family} backbone reads {_ids(read)}."
        )
    if tokenizer.vocab_size > backbone.config.vocab_size:
        raise ValueError(
            f"The tokenizer has {tokenizer.vocab_size} pieces, the model only "
            f"{backbone.config.vocab_size} embeddings."
        )


def _ids(shape: tuple[int, ...]) -> str:
    return f"{shape[0]} ids of characters" if shape else "one id"


def _with_language(features: dict[str, Any], language_id: int | None) -> dict[str, Any]:
    if language_id is None:
        return features
    if LANGUAGE in features:
        raise ValueError(
            f"Either language or the column {LANGUAGE!r} of the data must be omitted, got both."
        )
    return {**features, LANGUAGE: language_id}
