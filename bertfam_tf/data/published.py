"""Reads data sets of tensorflow-datasets, with the feature names that tasks use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bertfam_tf.data.labels import decoded
from bertfam_tf.data.records import Column
from bertfam_tf.data.rows import InvalidRow, Row
from bertfam_tf.names import join_names, unknown

# Columns by the name of a data set, with or without its configuration.
_PAIR = {"text": "sentence1", "text_pair": "sentence2", "label": "label"}
_NLI = {"text": "premise", "text_pair": "hypothesis", "label": "label"}
_SQUAD: dict[str, Column] = {
    "question": "question", "context": "context", "label": "answers", "id": "id",
}  # fmt: skip
_CONLL: dict[str, Column] = {"text": "tokens", "label": "ner"}
COLUMNS: dict[str, Mapping[str, Column]] = {
    "glue": _PAIR,
    "glue/cola": {"text": "sentence", "label": "label"},
    "glue/sst2": {"text": "sentence", "label": "label"},
    "glue/qqp": {"text": "question1", "text_pair": "question2", "label": "label"},
    "glue/qnli": {"text": "question", "text_pair": "sentence", "label": "label"},
    "glue/mnli": _NLI,
    "glue/mnli_matched": _NLI,
    "glue/mnli_mismatched": _NLI,
    "glue/ax": _NLI,
    "squad": _SQUAD,
    "conll2003": _CONLL,
    "race": {"text": "article", "question": "questions", "choices": "options", "label": "answers"},
    "xnli": {"text": "premise.en", "text_pair": "hypothesis.en", "label": "label"},
}


class Published:
    """A data set, downloaded and prepared if necessary.

    Args:
        name: its name in tensorflow-datasets, such as ``glue/mrpc``.
        columns: maps names to features; ``a.b`` is the feature b inside of a, or for translations
            the language b. None uses the known columns of the data set.
        data_dir: the directory of prepared data sets; None for tensorflow-datasets' default.

    Raises:
        ValueError: if the data set is unknown or cannot be prepared, or its columns are not known.
    """

    def __init__(
        self,
        name: str,
        columns: Mapping[str, Column] | None = None,
        data_dir: str | None = None,
    ):
        tfds = _tfds(name)
        self.name = name
        try:
            self._builder = tfds.builder(name, data_dir=data_dir)
        except (tfds.core.registered.DatasetNotFoundError, ValueError) as error:
            text = str(error).strip().split("\n")[0]
            raise ValueError(f"tensorflow-datasets has no {name}: {text}") from error
        known, features = columns_of(name), self._builder.info.features
        if columns is None and known is None:
            raise ValueError(
                f"data.columns must specify which features of {name} to use: "
                f"{join_names(features)}."
            )
        self._columns = dict(known or {} if columns is None else columns)
        for column_name, usual in (known or {}).items():
            # The default name of a column that this data set calls otherwise.
            if self._columns.get(column_name) == column_name not in features:
                self._columns[column_name] = usual
        for column in self._columns.values():
            for path in column if isinstance(column, list) else [column]:
                top = str(path).split(".")[0]
                if top not in features:
                    raise ValueError(f"{name}: {unknown('feature', top, features)}")
        self._builder.download_and_prepare()

    def size(self, split: str) -> int:
        """Returns the number of examples of a split; raises ValueError for an unknown split."""
        return self._split(split).num_examples

    def files(self, split: str) -> list[Path]:
        """Returns the files of a split; raises ValueError for an unknown split."""
        return [Path(path) for path in self._split(split).filepaths]

    def _split(self, name: str) -> Any:
        splits = self._builder.info.splits
        if name not in splits:
            raise ValueError(f"{self.name}: {unknown('split', name, splits)}")
        return splits[name]

    def rows(self, split: str, *, labelled: bool = True) -> Iterator[Row | InvalidRow]:
        """Yields the rows of a split, such as ``train`` or ``validation[:10%]``.

        Raises:
            ValueError: if there is no such split.
        """
        tfds = _tfds(self.name)
        self._split(split.split("[")[0].split("+")[0])
        features = self._builder.info.features
        # One file after the other, so that the order is the same in each run.
        config = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
        dataset = self._builder.as_dataset(split=split, shuffle_files=False, read_config=config)
        for number, element in enumerate(tfds.as_numpy(dataset)):
            location = f"{self.name} {split}: row {number}"
            try:
                values = {
                    name: [_value(features, element, str(c)) for c in column]
                    if isinstance(column, list)
                    else _value(features, element, str(column))
                    for name, column in self._columns.items()
                    if labelled or name != "label"
                }
                yield from _rows(location, values)
            except ValueError as error:
                yield InvalidRow("value", f"{location}: {error}")


class PublishedTexts(NamedTuple):
    """Texts of a data set, each a document of lines, as ``documents.read_documents`` takes them.

    Fields:
        name: the name of the data set.
        split: such as ``train``.
        feature: the text.
        begin, end: the numbers of examples; ``end`` is exclusive.
        data_dir: the same as for ``Published``.
    """

    name: str
    split: str
    feature: str
    begin: int
    end: int
    data_dir: str | None = None

    def lines(self, documents: str) -> Iterator[str]:
        """Yields the stripped lines that are not empty, and an empty one after each text.

        Raises:
            ValueError: if ``documents`` is not ``"blank_line"``; as ``Published`` raises it.
        """
        if documents != "blank_line":
            raise ValueError(f"documents must be blank_line for tfds, got {documents!r}.")
        data = Published(self.name, {"text": self.feature}, self.data_dir)
        for row in data.rows(f"{self.split}[{self.begin}:{self.end}]", labelled=False):
            if isinstance(row, InvalidRow):
                raise row
            text = row.features["text"]
            assert isinstance(text, bytes)  # lists are joined
            lines = text.decode("utf-8", "replace").splitlines()
            yield from filter(None, map(str.strip, lines))
            yield ""


def _tfds(name: str) -> Any:
    try:
        import tensorflow_datasets
    except ImportError as error:
        raise ValueError(
            f"The data set {name} needs the package tensorflow-datasets: pip install "
            f"'bertfam_tf[tfds]' ({error})."
        ) from error
    return tensorflow_datasets


def columns_of(name: str) -> Mapping[str, Column] | None:
    """Returns the columns of a data set of tensorflow-datasets, or None if they are not known."""
    name = name.split(":")[0]
    return COLUMNS.get(name) or COLUMNS.get(name.split("/")[0])


def _value(features: Any, element: Any, path: str) -> Any:
    """Returns a feature as bytes, as a string for a class or a number, or as lists of these."""
    import tensorflow_datasets as tfds

    key, _, rest = path.partition(".")
    feature, value = features[key], element[key]
    if rest and isinstance(feature, tfds.features.TranslationVariableLanguages):
        languages = [language.decode() for language in value["language"]]
        if rest not in languages:
            raise ValueError(unknown("language", rest, languages))
        return value["translation"][languages.index(rest)]
    if rest:
        return _value(feature, value, rest)
    return _plain(feature, value)


def _plain(feature: Any, value: Any) -> Any:
    import tensorflow_datasets as tfds

    if isinstance(feature, tfds.features.ClassLabel):
        # tensorflow-datasets uses -1 for labels that were not published.
        return feature.int2str(int(value)) if value >= 0 else None
    if isinstance(feature, tfds.features.Sequence):
        inner = feature.feature
        if isinstance(inner, tfds.features.FeaturesDict):
            names = list(inner)
            columns = [
                [_plain(inner[name], value_of_element) for value_of_element in value[name]]
                for name in names
            ]
            return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        # Sequences of sequences are ragged tensors.
        nested = value.to_list() if hasattr(value, "to_list") else value
        return [_plain(inner, value_of_element) for value_of_element in nested]
    if isinstance(value, bytes):
        return value
    if hasattr(value, "dtype") and value.ndim == 0:
        return str(value)
    return value


def _rows(location: str, values: dict[str, Any]) -> Iterator[Row]:
    label, name = values.pop("label", None), values.pop("id", None)
    if isinstance(values.get("question"), list):  # race has one element for each passage
        for number, item in enumerate(values["question"]):
            features = {**values, "question": item, "choices": values["choices"][number]}
            right = None if label is None else _decoded(label[number])
            yield Row(f"{location}, question {number}", features, right)
        return
    if isinstance(values.get("text"), list):
        values["text"] = b" ".join(values["text"])
    if isinstance(label, list) and label and isinstance(label[0], dict):
        label = [(_decoded(item["text"]), int(item["answer_start"])) for item in label]
    yield Row(location, values, _decoded(label), None if name is None else _decoded(name))


def _decoded(label: Any) -> Any:
    return list(map(_decoded, label)) if isinstance(label, list) else decoded(label)
