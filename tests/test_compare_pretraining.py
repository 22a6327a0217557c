"""The comparisons of pretraining: what their tables are computed from, and a little of each."""

import math

import pytest

from bertfam_tf.corpora import Masking, segment_pairs
from bertfam_tf.text import WordPieceTokenizer
from tools import compare_pretraining, compare_stacking
from tools.compare_pretraining import (
    PARTS,
    Cells,
    Examples,
    Part,
    Sizes,
    step_flops,
    unigram_loss,
    with_spans,
)

WORDS = "new york is a big city and i like it".split()
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "##s"]


@pytest.fixture(scope="module")
def tokenizer():
    return WordPieceTokenizer(PIECES)


def test_unigrams_of_the_same_text_have_its_entropy():
    tokens = [0] * 700 + [1] * 200 + [2] * 100
    entropy = -sum(p * math.log(p) for p in (0.7, 0.2, 0.1))
    assert unigram_loss(tokens, tokens, 3) == pytest.approx(entropy, abs=1e-4)
    # A token that was never seen costs more than any other, and not infinitely.
    assert 5 < unigram_loss(tokens, [3], 4) < 8


def test_flops_are_those_of_the_comparison_of_stacking():
    sizes = Sizes()
    stacking = compare_stacking.flops(sizes.layers, sizes.hidden, sizes.length, 30522)
    assert step_flops(sizes, 30522, electra=False) == pytest.approx(stacking)
    # The generator has a narrow encoder, and logits of the same width twice.
    assert 1.1 < step_flops(sizes, 30522, electra=True) / stacking < 1.4


def test_stages_have_the_compute_of_a_run_from_scratch():
    def cost(layers):
        return compare_stacking.flops(layers, 64, 64, 4000)

    for shares in compare_stacking.SHARES:
        stages = compare_stacking.stages(8, 1000, shares, cost)
        assert [stage.layers for stage in stages] == [2, 4, 8]
        steps = [stage.steps for stage in stages]
        assert [step / sum(steps) for step in steps] == pytest.approx(shares, abs=1e-3)
        compute = sum(stage.steps * cost(stage.layers) for stage in stages)
        assert compute == pytest.approx(1000 * cost(8), rel=1e-3)


def test_stacking_is_compared_at_the_final_loss_from_scratch():
    scratch = {"points": [(1e12, 7.0), (2e12, 6.0)], "stages": [(8, 10)], "seconds": 1.0}
    sooner = {**scratch, "points": [(1e12, 6.5), (2e12, 5.5)]}
    never = {**scratch, "points": [(1e12, 6.8), (2e12, 6.1)]}
    found = [compare_stacking.needed(run, scratch) for run in (scratch, sooner, never)]
    assert found == [100, 75, None]
    for other, verdict in (
        (sooner, "2 of 2 seeds (which agrees"),
        (never, "1 of 2 seeds (which does"),
    ):
        runs = {"scratch": [scratch] * 2, "stack, fresh moments": [sooner, other]}
        assert verdict in compare_stacking.agreement(runs)[0]
    assert "75, not reached" in compare_stacking.table(runs)[-1]
    deeper = {"scratch": [sooner]}
    assert "does not pay" not in compare_stacking.depth({8: deeper, 4: {"scratch": [scratch]}})[0]
    assert "does not pay" in compare_stacking.depth({4: deeper, 8: {"scratch": [scratch]}})[0]
    rows = compare_stacking.switches([sooner], scratch)
    assert "| 5.500 | -0.500 | 75 |" in rows[3]
    assert "all of these switches pay" in rows[-1]
    assert "too late to pay is 8 × 10." in compare_stacking.switches([sooner, never], scratch)[-1]


SENTENCES = ["i like new york", "new york citys", "é is big"]
SPANS = {
    SENTENCES[0]: [(7, 15)],
    SENTENCES[1]: [(0, 8), (9, 14)],
    SENTENCES[2]: [(6, 9)],
}


@pytest.mark.extended
def test_spans_are_rearranged_with_their_tokens(tokenizer):
    size = tokenizer.vocab_size
    # In chunks of any size.
    for chunk in (1, 2, 8):
        rows = with_spans(tokenizer, SENTENCES, SPANS, chunk)
        ids = [[number % size for number in row] for row in rows]
        assert ids == tokenizer.tokenize(SENTENCES).to_list()
        spans = [[number // size for number in row] for row in rows]
        assert [[n > 0 for n in row] for row in spans] == [
            [False, False, True, True],
            [True, True, True, True],
            [False, False, True],
        ]
        (*_, first, same), (second, _, third, piece), _ = spans
        assert first == same
        assert third == piece
        assert len({first, second, third}) == 3
        assert first != second, "a span would go on in the next sentence"


@pytest.mark.extended
def test_masks_of_examples_cover_whole_spans(tokenizer, tmp_path):
    sentences = [*SENTENCES, "a big city and i"] * 20
    documents = [with_spans(tokenizer, sentences, SPANS)] * 2
    part = Part(Sizes(length=32), tmp_path, Cells(tmp_path / "cells.json", {}), [0], tokenizer)
    examples = Examples(part, documents, "segment_pairs")
    known = [e.first + e.second for e in segment_pairs(documents, 29) if e.label is not None]
    assert examples.count == len(known)
    masking = Masking(tokenizer, 0.3, unit="given", words=0.0)
    steps = 12
    found = 0
    city = tokenizer.token_to_id("city")
    batches = examples.batches(masking, steps, 8, seed=0)
    assert len(batches) == steps
    for inputs, targets, weights in batches:
        assert inputs["token_ids"].numpy().max() < tokenizer.vocab_size
        where = weights.numpy() > 0
        tokens = targets["token_ids"].numpy()[where]
        for token, begin, end in zip(
            tokens, targets["starts"].numpy()[where], targets["ends"].numpy()[where], strict=True
        ):
            # Of "citys" both pieces are masked, and words of no span never are.
            assert token != tokenizer.token_to_id("like")
            assert token != city or end > begin
            found += token == city
    assert found > 3


def test_answers_no_better_than_without_pretraining_say_nothing():
    without = compare_pretraining._RANDOM
    little = compare_pretraining.answers_say({without: 10.0, "words": 12.0, "spans": 9.0}, 500)
    assert "says nothing" in little
    assert "+2.0 points from 10.0, of words" in little
    much = compare_pretraining.answers_say({without: 10.0, "words": 20.0}, 500)
    assert "says nothing" not in much


def test_whether_seeds_decide():
    assert compare_pretraining.seeds_say([0.1]) == "One seed decides nothing."
    # The mean 0.1 and 4.303 · 0.01 / √3.
    assert "0.100 ± 0.025 nats" in compare_pretraining.seeds_say([0.09, 0.1, 0.11])
    assert compare_pretraining.seeds_say([0.09, 0.1, 0.11]).endswith(": decided.")
    assert "not decided" in compare_pretraining.seeds_say([-0.1, 0.1, 0.3])


def test_finished_cells_are_not_computed_again(tmp_path):
    file = tmp_path / "cells.json"
    cells = Cells(file, {"steps": 3})
    assert cells("one", lambda: {"loss": 1.5})["loss"] == 1.5

    def never():
        raise AssertionError("computed again")

    resumed = Cells(file, {"steps": 3})
    assert resumed("one", never)["loss"] == 1.5
    with pytest.raises(AssertionError):
        resumed("two", never)
    assert set(Cells(file, {"steps": 3}).found) == {"one"}
    with pytest.raises(ValueError, match=r"steps.: 3.*expected .*4"):
        Cells(file, {"steps": 4})


DATA = {"books": (), "sop": (), "electra": ("glue",), "masking": ("squad", "conll2003")}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("books", marks=pytest.mark.full),
        pytest.param("electra", marks=pytest.mark.full),
        # They last ran, and passed, in November 2026.
        pytest.param("sop", marks=pytest.mark.slow),
        pytest.param("masking", marks=pytest.mark.slow),
    ],
)
def test_a_little_of_each_part(name, tmp_path, real_data, capsys):
    for folder in ("gutenberg", "vocab", *DATA[name]):
        real_data(folder)
    compare_pretraining.main([name, "--quick", "--cache", str(tmp_path)])
    report = capsys.readouterr().out.rpartition(f"# {PARTS[name][0]}")[2]
    rows = [line for line in report.split("\n") if line.startswith("|")]
    assert len(rows) > 4
    assert not any(cell.strip() in ("nan", "inf") for row in rows for cell in row.split("|"))
    # Everything is there already.
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*") if file.is_file()}
    compare_pretraining.main([name, "--quick", "--cache", str(tmp_path)])
    assert before == {f: f.stat().st_mtime_ns for f in tmp_path.rglob("*") if f.is_file()}
