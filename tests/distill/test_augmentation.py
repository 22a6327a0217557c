"""Candidates against a reference in plain Python, the draws, folders, and what is refused."""

import itertools
import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf.distill import augmentation_words
from bertfam_tf.distill.augmentation import STOP_WORDS, Augmentation, ReplaceableWord
from bertfam_tf.distill.augmentation_folder import augment
from bertfam_tf.text import SpecialTokens, load_tokenizer
from bertfam_tf.text.special_tokens import CLS_A_SEP_SEP
from bertfam_tf.text.tokenizers.byte_bpe import ByteBPETokenizer, byte_characters
from tests.selection import in_full, only_in

TEXTS = [
    "The film was not good , playing badly .",
    "a great (dull) movie!",
    "",
    "[MASK] it is [MASK] the unhappy actor [MASK]",
    "Zzz 7 \u201cgo\u00f3d\u201d b4d the-plot",
]
VECTORS = """\
. 1 0 0
good 1 2 0
playing 1 0 0
play 3 0 0.1
played 5 0 1
, 1 0 0.2
<unk> 0 0 0
dull -1 0 0
"""


@pytest.fixture(scope="module")
def task(smallest):
    return _task("bert", load_tokenizer(smallest))


def _task(family, tokenizer, **options):
    shape = dict(vocab_size=tokenizer.vocab_size + 6, num_layers=1, max_positions=64)
    backbone = bf.build(family, "tiny", **shape)
    task = bf.MaskedLM(backbone, tokenizer, **options)
    for i, variable in enumerate(task.weights):
        variable.assign_add(np.random.default_rng(i).normal(0, 0.2, variable.shape))
    return task


@pytest.fixture(scope="module")
def augmentation(task):
    return Augmentation(task, candidates=9, probability=0.5, copies=6, stop_words=["a", "not"])


@pytest.mark.extended
def test_copies_with_nothing_chosen(task, tmp_path, capfd):
    """15 candidates of each word, 20 copies, 0.4 of the words; more words than a batch of 64."""
    texts = [f"{text} {other}" for text in TEXTS[:2] for other in (*TEXTS, "plot", "cast", "dull")]
    of = Augmentation(task)
    places = of.replaceable_words(texts)
    assert sum(map(len, places)) > 64
    for text, found in list(zip(texts, places, strict=True))[::5]:
        if "[MASK]" not in text and "\u201c" not in text:
            assert _found(text, found) == _reference(task, text, 15, STOP_WORDS)
    rows = tf.data.Dataset.from_tensor_slices(({"text": texts}, list(range(len(texts)))))
    written = augment(rows, of, tmp_path / "copies")
    assert capfd.readouterr().out
    copies = [(row["text"].numpy(), int(label)) for row, label in written]
    expected = []
    for number, (text, found) in enumerate(zip(texts, places, strict=True)):
        made = of.copies_of(text.encode(), found, number)
        assert len(made) <= 20
        expected += [(each, number) for each in (text.encode(), *made)]
    assert copies == expected
    longest = max(places, key=len)
    text = texts[places.index(longest)].encode()
    changed = [sum(a != b for a, b in zip(copy.split(), text.split(), strict=True))
               for number in range(40) for copy in of.copies_of(text, longest, number)]  # fmt: skip
    assert 0.2 < np.mean(changed) / len(longest) < 0.45


# Candidates -----------------------------------------------------------------------------------


def _reference(task, text, m, stop_words, *, pair=False):
    """Candidates of the words of a text: one masked text at a time, or the mean of the pieces.

    With ``pair`` the original text follows the masked one.
    """
    vocabulary = task.tokenizer.vocabulary
    plain = [t for t in vocabulary if t.isascii() and t.isalpha() and t.islower()]
    table = task.backbone.parts["token_embedding"].embeddings.numpy().astype("float64")
    tokens, words = ["[CLS]"], []
    for typed in text.replace("(", "( ").replace(")", " )").replace("!", " !").split():
        of_word = {
            "playing": ["play", "##ing"], "badly": ["bad", "##ly"], "unhappy": ["un", "##happy"],
            "actor": ["act", "##or"],
        }.get(typed.lower(), [typed if typed == "[MASK]" else typed.lower()])  # fmt: skip
        if typed.isalpha():
            words.append((typed, len(tokens), of_word))
        tokens += [t if t in vocabulary else "[UNK]" for t in of_word]
    ids = np.array([[vocabulary.index(t) for t in [*tokens, "[SEP]"]]], "int32")
    found = []
    for typed, at, of_word in words:
        word = typed.lower()
        if word in stop_words:
            continue
        if len(of_word) == 1:
            masked = ids.copy()
            masked[0, at] = task.tokenizer.mask_id
            segments = np.zeros_like(masked)
            if pair:
                masked = np.concatenate([masked, ids[:, 1:]], axis=1)
                segments = np.concatenate([segments, np.ones_like(ids[:, 1:])], axis=1)
            given = {"token_ids": masked, "padding_mask": np.ones_like(masked)}
            given["segment_ids"] = segments
            logits = task.head(task.backbone(given, training=False), training=False)
            scores = logits.numpy()[0, at, : len(vocabulary)]
            best = [vocabulary[i] for i in np.argsort(-scores)[:m]]
            best = {t for t in best if t in plain}
        else:
            vector = np.mean([table[vocabulary.index(t)] for t in of_word], axis=0)

            def cosine(t, vector=vector):
                other = table[vocabulary.index(t)]
                return vector @ other / np.linalg.norm(vector) / np.linalg.norm(other)

            best = set(sorted(plain, key=cosine)[-m:])
        if best:
            found.append((typed, {typed if t == word else t for t in best}))
    return found


def _found(text, places):
    data = text.encode()
    for place in places:
        assert len(set(place.candidates)) == len(place.candidates)
    return [(data[p.start : p.end].decode(), {c.decode() for c in p.candidates}) for p in places]


@only_in("extended", "64")
@pytest.mark.parametrize("batch_size", in_full([1, 3, 64], [64]))
def test_candidates_are_those_of_a_plain_reference(task, augmentation, batch_size):
    found = augmentation.replaceable_words(TEXTS[:4], batch_size=batch_size)
    for text, places in zip(TEXTS, found, strict=False):
        assert _found(text, places) == _reference(task, text, 9, ["a", "not"])
    words = [typed for typed, _ in _found(TEXTS[0], found[0])]
    assert words == ["The", "film", "was", "good", "playing", "badly"]
    assert all(len(place.candidates) == 9 for place in found[0][4:])


@pytest.mark.extended
def test_the_original_text_is_read_beside_the_masked_one(task, augmentation):
    paired = Augmentation(task, candidates=9, stop_words=["a", "not"], pair_with_original=True)
    found, alone = (each.replaceable_words(TEXTS[:2]) for each in (paired, augmentation))
    for text, places in zip(TEXTS, found, strict=False):
        assert _found(text, places) == _reference(task, text, 9, ["a", "not"], pair=True)
    assert found != alone
    assert paired.settings() != augmentation.settings()


def test_words_are_what_the_tokenizer_makes_of_them(augmentation):
    """Not whole words: unknown ones, digits; the accent is not in the vocabulary's word."""
    [places] = augmentation.replaceable_words([TEXTS[4].encode() + b" \xff film"])
    data = TEXTS[4].encode() + b" \xff film"
    assert [data[p.start : p.end].decode() for p in places] == ["go\u00f3d", "the", "plot", "film"]
    # A word that is replaced by itself is as it was typed.
    every = Augmentation(augmentation.masked_lm, candidates=60)
    [places] = every.replaceable_words([TEXTS[4]])
    assert "go\u00f3d".encode() in places[0].candidates
    assert b"good" not in places[0].candidates


def test_stop_words(task):
    [places] = Augmentation(task).replaceable_words([TEXTS[0]])
    assert [typed for typed, _ in _found(TEXTS[0], places)] == ["film", "good", "playing", "badly"]
    assert {"the", "not", "t"} < STOP_WORDS
    assert all(word.isalpha() and word.islower() for word in STOP_WORDS)


def test_decomposed_words_and_lone_surrogates(augmentation):
    """A word is replaced with its accents, which tokenizers that strip them leave out."""
    texts = ["good\u0301 a\u0308lso", "good \ud800 film"]
    encoded = [text.encode("utf-8", "replace") for text in texts]
    found = augmentation.replaceable_words(texts)
    words = [
        [text[word.start : word.end].decode() for word in row]
        for text, row in zip(encoded, found, strict=True)
    ]
    assert words[0][0] == "good\u0301"
    assert words[1] == ["good", "film"]


@pytest.mark.full
def test_words_of_one_piece_beyond_the_maximum_length_remain(smallest):
    task = _task("bert", load_tokenizer(smallest), max_length=6)
    text = "film film film film film playing"
    [places] = Augmentation(task, candidates=63).replaceable_words([text])
    assert [place.start for place in places] == [0, 5, 10, 15, 25]


def test_words_of_several_pieces_with_word_vectors(task, tmp_path, monkeypatch):
    file = tmp_path / "vectors.txt"
    file.write_text(VECTORS + "a b 1 0 0\n")
    vectors = Augmentation(task, candidates=3, word_vectors=file)
    [places] = vectors.replaceable_words(["good playing badly"])
    # Of the three nearest neighbors one is a word; "badly" is not in the file.
    assert [place.candidates for place in places if place.start > 4] == [(b"play",)]
    more = Augmentation(task, candidates=7, word_vectors=file)
    assert more.replaceable_words(["playing"])[0][0].candidates == (b"play", b"played", b"good")
    monkeypatch.setattr(augmentation_words, "MAX_WORD_VECTORS", 4)
    fewer = Augmentation(task, candidates=7, word_vectors=file)
    assert fewer.replaceable_words(["playing"])[0][0].candidates == (b"play", b"good")


@pytest.mark.extended
def test_continuations_of_another_tokenizer():
    """Pieces that start a word are those with a space; at the start of a text, all may."""
    special = dict(
        cls_token="<s>", sep_token="</s>", unk_token="<unk>", pad_token="<pad>", mask_token="<mask>"
    )
    merges = [("b", "a"), ("ba", "d"), ("Ġ", "bad"), ("c", "a"), ("ca", "t"), ("Ġ", "cat")]
    pieces = [*special.values(), *byte_characters(), *("".join(pair) for pair in merges)]
    tokenizer = ByteBPETokenizer(
        pieces, merges, special_tokens=SpecialTokens(**special), layout=CLS_A_SEP_SEP
    )
    task = _task("roberta", tokenizer)
    # All pieces but one are candidates.
    places = Augmentation(task, candidates=len(pieces) - 1, stop_words=()).replaceable_words(
        ["bad bad (cat) bat"]
    )[0]
    start, inside, bracket, several = (set(place.candidates) for place in places)
    assert len(inside - {b"bad", b"cat"}) == 0
    assert len({b"bad", b"cat", b"ba", b"ca", b"b", b"z"} - start) <= 1
    assert len({b"bad", b"cat", b"ba", b"ca", b"b", b"z"} - bracket) <= 1
    assert several == {b"bad", b"cat"}
    assert (places[3].start, places[3].end) == (14, 17)


# Draws ----------------------------------------------------------------------------------------


def test_each_word_is_replaced_independently_by_a_uniform_draw(task):
    n, copies, p = 30, 3000, 0.4
    text = b" ".join([b"w"] * n)
    letters = [bytes([c]) for c in b"abcde"]
    places = [ReplaceableWord(2 * i, 2 * i + 1, tuple(letters)) for i in range(n)]
    of = Augmentation(task, probability=p, copies=copies)
    found = of.copies_of(text, places, example=7)
    assert len(found) == len(set(found)) == copies
    words = np.array([copy.split() for copy in found])
    replaced = words != b"w"
    error = 5 * np.sqrt(p * (1 - p) / copies)
    assert abs(replaced.mean() - p) < error / np.sqrt(n)
    assert np.abs(replaced.mean(axis=0) - p).max() < error
    together = np.cov(replaced, rowvar=False)
    assert np.abs(together - np.diag(np.diag(together))).max() < error / 2
    for letter in letters:
        share = (words == letter).sum() / replaced.sum()
        assert share == pytest.approx(1 / 5, abs=5 * np.sqrt(0.2 * 0.8 / replaced.sum()))
    # Draws of another example, another text of it and another seed are others.
    other_seed = Augmentation(task, probability=p, copies=copies, seed=1)
    drawn = {
        frozenset(found),
        frozenset(of.copies_of(text, places, 8)),
        frozenset(of.copies_of(text, places, 7, 1)),
        frozenset(other_seed.copies_of(text, places, 7)),
    }
    assert len(drawn) == 4
    assert of.copies_of(text, places, 7) == found
    # Fewer copies are the first ones.
    assert Augmentation(task, probability=p, copies=9).copies_of(text, places, 7) == found[:9]


def test_extreme_probabilities_and_equal_copies(task):
    places = [ReplaceableWord(0, 4, (b"film",)), ReplaceableWord(5, 9, (b"plot", b"fine"))]
    never = Augmentation(task, probability=0)
    assert never.copies_of(b"good film", places, 0) == []
    always = Augmentation(task, probability=1, copies=50)
    assert sorted(always.copies_of(b"good film", places, 0)) == [b"film fine", b"film plot"]
    assert always.copies_of(b"good", [], 0) == []


# Folders --------------------------------------------------------------------------------------


def _rows(labels=(0, 1, 1, 0, 2), dtype="int32", **texts):
    texts = texts or {"text": TEXTS}
    return tf.data.Dataset.from_tensor_slices((texts, np.array(labels, dtype)))


def _listed(rows):
    return [
        ({k: v.decode() for k, v in x.items()}, y.item() if isinstance(y, np.generic) else y)
        for x, y in rows.as_numpy_iterator()
    ]


def _bytes(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _run(rows, augmentation, folder, **options):
    return augment(rows, augmentation, folder, verbose=0, **{"shard_size": 2, **options})


def test_each_example_is_followed_by_its_copies(augmentation, tmp_path):
    rows = _rows()
    found = _run(rows, augmentation, tmp_path)
    assert found.element_spec == rows.element_spec
    listed = _listed(found)
    assert len(found) == len(listed)
    expected = []
    for number, (text, places) in enumerate(
        zip(TEXTS, augmentation.replaceable_words(TEXTS), strict=True)
    ):
        copies = augmentation.copies_of(text.encode(), places, number)
        versions = [text, *(copy.decode() for copy in copies)]
        expected += [({"text": version}, [0, 1, 1, 0, 2][number]) for version in versions]
    assert listed == expected
    assert len(expected) > 4 * 5
    card = json.loads((tmp_path / "card.json").read_text())
    assert card["counts"] == {"examples": 5, "written": len(expected)}
    assert [row["examples"] for row in card["shards"]] == [2, 2, 1]
    # Its files are all that there is, and are read again.
    assert _bytes(tmp_path).keys() == {"card.json", *(row["file"] for row in card["shards"])}
    before = _bytes(tmp_path)
    assert _listed(_run(rows, augmentation, tmp_path)) == expected
    assert _bytes(tmp_path) == before


@pytest.mark.parametrize(
    ("labels", "dtype"), [([0.1, 2, 3.5, 4, 5], "float32"), ([b"a", b"\xff", b"", b"d", b"e"], "O")]
)
def test_labels_are_copied(augmentation, tmp_path, labels, dtype):
    rows = _rows(labels, dtype)
    found = _run(rows, augmentation, tmp_path)
    assert found.element_spec == rows.element_spec
    assert {y for _, y in _listed(found)} == {y for _, y in _listed(rows)}


def test_a_text_of_a_pair_is_augmented_beside_the_original_other(augmentation, tmp_path):
    texts = {"text_pair": TEXTS[:2] + TEXTS[3:], "text": TEXTS[1:2] * 4}
    rows = _rows([0, 1, 2, 3], **texts)
    listed = _listed(_run(rows, augmentation, tmp_path))
    for number, (original, _) in enumerate(_listed(rows)):
        versions = [x for x, label in listed if label == number]
        assert versions[0] == original
        others = versions[1:]
        changed = [sorted(k for k in x if x[k] != original[k]) for x in others]
        assert sorted(changed) == changed
        assert {tuple(c) for c in changed} == {("text",), ("text_pair",)}
        for name in original:
            assert 1 < changed.count([name]) <= augmentation.copies
    # The same text of two examples is replaced by other draws.
    drawn = [{x["text"] for x, label in listed if label == number} for number in range(4)]
    assert len(set(map(frozenset, drawn))) == 4


@pytest.mark.extended
def test_neither_batches_nor_shards_change_the_copies(augmentation, tmp_path):
    runs = [(1, 2), (64, 2), (2, 1), (3, 100)]
    listed = [
        _listed(_run(_rows(), augmentation, tmp_path / str(i), batch_size=batch, shard_size=shard))
        for i, (batch, shard) in enumerate(runs)
    ]
    assert all(each == listed[0] for each in listed)
    assert _bytes(tmp_path / "0") == _bytes(tmp_path / "1")


def test_close_candidates_are_those_of_the_text_alone(augmentation, monkeypatch):
    """Rounding depends on padding and the batch; a text alone has neither."""
    expected = augmentation.replaceable_words(TEXTS, batch_size=1)
    calls, likeliest = [], augmentation._top_tokens

    def wrong_in_batches(rows, places):
        ids, margin = likeliest(rows, places)
        calls.append(len(margin))
        return (ids, margin) if len(margin) == 1 else (ids * 0 + 5, margin * 0 + 1e-5)

    monkeypatch.setattr(augmentation, "_top_tokens", wrong_in_batches)
    assert augmentation.replaceable_words(TEXTS, batch_size=64) == expected
    assert calls[0] > 1
    assert calls[1:] == [1] * calls[0]

    def in_another_order(rows, places):
        ids, margin = likeliest(rows, places)
        return ids[:, ::-1], margin

    monkeypatch.setattr(augmentation, "_top_tokens", in_another_order)
    assert augmentation.replaceable_words(TEXTS, batch_size=64) == expected


@pytest.mark.parametrize("kill", in_full(range(5), [4]))
def test_a_killed_run_resumes(augmentation, tmp_path, monkeypatch, kill):
    _run(_rows(), augmentation, tmp_path / "whole")
    copies_of, calls = Augmentation.copies_of, itertools.count()

    def killed(self, *args):
        if next(calls) == kill:
            raise KeyboardInterrupt
        return copies_of(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Augmentation, "copies_of", killed)
        with pytest.raises(KeyboardInterrupt):
            _run(_rows(), augmentation, tmp_path / "killed")
    files = _bytes(tmp_path / "killed").keys()
    assert "card.json" not in files
    complete = sorted(name for name in files if name.endswith(".tfrecord"))
    assert complete == [f"examples-0000{i}.tfrecord" for i in range(kill // 2)]
    again = []
    monkeypatch.setattr(
        Augmentation, "copies_of", lambda self, *a: again.append(a[2]) or copies_of(self, *a)
    )
    _run(_rows(), augmentation, tmp_path / "killed")
    assert again == list(range(kill // 2 * 2, 5))
    assert _bytes(tmp_path / "killed") == _bytes(tmp_path / "whole")


def test_a_kill_between_a_shard_and_its_counts(augmentation, tmp_path):
    _run(_rows(), augmentation, tmp_path / "whole")
    folder = tmp_path / "killed"
    shutil.copytree(tmp_path / "whole", folder)
    card = json.loads((folder / "card.json").read_text())
    (folder / "card.json").unlink()
    (folder / "job.json").write_text(
        json.dumps({k: v for k, v in card.items() if k not in ("counts", "shards")})
    )
    (folder / "counts-00000.json").write_text(json.dumps(card["shards"][0]))
    _run(_rows(), augmentation, folder)
    assert _bytes(folder) == _bytes(tmp_path / "whole")


# What is refused ------------------------------------------------------------------------------


@pytest.mark.extended
def test_folders_of_other_settings_rows_or_models(augmentation, task, tmp_path):
    folder = tmp_path / "augmented"
    _run(_rows(), augmentation, folder)
    given = dict(candidates=9, probability=0.5, copies=6, stop_words=["a", "not"])
    vectors = tmp_path / "vectors.txt"
    vectors.write_text(VECTORS)
    for changes, name in (
        ({"candidates": 8}, "candidates is 9, expected 8"),
        ({"probability": 0.4}, "probability is 0.5, expected 0.4"),
        ({"seed": 1}, "seed is 0, expected 1"),
        ({"stop_words": ["a"]}, "stop_words_sha256"),
        ({"word_vectors": vectors}, "word_vectors_sha256 is None"),
    ):
        with pytest.raises(ValueError, match=name):
            _run(_rows(), Augmentation(task, **given | changes), folder)
    for rows in (_rows([0, 1, 1, 0, 1]), _rows().take(4), _rows(textpair=TEXTS)):
        with pytest.raises(ValueError, match="rows_sha256"):
            _run(rows, augmentation, folder)
    with pytest.raises(ValueError, match="shard_size is 2, expected 3"):
        _run(_rows(), augmentation, folder, shard_size=3)
    weight = task.head.weights[0]
    value = weight.numpy()
    weight.assign(np.nextafter(value, 1))
    with pytest.raises(ValueError, match="masked_lm_sha256"):
        _run(_rows(), augmentation, folder)
    weight.assign(value)
    same = Augmentation(task, **given)
    assert len(_listed(_run(_rows(), same, folder))) > 5
    (folder / "examples-00001.tfrecord").write_bytes(b"")
    with pytest.raises(ValueError, match=r"examples-00001.tfrecord is 0 bytes, expected"):
        _run(_rows(), augmentation, folder)
    (folder / "card.json").write_text("{}")
    with pytest.raises(ValueError, match="version is missing"):
        _run(_rows(), augmentation, folder)


def test_rows_that_change(augmentation, tmp_path):
    passes = itertools.count()

    def rows():
        texts = TEXTS if next(passes) % 2 else TEXTS[::-1]
        yield from (({"text": text}, 0) for text in texts)

    spec = ({"text": tf.TensorSpec([], "string")}, tf.TensorSpec([], "int32"))
    with pytest.raises(ValueError, match="rows differ from one pass to the next"):
        _run(tf.data.Dataset.from_generator(rows, output_signature=spec), augmentation, tmp_path)
    assert not (tmp_path / "card.json").exists()


def test_rows_that_cannot_be_augmented(augmentation, tmp_path):
    slices = tf.data.Dataset.from_tensor_slices
    for rows, message in (
        (TEXTS, "rows must be a tf.data.Dataset, got a list"),
        (slices(TEXTS), r"must have elements \(features, label\)"),
        (slices(({"text": TEXTS}, [[1, 2]] * 5)), "must be a scalar"),
        (slices(({"text": TEXTS}, {"a": [1] * 5})), "must be a scalar"),
        (slices(({"text": [["a", "b"]]}, [1])), "'text' must be one string for each example"),
        (slices(({"text": [3]}, [1])), "'text' must be one string"),
        (_rows().batch(2), "'text' must be one string for each example"),
        (_rows().take(0), "There are no rows"),
        (_rows().repeat(), "rows must end"),
    ):
        with pytest.raises(ValueError, match=message):
            _run(rows, augmentation, tmp_path)
    for name in ("shard_size", "batch_size"):
        with pytest.raises(ValueError, match=f"Sizes must be at least 1.*{name}=0"):
            _run(_rows(), augmentation, tmp_path, **{name: 0})
    assert not list(tmp_path.iterdir())


def test_arguments(task, tiny, tmp_path):
    for name, value, message in (
        ("candidates", 0, "candidates must be from 1 to 63, got 0"),
        ("candidates", 64, "from 1 to 63, got 64"),
        ("copies", 2.0, "copies must be an integer, got 2.0"),
        ("seed", -1, "seed must be from 0"),
        ("probability", 1.1, "probability must be from 0 to 1, got 1.1"),
        ("probability", float("nan"), "probability must be from 0 to 1 and finite, got nan"),
        ("stop_words", "the", "stop_words must be a set of words, got the text 'the'"),
    ):
        with pytest.raises(ValueError, match=message):
            Augmentation(task, **{name: value})
    with pytest.raises(TypeError, match="masked_lm must be a MaskedLM, got a str"):
        Augmentation("bert")
    file = tmp_path / "vectors.txt"
    for content, message in (
        ("", "is empty"),
        ("400000 300\n", "has no words"),
        ("400000 300\nthe 1 2\n", "line 2: expected a word and 300 numbers"),
        ("the\n", "line 1: expected a word and its numbers"),
        ("the 1 2\na 1\n", "line 2: expected a word and 2 numbers"),
        ("the 1 x\n", "line 1: expected 2 finite numbers"),
        ("the 1 inf\n", "line 1: expected 2 finite numbers"),
        ("the 1 1e99\n", "line 1: expected 2 finite numbers"),
    ):
        file.write_text(content)
        with pytest.raises(ValueError, match=message):
            Augmentation(task, word_vectors=file)
    with pytest.raises(ValueError, match=r"There is no file .*missing"):
        Augmentation(task, word_vectors=tmp_path / "missing")
