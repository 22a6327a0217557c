"""The base class of tasks: a Keras model that takes raw text."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import keras
import tensorflow as tf

from bertfam_tf import registry
from bertfam_tf.data.inputs import LANGUAGE, TEXTS, batches
from bertfam_tf.data.tables import Columns
from bertfam_tf.data.targets import Target
from bertfam_tf.hints import Hinted, hint
from bertfam_tf.metrics.table import by_name, of_logits
from bertfam_tf.models import Backbone
from bertfam_tf.names import unknown
from bertfam_tf.objectives.objective import Supervised
from bertfam_tf.sources import opened
from bertfam_tf.tasks import options as declared
from bertfam_tf.tasks import pretrained
from bertfam_tf.tasks.components import TaskComponents
from bertfam_tf.tasks.inference import TaskInference
from bertfam_tf.tasks.languages import Languages
from bertfam_tf.tasks.options import Options
from bertfam_tf.tasks.task_storage import TaskStorage
from bertfam_tf.tasks.text_learner import ONE_BATCH, arguments, is_packed_batch, refuse
from bertfam_tf.tasks.training_data import TaskTraining
from bertfam_tf.text import Tokenizer
from bertfam_tf.training.learner import Learner
from bertfam_tf.validation import check

_TASKS: dict[str, type[Task]] = {}


class Task(Hinted, TaskStorage, TaskInference, TaskTraining):
    """A model from text to answers: tokenizer, packing, backbone and head.

    ``fit``, ``evaluate`` and ``predict`` take raw text, in the structures that
    ``bertfam_tf.data.batches`` lists. Subclasses define their options and components in
    ``options_type``, ``parts`` and the attributes below; ``load`` and recipes look tasks up by
    class name.

    If the backbone has language embeddings, the language of a text is its value in the column
    ``language`` of dicts, DataFrames and data sets of dicts; else the argument ``language`` of
    ``predict`` and ``evaluate``; else the attribute ``language``, which can be changed.

    Args:
        backbone: the encoder or decoder below the head.
        tokenizer: its tokenizer.
        max_length: maximum number of tokens of an example; longer ones are truncated. None for the
            backbone's number of positions, or 512 if that is unlimited.
        padding: the length to which a batch is padded: ``'longest'``, of its longest row;
            ``'max_length'``; or the smallest sufficient one of several, such as ``(32, 64, 128)``.
            The latter two are for XLA and TPUs, which compile once for each length.
        language_id: the default language of texts, for backbones with language embeddings.
        languages: ids of the backbone's languages by their codes, such as ``{'en': 0, 'de': 1}``;
            None for numbers as codes.
        name: the name of the Keras model.

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
        unused_settings: keys of the section ``train`` of recipes that training does not support.
        validates_epochs: whether recipes evaluate the dev split after each epoch, not only at the
            end.
        pipeline_tag: the hub's name of the task, for model cards; None if it has none.
        problem_type: ``problem_type`` in Hugging Face's config, or None.
        ranked_scores: whether ``scores`` of an answer has one for each of ``class_names``.
        needs_head: whether ``from_pretrained`` rejects checkpoints without the head.
        unpublished_inputs: inputs of the backbone that are constant in this task.
        published_type: reads and writes the files of published checkpoints for other things than
            the model, its head and the tokenizer.

    Raises:
        ValueError: if ``max_length`` exceeds the backbone's positions, the tokenizer has more
            tokens than the backbone has embeddings, or ``language_id`` is missing, out of range, or
            set for a backbone without languages.
        TypeError: for an unknown option.
    """

    options_type: ClassVar[type[Options]] = Options
    fields = TEXTS
    head_name: ClassVar[str | None] = None
    answer_name: ClassVar[str] = "answer"
    labels_type: ClassVar[type[Target] | None] = None
    file_labels_type: ClassVar[type[Target] | None] = None
    trainer_settings: ClassVar[type[Any] | None] = None
    unused_settings: ClassVar[tuple[str, ...]] = ()
    validates_epochs: ClassVar[bool] = True
    pipeline_tag: ClassVar[str | None] = None
    problem_type: ClassVar[str | None] = None
    ranked_scores: ClassVar[bool] = False
    needs_head: ClassVar[bool] = False
    published_type: ClassVar[type[pretrained.Published]] = pretrained.Published
    # The ``heads.Head`` on the backbone; None for a task without a head with weights.
    head: Any = None

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        _TASKS[cls.__name__] = cls
        keras.saving.register_keras_serializable(cls.__module__.partition(".")[0])(cls)
        kind = cls.options_type
        # Lists each option by name, in place of ``**options``.
        cls.__signature__ = declared.signature(kind)  # type: ignore[attr-defined]
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
        settings = declared.make(self.options_type, type(self).__name__, args, options)
        settings = settings.resolved(backbone)
        tokenizer = registry.get(backbone.family).padded(tokenizer)
        Languages(backbone, tokenizer, settings.language_id, settings.languages)
        _check_sizes(backbone, tokenizer, settings)
        parts = self.parts(backbone, tokenizer, settings)
        super().__init__(
            parts.inputs,
            parts.outputs,
            parts.objectives or ([] if parts.loss is None else [Supervised(parts.loss)]),
            name=name,
        )
        # Decides on loss scaling, whatever the global policy is.
        self.dtype_policy = backbone.dtype_policy
        self.options = settings
        self.backbone = backbone
        self.tokenizer = parts.preprocessor.tokenizer
        if parts.preprocessor.languages.count:
            self.fields = type(self).fields._replace(described=(LANGUAGE,))
        self.head = parts.head
        self._parts = parts
        layers = () if parts.head is None else parts.head.layers
        read = {id(variable) for variable in backbone.weights_of(parts.source, layers=layers)}
        self._unread = frozenset(id(v) for v in backbone.weights if id(v) not in read)
        self.forget_graphs()

    def parts(self, backbone: Backbone, tokenizer: Tokenizer, options: Any) -> TaskComponents:
        """Returns the components of this task.

        The constructor calls it before the Keras model exists. It may use bound methods as
        callbacks, but must not read or set attributes.
        """
        raise NotImplementedError

    @classmethod
    def from_pretrained(cls, path: str | Path, *args: Any, **kwargs: Any) -> Self:
        """Loads a published checkpoint as this task, for ``fit`` (or ``predict``).

        The checkpoint's head is loaded if it has one. The head of a classifier or tagger must have
        the same labels, in any order, or as many unnamed outputs, which get the labels in order.
        Otherwise the head is initialized at random, with a warning. ``max_length`` defaults to the
        stored one (of sentence-transformers' modules, KerasHub's preprocessor, or the tokenizer's
        ``model_max_length``), but at most the number of positions.

        Args:
            path: a directory, ``package:NAME``, a hub id, the name or handle of a KerasHub preset;
                or a model of KerasHub.
            *args: positional options of the task.
            **kwargs: options of the task, which its class documents. ``language`` replaces
                ``language_id``: for checkpoints of XLM, the code of the texts' language, such as
                ``"de"``, or its id; None for the tokenizer's language. Options that name classes
                may be None for the names that are stored with the head. Other names are config
                fields of the backbone, such as ``dropout=0.0``.

        Raises:
            CheckpointError: for the reasons of ``bertfam_tf.load_backbone``.
            ValueError: for the reasons of the constructor; and for missing labels, a language that
                the checkpoint does not have, or invalid tokenizer files.
        """
        with opened(path) as source:
            return pretrained.open_task(cls, source, args, kwargs, _TASKS)

    @classmethod
    def head_of(cls, family: str) -> str | None:
        """Returns the name of the head for backbones of a family."""
        return cls.head_name

    def with_backbone(self, backbone: Backbone) -> Self:
        """Returns a task with the same tokenizer and options, a new head and another backbone."""
        return type(self)(backbone, self.tokenizer, **self.options.stored())

    @property
    def class_names(self) -> list[str]:
        """Names of the labels or tags, in the order of the scores; empty if there are none."""
        name = declared.class_option(self.options_type)
        return [] if name is None else getattr(self.options, name)

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Maps packed token ids, int32 (batch, length) by name, to the model's outputs.

        Raises:
            TypeError: for raw text, which ``predict`` takes.
            ValueError: for names of other libraries.
        """
        if isinstance(inputs, Mapping):
            line = hint(sorted(map(str, inputs)))
            if line:
                raise ValueError(f"Unknown inputs {sorted(inputs)}.{line}")
        elif _is_text(inputs):
            raise TypeError(
                f"A call of {type(self).__name__} takes packed token ids; for raw text write "
                "task.predict(texts)."
            )
        return super().__call__(inputs, *args, **kwargs)

    # Keras' methods, on text -----------------------------------------------------------------

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        """Excludes variables of the backbone that no output uses, such as an unused pooler's."""
        return [v for v in super().trainable_variables if id(v) not in self._unread]

    @property
    def trainable_weights(self) -> list[keras.Variable]:
        return [v for v in super().trainable_weights if id(v) not in self._unread]

    def compile(self, optimizer: Any = None, loss: Any = None, **kwargs: Any) -> None:
        """Compiles like ``keras.Model.compile``; omitted arguments get the task's defaults.

        ``metrics`` and ``weighted_metrics`` accept the names in ``bertfam_tf.metrics.METRICS`` as
        well as Keras' names. Tasks compute logits, so the name of a cross-entropy stands for one
        with ``from_logits=True``.

        ``jit_compile`` is off by default: examples are padded to the longest of their batch, and
        XLA would compile once for every length. With the option ``padding`` they are padded to a
        few lengths, or to one.

        Raises:
            ValueError: for a loss or metric of Keras that does not fit the labels and logits of the
                task, or has ``from_logits=False``; and for the reasons of ``Learner.compile``.
        """
        with self.distribute_strategy.scope():
            for name in ("metrics", "weighted_metrics"):
                make = getattr(self._parts, name)
                if isinstance(kwargs.get(name), list | tuple | dict):
                    kwargs[name] = keras.tree.map_structure(self.metric, kwargs[name])
                elif make is not None and name not in kwargs:
                    kwargs[name] = make()
        compatible = self._parts.targets.compatible, type(self).__name__
        loss = keras.tree.map_structure(lambda x: of_logits(x, keras.losses, *compatible), loss)
        super().compile(optimizer, loss, **kwargs)
        self.forget_graphs()

    def metric(self, metric: Any) -> Any:
        """Returns a metric of ``compile`` as this task computes it.

        Args:
            metric: a name, or a metric of Keras.

        Raises:
            ValueError: for a metric of Keras that does not fit the labels and logits of the task.
        """
        return by_name(metric, self._parts.targets.compatible, type(self).__name__)

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
        columns: Columns | None = None,
        **others: Any,
    ) -> Any:
        """Evaluates raw text and labels like ``keras.Model.evaluate``, or scores the answers.

        The class documents whether this returns the loss and the metrics that it was compiled
        with, or scores of the answers that ``predict`` returns.

        Args:
            language: the same as for ``predict``.

        Raises:
            ValueError, TypeError: as for ``fit``.
        """
        scoring = self._parts.evaluation
        if scoring is None or (x is not None and x is self._validation):
            if language is not None:
                others["language"] = language
            return super().evaluate(
                x,
                y,
                batch_size=batch_size,
                verbose=verbose,
                sample_weight=sample_weight,
                steps=steps,
                callbacks=callbacks,
                return_dict=return_dict,
                columns=columns,
                **others,
            )
        refuse("evaluate", others, arguments(Task.evaluate))
        if sample_weight is not None:
            raise TypeError("evaluate takes no 'sample_weight' if it scores answers.")
        x, y, _ = self.examples(x, y, None, columns, scoring.prepared)
        x, y = scoring.prepared(x, y)
        stream = batches(x, y, batch_size=batch_size, fields=self.fields)
        if len(stream.element_spec) == 1:
            self._parts.targets.check(None)
        scored = self._traced(scoring.function, labelled=True, language=language)
        loop: dict[str, Any] = dict(verbose=verbose, steps=steps, callbacks=callbacks, mode="test")
        results = scoring.score(self._run(scored, stream, **loop))
        return results if return_dict else list(results.values())

    def predict_on_batch(self, x: Any) -> Any:
        """Returns the answers of ``predict``; for packed token ids, the Keras model's outputs.

        Args:
            x: the same as for ``train_on_batch``, without labels.

        Raises:
            ValueError: as for ``predict``; and for a data set.
        """
        if is_packed_batch(x):
            return super().predict_on_batch(x)
        return self.predict(x, batch_size=ONE_BATCH)

    # Recipes ---------------------------------------------------------------------------------

    @classmethod
    def file_labels(cls) -> type[Target] | None:
        """Returns the type of labels in files of recipes; None if recipes cannot train the task."""
        return cls.file_labels_type or cls.labels_type

    @classmethod
    def takes_labels(cls, settings: Any) -> bool:
        """Returns whether training needs labels.

        Args:
            settings: an instance of ``trainer_settings``, or None.
        """
        return True

    @classmethod
    def options_of_data(cls, features: Mapping[str, Any], labels: list[str]) -> dict[str, Any]:
        """Infers options from training data: ``pair``, and the names of labels.

        Args:
            features: the ``tf.TensorSpec`` of each column of texts.
            labels: the names of the labels.

        Raises:
            ValueError: for columns that are not the task's.
        """
        cls.fields.check(features.keys() - {LANGUAGE})
        options: dict[str, Any] = {}
        if "pair" in declared.names(cls.options_type):
            options["pair"] = any(name in features for name in cls.fields.optional)
        classes = declared.class_option(cls.options_type)
        return options if classes is None else {**options, classes: labels}

    @classmethod
    def rows_per_example(cls, columns: Mapping[str, int]) -> int:
        """Returns the number of token sequences per training example.

        Args:
            columns: the number of texts in each column.
        """
        return 1

    def trainer(self, settings: Any) -> Learner:
        """Returns the model whose ``fit`` trains this task on raw texts: the task itself.

        Args:
            settings: an instance of ``trainer_settings``, or None.
        """
        return self

    def training_rows(self, rows: tf.data.Dataset, settings: Any, seed: int) -> tf.data.Dataset:
        """Converts examples of the task to examples for the model of ``trainer``; unchanged here.

        Args:
            rows: single examples, ``(features, label)``, of known cardinality.
            settings: an instance of ``trainer_settings``, or None.
            seed: the seed for random choices.
        """
        return rows

    def finish_training(self, rows: tf.data.Dataset, settings: Any) -> None:
        """Computes the weights that the model of ``trainer`` does not train; none here.

        Recipes call it after the training.

        Args:
            rows, settings: the same as for ``training_rows``.
        """

    @property
    def scored_by_validation(self) -> bool:
        """Whether the validation of ``fit`` computes what ``score`` does."""
        # Taggers and SpanQA evaluate their answers, which is slower than the metrics of Keras.
        return self._parts.evaluation is None and type(self).score is Task.score

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
            settings: an instance of ``trainer_settings``, or None.
            batch_size: examples in a batch.
            language: the same as for ``predict``.
        """
        batches = rows.batch(batch_size)
        return self.evaluate(batches, return_dict=True, verbose=0, language=language)


def task_class(name: str) -> type[Task]:
    """Returns the task class of that name.

    Raises:
        ValueError: for an unknown name; the message suggests the most similar one.
    """
    if name not in _TASKS:
        raise ValueError(unknown("task", name, _TASKS))
    return _TASKS[name]


def task_classes() -> list[type[Task]]:
    """Returns all classes of tasks."""
    return list(_TASKS.values())


def trainable_tasks() -> list[str]:
    """Returns the names of the tasks that recipes can train."""
    return [name for name, cls in _TASKS.items() if cls.file_labels() is not None]


def _is_text(x: Any) -> bool:
    if isinstance(x, list | tuple) and x:
        return _is_text(x[0])
    return isinstance(x, str | bytes) or getattr(x, "dtype", None) == tf.string


def _option(name: str, settable: bool) -> property:
    """Returns a task's attribute for one of its options."""

    def get(self: Task) -> Any:
        return getattr(self.options, name)

    def change(self: Task, value: Any) -> None:
        options = dataclasses.replace(self.options, **{name: declared.plain(value)})
        check(options)
        self.options = options
        self.forget_graphs()

    return property(get, change if settable else None)


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
            f"The tokenizer has {tokenizer.vocab_size} tokens, the model only "
            f"{backbone.config.vocab_size} embeddings; load both from the same checkpoint."
        )


def _ids(shape: tuple[int, ...]) -> str:
    return f"{shape[0]} ids of characters" if shape else "one id"
