"""What all tasks share: a Keras model that is fed raw text."""

from __future__ import annotations

import inspect
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import keras
import numpy as np
import tensorflow as tf

import bertfam_tf
from bertfam_tf import files, optimizers, parsing, registry, replicas
from bertfam_tf.checkpoints import Checkpoint, Tensors, fill, safetensors
from bertfam_tf.checkpoints.fill import compare
from bertfam_tf.checkpoints.safetensors import SINGLE
from bertfam_tf.checkpoints.shapes import declared
from bertfam_tf.data.batching import TEXT_PAIR, TEXTS, batches, examples, split_rows, texts_of
from bertfam_tf.data.errors import as_value_errors
from bertfam_tf.metrics import by_name
from bertfam_tf.models import Backbone
from bertfam_tf.models.base import plain_weights
from bertfam_tf.names import short, shown, unknown
from bertfam_tf.sources import CheckpointError, sha256
from bertfam_tf.tasks import publish
from bertfam_tf.text import Packer, Tokenizer, load_tokenizer

_TASKS: dict[str, type[Task]] = {}
_TAKES = {TEXT_PAIR: ("single texts", "pairs")}
_DESCRIPTION = "bertfam.json"
_TOKENIZER = "tokenizer"
_MAX_LENGTH = 512
_LANGUAGES = "language_ids"
_PACKED = ("token_ids", "padding_mask", "segment_ids")
NO_DATA = "There is no text in the input."


class Signature(NamedTuple):
    """One of an export's functions.

    Fields:
        function: tensors (batch, …) by name to answers, dim 0 of each the batch; widths do not
            depend on which rows stand in a batch. With another ``method`` than ``"predict"`` it
            takes the answers of ``serving_default`` instead.
        inputs: what it takes; None for the task's texts, ``feature_specs``.
        method: which of TensorFlow Serving's calls it is for. Classify and Regress send
            tf.Examples with a feature for each text; ``"classify"`` answers ``classes``, string
            (batch, labels), and ``scores``, float32 (batch, labels), and ``"regress"``
            ``outputs``, float32 (batch,).
        repeatable: whether the same input gets the same answer.
    """

    function: Callable[[dict[str, tf.Tensor]], dict[str, tf.Tensor]]
    inputs: dict[str, tf.TensorSpec] | None = None
    method: Literal["predict", "classify", "regress"] = "predict"
    repeatable: bool = True


class Task(keras.Model):
    """A backbone with what stands around it: tokenizer and packing before, a head behind.

    ``fit``, ``evaluate`` and ``predict`` take raw text, in the shapes that
    ``bertfam_tf.data.batches`` lists. Subclasses give ``postprocess`` and ``_options``.

    Args:
        inputs, outputs: of the Keras model, from packed ids to the head's output.
        backbone: the encoder inside.
        reads: the backbone's output that the model's outputs are made of.
        tokenizer: its tokenizer.
        pair: whether the optional one of ``fields`` is there; None decides at the first data seen.
        max_length: most tokens of an input; None for as many as the backbone has positions, or
            512 where their number has no end.
        language_id: the language of all texts, where the backbone has embeddings of languages.

    Raises:
        ValueError: for a ``max_length`` beyond the backbone's positions, a tokenizer with more
            pieces than the backbone has embeddings, or a ``language_id`` that is missing, unwanted
            or not one of the backbone's.
    """

    # Names of the texts that a row may have.
    fields = TEXTS
    # What an answer is called in JSON, where ``predict`` does not give a dict for each row.
    answer_name = "answer"
    # What Hugging Face's config calls the task, where it has a word for it.
    problem_type: str | None = None
    # The ``heads.Head`` on the backbone; None where nothing with weights stands there.
    head: Any = None

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        _TASKS[cls.__name__] = cls

    def __init__(
        self,
        inputs: Any,
        outputs: Any,
        *,
        backbone: Backbone,
        reads: str,
        tokenizer: Tokenizer,
        pair: bool | None = False,
        max_length: int | None = None,
        language_id: int | None = None,
        **kwargs,
    ):
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)
        positions = backbone.max_length
        if max_length is None:
            max_length = positions or _MAX_LENGTH
        if positions and max_length > positions:
            raise ValueError(f"max_length {max_length} exceeds the model's {positions} positions.")
        if tokenizer.vocab_size > backbone.config.vocab_size:
            raise ValueError(
                f"The tokenizer has {tokenizer.vocab_size} pieces, the model only "
                f"{backbone.config.vocab_size} embeddings."
            )
        self.backbone = backbone
        self.tokenizer = tokenizer
        self.pair = pair
        self.max_length = max_length
        self.language_id = _checked_language(backbone, language_id)
        self._packer = Packer(tokenizer.layout, tokenizer.special_ids, max_length)
        self._compiled_by_user = False
        read = {id(variable) for variable in backbone.weights_behind(reads)}
        self._unread = frozenset(id(v) for v in backbone.weights if id(v) not in read)
        self._forget_graphs()

    def _forget_graphs(self) -> None:
        """Has what ``predict`` runs traced anew, as after a change of the layers."""
        # Made once: what is called eagerly takes many times as long.
        self._compiled_answer = compiled(self.answer)

    # From text to answers, as graphs ---------------------------------------------------------

    @tf.autograph.experimental.do_not_convert
    def preprocess(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """String tensors (batch,) to the model's inputs, int32 (batch, longest row)."""
        segments = [self.tokenizer.tokenize(features[name]) for name in self.feature_names]
        return self._model_inputs(self._packer(segments))

    def _model_inputs(self, packed: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Of packed rows what the backbone takes, and what it takes besides."""
        inputs = {name: packed[name] for name in _PACKED if name in packed}
        if self.language_id is not None:
            inputs[_LANGUAGES] = tf.fill(tf.shape(inputs["token_ids"]), self.language_id)
        inputs = self.backbone.complete(inputs)
        # Grappler does not see the rank of what comes out of a tokenizer's function or enters a
        # loop, and warns of every softmax for which it cannot estimate a cost.
        return {
            name: tf.ensure_shape(inputs[name], [None, None]) for name in self.backbone.row_inputs
        }

    def postprocess(self, outputs: Any) -> dict[str, tf.Tensor]:
        """The head's outputs to answers; dim 0 of each is the batch."""
        raise NotImplementedError

    def answer(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """String tensors (batch,) to answers: the whole way, as it is exported."""
        return self.postprocess(self(self.preprocess(features), training=False))

    def answer_ids(self, inputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Packed rows to answers, or to logits where answers are parts of a text.

        Args:
            inputs: int32 (batch, length), as ``packed_specs`` has them.
        """
        return self.postprocess(self(self._model_inputs(inputs), training=False))

    def signatures(self) -> dict[str, Signature]:
        """What is exported, by name: ``serving_default`` from texts, ``ids`` from packed rows.

        Arguments that a task's takes are arguments of ``export``.
        """
        return {
            "serving_default": Signature(self.answer),
            "ids": Signature(self.answer_ids, self.packed_specs),
        }

    @property
    def class_names(self) -> list[str]:
        """Names of the labels or tags, in the order of the scores; none where there are none."""
        return []

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the text inputs, such as ``text``, and ``text_pair`` in pair models."""
        return (*self.fields.required, *(self.fields.optional if self.pair else ()))

    @property
    def feature_specs(self) -> dict[str, tf.TensorSpec]:
        """The text inputs by name: (batch,), or (batch, strings) where a row has several."""
        return {name: tf.TensorSpec([None], tf.string, name) for name in self.feature_names}

    @property
    def packed_specs(self) -> dict[str, tf.TensorSpec]:
        """Packed rows by name, as the backbone takes them: int32 (batch, length)."""
        names = [name for name in _PACKED if name in self.backbone.row_inputs]
        return {name: tf.TensorSpec([None, None], tf.int32, name) for name in names}

    @property
    def packed_value_counts(self) -> dict[str, int]:
        """How many values, from 0, the inputs of ``packed_specs`` may have; any if not listed."""
        config = self.backbone.config
        counts = {
            "token_ids": config.vocab_size,
            "padding_mask": 2,
            "segment_ids": getattr(config, "num_segments", None),
        }
        return {name: counts[name] for name in self.packed_specs if counts[name]}

    @property
    def published_inputs(self) -> tuple[str, ...]:
        """Those of the backbone's inputs that tell something about a row of texts."""
        return tuple(name for name in _PACKED if name in self.backbone.row_inputs)

    # Keras' verbs, on text -------------------------------------------------------------------

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        """Those that learn: of the backbone those that this task reads, so no idle pooler's."""
        return [v for v in super().trainable_variables if id(v) not in self._unread]

    @property
    def trainable_weights(self) -> list[keras.Variable]:
        return [v for v in super().trainable_weights if id(v) not in self._unread]

    def compile(self, optimizer: Any = None, loss: Any = None, **kwargs: Any) -> None:
        """As ``keras.Model.compile``; what is left out gets the task's default.

        ``metrics`` may have the names in ``bertfam_tf.metrics.METRICS`` beside Keras' own.

        ``jit_compile`` is off unless asked for: rows are padded to the longest of their batch, and
        XLA would compile once for every width.
        """
        self._compiled_by_user = True
        self._compile(optimizer, loss, **kwargs)

    def _compile(
        self, optimizer: Any = None, loss: Any = None, *, steps: int | None = None, **kwargs: Any
    ) -> None:
        kwargs.setdefault("jit_compile", False)
        # Optimizers and metrics have variables, which belong into the scope that the weights were
        # made in: `fit` may be called outside of it.
        with self.distribute_strategy.scope():
            if isinstance(kwargs.get("metrics"), list | tuple):
                kwargs["metrics"] = [by_name(metric) for metric in kwargs["metrics"]]
            for name, value in self._compile_defaults().items():
                kwargs.setdefault(name, value)
            if loss is not None:
                kwargs["loss"] = loss
            if optimizer is None:
                optimizer = optimizers.adamw(total_steps=steps)
            replicas.check_optimizer(optimizer)
            super().compile(optimizer=optimizer, **kwargs)
        self._forget_graphs()

    def _compile_defaults(self) -> dict[str, Any]:
        return {}

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        replicas.build(self, iterator, data_batch)

    def _make_function(self, step_function: Callable) -> Callable:
        # TensorFlow counts traces by code, and that of Keras' loop is every model's: a few small
        # models, each traced once, would look like one that is traced again and again.
        function = super()._make_function(step_function)
        for traced in inspect.getclosurevars(function).nonlocals.values():
            if isinstance(traced, tf.types.experimental.PolymorphicFunction):
                traced._omit_frequent_tracing_warning = True
        return function

    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        batch_size: int = 32,
        epochs: int = 1,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        sample_weight: Any = None,
        **kwargs: Any,
    ) -> keras.callbacks.History:
        """As ``keras.Model.fit``, on raw text and labels.

        Without an earlier ``compile`` the task compiles itself with ``optimizers.adamw`` over all
        steps of this call (or a constant rate when the data set does not know its size).

        Raises:
            ValueError: for no data, data in a shape that is not known, missing values, or a label
                that is not in the list.
        """
        given = examples(x, y, sample_weight, self.fields)
        if validation_split and validation_data is None:
            given, validation_data = split_rows(*given, validation_split, self.fields)
        dataset = self._encoded(*given, batch_size, shuffle)
        if validation_data is not None:
            data = validation_data if isinstance(validation_data, tuple) else (validation_data,)
            x, y, weight = (*data, None, None)[:3]
            given = examples(x, y, weight, self.fields)
            validation_data = self._encoded(*given, batch_size)
        if not self._compiled_by_user:
            self._check_trainable()
            steps = kwargs.get("steps_per_epoch") or int(dataset.cardinality())
            steps *= epochs - kwargs.get("initial_epoch", 0)
            self._compile(steps=steps if steps > 0 else None)
        with as_value_errors():
            history = super().fit(
                dataset,
                epochs=epochs,
                validation_data=validation_data,
                shuffle=False,  # the stream is shuffled; Keras warns that it cannot
                **kwargs,
            )
        if history.epoch and not history.history:
            raise ValueError(NO_DATA)
        return history

    def evaluate(
        self,
        x: Any,
        y: Any = None,
        *,
        batch_size: int = 32,
        sample_weight: Any = None,
        **kwargs: Any,
    ) -> Any:
        """As ``keras.Model.evaluate``, on raw text and labels. Errors as for ``fit``."""
        # Keras' fit() comes back here with the data set that fit() made.
        if kwargs.get("_use_cached_eval_dataset"):
            return super().evaluate(x, y, **kwargs)
        given = examples(x, y, sample_weight, self.fields)
        dataset = self._encoded(*given, batch_size)
        if not self.compiled:
            self._check_trainable()
            self._compile()
        with as_value_errors():
            results = super().evaluate(dataset, **kwargs)
        if results in ([], {}):
            raise ValueError(NO_DATA)
        return results

    def predict(self, x: Any, *, batch_size: int = 32, verbose: Any = 0, **kwargs: Any) -> Any:
        """Answers for raw texts; labels in a data set are passed over.

        A single string (or a dict of them) is answered as a list of one is.

        Raises:
            ValueError: for data in a shape that is not known, missing values, or no data at all.
        """
        x = texts_of(x, self.fields)
        stream = batches(x, batch_size=batch_size, fields=self.fields)
        if kwargs or self.distribute_strategy.num_replicas_in_sync > 1:
            return self._answers(self._predicted_by_keras(stream, verbose=verbose, **kwargs))
        # Keras' loop takes some tenths of a second to set up: for few texts, most of the time.
        found = [outputs for outputs, _ in self._run(self._compiled_answer, stream, verbose)]
        return self._answers({name: tf.concat([x[name] for x in found], 0) for name in found[0]})

    def _predicted_by_keras(self, stream: tf.data.Dataset, **kwargs: Any) -> dict[str, tf.Tensor]:
        self._settle_pair(stream)
        dataset = stream.map(
            lambda features, *_: self.preprocess(features), num_parallel_calls=tf.data.AUTOTUNE
        )
        try:
            with as_value_errors():
                outputs = super().predict(dataset.prefetch(2), **kwargs)
        except UnboundLocalError:  # what Keras makes of a data set that turns out to be empty
            raise ValueError(NO_DATA) from None
        return self.postprocess(tf.nest.map_structure(tf.constant, outputs))

    def _run(
        self, function: Any, stream: tf.data.Dataset, verbose: Any = 0
    ) -> Iterator[tuple[Any, tuple]]:
        """What a ``tf.function`` makes of each batch, and the batch."""
        self._settle_pair(stream)
        steps = int(stream.cardinality())
        bar = keras.utils.Progbar(steps if steps > 0 else None, verbose=int(verbose == 1))
        number = 0
        with as_value_errors():
            # Traced for batches of any size: the last one is often smaller.
            traced = function.get_concrete_function(*stream.element_spec)
            for number, batch in enumerate(stream.prefetch(2), 1):
                yield traced(*batch), batch
                bar.update(number)
        if not number:
            raise ValueError(NO_DATA)

    def _answers(self, outputs: dict[str, tf.Tensor]) -> Any:
        """Answers as ``predict`` hands them out."""
        raise NotImplementedError

    def _encode_labels(self, y: tf.Tensor) -> tf.Tensor:
        """Labels as the loss takes them, in the graph."""
        return y

    def _check_labels(self, y: Any) -> None:
        """Raises for a label that is not known, or None, before training starts."""

    def _check_trainable(self) -> None:
        """Raises where the task has no loss of its own and nobody has compiled it with one."""
        if "loss" not in self._compile_defaults():
            raise ValueError(f"{type(self).__name__} has no default loss; call compile(loss=…).")

    def _encoded(
        self, x: Any, y: Any = None, weight: Any = None, batch_size: int = 32, shuffle: bool = False
    ) -> tf.data.Dataset:
        if y is not None:
            self._check_labels(y)
        stream = batches(x, y, weight, batch_size=batch_size, shuffle=shuffle, fields=self.fields)
        if len(stream.element_spec) == 1:
            self._check_labels(None)
        self._settle_pair(stream)

        @tf.autograph.experimental.do_not_convert
        def encode(features, *rest):
            return self._encode(features, *rest)

        return stream.map(encode, num_parallel_calls=tf.data.AUTOTUNE).prefetch(2)

    def _encode(self, features: dict[str, tf.Tensor], *rest: tf.Tensor) -> tuple:
        """A batch as the Keras model takes it: inputs, labels, weights, as far as given."""
        if rest:
            rest = (self._encode_labels(rest[0]), *rest[1:])
        return (self.preprocess(features), *rest)

    def _settle_pair(self, stream: tf.data.Dataset) -> None:
        given = len(stream.element_spec[0]) > len(self.fields.required)
        if self.pair is None:
            self.pair = given
        if given != self.pair:
            name = self.fields.optional[0]
            takes = _TAKES.get(name, (f"rows without {name!r}", f"rows with {name!r}"))[self.pair]
            has = "a" if given else "no"
            raise ValueError(f"This task takes {takes}; the data has {has} {name!r}.")

    # Storing ---------------------------------------------------------------------------------

    def _options(self) -> dict[str, Any]:
        """Arguments of the constructor besides backbone and tokenizer, as JSON values."""
        options: dict[str, Any] = {"max_length": self.max_length}
        if self.fields.optional:
            options["pair"] = self.pair
        if self.language_id is not None:
            options["language_id"] = self.language_id
        return options

    def describe(self) -> dict[str, Any]:
        """What ``save`` and ``export`` write beside the weights: all it takes to build the task."""
        return {
            "bertfam_tf": bertfam_tf.__version__,
            "task": type(self).__name__,
            "family": self.backbone.family,
            "config": self.backbone.config.to_dict(),
            "options": self._options(),
        }

    def save(self, directory: str | Path, overwrite: bool = True, **kwargs: Any) -> None:
        """Writes weights, config and tokenizer into ``directory``; ``bertfam_tf.load`` reads it.

        The directory appears whole or not at all; an older one gives way only then.

        Raises:
            FileExistsError: when it exists and ``overwrite`` is false, or holds something else
                than a saved task.
            OSError: when writing fails, on a full disk say; an older one is still there.
        """
        target = Path(directory)
        files.settle(target)
        if target.exists() and not (overwrite and (target / _DESCRIPTION).is_file()):
            raise FileExistsError(f"{target} exists and is not a saved task to be overwritten.")
        with files.whole(target) as path:
            path.mkdir()
            self._write(path)

    def _write(self, directory: Path) -> None:
        safetensors.write(plain_weights(self), directory / SINGLE)
        self.tokenizer.save(directory / _TOKENIZER)
        stored = {str(file.relative_to(directory)): sha256(file) for file in _files(directory)}
        text = json.dumps({**self.describe(), "sha256": stored}, indent=2) + "\n"
        (directory / _DESCRIPTION).write_text(text, "utf-8")
        # safetensors lets nobody but the owner read its files.
        shutil.copymode(directory / _DESCRIPTION, directory / SINGLE)

    def save_pretrained(self, directory: str | Path) -> None:
        """Writes a model that transformers reads: backbone, head, labels and tokenizer.

        ``transformers.pipeline(task, model=directory)`` gives the same answers, and so does this
        class's ``from_pretrained``. What says how answers are chosen, and is no part of a model
        there, is left out: a threshold, ``top_k``, windows and the like. ``max_length`` is the
        tokenizer's ``model_max_length``.

        Args:
            directory: new or empty; it appears whole or not at all.

        Raises:
            FileExistsError: when it exists and is not an empty directory.
            CheckpointError: for what the format cannot say, a tokenizer that transformers has no
                equal of, or weights that are not finite. Nothing is written then.
        """
        publish.save_pretrained(self, directory)

    def export(self, directory: str | Path, version: int | None = None, **kwargs: Any) -> Path:
        """Writes a SavedModel for TF Serving: ``directory/<version>``, the next one if None.

        Args:
            directory: the model's base path.
            version: a number.
            **kwargs: ``dtype``, ``batching`` and ``metrics``, as
                ``bertfam_tf.export.export_saved_model`` takes them, which says what is written, and
                the arguments of this task's ``signatures``.

        Raises:
            FileExistsError, ValueError, ExportError: as ``export_saved_model`` does.
        """
        from bertfam_tf.export import export_saved_model

        return export_saved_model(self, directory, version=version, **kwargs)

    def export_tflite(self, file: str | Path, **kwargs: Any) -> Path:
        """Writes a ``.tflite`` file for phones; ``bertfam_tf.export.export_tflite`` says what.

        Args:
            file: ends in ``.tflite``.
            **kwargs: ``inputs``, ``quantize``, ``length`` and ``calibration``.

        Raises:
            ValueError, ExportError: as ``bertfam_tf.export.export_tflite`` does.
        """
        from bertfam_tf.export import export_tflite

        return export_tflite(self, file, **kwargs)


def compiled(function: Callable[[dict[str, tf.Tensor]], Any]) -> Any:
    """A ``tf.function`` of a batch of features, whatever else stands in it."""
    return tf.function(lambda features, *rest: function(features), autograph=False)


def tokenizer_and_language(
    checkpoint: Checkpoint, backbone: Backbone, language: str | int | None
) -> tuple[Tokenizer, int | None]:
    """A checkpoint's tokenizer, and the number of the language where the backbone takes one.

    Args:
        checkpoint: what is loaded.
        backbone: loaded from it.
        language: its code, such as ``"de"``, or its number where the checkpoint names none; None
            for that of the tokenizer.

    Raises:
        CheckpointError: as ``load_tokenizer`` raises it.
        ValueError: for a language that the checkpoint does not have.
    """
    if isinstance(language, str) and not checkpoint.languages:
        raise ValueError(f"{checkpoint.directory} names no languages to choose {language!r} from.")
    options = {"language": language} if isinstance(language, str) else {}
    tokenizer = load_tokenizer(checkpoint.directory, **options)
    if isinstance(language, int):
        return tokenizer, language
    if _LANGUAGES not in backbone.input:
        return tokenizer, None
    language = language or tokenizer.get_config().get("language")
    if language not in checkpoint.languages:
        raise ValueError(unknown("language", str(language), checkpoint.languages))
    return tokenizer, checkpoint.languages[language]


def _checked_language(backbone: Backbone, language_id: int | None) -> int | None:
    if _LANGUAGES not in backbone.input:
        if language_id is not None:
            raise ValueError(f"This {backbone.family} backbone has no languages to choose from.")
        return None
    count = backbone.config.num_languages
    if language_id is None or not 0 <= language_id < count:
        raise ValueError(f"language_id is a number below {count}, not {language_id!r}.")
    return language_id


def _files(directory: Path) -> list[Path]:
    return sorted(file for file in directory.rglob("*") if file.is_file())


def is_saved(directory: str | Path) -> bool:
    """Whether a directory is one that ``Task.save`` wrote."""
    return (Path(directory) / _DESCRIPTION).is_file()


def load(directory: str | Path) -> Task:
    """The task that ``Task.save`` wrote.

    Raises:
        CheckpointError: when a file is missing, or is not the one that was saved.
    """
    path = Path(directory)
    file = path / _DESCRIPTION
    if not path.exists():
        files.settle(path)
    if not file.is_file():
        raise CheckpointError(f"No {_DESCRIPTION} in {path}; expected a directory of Task.save().")
    stored = parsing.read_json(file, CheckpointError)
    try:
        name, family, config = stored["task"], stored["family"], stored["config"]
        options, digests = dict(stored["options"]), dict(stored["sha256"])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{file} is not the description of a task: {error!r}") from error
    if not isinstance(name, str) or name not in _TASKS:
        raise CheckpointError(f"{file}: {unknown('task', str(name), _TASKS)}")
    try:
        for name_of_file, digest in digests.items():
            _check_digest(path, name_of_file, digest)
        tokenizer = load_tokenizer(path / _TOKENIZER)
        tensors = safetensors.read(path)
        what = f"The weights in {path} and {_DESCRIPTION}"
        backbone = _backbone(file, family, config, tensors, what)
        task = _TASKS[name](backbone, tokenizer, **options)
        paths = {variable.path: variable.path for variable in task.weights}
        fill(task.weights, tensors, paths, (), what)
    except CheckpointError:
        raise
    except Exception as error:  # whatever senseless options lead to
        raise CheckpointError(
            f"{path} cannot be loaded: {short(error)}. If {_DESCRIPTION} was changed since it was "
            "saved, save the task anew or fetch it again."
        ) from error
    return task


def _backbone(file: Path, family: Any, config: Any, tensors: Tensors, what: str) -> Backbone:
    """The backbone that a description says, if its weights are there."""
    if not isinstance(family, str) or not isinstance(config, dict):
        raise CheckpointError(f"{file} is not the description of a task: it has no config.")
    card = registry.get(family)
    typed = card.config.from_dict(config)
    shapes = declared(card, typed, len(tensors), str(file))
    compare(shapes, tensors, {path: path for path in shapes}, (".*",), what)
    return Backbone(family, typed)


def _check_digest(directory: Path, name: str, digest: str) -> None:
    file = directory / name
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise CheckpointError(f"{directory / _DESCRIPTION} lists {shown(name)}, outside of it.")
    if not file.is_file():
        raise CheckpointError(f"{file} is missing.")
    if sha256(file) != digest:
        raise CheckpointError(f"{file} is not the file that was saved; its sha256 differs.")


def as_text(values: Any) -> list[str]:
    """A vector of byte strings as Python strings."""
    return [value.decode("utf-8", "replace") for value in np.asarray(values).tolist()]
