"""Vectors of sentence-transformers' own library: of its directories, and of ours in it."""

import json

import keras
import numpy as np
import pytest

import bertfam_tf as bf
from bertfam_tf.layers import TokenPooling
from tests import published
from tests.support import embedders as compare_embedders

pytest.importorskip("torch")
library = pytest.importorskip("sentence_transformers")

from sentence_transformers.sentence_transformer import modules  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = pytest.mark.live
# Of weights with noise, and of several layers on the vectors: float32 rounds by as much.
TOLERANCE = 5e-5
POOLINGS = {
    "cls": "first",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_length",
    "weightedmean": "weighted_mean",
    "lasttoken": "last",
    ("mean", "max", "cls"): ("mean", "max", "first"),
}
PROMPTS = {"query": "Ask: ", "passage": "Read this: ", "none": ""}
DENSE = [(24, nn.Tanh(), True), (16, nn.GELU(), False), (12, nn.Identity(), True)]


@pytest.fixture(scope="module")
def texts(real_data):
    for name in compare_embedders.DATA:
        real_data(name)
    return compare_embedders.texts(120)


@pytest.fixture(scope="module")
def transformer(real_data, tmp_path_factory):
    """A small perturbed BERT with the vocabulary of multilingual BERT, which no text exhausts."""
    tokenizer = bf.load_tokenizer(real_data("vocab/bert-base-multilingual-cased"))
    backbone = bf.build("bert", "tiny", vocab_size=tokenizer.vocab_size, max_positions=64)
    for i, variable in enumerate(backbone.weights):
        noise = np.random.default_rng(i).normal(0, 0.3, variable.shape)
        variable.assign_add(noise.astype("float32"))
    directory = tmp_path_factory.mktemp("transformer") / "model"
    bf.TextEmbedder(backbone, tokenizer, max_length=24).save_pretrained(directory)
    return directory


def _theirs(transformer, pooling, include_prompt=True, dense=(), normalize=False, lower=False):
    first = modules.Transformer(str(transformer), max_seq_length=24, do_lower_case=lower)
    width = first.get_embedding_dimension()
    chain = [first, modules.Pooling(width, pooling, include_prompt)]
    width = chain[1].get_embedding_dimension()
    for i, (size, activation, bias) in enumerate(dense):
        made = modules.Dense(width, size, bias=bias, activation_function=activation)
        for parameter in made.parameters():
            parameter.data += nn.init.normal_(parameter.data.clone(), std=0.3 + i / 10)
        chain.append(made)
        width = size
    chain += [modules.Normalize()] if normalize else []
    return library.SentenceTransformer(
        modules=chain, prompts=PROMPTS, default_prompt_name="passage", device="cpu"
    )


def _compare(theirs, ours, texts):
    """The same vectors for every prompt, and for the default one."""
    named = [(name, {"prompt_name": name}) for name in PROMPTS]
    for name, said in [*named, (..., {}), (None, {"prompt": ""})]:
        expected = theirs.encode(texts, **said)
        found = ours.predict(texts, prompt=name)
        # Of lengths beyond 1, float32 keeps as many digits.
        scale = max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(found / scale, expected / scale, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("include_prompt", [True, False])
@pytest.mark.parametrize("dense", [(), DENSE], ids=["plain", "dense"])
@pytest.mark.parametrize("pooling", POOLINGS, ids=str)
def test_there_and_back(pooling, dense, include_prompt, transformer, texts, tmp_path):
    normalize = bool(dense) == include_prompt
    theirs = _theirs(transformer, pooling, include_prompt, dense, normalize)
    theirs.save(str(tmp_path / "theirs"))
    ours = bf.TextEmbedder.from_pretrained(tmp_path / "theirs")
    kinds = [each.width for each in ours.projections]
    assert (ours.pooling, ours.normalize, kinds, ours.default_prompt, ours.max_length) == (
        *(POOLINGS[pooling], normalize, [size for size, *_ in dense], "passage", 24),
    )
    _compare(theirs, ours, texts)
    ours.save_pretrained(tmp_path / "ours")
    _compare(library.SentenceTransformer(str(tmp_path / "ours"), device="cpu"), ours, texts)


def test_truncation(transformer, texts, tmp_path):
    for normalize in (True, False):
        theirs = _theirs(transformer, "mean", dense=DENSE, normalize=normalize)
        theirs.truncate_dim = 7
        theirs.save(str(tmp_path / f"theirs{normalize}"))
        ours = bf.TextEmbedder.from_pretrained(tmp_path / f"theirs{normalize}")
        ours.save_pretrained(tmp_path / f"ours{normalize}")
        again = library.SentenceTransformer(str(tmp_path / f"ours{normalize}"), device="cpu")
        for model in (theirs, again):
            expected = model.encode(texts, normalize_embeddings=normalize)
            assert expected.shape[1] == 7
            found = ours.predict(texts)
            np.testing.assert_allclose(found, expected, atol=TOLERANCE * 10 ** (not normalize))


def test_lower_case(transformer, texts, tmp_path):
    theirs = _theirs(transformer, "mean", lower=True)
    theirs.save(str(tmp_path / "theirs"))
    # The library does not write it, but tokenizer.json has it.
    _compare(theirs, bf.TextEmbedder.from_pretrained(tmp_path / "theirs"), texts)
    said = {"max_seq_length": 24, "do_lower_case": True}
    ours = tmp_path / "ours"
    bf.TextEmbedder.from_pretrained(
        transformer, prompts=PROMPTS, default_prompt="passage", normalize=False
    ).save_pretrained(ours)
    (ours / "sentence_bert_config.json").write_text(json.dumps(said))
    lowered = bf.TextEmbedder.from_pretrained(ours)
    _compare(library.SentenceTransformer(str(ours), device="cpu"), lowered, texts)
    assert np.abs(lowered.predict("ÄRZTE") - lowered.predict("ärzte")).max() < 1e-6


@pytest.mark.parametrize("family", ["roberta", "xlnet", "albert", "distilbert", "xlm_roberta"])
@pytest.mark.parametrize("include_prompt", [True, False])
def test_families(family, include_prompt, texts, tmp_path):
    """Other tokenizers; XLNet's pads on the left and has its first token last."""
    task = published.task("TextEmbedder", family)
    given = [*published.TEXTS, "a good film of the cast", "it was not bad"]
    for pooling in TokenPooling.KINDS:
        ours = bf.TextEmbedder(
            task.backbone, task.tokenizer, max_length=20, pooling=pooling, normalize=False,
            prompts=PROMPTS, default_prompt="passage", include_prompt=include_prompt,
        )  # fmt: skip
        ours.save_pretrained(tmp_path / pooling)
        theirs = library.SentenceTransformer(str(tmp_path / pooling), device="cpu")
        _compare(theirs, ours, given)


def test_minilm(minilm, texts):
    assert compare_embedders.largest_difference(minilm, texts) < 2e-5


@pytest.mark.parametrize("kind", ["contrastive", "symmetric", "cosent", "cosine"])
def test_losses_and_a_step(kind, transformer, texts):
    """Losses of a batch, and vectors after a step of plain gradient descent, without dropout."""
    import torch
    from sentence_transformers.sentence_transformer import losses

    # A text that is equal to the right one is no negative of ours.
    texts = list(dict.fromkeys(texts))
    first, second, third = texts[:8], texts[8:16], texts[16:24]
    scores = np.linspace(-0.5, 1, 8).astype("float32")
    theirs = _theirs(transformer, "mean")
    theirs.eval()
    function, columns, labels, given = {
        "contrastive": (
            losses.MultipleNegativesRankingLoss(theirs, scale=10.0),
            (first, second, third),
            None,
            {"text": first, "text_pair": second, "negatives": third},
        ),
        "symmetric": (
            losses.MultipleNegativesRankingLoss(
                theirs,
                scale=10.0,
                directions=("query_to_doc", "doc_to_query"),
                partition_mode="per_direction",
            ),
            (first, second),
            None,
            {"text": first, "text_pair": second},
        ),
        "cosent": (losses.CoSENTLoss(theirs, scale=10.0), (first, second), scores, None),
        "cosine": (losses.CosineSimilarityLoss(theirs), (first, second), scores, None),
    }[kind]
    optimizer = torch.optim.SGD(theirs.parameters(), lr=1e-3)
    packed = [theirs.preprocess(column, prompt="") for column in columns]
    loss = function(packed, None if labels is None else torch.tensor(labels))
    loss.backward()
    optimizer.step()

    quiet = dict(dropout=0.0, attention_dropout=0.0)
    embedder = bf.TextEmbedder.from_pretrained(transformer, normalize=False, **quiet)
    trainer = bf.EmbedderTrainer(
        embedder,
        "contrastive" if kind == "symmetric" else kind,
        temperature=0.1,
        symmetric=kind == "symmetric",
    )
    trainer.compile(keras.optimizers.SGD(1e-3))
    before = embedder.predict(first)
    found = trainer.fit(
        given or {"text": first, "text_pair": second}, labels, batch_size=8, verbose=0
    ).history["loss"]
    assert found == pytest.approx([float(loss.detach())], rel=1e-4)
    after, expected = embedder.predict(first), theirs.encode(first, prompt="")
    moved = np.abs(after - before).max()
    assert moved > 1e-4
    np.testing.assert_allclose(after, expected, rtol=0, atol=max(TOLERANCE, 0.01 * moved))
