"""What transformers reads of a task: the files, the way back, and what is refused."""

import json

import keras
import numpy as np
import pytest
import tokenizers
from safetensors.numpy import load_file

import bertfam_tf as bf
from bertfam_tf.checkpoints import CheckpointError, convert
from bertfam_tf.tasks.pretrained import tokenizer_length
from bertfam_tf.text import WordTokenizer, load_tokenizer
from bertfam_tf.text.published import save_published
from bertfam_tf.training.tuning import add_lora
from tests import published
from tests.selection import WIRINGS, in_full, only_in

TEXTS = published.TEXTS
HOSTILE = [
    "", " ", "a" * 150,
    "\xad\x00 \x1f\t.", "the \u0301 [MASK] <mask>", "e\u0301 9,9 ``a''", "🙂 é",
]  # fmt: skip
# Each task, and between them each kind of tokenizer and of head.
PAIRS = [
    ("TextClassifier", "bert"),
    ("TextClassifier", "gpt2"),
    ("TextClassifier", "xlnet"),
    ("MultiLabelClassifier", "gpt"),
    ("TextRegressor", "roberta"),
    ("Reranker", "bert"),
    ("TokenTagger", "albert"),
    ("SpanQA", "distilbert"),
    ("MultipleChoice", "electra"),
    ("MaskedLM", "xlm_roberta"),
    ("CausalLM", "gpt2"),
    ("TextEmbedder", "bert"),
]
GIVEN = {
    "SpanQA": {"question": ["the cast ?"], "context": ["a good film , was it not ?"]},
    "Reranker": {"query": TEXTS[:2], "document": [["bad", "a plot"], ["it"]]},
    "MultipleChoice": {"text": TEXTS[:2], "choices": [["bad", "a plot"], ["it", "the"]]},
    "MaskedLM": ["the <mask> of"],
}


def _read(directory, name):
    return json.loads((directory / name).read_text("utf-8"))


@pytest.mark.full
@pytest.mark.parametrize(("name", "family"), in_full(PAIRS, PAIRS[:1]))
def test_from_pretrained_gives_the_task_back(name, family, tmp_path):
    task = published.task(name, family)
    task.save_pretrained(tmp_path / "out")
    options = {"num_choices": 2} if name == "MultipleChoice" else {}
    given = GIVEN.get(name, TEXTS)
    expected = task.predict(given)
    convert(tmp_path / "out", tmp_path / "again")
    for directory in (tmp_path / "out", tmp_path / "again"):
        back = getattr(bf, name).from_pretrained(directory, max_length=task.max_length, **options)
        keras.tree.map_structure(np.testing.assert_array_equal, back.predict(given), expected)
        assert back.class_names == task.class_names
        assert back.tokenizer.vocabulary == task.tokenizer.vocabulary
        assert back.tokenizer.layout == task.tokenizer.layout
    first, second = (load_file(tmp_path / d / "model.safetensors") for d in ("out", "again"))
    assert first.keys() == second.keys()
    assert _read(tmp_path / "out", "config.json") == _read(tmp_path / "again", "config.json")


@only_in(
    "extended",
    "1000000000000000019884624838656-None",
    "None-None",
    "True-None",
    "1e+30-None",
    "4096-None",
)
@pytest.mark.parametrize(
    ("stored", "expected"),
    [(9, 9), (4096, None), (int(1e30), None), (1e30, None), (None, None), (True, None)],
)
def test_texts_are_cut_as_by_the_tokenizer(tiny_copy, stored, expected):
    file = tiny_copy / "tokenizer_config.json"
    said = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**said, "model_max_length": stored}))
    expected = expected or bf.load_backbone(tiny_copy).max_length
    for cls in (bf.TextClassifier, bf.TextEmbedder):
        assert cls.from_pretrained(tiny_copy).max_length == expected
        assert cls.from_pretrained(tiny_copy, max_length=7).max_length == 7


def test_no_length_of_the_tokenizer_leaves_the_default(tmp_path):
    """Models with any number of positions would else take texts of 1e30 tokens."""
    (tmp_path / "tokenizer_config.json").write_text(f'{{"model_max_length": {int(1e30)}}}')
    assert tokenizer_length(tmp_path) == {}


def test_a_length_of_the_tokenizer_that_is_not_valid(tiny_copy):
    (tiny_copy / "tokenizer_config.json").write_text('{"model_max_length": 0}')
    with pytest.raises(CheckpointError, match=r"tokenizer_config.json has model_max_length = 0"):
        bf.TextClassifier.from_pretrained(tiny_copy)


def test_files(tmp_path):
    task = published.task("MultiLabelClassifier", "bert")
    task.save_pretrained(tmp_path / "out")
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "README.md", "config.json", "model.safetensors", "special_tokens_map.json",
        "tokenizer.json", "tokenizer_config.json", "vocab.txt",
    ]  # fmt: skip
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]
    config = _read(tmp_path / "out", "config.json")
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert config["problem_type"] == "multi_label_classification"
    assert config["id2label"] == dict(zip("012", published.LABELS, strict=True))
    assert config["label2id"] == {label: i for i, label in enumerate(published.LABELS)}
    assert config["tokenizer_class"] == "BertTokenizer"
    said = _read(tmp_path / "out", "tokenizer_config.json")
    assert said["model_max_length"] == task.max_length
    assert said["model_input_names"] == ["input_ids", "token_type_ids", "attention_mask"]
    assert (said["do_lower_case"], said["tokenize_chinese_chars"]) == (True, True)
    assert said["mask_token"] == "[MASK]"
    names = load_file(tmp_path / "out" / "model.safetensors").keys()
    assert {"classifier.weight", "classifier.bias", "bert.pooler.dense.weight"} <= names


def test_a_number_has_one_label(tmp_path):
    published.task("TextRegressor", "distilbert").save_pretrained(tmp_path / "out")
    config = _read(tmp_path / "out", "config.json")
    assert (config["problem_type"], config["id2label"]) == ("regression", {"0": "LABEL_0"})
    said = _read(tmp_path / "out", "tokenizer_config.json")
    assert said["model_input_names"] == ["input_ids", "attention_mask"]


@pytest.mark.parametrize("save", ["save_pretrained", "save"])
def test_a_head_of_another_kind_of_labels(save, tmp_path):
    """Its logits mean something else; a new head can still be trained."""
    getattr(published.task("MultiLabelClassifier", "bert"), save)(tmp_path / "out")
    error = "is one for multi_label_classification, expected one for single_label_classification"
    with pytest.raises(ValueError, match=error):
        bf.TextClassifier.from_pretrained(tmp_path / "out")
    bf.TextClassifier.from_pretrained(tmp_path / "out", ["yes", "no"])


@pytest.mark.parametrize(("name", "kept"), [("TokenTagger", False), ("MaskedLM", True)])
def test_a_pooler_that_nobody_reads(name, kept, tmp_path):
    """Their class for tags has none; a language model keeps it for what is trained on it."""
    published.task(name, "bert").save_pretrained(tmp_path / "out")
    names = load_file(tmp_path / "out" / "model.safetensors")
    assert any("pooler" in name for name in names) is kept


@pytest.mark.extended
def test_padding_where_the_last_token_is_read(tmp_path):
    """Theirs finds it by what is no padding; GPT has no token that never stands in a text."""
    for family, pad in (("gpt2", "<|endoftext|>"), ("gpt", None), ("xlnet", "<pad>")):
        task = published.task("TextClassifier", family)
        task.save_pretrained(tmp_path / family)
        config = _read(tmp_path / family, "config.json")
        said = _read(tmp_path / family, "tokenizer_config.json")
        assert said.get("pad_token") == pad
        assert config["pad_token_id"] == (pad and task.tokenizer.token_to_id(pad))
        assert said["padding_side"] == ("left" if family == "xlnet" else "right")


def test_a_pad_id_outside_of_the_vocabulary(tmp_path):
    """ModernBERT's default is an id of its own vocabulary; transformers loads no larger one."""
    tokenizer = published.tokenizer("modernbert")
    backbone = bf.build("modernbert", "tiny", vocab_size=tokenizer.vocab_size)
    assert backbone.config.pad_id > tokenizer.vocab_size
    task = bf.TextClassifier(backbone, tokenizer, labels=["no", "yes"])
    task.save_pretrained(tmp_path / "out")
    assert _read(tmp_path / "out", "config.json")["pad_token_id"] == tokenizer.pad_id


@pytest.mark.full
def test_lora_is_in_the_weights(tmp_path):
    task = published.task("TextClassifier", "bert")
    task.save_pretrained(tmp_path / "before")
    add_lora(task.backbone, 2)
    for variable in task.backbone.trainable_variables:
        variable.assign(np.full(variable.shape, 0.5))
    task.save_pretrained(tmp_path / "after")
    before, after = (load_file(tmp_path / d / "model.safetensors") for d in ("before", "after"))
    assert before.keys() == after.keys()
    changed = {name for name in before if (before[name] != after[name]).any()}
    assert changed == {
        f"bert.encoder.layer.{i}.attention.self.{part}.weight"
        for i in range(2)
        for part in ("query", "value")
    }
    back = bf.TextClassifier.from_pretrained(tmp_path / "after", max_length=task.max_length)
    for one, other in zip(back.predict(TEXTS), task.predict(TEXTS), strict=True):
        np.testing.assert_allclose(one["scores"], other["scores"], atol=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("family", in_full(published.families("TextEmbedder"), WIRINGS))
def test_tokenizer_json_gives_the_same_ids(family, tmp_path):
    ours = published.tokenizer(family)
    save_published(ours, tmp_path, inputs=["input_ids"], max_length=99)
    if family == "xlm":  # Moses is Python there
        assert not (tmp_path / "tokenizer.json").exists()
        return
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    special = [f"a{token} b" for token in _read(tmp_path, "special_tokens_map.json").values()
               if isinstance(token, str)]  # fmt: skip
    for text in [*TEXTS, *HOSTILE, *special]:
        found = theirs.encode(text, add_special_tokens=False).ids
        assert found == ours.tokenize(text).numpy().tolist(), text
    layout = theirs.encode("a good", "plot")
    expected = bf.text.Packer(ours.layout, ours.special_ids, 99)(
        [ours.tokenize(["a good"]), ours.tokenize(["plot"])]
    )
    assert layout.ids == expected["token_ids"].numpy()[0].tolist()
    assert layout.type_ids == expected["segment_ids"].numpy()[0].tolist()


@pytest.mark.full
def test_a_mask_that_swallows_spaces_comes_back(tmp_path):
    made = published.tokenizer("bert")
    made = made.from_config({**made.get_config(), "lstrip_tokens": ("[MASK]",)})
    save_published(made, tmp_path, inputs=["input_ids"], max_length=99)
    again = load_tokenizer(tmp_path)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = "the  [MASK] of"
    expected = [each.numpy().tolist() for each in made.tokenize_with_offsets(text)]
    assert [each.numpy().tolist() for each in again.tokenize_with_offsets(text)] == expected
    encoded = theirs.encode(text, add_special_tokens=False)
    assert [encoded.ids, *map(list, zip(*encoded.offsets, strict=True))] == expected


# Refused ----------------------------------------------------------------------------------------


def _refused(task, tmp_path, message):
    with pytest.raises(CheckpointError, match=message):
        task.save_pretrained(tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_tokenizers_that_transformers_has_no_equal_of(tmp_path):
    words = WordTokenizer(["<eos>", "<unk>", "a", "b"])
    shape = dict(vocab_size=4, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=16)
    backbone = bf.build("gpt2", "tiny", **shape)
    _refused(bf.CausalLM(backbone, words), tmp_path, "cannot express a WordTokenizer")
    moses = published.tokenizer("xlm")
    lower = moses.from_config({**moses.get_config(), "lower_case": True})
    french = moses.from_config({**moses.get_config(), "language": "fr", "prefixes": None})
    own = moses.from_config({**moses.get_config(), "prefixes": ["Fig"]})
    backbone = bf.build("gpt2", "tiny", **{**shape, "vocab_size": moses.vocab_size})
    for tokenizer, message in (
        (
            lower,
            r"with different results\. bertfam_tf\.save_pretrained\(task\.backbone, …\) writes",
        ),
        (french, "reads English by default, not 'fr'"),
        (own, "differs from Moses' list"),
    ):
        _refused(bf.TextEmbedder(backbone, tokenizer), tmp_path, message)


@pytest.mark.extended
def test_what_the_format_cannot_say(tmp_path):
    made = published.tokenizer("albert")
    shape = dict(vocab_size=made.vocab_size, hidden_size=16, num_layers=2, num_heads=2)
    backbone = bf.build("albert", "tiny", sharing="attention", **shape)
    _refused(bf.TextEmbedder(backbone, made), tmp_path, "cannot represent sharing")


def test_what_is_not_finite(tmp_path):
    task = published.task("TextClassifier", "bert")
    task.head.weights[0].assign(task.head.weights[0] * np.nan)
    _refused(task, tmp_path, "NaN or infinity in classifier.weight")


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "kept").write_text("kept")
    with pytest.raises(FileExistsError, match="it is not overwritten"):
        published.task("TextEmbedder", "bert").save_pretrained(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["kept"]


def test_the_token_that_began_rows_stays_special(tmp_path):
    """XLM's class takes the first token of a row for bos, so ours has to be listed besides."""
    made = published.tokenizer("xlm")
    began = made.id_to_token(made.special_ids["bos"])
    save_published(made, tmp_path, inputs=["input_ids"], max_length=99)
    said = _read(tmp_path, "tokenizer_config.json")
    assert said["bos_token"] != began
    assert began in said["additional_special_tokens"]


@pytest.mark.full
@pytest.mark.parametrize("name", sorted({name for name, _ in PAIRS}))
def test_keras_weights_come_back(name, tmp_path):
    task = published.task(name, dict(PAIRS)[name])
    file = tmp_path / "task.weights.h5"
    task.save_weights(file)
    values = [weight.numpy() for weight in task.weights]
    for weight in task.trainable_weights:
        weight.assign(weight + 1)
    task.load_weights(file)
    for weight, value in zip(task.weights, values, strict=True):
        np.testing.assert_array_equal(weight, value)


@pytest.mark.full
@pytest.mark.parametrize("activation", ["sigmoid", None])
def test_a_converted_reranker_keeps_its_activation(activation, tmp_path):
    task = published.task("Reranker", "bert")
    made = bf.Reranker(task.backbone, task.tokenizer, activation=activation)
    made.save_pretrained(tmp_path / "out")
    convert(tmp_path / "out", tmp_path / "again")
    assert bf.Reranker.from_pretrained(tmp_path / "again").activation == activation
