"""Data as users pass them to ``fit`` or ``predict``, as one data set of batches of raw text."""

import itertools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from bertfam_tf.data import tables
from bertfam_tf.data.batching import TokenBatches, shuffled_batches, training_options
from bertfam_tf.data.errors import marked
from bertfam_tf.data.tables import LABEL as LABEL
from bertfam_tf.data.tables import LANGUAGE as LANGUAGE
from bertfam_tf.data.tables import TEXT as TEXT
from bertfam_tf.data.tables import TEXT_PAIR as TEXT_PAIR
from bertfam_tf.data.tables import TEXTS, Columns, Fields, Stream, from_pandas, is_frame
from bertfam_tf.names import NO_TEXT, ONE_WEIGHT, truncated_repr
from bertfam_tf.validation import in_range

_SHAPES = (
    "a list of strings, a tuple with a list for each feature, a dict or pandas.DataFrame with {}, "
    "a list of dicts or of tuples, or a tf.data.Dataset of those"
)
_GENERATORS = (types.GeneratorType, keras.utils.PyDataset)
Prepare: TypeAlias = Callable[[Any, Any], tuple[Any, Any]]


def batches(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batch_size: int | None,
    by_tokens: TokenBatches | None = None,
    shuffle: bool = False,
    fields: Fields = TEXTS,
) -> tf.data.Dataset:
    """Returns a data set of ``(features, y, sample_weight)``, without members that are None.

    Args:
        x: texts in one of the structures that Keras accepts: a list, array or ``pandas.Series`` of
            strings, a tuple with one such for each feature, a dict ``{"text": …, "text_pair": …}``
            or ``pandas.DataFrame`` with such columns, or a ``tf.data.Dataset`` whose elements are
            one of these, alone or followed by y (and sample weight), batched or not; or a generator
            or ``keras.utils.PyDataset`` of such batches. A dict may also contain y, as ``"label"``,
            and so may a ``DataFrame``, whose other columns are ignored. A feature other than the
            first may be several strings for each example, (examples, strings).
        y: the labels, when ``x`` is not a data set; an array, or a dict of arrays. ``{"label": y}``
            stands for ``y``, also in data sets.
        sample_weight: weights, when ``x`` is not a data set.
        batch_size: examples in a batch, None for 32; a batched data set keeps its batch size.
        by_tokens: batches by tokens instead of ``batch_size``; a data set must have single
            examples, and is not read beforehand.
        shuffle: reshuffles lists and arrays in each epoch, batching examples of similar length.
            A data set keeps its order.
        fields: the features' names.

    Returns:
        A data set whose elements are tuples; the first is a dict of string tensors (batch,), or
        (batch, strings).

    Raises:
        ValueError: if the type is another one, the input is empty, values are missing, lengths
            differ, an example has more tokens than a batch may have, ``by_tokens`` is set for a
            batched data set, or ``batch_size`` is not a positive integer.
    """
    batch_size = 32 if batch_size is None else batch_size
    in_range("batch_size", batch_size, at_least=1, integer=True)
    x, y, sample_weight = examples(x, y, sample_weight, fields)
    dataset = _batches(x, y, sample_weight, batch_size, by_tokens, shuffle, fields)
    weights = dataset.element_spec[2:]
    if weights and weights[0].shape.rank == 2 and weights[0].shape[1] == 1:
        # A column, as Keras takes it too, would be multiplied with the losses of all examples.
        dataset = dataset.map(lambda x, y, weights: (x, y, tf.squeeze(weights, 1)))
    return training_options(dataset)


def _batches(
    x: Any,
    y: Any,
    sample_weight: Any,
    batch_size: int,
    by_tokens: TokenBatches | None,
    shuffle: bool,
    fields: Fields,
) -> tf.data.Dataset:
    if isinstance(x, tf.data.Dataset):
        if y is not None or sample_weight is not None:
            raise ValueError("y and sample_weight must be None if x is a tf.data.Dataset of them.")
        if int(x.cardinality()) == 0:
            raise ValueError(NO_TEXT)

        @tf.autograph.experimental.do_not_convert
        def as_tuple(*element):
            return _as_tuple(fields, *element)

        dataset = x.map(as_tuple, num_parallel_calls=tf.data.AUTOTUNE)
        rank = dataset.element_spec[0][fields.required[0]].shape.rank
        if rank not in (0, 1):
            raise ValueError(f"Texts of a data set must be scalars or vectors, got rank {rank}.")
        if by_tokens is not None:
            if rank == 1:
                raise ValueError(
                    "batch_tokens needs a data set of single examples, got a batched one; call "
                    "unbatch()."
                )
            return by_tokens(dataset)
        if rank == 1:
            return dataset
        # Examples may have different numbers of gold answers, which are padded with "".
        labels = dataset.element_spec[1:2]
        padded = labels and isinstance(labels[0], Mapping)
        return dataset.padded_batch(batch_size) if padded else dataset.batch(batch_size)
    arrays = _arrays(x, y, sample_weight, fields)
    rows = len(next(iter(arrays[0].values())))
    if not rows:
        raise ValueError(NO_TEXT)
    dataset = tf.data.Dataset.from_tensor_slices(arrays)
    if by_tokens is not None:
        by_tokens = by_tokens.counted(dataset)
        count = tf.data.experimental.assert_cardinality(by_tokens.steps)
        return by_tokens(dataset, buffer=rows if shuffle else None).apply(count)
    if shuffle:
        count = tf.data.experimental.assert_cardinality(-(-rows // batch_size))
        return shuffled_batches(dataset, batch_size, buffer=rows).apply(count)
    return dataset.batch(batch_size)


def _arrays(x: Any, y: Any, sample_weight: Any, fields: Fields) -> tuple:
    """Returns texts by name, labels and weights as arrays, without members that are None."""
    if isinstance(x, Mapping) and y is None:
        x, (y,) = _split_label(x, default=(None,))
    arrays: tuple = (_features(x, fields),)
    if y is not None:
        arrays += (
            {k: np.asarray(v) for k, v in y.items()} if isinstance(y, Mapping) else np.asarray(y),
        )
    if sample_weight is not None:
        if y is None:
            raise ValueError("sample_weight was given without labels.")
        try:
            arrays += (np.asarray(sample_weight, "float32"),)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{ONE_WEIGHT}, got {truncated_repr(sample_weight)}.") from error
    lengths = {len(array) for array in tf.nest.flatten(arrays)}
    if len(lengths) != 1:
        raise ValueError(f"Texts, labels and weights differ in number: {sorted(lengths)}.")
    return arrays


def _generated(x: Any, fields: Fields, prepare: Prepare | None) -> tf.data.Dataset:
    """Returns the batches of a generator: texts, or a tuple ``(x, y, sample_weight)``, as of Keras.

    A ``PyDataset`` is read from its beginning in each epoch; a generator goes on where it was.
    """

    def epoch() -> Iterator[Any]:
        numbers = itertools.count() if x.num_batches is None else range(x.num_batches)
        x.on_epoch_begin()
        yield from (x[i] for i in numbers)
        x.on_epoch_end()

    if isinstance(x, keras.utils.PyDataset):
        if x.num_batches == 0:
            raise ValueError(NO_TEXT)
        dataset = _from_batches(epoch, fields, prepare, x[0])
        if x.num_batches is not None:
            dataset = dataset.apply(tf.data.experimental.assert_cardinality(x.num_batches))
        return dataset
    filled = (batch for batch in x if not _is_empty(batch))
    first = next(filled, None)
    if first is None:
        raise ValueError(NO_TEXT)
    batches = itertools.chain([first], filled)
    return _from_batches(lambda: batches, fields, prepare, first)


def _is_empty(batch: Any) -> bool:
    """Returns whether a batch is empty; its dtypes may differ from other batches'."""
    while isinstance(batch, Mapping | tuple) and batch:
        batch = next(iter(batch.values() if isinstance(batch, Mapping) else batch))
    return hasattr(batch, "__len__") and not isinstance(batch, str | bytes) and len(batch) == 0


def _from_stream(
    x: Stream, fields: Fields, prepare: Prepare | None, columns: Columns | None, labelled: bool
) -> tf.data.Dataset:
    """Returns the single examples of a stream of tables."""

    def batches() -> Iterator[dict[str, Any]]:
        for table in x.tables():
            yield tables.selected(table, fields, columns, labelled=labelled)

    return _from_batches(batches, fields, prepare).unbatch()


def _from_batches(
    batches: Callable[[], Iterator[Any]],
    fields: Fields,
    prepare: Prepare | None,
    first: Any = None,
) -> tf.data.Dataset:
    """Returns batches that Python code makes, each converted as ``examples`` does.

    Args:
        batches: starts to read, in each epoch.
        fields, prepare: the same as for ``examples``.
        first: the first batch; None to read it. All batches have its shapes, except for labels
            that are dicts, such as gold answers.
    """

    def arrays(batch: Any) -> tuple:
        members = batch if isinstance(batch, tuple) else (batch,)
        x, y, sample_weight = (*members, None, None)[:3]
        x, y, sample_weight = examples(x, y, sample_weight, fields)
        if prepare is not None:
            x, y = prepare(x, y)
        return _arrays(x, y, sample_weight, fields)

    def shape_of(values: Any, free: bool) -> list[int | None]:
        shape = np.shape(values)[1:]
        return [None] * len(shape) if free else list(shape)

    def shapes_of(batch: tuple) -> list[Any]:
        return [
            shape_of(values, isinstance(member, Mapping) and i == 1)
            for i, member in enumerate(batch)
            for values in tf.nest.flatten(member)
        ]

    if first is None:
        first = next(batches(), None)
        if first is None:
            raise ValueError(NO_TEXT)
    example = arrays(first)
    shapes = shapes_of(example)
    dtypes = [tf.convert_to_tensor(values).dtype for values in tf.nest.flatten(example)]
    specs = [tf.TensorSpec([None, *s], d) for s, d in zip(shapes, dtypes, strict=True)]

    def read() -> Iterator[tuple]:
        for batch in map(arrays, batches()):
            new_shapes = shapes_of(batch)
            if new_shapes != shapes:
                raise ValueError(
                    "Examples of a generator must have the same shapes in each batch, "
                    f"got {[*map(tuple, new_shapes)]} after {[*map(tuple, shapes)]}."
                )
            for values, dtype in zip(tf.nest.flatten(batch), dtypes, strict=True):
                new = tf.convert_to_tensor(values).dtype if len(values) else dtype
                # TensorFlow would convert 2.5 to 2, and NumPy 1 to "1".
                if (new == tf.string) != (dtype == tf.string) or not np.can_cast(
                    new.as_numpy_dtype, dtype.as_numpy_dtype, "same_kind"
                ):
                    raise ValueError(
                        "Labels of a generator must have the same type in each batch, got "
                        f"{new.name} after {dtype.name}."
                    )
            yield batch

    return tf.data.Dataset.from_generator(
        lambda: marked(read()), output_signature=tf.nest.pack_sequence_as(example, specs)
    )


def examples(
    x: Any,
    y: Any,
    sample_weight: Any,
    fields: Fields = TEXTS,
    prepare: Prepare | None = None,
    columns: Columns | None = None,
    pair: bool | None = None,
) -> tuple[Any, Any, Any]:
    """Converts the arguments of ``batches`` to lists, arrays and data sets.

    Args:
        x, y, sample_weight, fields: the same as for ``batches``; ``x`` may also be a table or an
            iterable data set of another library, as ``tables`` reads them, a list of dicts or a
            list of tuples.
        prepare: a function that converts the texts and labels of each batch of a generator; other
            data the caller converts.
        columns: names of the columns of ``x``, by texts and ``"label"``.
        pair: whether tuples have the optional texts; None where both may be.

    Raises:
        ValueError: if a column does not exist or has a missing value, or there are labels or
            weights together with a generator.
    """
    stream = tables.as_stream(x)
    if isinstance(x, _GENERATORS) or stream is not None:
        if y is not None or sample_weight is not None:
            raise ValueError("y and sample_weight must be None if x is a generator of them.")
        if stream is not None:
            return _from_stream(stream, fields, prepare, columns, True), None, None
        _no_columns(x, columns)
        return _generated(x, fields, prepare), None, None
    x = _texts_by_name(x, fields, columns, labelled=y is None, pair=pair)
    y, sample_weight = _of_output(y), _of_output(sample_weight)
    if is_frame(y):
        targets = {str(name): from_pandas(y[name], str(name)) for name in y.columns}
        y = targets if len(targets) > 1 else next(iter(targets.values()))
    return (
        x,
        tables.complete(from_pandas(tables.values_of(y, "the labels"), "the labels"), "the labels"),
        from_pandas(tables.values_of(sample_weight, "the weights"), "the weights"),
    )


def _texts_by_name(
    x: Any, fields: Fields, columns: Columns | None, *, labelled: bool, pair: bool | None = None
) -> Any:
    """Returns texts as lists, arrays or data sets; of tables and tuples, columns by name."""
    table = tables.as_table(x)
    if table is not None:
        return tables.selected(table, fields, columns, labelled=labelled)
    if columns is not None:
        if isinstance(x, tf.data.Dataset):
            return _renamed(x, fields, columns, labelled)
        if isinstance(x, Mapping):
            return tables.selected(tables.of_columns(x), fields, columns, labelled=labelled)
        _no_columns(x, columns)
    x = tables.of_tuples(x, fields, labelled, pair)
    if isinstance(x, Mapping):
        x = {name: tables.values_of(values, str(name)) for name, values in x.items()}
        if labelled:
            tables.complete(x.get(LABEL), LABEL)
    elif type(x) is tuple:
        x = tuple(tables.values_of(values, fields.required[0]) for values in x)
    return from_pandas(tables.values_of(x, fields.required[0]), fields.required[0])


def _renamed(
    x: tf.data.Dataset, fields: Fields, columns: Columns, labelled: bool
) -> tf.data.Dataset:
    """Selects elements of a data set of dicts, of which others are left out."""
    spec = x.element_spec
    if not isinstance(spec, Mapping):
        _no_columns(x, columns)

    @tf.autograph.experimental.do_not_convert
    def select(element: Mapping[str, Any]) -> dict[str, Any]:
        table = tables.Table("data set", list(spec), element.__getitem__)
        return tables.selected(table, fields, columns, labelled=labelled)

    return x.map(select, num_parallel_calls=tf.data.AUTOTUNE)


def _no_columns(x: Any, columns: Columns | None) -> None:
    if columns is not None:
        raise ValueError(
            f"columns is for data with named columns, such as a dict of them, got a "
            f"{type(x).__name__}."
        )


def is_packed(data: Any) -> bool:
    """Returns whether data are batches of token ids already, as training makes them from texts."""
    spec = data.element_spec if isinstance(data, tf.data.Dataset) else None
    return isinstance(spec, tuple) and isinstance(spec[0], Mapping) and "token_ids" in spec[0]


def texts_of(
    x: Any,
    fields: Fields = TEXTS,
    prepare: Prepare | None = None,
    columns: Columns | None = None,
    pair: bool | None = None,
) -> Any:
    """Converts inputs of ``predict`` as ``examples`` does; one text or dict is a list of one.

    Raises:
        ValueError: as ``examples`` does.
    """
    stream = tables.as_stream(x)
    if stream is not None:
        return _from_stream(stream, fields, prepare, columns, False)
    if isinstance(x, _GENERATORS):
        _no_columns(x, columns)
        return _generated(x, fields, prepare)
    if isinstance(x, str | bytes):
        return [x]
    first = fields.required[0]
    own = (columns or {}).get(first, first)
    if isinstance(x, Mapping) and isinstance(own, str) and isinstance(x.get(own), str | bytes):
        x = {name: [value] for name, value in x.items()}
    return _texts_by_name(x, fields, columns, labelled=False, pair=pair)


def split_rows(x: Any, y: Any, sample_weight: Any, part: float, fields: Fields = TEXTS) -> tuple:
    """Splits ``(x, y, sample_weight)``; the second part has the last ``part`` of the examples.

    Args:
        x, y, sample_weight: the result of ``examples``, or None.

    Raises:
        ValueError: if ``part`` is outside of 0 to 1, ``x`` is a data set, or a side has no
            examples.
    """
    if isinstance(x, tf.data.Dataset):
        raise ValueError("validation_split is for lists and arrays; take() and skip() split x.")
    in_range("validation_split", part, above=0, below=1)
    members = (_by_name(x, fields), y, sample_weight)
    count = len(next(iter(members[0].values())))
    first = int(count * (1 - part))
    if not 0 < first < count:
        raise ValueError(f"validation_split={part} of {count} examples leaves a side without any.")

    def rows(values: Any, which: slice) -> Any:
        if isinstance(values, Mapping):
            return {name: rows(column, which) for name, column in values.items()}
        return None if values is None else values[which]

    parts = (slice(first), slice(first, None))
    return tuple(tuple(rows(values, which) for values in members) for which in parts)


def _by_name(x: Any, fields: Fields) -> dict[str, Any]:
    names = (*fields.required, *fields.optional)
    if isinstance(x, Mapping):
        return dict(x)
    if isinstance(x, tuple) and 1 < len(x) <= len(names) and not isinstance(x[0], str | bytes):
        return dict(zip(names, x, strict=False))
    if isinstance(x, str | bytes):
        raise ValueError(f"x must be {_SHAPES.format(fields)}, got a single string.")
    if isinstance(x, Sequence | np.ndarray | tf.Tensor):
        return {names[0]: x}
    raise ValueError(f"x must be {_SHAPES.format(fields)}, got a {type(x).__name__}.")


def _features(x: Any, fields: Fields) -> dict[str, np.ndarray]:
    by_name = _by_name(x, fields)
    fields.check(by_name)
    first = fields.required[0]
    return {
        name: _strings(values, name, nested=name != first and _is_nested(values))
        for name, values in by_name.items()
    }


def _is_nested(values: Any) -> bool:
    return len(values) > 0 and isinstance(values[0], list | tuple | np.ndarray | tf.Tensor)


def _strings(values: Any, name: str, nested: bool = False) -> np.ndarray:
    if isinstance(values, tf.Tensor):
        values = values.numpy()
    if nested:
        rows = [_strings(row, f"{name}[{i}]") for i, row in enumerate(values)]
        counts = sorted({len(row) for row in rows})
        if len(counts) > 1:
            raise ValueError(
                f"Examples of {name!r} must have the same number of strings, got {counts}."
            )
        return np.stack(rows)
    for row, value in enumerate(values):
        if not isinstance(value, str | bytes):
            string = value.item() if isinstance(value, np.generic) else value
            raise ValueError(f"Example {row} of {name!r} must be a string, got {string!r}.")
    # Lone surrogates cannot be encoded, and are replaced as broken bytes are.
    encoded = [v.encode("utf-8", "replace") if isinstance(v, str) else v for v in values]
    # dtype object keeps trailing NUL bytes, which numpy's own string type drops.
    return np.array(encoded, dtype=object)


def _split_label(elements: Mapping[str, Any], default: tuple = ()) -> tuple[dict[str, Any], tuple]:
    features = dict(elements)
    return (features, (features.pop(LABEL),)) if LABEL in features else (features, default)


def _as_tuple(fields: Fields, *element: Any) -> tuple:
    # ``map`` calls its function with two arguments for (text, label) elements, with one for dicts.
    x, rest = element[0], element[1:]
    if isinstance(x, Mapping):
        if not rest:
            x, rest = _split_label(x)
    else:
        x = x if isinstance(x, tuple) else (x,)
        x = dict(zip((*fields.required, *fields.optional), x, strict=False))
    fields.check(x)
    for name, value in x.items():
        if value.dtype != tf.string:
            raise ValueError(f"{name!r} of a data set must be strings, got {value.dtype.name}.")
    return (x, *map(_of_output, rest))


def _of_output(values: Any) -> Any:
    """Returns labels or weights; in a dict by the output, as Keras takes them, its only member."""
    return values[LABEL] if isinstance(values, Mapping) and {*values} == {LABEL} else values


def as_text(values: Any) -> list[str]:
    """Returns a vector of byte strings as Python strings."""
    return [value.decode("utf-8", "replace") for value in np.asarray(values).tolist()]
