"""A tag for each word of a text (BERT, arXiv 1810.04805, section 5.3), and entities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bertfam_tf import heads, metrics
from bertfam_tf.data.batching import LABEL, TEXT, Fields, batches, examples, texts_of
from bertfam_tf.data.errors import MARK
from bertfam_tf.data.labels import index_of, not_listed
from bertfam_tf.models import Backbone
from bertfam_tf.tasks.base import Signature, as_text, compiled
from bertfam_tf.tasks.pretrained import checked_labels, open_labelled_task
from bertfam_tf.tasks.windowed import WindowedTask
from bertfam_tf.text import Tokenizer, reading_words, tokenize_words
from bertfam_tf.text._graph import flags, parts_of
from bertfam_tf.text.splitting import Split, Words, WordSplitter

_HEAD = "tokens"
_OUTSIDE = "O"
_UNLABELLED = -1
_STRIDE = 128
_SHOWN = 40
_MAX_ENTITIES = 64
# Behind shorter rows of an answer; where nothing is said "" or 0.
_PADDING = {"start": -1, "end": -1, "offsets": -1}


class WordAccuracy(keras.metrics.Mean):
    """The share of labelled places whose highest logit is that of the label."""

    def __init__(self, name: str = "accuracy", **kwargs: Any):
        super().__init__(name=name, **kwargs)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        labels = keras.ops.cast(y_true, "int32")
        right = keras.ops.equal(keras.ops.cast(keras.ops.argmax(y_pred, axis=-1), "int32"), labels)
        weights = keras.ops.cast(keras.ops.not_equal(labels, _UNLABELLED), "float32")
        if sample_weight is not None:
            weights = weights * keras.ops.cast(sample_weight, "float32")
        return super().update_state(keras.ops.reshape(right, -1), keras.ops.reshape(weights, -1))


class TokenTagger(WindowedTask):
    """One tag of a fixed list for each word: named entities, parts of speech, chunks.

    A text is its words with white space between them. ``fit``, ``evaluate`` and ``predict`` take
    lists of lists of words as well. Each word is split into pieces on its own, as Hugging Face's
    ``is_split_into_words`` does, and its first piece has its tag, in training too. Texts longer
    than ``max_length`` are read in windows that overlap; a word counts in the one in which it has
    most context. A word without any piece (control characters, say) is tagged "O" (the first tag,
    where there is no "O") with a score of 0, so that every word comes back once.

    Labels are lists of tags (or of their numbers), one for each word, or one string for each text
    with white space between the tags.

    Args:
        backbone: an encoder.
        tokenizer: its tokenizer. One that was made without ``add_prefix_space`` is made again with
            it: words are read as if a space stood before each.
        tags: names of the tags; their order is that of the logits.
        split: where raw texts are split into words, as ``WordSplitter`` takes it: ``"spaces"``, or
            ``"punctuation"`` as well. Lists of words are for ``"spaces"``. It may be set later: a
            tagger that learnt from lists of words can read prose once it is ``"punctuation"``.
        stride: by how many pieces windows that follow each other overlap; None for a quarter of
            ``max_length``, or 128 if that is less.
        max_length: most tokens of a window. None for all positions.
        language_id: the language of the texts, where the backbone has embeddings of languages.

    Raises:
        ValueError: for fewer than two tags, a repeated or empty one, one with white space, or
            another ``split``; and as ``Task`` and ``Windows`` raise it.
    """

    fields = Fields((TEXT,), ())

    answer_name = "words"

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        tags: Sequence[str],
        *,
        split: Split = "spaces",
        stride: int | None = None,
        max_length: int | None = None,
        language_id: int | None = None,
        **kwargs: Any,
    ):
        tags = checked_labels(tags)
        unfit = [tag for tag in tags if tag.split() != [tag]]
        if unfit:
            raise ValueError(f"The tag {unfit[0]!r} is empty or has white space in it.")
        if stride is None:
            stride = min(_STRIDE, (max_length or backbone.max_length or 4 * _STRIDE) // 4)
        head = heads.build(backbone, _HEAD, len(tags))
        inputs = backbone.row_inputs
        super().__init__(
            inputs,
            head(backbone(inputs)),
            backbone=backbone,
            reads=head.source,
            tokenizer=reading_words(tokenizer),
            stride=stride,
            max_length=max_length,
            language_id=language_id,
            **kwargs,
        )
        self.head = head
        self.tags = tags
        self._fallback = tags.index(_OUTSIDE) if _OUTSIDE in tags else 0
        self._spans = _Spans(tags) if metrics.marks_entities(tags) else None
        self.split = split

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        tags: Sequence[str] | None = None,
        *,
        split: Split = "spaces",
        stride: int | None = None,
        max_length: int | None = None,
        language: str | int | None = None,
        **overrides: Any,
    ) -> TokenTagger:
        """A tagger on a published checkpoint, ready to ``fit`` (or to ``predict``).

        Args:
            path: a directory, ``package:NAME``, or a hub id.
            tags: names of the tags; None takes those stored with the checkpoint's head.
            split, stride, max_length: as the constructor takes them.
            language: code of the texts' language, such as ``"de"``, for checkpoints of XLM, or its
                number where they name none; None for their tokenizer's.
            **overrides: config fields of the backbone, such as ``dropout=0.0``.

        The checkpoint's own head is used when it has one for the same tags; otherwise the head
        starts at random, and a log line says so.

        Raises:
            CheckpointError: as ``bertfam_tf.load_backbone`` raises it.
            ValueError: when ``tags`` are needed or not valid, or the tokenizer's files are not.
        """

        def build(backbone: Backbone, tokenizer: Tokenizer, labels: Any, **options: Any) -> Any:
            return cls(backbone, tokenizer, labels, **options)

        return open_labelled_task(
            build,
            _HEAD,
            path,
            tags,
            language=language,
            overrides=overrides,
            split=split,
            stride=stride,
            max_length=max_length,
        )

    @property
    def split(self) -> Split:
        """Where raw texts are split into words."""
        return self._splitter.split

    @split.setter
    def split(self, split: Split) -> None:
        self._splitter = WordSplitter(split)
        self._forget_graphs()

    def _forget_graphs(self) -> None:
        super()._forget_graphs()
        self._compiled_entities = compiled(self._find_entities)
        self._compiled_tags = tf.function(self._tags_and_labels, autograph=False)

    # From text to answers, as graphs ---------------------------------------------------------

    def read(self, features: dict[str, tf.Tensor]) -> dict[str, Any]:
        """What ``Windows`` makes of the pieces of all words, and where each word stands.

        Args:
            features: string tensors (batch,).

        Returns:
            as ``Windows`` does, and with it ``words``, the batch's ``Words``, and ``word``, int32
            (windows, longest): at the first piece of each word, in the window where it has most
            context, which of all words of the batch it is; -1 elsewhere.
        """
        words = self._splitter(features[TEXT])
        pieces = tokenize_words(self.tokenizer, words.text)
        inner = pieces.values
        begins = tf.gather(inner.row_splits, pieces.row_splits)
        text = tf.RaggedTensor.from_row_splits(inner.values, begins, validate=False)
        windows = self._windows([text])

        there = tf.where(inner.row_splits[1:] > inner.row_splits[:-1])
        first = tf.gather(inner.row_splits, there)
        size = tf.size(inner.values, tf.int64) + 1
        word_of = tf.scatter_nd(first, tf.cast(there[:, 0] + 1, tf.int32), [size]) - 1
        begin = tf.gather(tf.cast(begins, tf.int32), windows["document"])
        place = tf.where(windows["max_context"], begin[:, tf.newaxis] + windows["piece"], 0)
        word = tf.where(windows["max_context"], tf.gather(word_of, place), -1)
        return {**windows, "words": words, "word": word}

    def _choose(self, logits: tf.Tensor, windows: dict[str, Any]) -> tuple[tf.Tensor, tf.Tensor]:
        """The tag of each word of the batch, int32 [words], and its score, float32 [words]."""
        places = tf.where(windows["word"] >= 0)
        word = tf.gather_nd(windows["word"], places)[:, tf.newaxis]
        logits = tf.ensure_shape(tf.gather_nd(logits, places), [None, len(self.tags)])
        scores = tf.nn.softmax(tf.cast(logits, tf.float32))
        count = tf.shape(windows["words"].text.values)
        return (
            tf.tensor_scatter_nd_update(
                tf.fill(count, self._fallback), word, tf.argmax(scores, -1, tf.int32)
            ),
            tf.scatter_nd(word, tf.reduce_max(scores, -1), count),
        )

    def postprocess(self, outputs: Any, windows: Any = None, features: Any = None) -> Any:
        """Logits (windows, longest, tags) to tagged words; dim 0 of each is the batch.

        Returns:
            what ``serving_default`` answers (see ``signatures``), as wide as the most words.
        """
        return _padded(self._tagged(outputs, windows))

    def _tagged(self, outputs: Any, windows: Any) -> dict[str, tf.RaggedTensor]:
        words = windows["words"]
        tag, score = self._choose(outputs, windows)
        return {
            "tokens": words.text,
            "tags": words.text.with_values(tf.gather(tf.constant(self.tags), tag)),
            "scores": words.text.with_values(score),
            "offsets": words.start.with_values(
                tf.stack([words.start.values, words.end.values], axis=1)
            ),
        }

    @tf.autograph.experimental.do_not_convert
    def _find_entities(
        self, features: dict[str, tf.Tensor], width: int | None = None
    ) -> dict[str, tf.Tensor]:
        assert self._spans is not None
        windows = self.read(features)
        words: Words = windows["words"]
        tag, score = self._choose(self._run_windows(self._model_inputs(windows)), windows)
        return _padded(self._spans(features[TEXT], words, tag, score), width)

    def answer_ids(self, inputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Packed rows to ``logits``, float32 (batch, length, tags): words are known to texts."""
        return {"logits": tf.cast(self(self._model_inputs(inputs), training=False), tf.float32)}

    def signatures(
        self, max_tokens: int | None = None, max_entities: int = _MAX_ENTITIES
    ) -> dict[str, Signature]:
        """As ``Task.signatures``, with answers of one width whatever the texts, and ``entities``.

        ``serving_default`` answers with each text's words: ``tokens`` and ``tags``, string
        (batch, ``max_tokens``), "" behind shorter rows; ``scores``, float32, 0 there; ``offsets``,
        int32 (batch, ``max_tokens``, 2), where each begins and ends, in characters (code points)
        of the text, -1 there; and ``count``, int32 (batch,), how many words the text has. It is
        more than ``max_tokens`` where the words behind them were cut from the answer.

        ``entities``, where the tags are of IOB1, IOB2 or IOBES, answers with ``text`` and
        ``type``, string (batch, ``max_entities``), "" behind shorter rows: the exact parts of the
        texts, and what they are; ``score``, float32, the mean of the words', 0 there; ``start``
        and ``end``, int32, characters of the text, -1 there; and ``count``, as above.

        Args:
            max_tokens: words in an answer; None for ``max_length``, so many as one window may
                have. REST sends padding as well: smaller is quicker where texts are short.
            max_entities: entities in an answer.

        Raises:
            ValueError: for a number below 1.
        """
        width = self.max_length if max_tokens is None else max_tokens
        for name, number in (("max_tokens", width), ("max_entities", max_entities)):
            if number < 1:
                raise ValueError(f"{name} is {number}, expected 1 or more.")

        def words(features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            windows = self.read(features)
            outputs = self._run_windows(self._model_inputs(windows))
            return _padded(self._tagged(outputs, windows), width)

        def entities(features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            return self._find_entities(features, max_entities)

        signatures = {**super().signatures(), "serving_default": Signature(words)}
        return (
            signatures if self._spans is None else {**signatures, "entities": Signature(entities)}
        )

    @property
    def class_names(self) -> list[str]:
        return self.tags

    # Keras' verbs ----------------------------------------------------------------------------

    def predict(self, x: Any, **kwargs: Any) -> list[list[dict[str, Any]]]:
        """For each text its words: ``{"word", "tag", "score", "start", "end"}``.

        ``start`` and ``end`` are characters of the text; of a list of words, of these with one
        space between them. Arguments and errors
        as for ``Task.predict``.
        """
        return super().predict(self._joined(texts_of(x, self.fields)), **kwargs)

    def _answers(self, outputs: dict[str, tf.Tensor]) -> list[list[dict[str, Any]]]:
        start, end = tf.unstack(outputs["offsets"], axis=2)
        columns = {"word": outputs["tokens"], "tag": outputs["tags"], "score": outputs["scores"]}
        return _rows({**columns, "start": start, "end": end}, outputs["count"])

    def entities(self, x: Any, *, batch_size: int = 32) -> list[list[dict[str, Any]]]:
        """For each text its entities: ``{"entity", "label", "score", "start", "end"}``.

        ``entity`` is the part of the text from ``start`` up to ``end``, in characters; ``score``
        the mean of its words'. Which words are one entity is said by ``metrics.continues``.

        Raises:
            ValueError: when the tags mark no entities; and as ``predict`` raises it.
        """
        self._check_spans()
        x = self._joined(texts_of(x, self.fields))
        stream = batches(x, batch_size=batch_size, fields=self.fields)
        found = []
        for outputs, _ in self._run(self._compiled_entities, stream):
            columns = {"entity": outputs["text"], "label": outputs["type"]}
            columns |= {name: outputs[name] for name in ("score", "start", "end")}
            found += _rows(columns, outputs["count"])
        return found

    def evaluate(
        self,
        x: Any,
        y: Any = None,
        *,
        batch_size: int = 32,
        return_dict: bool = False,
        verbose: Any = 0,
        **kwargs: Any,
    ) -> Any:
        """Scores of the answers: ``precision``, ``recall`` and ``f1`` of entities, ``accuracy``.

        As ``metrics.entity_scores`` has them; ``accuracy`` alone where the tags mark no entities.
        Weights in a data set are passed over.

        Returns:
            the dict, or, without ``return_dict``, its values as a list.

        Raises:
            ValueError: as for ``fit``.
        """
        # Keras' fit() comes here for the loss of its validation data.
        if kwargs.get("_use_cached_eval_dataset"):
            return super().evaluate(x, y, return_dict=return_dict, **kwargs)
        if kwargs:
            raise TypeError(f"evaluate takes no {sorted(kwargs)[0]!r}.")
        x, y, _ = examples(x, y, None, self.fields)
        x, y = self._prepared(x, y)
        stream = batches(x, y, batch_size=batch_size, fields=self.fields)
        if len(stream.element_spec) == 1:
            self._check_labels(None)
        names = np.array(self.tags, object)
        wanted: list[list[str]] = []
        found: list[list[str]] = []
        for outputs, _ in self._run(self._compiled_tags, stream, verbose):
            *columns, counts = (part.numpy() for part in outputs)
            for rows, column in zip((wanted, found), columns, strict=True):
                parts = np.split(names[column], np.cumsum(counts))[:-1]
                rows += [part.tolist() for part in parts]
        if self._spans is None:
            scores = {"accuracy": metrics.word_accuracy(wanted, found)}
        else:
            scores = metrics.entity_scores(wanted, found)
        return scores if return_dict else list(scores.values())

    @tf.autograph.experimental.do_not_convert
    def _tags_and_labels(
        self, features: dict[str, tf.Tensor], labels: tf.Tensor, *_: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Wanted and chosen tags, int32 [words], and int64 (batch,), how many are in each row."""
        windows = self.read(features)
        wanted = self._labels(windows, features, labels)
        chosen, _ = self._choose(self._run_windows(self._model_inputs(windows)), windows)
        return wanted, chosen, windows["words"].text.row_lengths()

    def _encoded(self, x: Any, y: Any = None, *args: Any, **kwargs: Any) -> tf.data.Dataset:
        return super()._encoded(*self._prepared(x, y), *args, **kwargs)

    def _encode(self, features: dict[str, tf.Tensor], *rest: Any) -> tuple:
        inputs, *given = super()._encode(features, *rest)
        # One weight for all words of a row.
        return (inputs, *given[:1], *(tf.expand_dims(weight, 1) for weight in given[1:]))

    def _targets(self, windows: dict[str, tf.Tensor], features: Any, labels: Any) -> tf.Tensor:
        """int32 (windows, longest): the tag of each word at its first piece, -1 elsewhere."""
        label = tf.concat([[_UNLABELLED], self._labels(windows, features, labels)], 0)
        return tf.gather(label, windows["word"] + 1)

    def _labels(self, windows: dict[str, Any], features: Any, labels: tf.Tensor) -> tf.Tensor:
        """The tag of each word of the batch, int32 [words]."""
        if labels.dtype != tf.string or labels.shape.rank != 1:
            raise ValueError(
                "Labels are one string for each text in a data set, tags with spaces between them, "
                f"not {labels.dtype.name} of shape {labels.shape}."
            )
        tags = tf.strings.split(labels)
        expected, given = windows["words"].text.row_lengths(), tags.row_lengths()
        wrong = tf.where(expected != given)[:1, 0]
        begins = tf.strings.substr(tf.gather(features[TEXT], wrong), 0, _SHOWN)
        text = tf.strings.join(
            [
                MARK + "Words and tags differ in number: ",
                _shown(tf.gather(expected, wrong)),
                " and ",
                _shown(tf.gather(given, wrong)),
                ", in the text that begins with '",
                tf.strings.reduce_join(tf.strings.regex_replace(begins, r"\s", " ")),
                "'.",
            ]
        )
        with tf.control_dependencies([tf.debugging.Assert(tf.size(wrong) == 0, [text])]):
            return index_of(tags.values, self.tags, "tag")

    def _compile_defaults(self) -> dict[str, Any]:
        loss = keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, ignore_class=_UNLABELLED
        )
        return {"loss": loss, "metrics": [WordAccuracy()]}

    # What users hand in ----------------------------------------------------------------------

    def _prepared(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Texts and labels with lists made one string for each row."""
        if isinstance(x, Mapping) and LABEL in x and y is None:
            x = dict(x)
            y = x.pop(LABEL)
        if isinstance(x, tf.data.Dataset):
            return x, y
        if y is None:
            self._check_labels(None)
        return self._joined(x), [self._label_of(row, tags) for row, tags in enumerate(y)]

    def _check_labels(self, y: Any) -> None:
        if y is None:
            raise ValueError("There are no labels beside the texts.")

    def _label_of(self, row: int, tags: Any) -> str:
        tags = tags.decode("utf-8", "replace") if isinstance(tags, bytes) else tags
        if isinstance(tags, str):
            tags = tags.split()
        elif not isinstance(tags, list | tuple | np.ndarray):
            raise ValueError(f"Row {row} of the labels is {tags!r}, not a list of tags.")
        return " ".join(map(self._name_of, tags))

    def _name_of(self, tag: Any) -> str:
        if isinstance(tag, int | np.integer) and 0 <= tag < len(self.tags):
            return self.tags[tag]
        if tag not in self.tags:
            raise ValueError(not_listed(str(tag), self.tags, "tag"))
        return str(tag)

    def _joined(self, x: Any) -> Any:
        if isinstance(x, Mapping) and TEXT in x:
            return {**x, TEXT: self._joined(x[TEXT])}
        if not isinstance(x, list | tuple) or not x or isinstance(x[0], str | bytes):
            return x
        if not any(isinstance(row, list | tuple) for row in x):
            return x
        if self.split != "spaces":
            raise ValueError(
                f"Lists of words are words already; with split={self.split!r} texts are expected."
            )
        return [_sentence(row, words) for row, words in enumerate(x)]

    def _check_spans(self) -> None:
        if self._spans is None:
            raise ValueError(
                f"The tags mark no entities; expected tags as of IOB1, IOB2 or IOBES, not "
                f"{', '.join(self.tags)}."
            )

    # Storing ---------------------------------------------------------------------------------

    def _options(self) -> dict[str, Any]:
        return {**super()._options(), "tags": self.tags, "split": self.split}


class _Spans:
    """Entities of tagged words, in the graph.

    Args:
        tags: the names of the tags, each as ``metrics.parse`` reads it.
    """

    def __init__(self, tags: Sequence[str]):
        self._continues = np.array([[metrics.continues(a, b) for b in tags] for a in tags])
        self._inside = np.array([tag != _OUTSIDE for tag in tags])
        self._types = [metrics.parse(tag)[1] for tag in tags]

    def __call__(
        self, texts: tf.Tensor, words: Words, tag: tf.Tensor, score: tf.Tensor
    ) -> dict[str, tf.RaggedTensor]:
        """Texts, string (batch,), and their words' tags and scores, [words], to entities.

        Returns:
            ragged (batch, (entities)): ``text``, ``type``, ``score``, ``start`` and ``end``.
        """
        rows = words.text.row_splits
        size = tf.size(tag, tf.int64)
        inside = tf.gather(tf.constant(self._inside), tag)
        pairs = tf.stack([tag[:-1], tag[1:]], axis=1)
        parted = flags(rows, size)[1:] | ~tf.gather_nd(tf.constant(self._continues), pairs)
        opens = inside & tf.concat([[True], parted], 0)[:size]
        closes = inside & tf.concat([parted, [True]], 0)[:size]
        first, last = tf.where(opens)[:, 0], tf.where(closes)[:, 0]

        # Entities tile the words that are inside.
        before = tf.concat([[0], tf.cumsum(tf.cast(opens, tf.int64))], 0)
        splits = tf.gather(before, rows)
        number = tf.boolean_mask(before[1:] - 1, inside)
        mean = tf.math.unsorted_segment_mean(
            tf.boolean_mask(score, inside), number, tf.size(first, tf.int64)
        )
        found = parts_of(
            texts,
            tf.gather(words.first_byte.values, first),
            tf.gather(words.end_byte.values, last),
            splits,
        )

        columns = {
            "text": found,
            "type": tf.gather(tf.constant(self._types), tf.gather(tag, first)),
            "score": mean,
            "start": tf.gather(words.start.values, first),
            "end": tf.gather(words.end.values, last),
        }
        return {
            name: tf.RaggedTensor.from_row_splits(values, splits, validate=False)
            for name, values in columns.items()
        }


def _padded(rows: dict[str, tf.RaggedTensor], width: int | None = None) -> dict[str, tf.Tensor]:
    """Answers (batch, (parts)) as tensors (batch, width), and ``count``, int32 (batch,).

    Args:
        rows: of one length in each row of the batch.
        width: what is longer is cut; None for the longest.
    """
    count = tf.cast(next(iter(rows.values())).row_lengths(), tf.int32)
    dense = {
        name: part.to_tensor(_PADDING.get(name), shape=[None, width, *part.shape[2:]])
        for name, part in rows.items()
    }
    return {**dense, "count": count}


def _shown(numbers: tf.Tensor) -> tf.Tensor:
    return tf.strings.reduce_join(tf.strings.as_string(numbers))


def _sentence(row: int, words: Any) -> str:
    if not isinstance(words, list | tuple):
        raise ValueError(f"Row {row} is {words!r}; the others are lists of words.")
    named = [word.decode("utf-8", "replace") if isinstance(word, bytes) else word for word in words]
    for place, word in enumerate(named):
        if not isinstance(word, str) or word.split() != [word]:
            raise ValueError(
                f"Row {row} has {word!r} for word {place}, expected a string that is not empty and "
                "has no white space."
            )
    return " ".join(named)


def _rows(columns: dict[str, tf.Tensor], counts: tf.Tensor) -> list[list[dict[str, Any]]]:
    """Padded answers, (batch, width) each, as lists of dicts; counts: (batch,), how many."""
    rows = []
    values = [value.numpy() for value in columns.values()]
    for row, count in enumerate(counts.numpy().tolist()):
        cut = [value[row, :count] for value in values]
        items = zip(*(as_text(v) if v.dtype == object else v.tolist() for v in cut), strict=True)
        rows.append([dict(zip(columns, item, strict=True)) for item in items])
    return rows
