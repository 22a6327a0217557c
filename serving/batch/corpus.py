"""Forms the examples of pretraining with Apache Beam, on any of its runners.

    make batch-env
    build/batch/bin/python serving/batch/corpus.py \\
        --input 'books/*.txt' --tokenizer path/to/bert --format segment_pairs --length 128 \\
        --output shards

`bertfam pretrain` reads the folder: `data.train: [shards]`. It has `examples-00000.tfrecord`, … and
the data card `card.json`, with the options, the input files and tokenizer by sha256, and counts.

The elements of the pipeline are units: ranges of the input of `--unit-bytes`, independent of the
number of workers. A unit is read, tokenized, formed and written in one step, under a temporary name
until its shard is complete. So a killed run resumes with the shards that are missing, and a shard
that a runner retries appears once, with the same bytes. The card is written last.

Masks are not drawn here but while training (bertfam_tf/corpora/shards.py).

Workers need the package bertfam_tf, and a file system with the input and the output in common.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import PipelineOptions

from bertfam_tf.corpora import shards
from bertfam_tf.corpora.documents import DOCUMENTS, SENTENCES, find_files
from bertfam_tf.corpora.examples import PAIR_FORMATS, SINGLE_FORMATS, Format
from bertfam_tf.corpora.shards import COUNTS, Unit
from bertfam_tf.data.published import Published, PublishedTexts
from bertfam_tf.files import exclusive_lock
from bertfam_tf.sources import sha256
from bertfam_tf.text import load_tokenizer

_Options = dict[str, Any]


class WriteShard(beam.DoFn):
    """Writes the shard of a unit.

    Args:
        options: the command's.
    """

    def __init__(self, options: _Options) -> None:
        self._options = options
        self._counters = {name: Metrics.counter("corpus", name) for name in COUNTS}

    def setup(self) -> None:
        """Loads the tokenizer."""
        self._format = _format(self._options)

    def process(self, element: Unit) -> None:
        """Writes the shard and counts its examples."""
        settings = {name: self._options[name] for name in ("documents", "sentences", "seed")}
        folder = Path(self._options["output"])
        # If a worker dies, Dask repeats all that it has done.
        if not shards.missing(folder, [element]):
            return
        row = shards.write_shard(folder, element, self._format, **settings)
        for name, counter in self._counters.items():
            counter.inc(row[name])


def _format(options: _Options) -> Format:
    tokenizer = load_tokenizer(options["tokenizer"])
    return Format(tokenizer, options["length"], options["format"], options["task"])


def _inputs(options: _Options) -> tuple[list[dict[str, Any]], list[Unit]]:
    """The input's files as in the data card, and the units."""
    size, documents = options["unit_bytes"], options["documents"]
    if options["tfds"] is None:
        files = [(str(path), path.stat().st_size) for path in find_files(options["input"])]
        return _identified(files), shards.units_of(files, size, documents)
    if documents != "blank_line":
        raise ValueError("Each text of --tfds is a document, expected no --documents.")
    name, split, feature = (options[name] for name in ("tfds", "split", "feature"))
    data = Published(name, {"text": feature}, options["data_dir"])
    files = [(str(path), path.stat().st_size) for path in data.files(split)]
    number = data.size(split)
    # As many examples as there are in the bytes of a unit on average.
    step = max(size * number // max(sum(size for _, size in files), 1), 1)
    where = options["data_dir"]
    units = []
    for begin in range(0, number, step):
        end = min(begin + step, number)
        texts = PublishedTexts(name, split, feature, begin, end, where)
        units.append(Unit(len(units), (texts,)))
    return _identified(files), units


def _identified(files: Sequence[tuple[str, int]]) -> list[dict[str, Any]]:
    return [{"name": file, "bytes": size, "sha256": sha256(Path(file))} for file, size in files]


def run(options: _Options, beam_options: PipelineOptions) -> dict[str, Any]:
    """Writes the shards that are missing; returns the data card.

    Raises:
        ValueError: the input, the options or the output folder are not usable.
    """
    folder = Path(options["output"])
    form = _format(options)
    with exclusive_lock(folder, folder / ".lock"):
        files, units = _inputs(options)
        settings = {name: options[name] for name in ("documents", "sentences", "seed")}
        source = {name: options[name] for name in ("tokenizer", "tfds", "split", "feature")}
        job = shards.description(form, files=files, unit=options["unit_bytes"], **settings) | source
        shards.begin(folder, job)
        todo = shards.missing(folder, units)
        print(f"{len(units)} shards, {len(units) - len(todo)} of them complete", flush=True)
        if todo:
            with beam.Pipeline(options=beam_options) as pipeline:
                _ = (
                    pipeline
                    | "units" >> beam.Create(todo, reshuffle=False)
                    | "spread" >> beam.Reshuffle()
                    | "write" >> beam.ParDo(WriteShard(options))
                )
        return shards.finish(folder, job, units)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0],
        epilog="Other options are passed to Beam: --runner FlinkRunner, --direct_num_workers 4, …",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--input", nargs="+", help="text files, or patterns such as 'books/*.txt'")
    source.add_argument("--tfds", help="a data set of tensorflow-datasets, such as imdb_reviews")
    parser.add_argument("--split", default="train", help="of --tfds (%(default)s)")
    parser.add_argument("--feature", default="text", help="the text of --tfds (%(default)s)")
    parser.add_argument("--data-dir", help="where --tfds is prepared")
    parser.add_argument("--output", required=True, help="a folder for these shards only")
    parser.add_argument("--tokenizer", required=True, help="a directory with its files")
    formats = SINGLE_FORMATS + PAIR_FORMATS
    parser.add_argument("--format", choices=formats, default=formats[0], help="(%(default)s)")
    parser.add_argument("--task", choices=("nsp", "sop"), default="nsp", help="(%(default)s)")
    parser.add_argument("--length", type=int, default=128, help="in tokens (%(default)s)")
    parser.add_argument("--documents", choices=DOCUMENTS, default=DOCUMENTS[0])
    parser.add_argument("--sentences", choices=SENTENCES, default=SENTENCES[0])
    parser.add_argument("--seed", type=int, default=0, help="of pairs (%(default)s)")
    parser.add_argument(
        "--unit-bytes", type=int, default=1 << 24, help="of the input of a shard (%(default)s)"
    )
    options, others = parser.parse_known_args()
    try:
        card = run(vars(options), PipelineOptions(others))
    except ValueError as error:
        sys.exit(f"error: {error}")
    print(", ".join(f"{card['counts'][name]:,} {name}" for name in COUNTS))


if __name__ == "__main__":
    main()
