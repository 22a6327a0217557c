"""Settings of files of examples."""

from __future__ import annotations

from dataclasses import dataclass

from bertfam_tf.validation import check, setting


@dataclass(frozen=True)
class DataConfig:
    """Local files, relative to the working directory; ``$NAME`` reads the environment.

    Attributes:
        train, dev, test: a file or a list of files, patterns such as ``logs/*.jsonl.gz``, or
            splits of tensorflow-datasets such as ``tfds:glue/mrpc/train``; only ``bertfam
            evaluate`` reads the test split. Names of splits if ``tfds`` is given.
        dev_languages, test_languages: tables of such files by language, such as
            ``{fr: dev.fr.tsv, de: dev.de.tsv}``, which are scored too, each in its language if the
            model has language embeddings; the metrics are ``fr_accuracy`` and so on.
        text, text_pair, label: columns, by name in the first line; or by number from 0, all of them
            in a file whose first line is a row like others. label None for pairs of texts that
            belong together, which have none.
        labels: the names of the classes in order; or a table from labels in the file to names, of
            tasks whose labels are numbers to these, such as ``{relevant: "1", other: "0"}``; None
            for the distinct labels of the training file, sorted.
        limit: the maximum number of training examples.
        per_label: the number of training examples of each label, drawn with ``train.seed``; None
            for all.
        format: tsv, csv, jsonl, json, parquet, arrow, conll, squad, race or tfds; None decides by
            the files' names. Text may be compressed by gzip.
        columns: columns of tasks with other texts, such as ``{question: q, context: passage}``
            or ``{text: start, choices: [ending0, ending1]}``; used in place of ``text`` and
            ``text_pair``. The column ``language`` has the code of each example's language, for
            models with language embeddings. In JSON ``a.b`` is the key b in the object at a. Files
            of SQuAD's format have the columns ``question`` and ``context``.
        on_error: ``raise`` stops at the first invalid row; ``skip`` skips invalid rows and logs
            the number of each kind of error.
        tag_scheme: ``iob2`` converts IOB1 tags to IOB2.
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
    limit: int | None = setting(None, at_least=1)
    per_label: int | None = setting(None, at_least=1)
    format: str | None = None
    columns: dict[str, str | int | list[str | int]] | None = None
    on_error: str = setting("raise", choices=("raise", "skip"))
    tag_scheme: str | None = setting(None, choices=("iob2",))
    tfds: str | None = None
    data_dir: str | None = None

    def __post_init__(self):
        check(self, "data")
