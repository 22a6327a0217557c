"""Keras' ``fit`` and ``evaluate`` on raw text, for every model that trains on it."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import keras
import tensorflow as tf

from bertfam_tf.data import inputs, tables
from bertfam_tf.data.errors import as_value_errors
from bertfam_tf.data.inputs import TEXTS, Fields, is_packed, split_rows
from bertfam_tf.data.tables import Columns
from bertfam_tf.models.base import dense_layers
from bertfam_tf.names import NO_CLASS_WEIGHT, NO_TEXT, unexpected
from bertfam_tf.training import optimizers
from bertfam_tf.training.learner import Learner
from bertfam_tf.user_warnings import warn
from bertfam_tf.validation import one_of

_BALANCED = "balanced"
# More examples than a batch of `train_on_batch` has.
ONE_BATCH = 1 << 20
# Callbacks that set the learning rate, which Keras refuses where a schedule decides.
_RATE_CALLBACKS = (keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau)


class TextLearner(Learner):
    """A learner whose ``fit`` and ``evaluate`` take raw text.

    Subclasses supply ``text_batches``, and replace ``default_optimizer``, ``examples`` and
    ``class_weights`` where these differ.

    Attributes:
        fields: names of the texts that an example may have.
        fit_options, evaluate_options: arguments of ``text_batches`` that ``fit`` and ``evaluate``
            pass on.
    """

    fields: Fields = TEXTS
    fit_options: ClassVar[tuple[str, ...]] = ()
    evaluate_options: ClassVar[tuple[str, ...]] = ()
    _compiled_by_user = False
    _told_of_lora = False
    _adapted_in_test = 0
    # The validation data of the current ``fit``, which Keras passes to ``evaluate``.
    _validation: Any = None
    # One line with the labels of the last training batches and their counts, which `fit` prints.
    _label_summary = ""

    def text_batches(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        batch_size: int = 32,
        *,
        shuffle: bool = False,
        training: bool = False,
    ) -> tf.data.Dataset:
        """Returns batches for the Keras model: inputs; targets and weights if there are any.

        Args:
            x, y, sample_weight, batch_size, shuffle: the same as for ``fit``.
            training: whether the batches are for training steps; False for validation.

        Raises:
            ValueError: as for ``fit``.
        """
        raise NotImplementedError

    def default_optimizer(self, steps: int | None = None) -> keras.optimizers.Optimizer:
        """Returns the optimizer for a model that was not compiled with another one.

        Args:
            steps: the number of training steps; None if unknown, for a constant learning rate.
        """
        return optimizers.adamw(total_steps=steps)

    def examples(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        columns: Columns | None = None,
    ) -> tuple[Any, Any, Any]:
        """Returns texts, labels and weights as lists, arrays or data sets, whatever their type."""
        return inputs.examples(x, y, sample_weight, self.fields, columns=columns)

    def _selected(self, data: Any, names: Columns | None) -> Any:
        """Returns the texts, labels and weights in the named columns; without names the data."""
        if names is None or data is None:
            return data
        return self.examples(*columns(data, self.fields), names)

    def class_weights(self, class_weight: Mapping[Any, float]) -> dict[int, float]:
        """Converts ``class_weight`` of ``fit`` to weights by the index of the label.

        Raises:
            ValueError: for an unknown label, or a model whose examples have not one label each.
        """
        raise ValueError(NO_CLASS_WEIGHT)

    def balanced_class_weights(self, x: Any, y: Any = None) -> dict[int, float]:
        """Returns weights by the index of the label, lower for labels with more examples.

        Args:
            x, y: the same as for ``fit``.

        Raises:
            ValueError: for a model whose examples have not one label each.
        """
        raise ValueError(
            f"class_weight='balanced' is for one label for each text, not {type(self).__name__}."
        )

    def validation_batches(self, data: Any, batch_size: int, like: Any) -> Any:
        """Returns the batches that ``fit`` evaluates after an epoch.

        Args:
            data: ``validation_data`` of ``fit``.
            batch_size: examples in a batch.
            like: the training batches.
        """
        x, y, weights = columns(data, self.fields)
        return x if is_packed(x) else self.text_batches(x, y, weights, batch_size)

    def compile(self, optimizer: Any = None, loss: Any = None, **kwargs: Any) -> None:
        """Compiles like ``Learner.compile``, by default with the optimizer ``default_optimizer()``.

        Raises:
            ValueError: for the reasons of ``Learner.compile``.
        """
        # `fit` may be called outside of the scope that the weights were made in.
        with self.distribute_strategy.scope():
            optimizer = self.default_optimizer() if optimizer is None else optimizer
            super().compile(optimizer, loss, **kwargs)
        self._compiled_by_user, self._told_of_lora = True, False

    def _compile_defaults(self, steps: int | None = None) -> None:
        with self.distribute_strategy.scope():
            optimizer = self.default_optimizer(steps)
        self.compile(optimizer)
        self._compiled_by_user = False

    def _count_adapted_layers(self) -> int:
        return sum(layer.lora_enabled for layer in dense_layers(self))

    def make_train_function(self, force: bool = False) -> Any:
        updates = {id(v) for v in self._optimized_variables if "lora_kernel" in v.path}
        if self.optimizer.built and updates - set(map(id, self.optimizer._trainable_variables)):
            raise ValueError(
                "Layers got LoRA's updates after the optimizer was built, which would train the "
                "frozen weights: call compile again."
            )
        return super().make_train_function(force)

    def make_test_function(self, force: bool = False) -> Any:
        # ``compile`` is not enough: another model, with the same backbone, may train the updates.
        traced, self._adapted_in_test = self._adapted_in_test, self._count_adapted_layers()
        return super().make_test_function(force or traced != self._adapted_in_test)

    def get_compile_config(self) -> dict[str, Any]:
        """Returns the arguments of ``compile``; none if ``fit`` compiled the model, whose next
        ``fit`` makes a new schedule; and with LoRA, which saved models do not have."""
        if not self._compiled_by_user:
            return {}
        if self._count_adapted_layers():
            # Once: ``ModelCheckpoint`` saves in each epoch.
            if not self._told_of_lora:
                self._told_of_lora = True
                warn(
                    "The optimizer and the other arguments of compile are not saved with LoRA: its "
                    "updates are merged into the saved weights, all of which the loaded model "
                    "trains. Call compile after loading, or fit uses the default optimizer."
                )
            return {}
        config = super().get_compile_config()
        # `keras.models.clone_model` compiles a plain Keras model, which has no such argument.
        if self.accumulation_steps > 1:
            config["accumulation_steps"] = self.accumulation_steps
        return config

    def compile_from_config(self, config: dict[str, Any]) -> None:
        try:
            self.compile(**keras.saving.deserialize_keras_object(config))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{error} The model was saved with this argument of compile: load it with "
                "keras.models.load_model(file, compile=False), and call compile."
            ) from error
        self.optimizer.build(self._optimized_variables)

    @property
    def _optimized_variables(self) -> list[keras.Variable]:
        """The variables that the optimizer of ``compile`` updates."""
        return self.trainable_variables

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
        class_weight: Mapping[Any, float] | str | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: Any = 1,
        columns: Columns | None = None,
        **options: Any,
    ) -> keras.callbacks.History:
        """Trains like ``keras.Model.fit``, on raw text and labels.

        The texts may be lists, arrays, dicts of these, data frames and tables of pandas, polars and
        pyarrow, data sets of ``datasets`` and ``tf.data``, lists of dicts or of tuples that end
        with the label, generators, and for tasks a split of tensorflow-datasets,
        ``"tfds:glue/sst2/train"``. Labels and how many examples have each are printed first, unless
        ``verbose`` is 0.

        Lists and tables are shuffled in each epoch; a ``tf.data.Dataset`` and an iterable data set
        keep their order, and their batches if they have some. Batches of ``text_batches`` are
        trained on as they are.

        If ``compile`` was not called, the model is compiled with ``default_optimizer`` for the
        steps of this call: with a constant learning rate if the data set's cardinality is unknown,
        or a callback sets the rate (``LearningRateScheduler``, ``ReduceLROnPlateau``).

        Args:
            batch_size: examples in a batch, 32 by default.
            batch_tokens: the maximum number of tokens in a batch, instead of ``batch_size``: many
                short examples or few long ones, of similar length. Lists and arrays are tokenized
                once beforehand, so that the number of steps is known. A data set must yield single
                examples; its number of steps is unknown. See ``bertfam_tf.data.TokenBatches``.
            columns: the columns of a table, dict or data set of dicts by the names that the task
                has for them, such as ``{"text": "review", "label": "stars"}``, also for
                ``validation_data``; None where they have these names.
            validation_batch_size: None for ``batch_size``; validation takes no ``batch_tokens``.
            class_weight: for classifiers, the factor of the loss of each label's examples, by the
                label's name or index; 1 for omitted labels. ``"balanced"`` weighs each label's
                examples by ``examples / (labels * examples of the label)``, as scikit-learn does;
                it reads the labels of a data set once beforehand.
            **options: further options of the class's ``text_batches``, in ``fit_options``.

        Raises:
            ValueError: for no data, data of an unknown structure, missing values, an unknown
                label, LoRA that was added after an earlier ``fit`` without a new ``compile``, a
                callback that sets the learning rate of an optimizer with a schedule, both sample
                weights and class weights, both ``batch_size`` and ``batch_tokens``, or an example
                of more than ``batch_tokens`` tokens.
            TypeError: for an argument that does not exist.
        """
        if batch_tokens is not None:
            options["batch_tokens"] = batch_tokens
        known = {*arguments(TextLearner.fit), *self.fit_options}
        known -= {"batch_tokens"} - set(self.fit_options)
        refuse("fit", options.keys() - set(self.fit_options), known)
        if batch_tokens is not None and batch_size is not None:
            raise ValueError(
                "Either batch_size or batch_tokens must be None, got "
                f"{batch_size=} and {batch_tokens=}."
            )
        batch_size = 32 if batch_size is None else batch_size
        if columns is not None:
            x, y, sample_weight = self._selected((x, y, sample_weight), columns)
            validation_data = self._selected(validation_data, columns)
        if validation_split and validation_data is None:
            examples = self.examples(x, y, sample_weight)
            (x, y, sample_weight), validation_data = split_rows(
                *examples, validation_split, self.fields
            )
        dataset: Any = x
        if not is_packed(x):
            dataset = self.text_batches(
                x, y, sample_weight, batch_size, shuffle=shuffle, training=True, **options
            )
            if verbose and self._label_summary:
                print(self._label_summary)
        if validation_data is not None:
            validation_data = self.validation_batches(
                validation_data, validation_batch_size or batch_size, dataset
            )
        rate_callback = _rate_callback(callbacks)
        if not self._compiled_by_user:
            steps = steps_per_epoch or _cardinality(dataset)
            steps *= epochs - initial_epoch
            self._compile_defaults(steps if steps > 0 and rate_callback is None else None)
        if rate_callback is not None:
            _check_settable(self.optimizer, rate_callback)
        if isinstance(class_weight, str):
            one_of("class_weight", class_weight, [_BALANCED], "; or a dict of weights by label")
            class_weight = self.balanced_class_weights(x, y)
        elif class_weight is not None:
            class_weight = self.class_weights(class_weight)
        self._validation = validation_data
        try:
            with as_value_errors():
                history = super().fit(
                    dataset,
                    epochs=epochs,
                    verbose=verbose,
                    callbacks=callbacks,
                    validation_data=validation_data,
                    shuffle=False,  # the batches are shuffled; Keras warns that it cannot
                    class_weight=class_weight,
                    initial_epoch=initial_epoch,
                    steps_per_epoch=steps_per_epoch,
                    validation_steps=validation_steps,
                    validation_freq=validation_freq,
                )
        finally:
            self._validation = None
        if history.epoch and not history.history:
            raise ValueError(NO_TEXT)
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
        columns: Columns | None = None,
        **options: Any,
    ) -> Any:
        """Evaluates like ``keras.Model.evaluate``, on raw text and labels.

        Args:
            x, y, sample_weight, columns: the same as for ``fit``.
            **options: further options of the class's ``text_batches``, in ``evaluate_options``.

        Raises:
            ValueError, TypeError: as for ``fit``.
        """
        loop: dict[str, Any] = dict(
            verbose=verbose, steps=steps, callbacks=callbacks, return_dict=return_dict
        )
        if x is not None and x is self._validation:
            # Keras' fit() evaluates the data set that our fit() made.
            return super().evaluate(x, **loop, **options)
        refuse(
            "evaluate",
            options.keys() - set(self.evaluate_options),
            [*arguments(TextLearner.evaluate), *self.evaluate_options],
        )
        if not is_packed(x):
            x, y, sample_weight = self._selected((x, y, sample_weight), columns)
            x = self.text_batches(x, y, sample_weight, batch_size, **options)
        if not self.compiled:
            self._compile_defaults()
        with as_value_errors():
            results = super().evaluate(x, **loop)
        if results in ([], {}):
            raise ValueError(NO_TEXT)
        return results

    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Mapping[Any, float] | None = None,
        return_dict: bool = False,
    ) -> Any:
        """Trains on one batch like ``keras.Model.train_on_batch``, on raw texts and labels.

        Preparing a single batch takes some tenths of a second; ``fit`` prepares batches during its
        steps.

        Args:
            x: texts in memory, as ``fit`` takes them; or packed token ids by name.
            class_weight: the same as for ``fit``.

        Raises:
            ValueError: as for ``fit``; and for a data set.
        """
        batch = self._one_batch(x, y, sample_weight, training=True)
        if class_weight is not None:
            class_weight = self.class_weights(class_weight)
        with as_value_errors():
            return super().train_on_batch(
                *batch, class_weight=class_weight, return_dict=return_dict
            )

    def test_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False
    ) -> Any:
        """Evaluates one batch like ``keras.Model.test_on_batch``: returns the loss and Keras'
        metrics, even if ``evaluate`` scores answers.

        Args:
            x: the same as for ``train_on_batch``.

        Raises:
            ValueError: as for ``train_on_batch``.
        """
        batch = self._one_batch(x, y, sample_weight)
        with as_value_errors():
            return super().test_on_batch(*batch, return_dict=return_dict)

    def _one_batch(
        self, x: Any, y: Any, sample_weight: Any, *, training: bool = False
    ) -> tuple[Any, ...]:
        """Inputs, targets and weights of one batch, as far as given."""
        if not self.compiled:
            self._compile_defaults()
        if is_packed_batch(x):
            return x, y, sample_weight
        stream = self.text_batches(x, y, sample_weight, ONE_BATCH, training=training)
        with as_value_errors():
            return next(iter(stream))


def is_packed_batch(x: Any) -> bool:
    """Returns whether a batch has packed token ids by name, or by task and name, not texts.

    Raises:
        ValueError: for a data set.
    """
    if isinstance(x, tf.data.Dataset):
        raise ValueError("Expected the texts of one batch, got a tf.data.Dataset.")
    if not isinstance(x, Mapping) or "token_ids" in x:
        return isinstance(x, Mapping)
    return bool(x) and all(map(is_packed_batch, x.values()))


def _rate_callback(callbacks: Any) -> keras.callbacks.Callback | None:
    """Returns the first callback that sets the learning rate, or None."""
    listed = getattr(callbacks, "callbacks", callbacks)
    candidates = listed if isinstance(listed, list | tuple) else [listed]
    return next(
        (callback for callback in candidates if isinstance(callback, _RATE_CALLBACKS)), None
    )


def _check_settable(optimizer: Any, callback: keras.callbacks.Callback) -> None:
    """Raises ValueError if the optimizer has a schedule, which no callback can set."""
    try:
        optimizer.learning_rate = float(optimizer.learning_rate)
    except TypeError as error:
        raise ValueError(
            f"{type(callback).__name__} sets the learning rate, but the optimizer was compiled "
            "with a schedule; compile it with a number, such as optimizers.adamw(2e-5) without "
            "total_steps, or fit without compile."
        ) from error


def columns(data: Any, fields: Fields) -> tuple[Any, Any, Any]:
    """Returns texts, labels and weights of ``validation_data``, None where there are none."""
    return (*tables.members(data, fields), None, None)[:3]  # type: ignore[return-value]


def arguments(function: Callable) -> list[str]:
    """Returns the names of a function's arguments without ``self`` and ``**kwargs``."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.name != "self" and p.kind is not p.VAR_KEYWORD]


def refuse(function: str, others: Iterable[str], known: Iterable[str]) -> None:
    """Raises TypeError for arguments that a function does not have, if there are any."""
    names = sorted(others)
    if names:
        raise TypeError(unexpected(function, names, known))


def renamed(old: str, new: str) -> Callable:
    """Returns a method for a former name, which warns."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        warnings.warn(
            f"{type(self).__name__}.{old} is now {new}; the old name is for version 0.1 only.",
            FutureWarning,
            stacklevel=2,
        )
        return getattr(self, new)(*args, **kwargs)

    method.__doc__ = f"The former name of ``{new}``."
    return method


def _cardinality(dataset: Any) -> int:
    """Returns the number of batches; negative if unknown."""
    return int(dataset.cardinality()) if isinstance(dataset, tf.data.Dataset) else -1
