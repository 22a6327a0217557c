"""From raw text to answers: the graphs of a task, and the loop that runs them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from bertfam_tf.data.errors import as_value_errors
from bertfam_tf.data.inputs import LANGUAGE, TEXT_PAIR, Fields, batches, texts_of
from bertfam_tf.data.tables import Columns
from bertfam_tf.data.targets import Target
from bertfam_tf.models import Backbone
from bertfam_tf.names import NO_TEXT
from bertfam_tf.tasks.components import TaskComponents
from bertfam_tf.tasks.preprocessing import PACKED
from bertfam_tf.tasks.text_learner import arguments, refuse
from bertfam_tf.text import Tokenizer

_TAKES = {TEXT_PAIR: ("single texts", "pairs")}


class TaskInference:
    """The part of a ``Task`` that answers: tensors in graphs, and ``predict`` on raw text."""

    fields: Fields
    # For tasks without an optional text.
    pair: bool | None = False
    unpublished_inputs: ClassVar[tuple[str, ...]] = ()
    backbone: Backbone
    tokenizer: Tokenizer
    options: Any
    distribute_strategy: Any
    file_labels: Callable[[], type[Target] | None]
    _count_adapted_layers: Callable[[], int]
    __call__: Callable[..., Any]
    _parts: TaskComponents

    # From text to answers, as graphs ---------------------------------------------------------

    @tf.autograph.experimental.do_not_convert
    def preprocess(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Converts string tensors (batch,) to the model's inputs, int32 (batch, longest)."""
        preprocessor = self._parts.preprocessor
        return preprocessor.inputs(preprocessor(features))

    @tf.autograph.experimental.do_not_convert
    def encode(self, features: dict[str, tf.Tensor]) -> dict[str, Any]:
        """Runs the preprocessor on string tensors (batch,); see ``Preprocessor.__call__``.

        Raises:
            TypeError: for a list of texts, which ``predict`` takes.
        """
        if not isinstance(features, Mapping):
            raise TypeError(
                f"{type(self).__name__}.encode maps a dict of string tensors to packed token ids; "
                "for answers or vectors of texts write task.predict(texts)."
            )
        return self._parts.preprocessor(features)

    def forward(self, encoded: dict[str, Any]) -> Any:
        """Returns the model's outputs for the result of ``encode``."""
        inputs = self._parts.preprocessor.inputs(encoded)
        if self._parts.forward is not None:
            return self._parts.forward(inputs)
        return self._parts.preprocessor.run(self, inputs)

    def postprocess(self, outputs: Any, encoded: dict[str, Any] | None = None) -> Any:
        """Converts the model's outputs to answers; dimension 0 of each is the batch.

        Args:
            outputs: the result of ``forward``.
            encoded: the result of ``encode``; None if answers only depend on the outputs.
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
        encoded = self._parts.preprocessor.inputs(inputs)
        outputs = self(encoded, training=False)
        if self._parts.answer_ids is not None:
            return self._parts.answer_ids(outputs, encoded)
        return self.postprocess(outputs, encoded)

    @property
    def answers_from_ids(self) -> bool:
        """Whether ``answer_ids`` returns the same as ``answer`` does for texts."""
        return self._parts.answer_ids is None

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
        for preprocessor in (self._parts.preprocessor, self._parts.training_preprocessor):
            if preprocessor is not None:
                preprocessor.languages.set(language)
        languages = self._parts.preprocessor.languages
        self.tokenizer = languages.tokenizer
        self.options = dataclasses.replace(self.options, language_id=languages.language_id)
        self.forget_graphs()

    @property
    def components(self) -> TaskComponents:
        """The components that ``parts`` returned."""
        return self._parts

    @property
    def one_input_per_example(self) -> bool:
        """Whether each example is one row of the model's inputs, as opposed to several windows."""
        return (
            self._parts.preprocessor.rows_per_example == 1
            and self._parts.training_preprocessor is None
        )

    @property
    def class_names(self) -> list[str]:
        """Names of the labels or tags, in the order of the scores; empty if there are none."""
        return []

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
    def published_inputs(self) -> tuple[str, ...]:
        """The backbone's inputs that are not constant in this task."""
        inputs = self.backbone.token_inputs.keys() - set(self.unpublished_inputs)
        return tuple(name for name in PACKED if name in inputs)

    # Running the model -----------------------------------------------------------------------

    def predict(
        self,
        x: Any,
        *,
        batch_size: int = 32,
        verbose: Any = 0,
        steps: int | None = None,
        callbacks: Any = None,
        language: str | int | None = None,
        columns: Columns | None = None,
        **others: Any,
    ) -> Any:
        """Returns the exported model's answers for raw texts; labels in a data set are ignored.

        Args:
            x: texts; a single string (or a dict of strings) is treated as a list of one.
            batch_size: examples in a batch.
            verbose, callbacks: the same as in Keras.
            steps: number of batches; None for all.
            language: the code or the id of the language of all texts, for backbones with language
                embeddings; None for the texts' own column, or for the task's ``language``.
            columns: the columns of the texts in a table, dict or data set of dicts, such as
                ``{"text": "review"}``; None where they have the task's names.

        Returns:
            a list, or an array, with an answer for each example, as the class documents; of
            length 0 for an empty list.

        Raises:
            ValueError: for data of an unknown structure, missing values, a data set without data,
                a language that the backbone does not have, or both a language and a column of
                languages.
            TypeError: for an argument that does not exist.
        """
        refuse("predict", others, arguments(TaskInference.predict))
        loop: dict[str, Any] = dict(
            batch_size=batch_size,
            verbose=verbose,
            steps=steps,
            callbacks=callbacks,
            language=language,
            columns=columns,
        )
        return self._answered(
            self._parts.predicted or self.answer, self._parts.to_python, x, **loop
        )

    def _answered(
        self,
        function: Callable,
        to_python: Callable,
        x: Any,
        *,
        batch_size: int,
        language: str | int | None = None,
        columns: Columns | None = None,
        extend: Callable[..., tuple] | None = None,
        **loop: Any,
    ) -> Any:
        """Answers of ``function`` for texts of any structure, converted by ``to_python``.

        ``extend`` adds features that are the same for all texts to a batch.
        """
        if _has_no_rows(x):
            shapes = {name: spec.shape[1:] for name, spec in self.feature_specs.items()}
            nothing = {
                name: tf.zeros([0, *(size or 0 for size in shape)], tf.string)
                for name, shape in shapes.items()
            }
            graph = self._traced(function, language=language)
            specs = tf.nest.map_structure(
                lambda x: tf.TensorSpec([None, *x.shape[1:]], x.dtype), nothing
            )
            return to_python(graph.get_concrete_function(specs)(nothing), nothing)
        self._refuse_pairs(x)
        prepare = self._parts.targets.prepared
        texts, _ = prepare(texts_of(x, self.fields, prepare, columns, self.pair), None)
        stream = batches(texts, batch_size=batch_size, fields=self.fields)
        stream = stream if extend is None else stream.map(extend)
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
            language: the language of the texts; None for their own or the task's.
        """
        self._forget_graphs_without_lora()
        languages = self._parts.preprocessor.languages
        language_id = None if language is None else languages.id_of(language)
        key = (function, language_id)
        if key not in self._graphs:

            def of_batch(features: dict[str, tf.Tensor], *rest: Any) -> Any:
                described = with_language(features, language_id)
                return function(described, *rest) if labelled else function(described)

            self._graphs[key] = tf.function(of_batch, autograph=False)
        return self._graphs[key]

    def forget_graphs(self) -> None:
        """Discards traced functions, after a change of the layers or of an option."""
        self._graphs: dict[Any, Any] = {}
        self._adapted_layers = self._count_adapted_layers()

    def _forget_graphs_without_lora(self) -> None:
        """Discards graphs that were traced before layers got LoRA's updates.

        ``compile`` is not enough: several tasks may share a backbone, and other models, such as an
        ``EmbedderTrainer``, are compiled to train it.
        """
        if self._adapted_layers != self._count_adapted_layers():
            self.forget_graphs()

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

        Keras' own loop takes some tenths of a second to set up, most of the time for few texts.
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
                results = run(batch)
                yield from results
                logs = {
                    "outputs": results[0][0]
                    if len(results) == 1
                    else [result[0] for result in results]
                }
                getattr(hooks, f"on_{mode}_batch_end")(number, logs if mode == "predict" else {})
        getattr(hooks, f"on_{mode}_end")()
        if number < 0:
            raise ValueError(NO_TEXT)

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
            results = strategy.experimental_local_results(traced(*batch))
            return [(each, part(batch, i)) for i, each in enumerate(results)]

        return run

    def _refuse_pairs(self, x: Any) -> None:
        """Raises ValueError for pairs of texts, whose second text would be ignored as a label."""
        kind = self.file_labels()
        single = self.pair is False and self.fields.optional
        if kind is None or not single or not isinstance(x, list):
            return
        target = kind(self.class_names or None)
        for row, example in enumerate(x):
            if type(example) is tuple and len(example) == 2 and isinstance(example[1], str):
                try:
                    target.read(example[1], {})
                except ValueError as error:
                    raise ValueError(
                        f"This task takes single texts, alone or with a label. Example {row} is a "
                        f"pair: {error}"
                    ) from None

    def _settle_pair(self, stream: tf.data.Dataset) -> None:
        has_optional = any(name in stream.element_spec[0] for name in self.fields.optional)
        if self.pair is None:
            self.pair = has_optional
        if has_optional != self.pair:
            name = self.fields.optional[0]
            takes = _TAKES.get(name, (f"examples without {name!r}", f"examples with {name!r}"))
            has = "a" if has_optional else "no"
            raise ValueError(
                f"This task takes {takes[bool(self.pair)]}; the data has {has} {name!r}."
            )


def _has_no_rows(x: Any) -> bool:
    """Returns whether lists, arrays or frames, of one or of each feature, are empty."""
    columns: list[Any] = [x]
    if isinstance(x, Mapping):
        columns = list(x.values())
    elif isinstance(x, tuple) and x:
        columns = list(x)
    listed = (list, tuple, np.ndarray)
    return bool(columns) and all(
        (isinstance(column, listed) or hasattr(column, "iloc")) and len(column) == 0
        for column in columns
    )


def with_language(features: dict[str, Any], language_id: int | None) -> dict[str, Any]:
    """Adds the language of all texts, if there is one, to the features of a batch."""
    if language_id is None:
        return features
    if LANGUAGE in features:
        raise ValueError(
            f"Either language or the column {LANGUAGE!r} of the data must be omitted, got both."
        )
    return {**features, LANGUAGE: language_id}
