"""Batches of pretraining from text files."""

import itertools
import re

import numpy as np
import pytest
import tensorflow as tf

from bertfam_tf.corpora import Masking
from bertfam_tf.corpora.corpus import Corpus
from bertfam_tf.corpora.examples import Format
from bertfam_tf.text import ByteBPETokenizer, SpecialTokens, load_tokenizer
from bertfam_tf.text.special_tokens import CLS_A_SEP_SEP
from bertfam_tf.text.tokenizers.byte_bpe import byte_characters
from tests.selection import in_full, only_in

TEXT = "\n".join(
    "\n".join(f"good film {'the ' * (i % 5)}bad plot {'dull ' * (i % 3)}." for i in range(n)) + "\n"
    for n in (7, 1, 12, 4)
)

FORMATS = ("full_sentences", "doc_sentences", "segment_pairs", "sentence_pairs")


@pytest.fixture
def corpus(tiny, tmp_path):
    (tmp_path / "text").write_text(TEXT)

    def make(length=24, format="full_sentences", **options):
        return Corpus([tmp_path / "text"], load_tokenizer(tiny), length, format, **options)

    return make


def _words(corpus, examples):
    tokens = [t for each in examples for t in (*each.first, *each.second)]
    separator = corpus.tokenizer.special_ids["sep"]
    return [token for token in tokens if token != separator]


@pytest.mark.extended
@only_in("full", "doc_sentences", "sentence_pairs")
@pytest.mark.parametrize(
    "format", ["full_sentences", "doc_sentences", "segment_pairs", "sentence_pairs"]
)
def test_a_pass_has_all_tokens_once(corpus, format):
    made = corpus(format=format, shuffle=1, task="sop")
    shuffled = corpus(format=format, shuffle=5, task="sop")
    everything = made.tokenizer.tokenize(TEXT.split("\n")).flat_values.numpy()
    assert sorted(_words(made, made.examples())) == sorted(everything)
    assert sorted(_words(shuffled, shuffled.examples())) == sorted(everything)
    orders = [[each.first for each in shuffled.examples(number)] for number in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]


def test_long_documents_have_as_many_negatives(tiny, tmp_path):
    for name in "abcd":
        (tmp_path / name).write_text(f"good film {name} .\nbad plot {name} .\n" * 200)
    files = sorted(tmp_path.iterdir())
    made = Corpus(files, load_tokenizer(tiny), 32, "segment_pairs", documents="file")
    labels = [example.label for example in made.examples()]
    assert len(labels) > 100
    assert 0.45 < labels.count(1) / len(labels) <= 0.5


@pytest.mark.extended
@pytest.mark.parametrize("format", ["full_sentences", "segment_pairs"])
def test_batches_are_the_packed_examples_with_masks(corpus, format):
    made = corpus(format=format)
    tokenizer, masking = made.tokenizer, Masking(made.tokenizer, 0.3)
    [(inputs, targets, weights)] = made.batches(1000, masking)
    layout = tokenizer.special_ids
    for row, example in enumerate(made.examples()):
        ids = [layout["cls"], *example.first, layout["sep"]]
        segments = [0] * len(ids)
        if example.second:
            ids += [*example.second, layout["sep"]]
            segments += [1] * (len(example.second) + 1)
        length = len(ids)
        assert targets["originals"][row, :length].numpy().tolist() == ids
        assert inputs["segment_ids"][row, :length].numpy().tolist() == segments
        assert inputs["padding_mask"][row].numpy().sum() == length
        assert targets["pair"][row] == (-1 if example.label is None else example.label)
    where = weights.numpy() > 0
    positions = targets["positions"].numpy()
    rows = np.repeat(np.arange(len(positions))[:, None], positions.shape[1], 1)
    originals = targets["originals"].numpy()
    np.testing.assert_array_equal(
        targets["token_ids"].numpy()[where], originals[rows, positions][where]
    )
    changed = inputs["token_ids"].numpy() != originals
    assert 0 < changed.sum() <= where.sum()


def _all(batches):
    """Examples with their masks, without padding."""
    found = []
    for inputs, _, _ in batches:
        for ids, mask in zip(inputs["token_ids"], inputs["padding_mask"], strict=True):
            found.append(tuple(ids.numpy()[mask.numpy() > 0]))
    return found


def _good_film(sentences):
    """The bytes of the first two words of each sentence."""
    return [[(0, len("good film"))] for _ in sentences]


@pytest.mark.extended
@only_in("full", "full_sentences")
@pytest.mark.parametrize("format", in_full(FORMATS, ["full_sentences", "segment_pairs"]))
def test_spans_stay_with_their_tokens(corpus, format):
    made, plain = corpus(format=format, spans=_good_film), corpus(format=format)
    tokenizer = made.tokenizer
    masking = Masking(tokenizer, 1.0, "given", masked=1.0, random=0.0, words=0.0)
    ids = [tokenizer.token_to_id(token) for token in ("good", "film")]
    found = _masked(made.batches(4, masking))
    for masked, originals, _ in found:
        assert masked == tuple(tokenizer.special_ids["mask"] if i in ids else i for i in originals)
    expected = _masked(plain.batches(4, Masking(tokenizer)))
    assert [each[1:] for each in found] == [each[1:] for each in expected]


@pytest.fixture
def bytes_tokenizer():
    """Returns a byte-level BPE tokenizer in which a space belongs to the next letter."""
    roles = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "mask": "<mask>"}
    merges = [("Ġ", letter) for letter in "abcs"]
    return ByteBPETokenizer(
        [*roles.values(), *byte_characters(), *map("".join, merges)],
        merges,
        special_tokens=SpecialTokens(**{f"{role}_token": t for role, t in roles.items()}),
        layout=CLS_A_SEP_SEP,
    )


def _texts(form, documents):
    """The segments that a format packs, as text, and the numbers of their spans."""
    examples = list(form.form(map(iter, documents)))
    first, second = (
        tf.ragged.constant([list(getattr(each, name)) for each in examples], tf.int32, 1)
        for name in ("first", "second")
    )
    inputs = form.pack(first, second)
    return form.tokenizer.detokenize(inputs["token_ids"]).numpy().tolist(), inputs.get("spans")


def test_sentences_of_a_text_have_the_tokens_of_the_text(bytes_tokenizer):
    """A space joins them, except before an ideograph; each segment starts as a text does."""
    documents = [["so.", "b a.", "我.", "c."], ["a.", "b."]]
    [text], _ = _texts(Format(bytes_tokenizer, 40, "full_sentences"), documents)
    assert text.decode() == "<s>so. b a.我. c.</s>a. b.</s>"
    # Of "t" and "o", a space is a token of its own.
    [text], _ = _texts(Format(bytes_tokenizer, 40, "full_sentences"), [["to.", "to."], ["ok"]])
    assert text == b"<s>to. to.</s>ok</s>"
    texts, _ = _texts(Format(bytes_tokenizer, 40, "sentence_pairs", "sop"), documents[1:])
    assert texts[0] in (b"<s>a.</s></s>b.</s>", b"<s>b.</s></s>a.</s>")


def test_spans_after_a_space_stay_with_their_tokens(bytes_tokenizer):
    def second_words(sentences):
        return [[(2, 3)] if len(each) == 4 else [] for each in sentences]

    form = Format(bytes_tokenizer, 40, "doc_sentences", spans=second_words)
    _, [spans] = _texts(form, [["a b.", "b a.", "c."]])
    assert np.flatnonzero(spans).tolist() == [2, 5]


def test_whole_words_of_byte_bpe_end_with_their_sentence(bytes_tokenizer):
    masking = Masking(bytes_tokenizer, 0.5, "word", masked=1.0, random=0.0)
    form = Format(bytes_tokenizer, 40, "doc_sentences")
    [example] = form.form([iter(["a.", "b.", "c.", "s."])])
    first, second = (tf.ragged.constant([row] * 50, tf.int32, 1) for row in (example.first, []))
    inputs = form.pack(first, second)
    seeds = np.stack([np.arange(50)] * 2, 1)
    masked = masking(inputs["token_ids"], inputs["padding_mask"], seeds)
    assert masked.weights.numpy().all()
    np.testing.assert_array_equal(masked.positions.numpy()[:, ::2] % 2, 1)
    np.testing.assert_array_equal(np.diff(masked.positions.numpy())[:, ::2], 1)


@pytest.mark.extended
def test_batches_of_any_size_and_a_resumed_pass_have_the_same_examples(corpus):
    made = corpus(seed=3)
    masking = Masking(made.tokenizer)
    assert made.batches(1, masking).options().autotune.enabled is False
    whole = _all(made.batches(1, masking, passes=2))
    assert whole == _all(made.batches(4, masking, passes=2))
    assert whole[8:] == _all(made.batches(4, masking, passes=2).skip(2))
    assert whole != _all(corpus(seed=4).batches(1, masking, passes=2))


def _masked(batches):
    """Examples with their masks and labels, without padding."""
    found = []
    for inputs, targets, _ in batches:
        names = zip(inputs["token_ids"], targets["originals"], targets["pair"], strict=True)
        mask = inputs["padding_mask"].numpy() > 0
        found += [
            (tuple(ids.numpy()[real]), tuple(originals.numpy()[real]), int(pair))
            for (ids, originals, pair), real in zip(names, mask, strict=True)
        ]
    return found


@pytest.mark.extended
@only_in("full", "full_sentences-10000")
@pytest.mark.parametrize(
    ("format", "shuffle"),
    in_full(
        [*itertools.product(FORMATS, (1, 5, 10_000))],
        [("full_sentences", 10_000), ("segment_pairs", 10_000)],
    ),
)
def test_static_masks_and_pairs_repeat_and_dynamic_ones_do_not(corpus, format, shuffle):
    made = corpus(format=format, shuffle=shuffle)
    masking = Masking(made.tokenizer)
    for copies, repeats in ((1, True), (2, False), (None, False)):
        counts = [sum(1 for _ in made.examples(number, copies)) for number in range(4)]
        found = _masked(made.batches(4, masking, copies=copies, passes=4))
        passes = [found[sum(counts[:n]) : sum(counts[: n + 1])] for n in range(4)]
        assert len(found) == sum(counts)
        first, second, third, _ = map(sorted, passes)
        assert (first == second) == repeats
        assert (first == third) == (copies is not None)
        # The order is drawn anew in each pass, unless it is that of the text.
        assert (passes[0] == passes[2]) == (copies is not None and shuffle == 1)
        if copies != 2:
            continue
        # A resumed run has the same, from any place.
        begin = counts[0] + 3
        resumed = made.batches(4, masking, copies=copies, passes=4, start=begin)
        assert _masked(resumed) == found[begin:]


@only_in("full", "segment_pairs")
@pytest.mark.parametrize("format", in_full(["doc_sentences", "segment_pairs"], ["segment_pairs"]))
def test_batches_of_tokens(corpus, format):
    """Each has about as many tokens as the others, and from any batch on they are the same."""
    made = corpus(format=format)
    masking = Masking(made.tokenizer)

    def read(**options):
        data = made.batches(None, masking, batch_tokens=60, passes=3, **options)
        return [(_masked([batch]), int(tf.reduce_sum(batch[0]["padding_mask"]))) for batch in data]

    whole = read()
    examples = [example for rows, _ in whole for example in rows]
    assert examples == _masked(made.batches(1, masking, passes=3))
    assert all(0 < tokens <= 60 for _, tokens in whole)
    assert len({len(rows) for rows, _ in whole}) > 1
    # A batch ends where the next example does not fit, or where a chunk of examples ends.
    short = [n + len(b[0][1]) <= 60 for (_, n), (b, _) in itertools.pairwise(whole)]
    assert sum(short) <= len(examples) / (16 * (60 // 24))
    assert read(start=5) == whole[5:]
    first = made.batches(None, masking, batch_tokens=60)
    assert made.count_batches(60) == sum(1 for _ in first)


@pytest.mark.extended
def test_pairs_with_one_label_are_an_error(tiny, tmp_path):
    def check(text, format="segment_pairs", **options):
        (tmp_path / "text").write_text(text)
        made = Corpus([tmp_path / "text"], load_tokenizer(tiny), 24, format, **options)
        made.check_labels()

    one, lines = "good film .\nbad plot .\n" * 20, "good film .\n\n" * 20
    for format in ("segment_pairs", "sentence_pairs"):
        check("\n".join([one] * 3), format)
        check(one, format, task="sop")
        with pytest.raises(ValueError, match=r"nsp needs pairs with both labels.*One document"):
            check(one, format)
        for task in ("nsp", "sop"):
            with pytest.raises(
                ValueError, match=rf"{task} needs pairs of segments, but .* has none"
            ):
                check(lines, format, task=task)
    with pytest.raises(ValueError, match=r"sop needs pairs with both labels, but .* has too few"):
        check("good film .\nbad plot .\n", task="sop")


def test_few_pairs_are_a_warning(tiny, tmp_path, caplog):
    """Of long lines, such as paragraphs, hardly any two fit into an example."""
    paragraph = "Good film. Bad plot. Good plot. " * 3
    text = tmp_path / "text"
    text.write_text("\n".join([f"{paragraph}\n" * 6, "good film .\nbad plot .\n"] * 3))
    options = dict(length=24, format="segment_pairs", task="sop")
    Corpus([text], load_tokenizer(tiny), sentences="split", **options).check_labels()
    assert not caplog.messages
    Corpus([text], load_tokenizer(tiny), **options).check_labels()
    [message] = caplog.messages
    assert re.match(r"sop learns from \d\d?% of the examples of .*text\. The others are", message)


def test_errors(corpus, tiny, tmp_path):
    for options, message in (
        (dict(format="pages"), "format must be one of full_sentences"),
        (dict(task="next"), "task must be nsp or sop"),
        (dict(length=3), "length must leave room for two tokens, got 3"),
        (dict(shuffle=0), "shuffle must be at least 1"),
        (dict(documents="page"), "documents must be one of"),
    ):
        with pytest.raises(ValueError, match=message):
            corpus(**options)
    empty = tmp_path / "empty"
    empty.write_text("\n\n")
    with pytest.raises(ValueError, match=r"There is no text in .*empty"):
        list(Corpus([empty], load_tokenizer(tiny), 16).examples())
    made = corpus()
    with pytest.raises(ValueError, match="copies must be at least 1, got 0"):
        made.batches(1, Masking(made.tokenizer), copies=0)
    with pytest.raises(
        ValueError, match="Either batch_size or batch_tokens must be None, got 1 and"
    ):
        made.batches(1, Masking(made.tokenizer), batch_tokens=99)
    with pytest.raises(ValueError, match=r"at least the 24 tokens .* got 23"):
        made.batches(None, Masking(made.tokenizer), batch_tokens=23)
