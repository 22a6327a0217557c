"""Every task with three kinds of tokenizers, answered by a process without this package."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf import registry
from bertfam_tf.export import saved_model
from bertfam_tf.export.endpoints import examples
from bertfam_tf.text import SentencePieceTokenizer, load_tokenizer, presets
from bertfam_tf.text.special_tokens import CLS_A_SEP_SEP, SpecialTokens
from bertfam_tf.text.tokenizers.byte_bpe import ByteBPETokenizer, byte_characters
from tests.selection import in_full
from tests.support.exports import perturb

CLEAN = Path(__file__).with_name("clean_process.py")
TEXTS = [
    b"a good film , was it not ?",
    b"",
    b"the cast " * 40,
    "日本語 🙂 é [MASK] <mask>".encode(),
    b"\xff\xfe good \xc3\0",
    b"[MASK][MASK][MASK] [CLS] bad [SEP] <s>",
    b"<mask><mask><mask> the plot",
]
OTHERS = TEXTS[2:] + TEXTS[:2]
LABELS = ["good", "bad", "neither\nof both"]
TAGS = ["O", "B-PER", "I-PER", "B-LOC"]
NLI = ["entailment", "contradiction"]
WORDS, ENTITIES, MASKS, PIECES = 40, 5, 2, 12
GENERATION = dict(max_new_tokens=4, num_beams=2)
# A family with most heads, and one that is causal or reads in any order.
FAMILIES = {"bert": "gpt", "roberta": "gpt2", "albert": "xlnet"}


def _word_piece(tiny):
    return load_tokenizer(tiny)


def _byte_bpe(tiny):
    special = dict(
        bos_token="<s>", cls_token="<s>", eos_token="</s>", sep_token="</s>", unk_token="<unk>",
        pad_token="<pad>", mask_token="<mask>",
    )  # fmt: skip
    pieces = [*dict.fromkeys(special.values()), *byte_characters(), "th", "the", "\u0120the"]
    merges = [("t", "h"), ("th", "e"), ("\u0120", "the")]
    tokens = SpecialTokens(**special)
    return ByteBPETokenizer(pieces, merges, special_tokens=tokens, layout=CLS_A_SEP_SEP)


def _sentence_piece(tiny):
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text.decode("utf-8", "replace") for text in TEXTS] * 9),
        model_writer=made,
        vocab_size=60,
        hard_vocab_limit=False,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        minloglevel=2,
    )
    return SentencePieceTokenizer.from_config(
        {"model": made.getvalue(), **presets.options("AlbertTokenizer")}
    )


TOKENIZERS = {"bert": _word_piece, "roberta": _byte_bpe, "albert": _sentence_piece}


def small_backbone(family, tokenizer, width=16):
    shape = dict(
        vocab_size=tokenizer.vocab_size, hidden_size=width, embedding_size=width, num_heads=2,
        inner_size=8, intermediate_size=width, num_layers=1, num_positions=64, max_positions=64,
        num_languages=2,
    )  # fmt: skip
    known = registry.get(family).config.__dataclass_fields__
    return bf.build(family, "tiny", **{k: v for k, v in shape.items() if k in known})


def _tasks(family, tokenizer):
    backbone = small_backbone(family, tokenizer)
    short = dict(max_length=24)
    language_model = bf.CausalLM(small_backbone(FAMILIES[family], tokenizer), tokenizer, **short)
    tasks = [
        bf.TextClassifier(backbone, tokenizer, LABELS, pair=False, **short),
        bf.FewShotClassifier(backbone, tokenizer, LABELS, **short),
        bf.MultiLabelClassifier(backbone, tokenizer, LABELS, pair=True, **short),
        bf.TextRegressor(backbone, tokenizer, pair=True, **short),
        bf.MultipleChoice(backbone, tokenizer, 2, pair=False, **short),
        bf.TokenTagger(backbone, tokenizer, TAGS, split="punctuation", **short),
        bf.SpanQA(backbone, tokenizer, n_best=3, max_answer=5, null_threshold=0.0, **short),
        bf.TextEmbedder(backbone, tokenizer, **short),
        bf.MaskedLM(backbone, tokenizer, top_k=3, **short),
        language_model,
        bf.Reranker(backbone, tokenizer, **short),
        bf.ZeroShotClassifier(backbone, tokenizer, LABELS[:2], NLI, **short),
        bf.SparseEmbedder(backbone, tokenizer, max_pieces=PIECES, **short),
    ]
    perturb([variable for task in tasks for variable in task.weights], 0.6)
    return {type(task).__name__: task for task in tasks}


OPTIONS = {
    "TokenTagger": dict(max_tokens=WORDS, max_entities=ENTITIES),
    "MaskedLM": dict(max_masks=MASKS),
    "CausalLM": GENERATION,
}


def _features(task):
    names = task.feature_names
    features = {name: TEXTS if i == 0 else OTHERS for i, name in enumerate(names)}
    if "choices" in names:
        features["choices"] = [list(pair) for pair in zip(TEXTS, OTHERS, strict=True)]
    if isinstance(task, bf.MaskedLM):  # refuses a text with the mask of another model alone
        mask = task.mask_token.encode()
        features["text"] = [re.sub(rb"\[MASK\]|<mask>", mask, text) for text in TEXTS]
    return features


# Answers of `predict` in the shape of the signatures ----------------------------------------------


def _columns(rows, *names):
    return {name: [row[name] for row in rows] for name in names}


def _wide(rows, name, width, filling):
    return [[part[name] for part in row[:width]] + [filling] * (width - len(row)) for row in rows]


def _classifier(task, features):
    answer = _columns(task.predict(features), "label", "scores")
    classes = [LABELS] * len(TEXTS)
    return {
        "serving_default": answer,
        "ids": answer,
        "classify": {"classes": classes, "scores": answer["scores"]},
    }


def _labels(task, features):
    rows = task.predict(features)
    scores = [row["scores"] for row in rows]
    answer = {"scores": scores, "chosen": [[n in row["labels"] for n in LABELS] for row in rows]}
    classes = [LABELS] * len(TEXTS)
    return {
        "serving_default": answer,
        "ids": answer,
        "classify": {"classes": classes, "scores": scores},
    }


def _regressor(task, features):
    scores = task.predict(features)
    answer = {"score": scores}
    return {"serving_default": answer, "ids": answer, "regress": {"outputs": scores}}


def _reranker(task, features):
    scores = task.predict(features)
    answer = {"score": scores}
    lists = _lists(features)
    found = [task.rank(*each) for each in zip(lists["query"], lists["documents"], strict=True)]
    ranked = {name: [[each[name] for each in row] for row in found] for name in ("index", "score")}
    return {
        "serving_default": answer,
        "ids": answer,
        "regress": {"outputs": scores},
        "rank": ranked,
    }


def _lists(features):
    documents = features["document"]
    others = documents[1:] + documents[:1]
    pairs = [list(pair) for pair in zip(documents, others, strict=True)]
    return {"query": features["query"], "documents": pairs}


def _zero_shot(task, features):
    answer = _columns(task.predict(features), "label", "scores")
    named = [
        task.predict(text, labels)[0] for text, labels in zip(*_labels_of(features), strict=True)
    ]
    return {
        "serving_default": answer,
        "zero_shot": _columns(named, "label", "scores"),
        "ids": {"scores": answer["scores"]},
    }


def _labels_of(features):
    return features["text"], [["the plot", "cast"]] * len(TEXTS)


def _pieces(task, features):
    rows = task.predict(features)
    packed = task.encode({"text": tf.constant(features["text"])})
    tokens = [row["tokens"] + [""] * (PIECES - len(row["tokens"])) for row in rows]
    weights = [[*row["weights"], *[0.0] * (PIECES - len(row["weights"]))] for row in rows]
    return {
        "serving_default": {
            "tokens": tokens,
            "weights": weights,
            "count": [len(row["tokens"]) for row in rows],
        },
        "ids": task.answer_ids(packed),
    }


def _choice(task, features):
    answer = _columns(task.predict(features), "choice", "text", "scores")
    ids = {name: answer[name] for name in ("choice", "scores")}
    return {"serving_default": answer, "ids": ids}


def _tagger(task, features):
    rows, entities = task.predict(features), task.entities(features["text"])
    assert max(map(len, rows)) > WORDS
    assert max(map(len, entities)) > ENTITIES
    starts, ends = (_wide(rows, name, WORDS, -1) for name in ("start", "end"))
    return {
        "serving_default": {
            "tokens": _wide(rows, "word", WORDS, ""),
            "tags": _wide(rows, "tag", WORDS, ""),
            "scores": _wide(rows, "score", WORDS, 0.0),
            "offsets": np.stack([starts, ends], axis=2),
            "count": list(map(len, rows)),
        },
        "entities": {
            "type": _wide(entities, "label", ENTITIES, ""),
            "text": _wide(entities, "entity", ENTITIES, ""),
            "start": _wide(entities, "start", ENTITIES, -1),
            "end": _wide(entities, "end", ENTITIES, -1),
            "score": _wide(entities, "score", ENTITIES, 0.0),
            "count": list(map(len, entities)),
        },
        "ids": {"logits": _logits(task, features)},
    }


def _spans(task, features):
    rows = task.predict(features)
    names = ("answer", "start", "end", "score", "no_answer_score")
    best = [row["n_best"] for row in rows]
    padding = {"answer": "", "start": -1, "end": -1, "score": 0.0}
    wide = {f"n_best_{n}s": _wide(best, n, 3, filling) for n, filling in padding.items()}
    logits = _logits(task, features)
    return {
        "serving_default": {
            **_columns(rows, *names),
            **wide,
            "n_best_count": list(map(len, best)),
        },
        "ids": {"start_logits": logits[..., 0], "end_logits": logits[..., 1]},
    }


def _embedder(task, features):
    answer = {"embedding": task.predict(features)}
    return {"serving_default": answer, "ids": answer}


def _masks(task, features):
    rows = task.predict(features)
    assert max(map(len, rows)) > MASKS
    none = [[{"token": "", "score": 0.0}] * 3] * MASKS
    cut = [(row + none)[:MASKS] for row in rows]
    answer = {
        f"{name}s": [[[t[name] for t in mask] for mask in row] for row in cut]
        for name in ("token", "score")
    }
    return {
        "serving_default": {**answer, "count": list(map(len, rows))},
        "ids": {"logits": _logits(task, features)},
    }


def _language_model(task, features):
    answer = _columns(task.predict(features), "log_likelihood", "tokens")
    prompts = [text.decode("utf-8", "replace") for text in features["text"]]
    text = task.generate(prompts, **GENERATION)
    return {"serving_default": answer, "ids": answer, "generate": {"text": text}}


EXPECTED = {
    "TextClassifier": _classifier,
    "FewShotClassifier": _classifier,
    "MultiLabelClassifier": _labels,
    "TextRegressor": _regressor,
    "MultipleChoice": _choice,
    "TokenTagger": _tagger,
    "SpanQA": _spans,
    "TextEmbedder": _embedder,
    "MaskedLM": _masks,
    "CausalLM": _language_model,
    "Reranker": _reranker,
    "ZeroShotClassifier": _zero_shot,
    "SparseEmbedder": _pieces,
}


def _packed(task, features):
    packed = task.encode({name: tf.constant(texts) for name, texts in features.items()})
    return {name: packed[name].numpy() for name in task.packed_specs}


def _logits(task, features):
    outputs = task(_packed(task, features), training=False)
    return (outputs["logits"] if isinstance(outputs, dict) else outputs).numpy()


# ----------------------------------------------------------------------------------------------


def _inputs(task, signature, features):
    if signature == "ids":
        return {name: value.tolist() for name, value in _packed(task, features).items()}
    if signature == "rank":
        return _as_json(_lists(features))
    if signature == "zero_shot":
        return {"text": _as_json(features["text"]), "labels": _labels_of(features)[1]}
    if signature in ("classify", "regress"):
        arrays = {name: np.array(texts, object) for name, texts in features.items()}
        return {"inputs": _as_json(examples(arrays))}
    return _as_json(features)


def _as_json(values):
    if isinstance(values, dict):
        return {name: _as_json(value) for name, value in values.items()}
    if isinstance(values, bytes):
        return values.decode("utf-8", "surrogateescape")
    return [_as_json(value) for value in values]


class Exports:
    """Exports of tasks, and what a clean process answered from them.

    Args:
        tasks: by family and name.
        directory: gets the exports and the process' files.
    """

    def __init__(self, tasks, directory):
        self.tasks = tasks
        self._directory = directory
        questions = []
        for (family, name), task in tasks.items():
            path = task.export(directory / family / name, **OPTIONS.get(name, {}))
            features = _features(task)
            for signature in task.signatures(**OPTIONS.get(name, {})):
                inputs = _inputs(task, signature, features)
                questions.append({"model": str(path), "signature": signature, "inputs": inputs})
        (directory / "questions").write_text(json.dumps(questions))
        files = [str(directory / name) for name in ("questions", "answers", "refusals")]
        done = subprocess.run([sys.executable, CLEAN, *files], capture_output=True, text=True)
        self.status, self.errors = done.returncode, done.stderr[-4000:]
        self.signatures = [(question["model"], question["signature"]) for question in questions]

    def answers(self, family, name):
        """Of one task, by signature."""
        file = self._directory / "answers"
        # The process may end later, in requests that are to be refused.
        assert self.status == 0 or file.exists(), self.errors
        path = str(self._directory / family / name / "1")
        pairs = zip(self.signatures, json.loads(file.read_text()), strict=True)
        return {signature: answer for (model, signature), answer in pairs if model == path}

    def refusals(self):
        """Lines on those questions whose hostile variants did not end the process."""
        lines = (self._directory / "refusals").read_text().splitlines()
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def exports(request, tiny, tmp_path_factory):
    """Of the tasks that this run tests."""
    items = [item for item in request.session.items if item.path == request.path]
    wanted = [item.callspec.params for item in items if hasattr(item, "callspec")]
    wanted = [(params["family"], params["name"]) for params in wanted] or QUICK
    made = {family: _tasks(family, TOKENIZERS[family](tiny)) for family, _ in wanted}
    with pytest.MonkeyPatch.context() as patch:
        # The clean process compares more of them; other tests export as users do.
        patch.setattr(saved_model, "load", lambda path: None)
        patch.setattr(saved_model, "_compare", lambda *args: None)
        tasks = {(family, name): made[family][name] for family, name in wanted}
        return Exports(tasks, tmp_path_factory.mktemp("exports"))


# Each task once, three for each tokenizer.
QUICK = [(list(FAMILIES)[i % 3], name) for i, name in enumerate(EXPECTED)]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("family", "name"), in_full([(family, name) for family in FAMILIES for name in EXPECTED], QUICK)
)
def test_the_export_answers_as_predict(exports, family, name):
    task = exports.tasks[family, name]
    found = exports.answers(family, name)
    expected = EXPECTED[name](task, _features(task))
    assert found.keys() == expected.keys()
    for signature, answers in expected.items():
        assert found[signature].keys() == answers.keys()
        for output, values in answers.items():
            one, other = np.array(found[signature][output]), np.array(values)
            what = f"{signature} {output}"
            assert one.shape == other.shape, what
            if one.dtype.kind == "f":
                # Rounding of perturbed weights is relative to the largest values.
                atol = 5e-5 * np.abs(other).max(initial=1.0)
                np.testing.assert_allclose(one, other, atol=atol, rtol=1e-5, err_msg=what)
            else:
                np.testing.assert_array_equal(one, other, err_msg=what)


@pytest.mark.extended
def test_the_graph_refuses_requests_that_do_not_fit(exports):
    found = exports.refusals()
    done = [(line["model"], line["signature"]) for line in found]
    assert exports.status == 0, (
        exports.status,
        exports.signatures[len(done) :][:1],
        exports.errors,
    )
    assert done == exports.signatures
    assert [line for line in found if line["wrong"] or line["refused"] < 30] == []
