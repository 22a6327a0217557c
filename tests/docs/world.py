"""What the code blocks of the documentation take as given: small checkpoints, files and values."""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import bertfam_tf as bf
from bertfam_serve import running_server
from bertfam_tf.corpora import Format, shards
from bertfam_tf.corpora.documents import FileRange
from bertfam_tf.text.tokenizers.wordpiece import WordPieceTokenizer
from tests import published
from tests.seeding import seed

ROOT = Path(__file__).parent.parent.parent
LABELS = ["negative", "positive"]
TEXTS = ["a fine film", "a dull film", "good", "bad plot"] * 4
PIECES = """
    [PAD] [UNK] [CLS] [SEP] [MASK] a fine film dull good bad plot who wrote it the match ended ? . :
    ##s ada met bob what was
""".split()


def tokenizer() -> WordPieceTokenizer:
    return WordPieceTokenizer(PIECES)


def backbone(**fields: Any) -> bf.models.Backbone:
    """A small BERT that reads 512 tokens."""
    shape = dict(hidden_size=32, num_layers=2, num_heads=4, intermediate_size=64)
    return bf.build("bert", "tiny", vocab_size=len(PIECES), **{**shape, **fields})


def classifier(labels: list[str] = LABELS, **fields: Any) -> bf.TextClassifier:
    return bf.TextClassifier(backbone(**fields), tokenizer(), labels)


def multilingual() -> bf.TextClassifier:
    """On a small XLM of three languages."""
    shape = dict(hidden_size=32, num_layers=1, num_heads=2, intermediate_size=128)
    made = bf.build("xlm", "tiny", vocab_size=len(PIECES), pad_id=0, num_languages=3, **shape)
    languages = {"en": 0, "de": 1, "fr": 2}
    return bf.TextClassifier(made, tokenizer(), ["no", "yes"], language_id=0, languages=languages)


def embedder() -> bf.TextEmbedder:
    """As wide as MiniLM-L6, with the prompt ``query``."""
    wide = backbone(hidden_size=384, num_heads=12, num_layers=1)
    return bf.TextEmbedder(wide, tokenizer(), prompts={"query": "what "})


def language_model() -> bf.CausalLM:
    made = published.tokenizer("gpt2")
    shape = dict(hidden_size=32, num_layers=2, num_heads=2, intermediate_size=64)
    return bf.CausalLM(bf.build("gpt2", "tiny", vocab_size=made.vocab_size, **shape), made)


# Paths ------------------------------------------------------------------------------------------


def _published(name: str, family: str) -> Callable[[Path], None]:
    return lambda path: published.task(name, family).save_pretrained(path)


def _copy(source: str) -> Callable[[Path], None]:
    return lambda path: shutil.copytree(ROOT / "tests" / source, path)


def _word_vectors(path: Path) -> None:
    line = " ".join(["0.5"] * 300)
    path.write_text("".join(f"{piece} {line}\n" for piece in PIECES), "utf-8")


def _shards(path: Path) -> None:
    text = path.with_name("text.txt")
    text.write_text("".join(f"{line}\n" for line in TEXTS * 4), "utf-8")
    # As it is stored: shards name their tokenizer by its files.
    stored = bf.load_tokenizer(path.parent / "path" / "to" / "bert")
    form, options = Format(stored, 128), dict(documents="line", sentences="line", seed=3)
    job = shards.description(form, files=[{"name": text.name}], unit=10**6, **options)
    units = [shards.Unit(0, (FileRange(text),))]
    shards.begin(path, job)
    shards.write_shard(path, units[0], form, **options)
    shards.finish(path, job, units)


PATHS: dict[str, Callable[[Path], Any]] = {
    "path/to/bert": lambda path: classifier(num_layers=3).save_pretrained(path),
    "path/to/roberta": _published("TextClassifier", "roberta"),
    "path/to/gpt2": lambda path: language_model().save_pretrained(path),
    "path/to/albert": _published("TextClassifier", "albert"),
    "path/to/spanbert": _published("TextClassifier", "spanbert"),
    "path/to/elmo": _copy("goldens/elmo/default"),
    "path/to/xlm": lambda path: multilingual().save_pretrained(path),
    "path/to/task": lambda path: classifier().save(path),
    "path/to/preset": _copy("fixtures/tf1_bert"),
    "path/to/cross-encoder": lambda path: bf.Reranker(backbone(), tokenizer()).save_pretrained(
        path
    ),
    "path/to/nli-model": lambda path: classifier(
        ["contradiction", "entailment", "neutral"]
    ).save_pretrained(path),
    "path/to/splade": _published("MaskedLM", "distilbert"),
    "uncased_L-12_H-768_A-12": _copy("fixtures/tf1_bert"),
    "glove.6B.300d.txt": _word_vectors,
    "runs/sst2/model": lambda path: classifier(num_layers=6).save(path),
    "shards": _shards,
}


def make_paths(source: str, folder: Path) -> None:
    """Makes those paths in a folder that a page names."""
    for name, make in PATHS.items():
        if f'"{name}"' in source or f"{name} " in source:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            seed(0)
            make(path)


# Values -----------------------------------------------------------------------------------------


def _dataset() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((TEXTS, VALUES["labels"]()))


VALUES: dict[str, Callable[[], Any]] = {
    "texts": lambda: TEXTS,
    "typical_texts": lambda: TEXTS,
    "dev_texts": lambda: TEXTS,
    "labels": lambda: ["positive", "negative"] * 8,
    "dev_labels": lambda: ["positive", "negative"] * 8,
    "dataset": _dataset,
    "words": lambda: [["Ada", "met", "Bob"]] * 4,
    "tags": lambda: [["B-PER", "O", "B-PER"]] * 4,
    "questions": lambda: ["what was good ?"] * len(TEXTS),
    "contexts": lambda: [f"{text} ." for text in TEXTS],
    "passages": lambda: [f"{text} ." for text in TEXTS],
    "starts": lambda: [0] * len(TEXTS),
    "text": lambda: "the match ended . a fine film .",
    "queries": lambda: ["what was good ?", "who wrote it ?"],
    "documents": lambda: ["a fine film", "ada met bob"],
    "lists": lambda: [["a fine film", "ada met bob"], ["a dull film", "bad plot"]],
    "path": lambda: "path/to/bert",
    "ids": lambda: np.full((2, 5), 5, "int32"),
    "mask": lambda: np.ones((2, 5), "int32"),
    "segments": lambda: np.zeros((2, 5), "int32"),
    "clf": classifier,
    "task": classifier,
    "embedder": embedder,
    "backbone": backbone,
    "tokenizer": tokenizer,
    "lm": language_model,
}
# In a block that contains the key, these names mean something else.
SPECIAL: dict[str, dict[str, Any]] = {
    "reranker.fit(": {"labels": [[1.0, 0.0], [0.0, 1.0]]},
}


@contextlib.contextmanager
def server() -> Iterator[str]:
    """A server of a classifier; yields the address of its gRPC API."""
    with tempfile.TemporaryDirectory() as folder:
        classifier().export(folder)
        with running_server(Path(folder), model_name="model") as running:
            yield running.grpc_target
