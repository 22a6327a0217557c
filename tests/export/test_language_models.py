"""Exports of causal language models, whose output layer shares the table of tokens, in int8 and
bfloat16."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import bertfam_tf as bf
from bertfam_tf.export import int8
from bertfam_tf.export.runtime import load
from bertfam_tf.text import WordTokenizer
from tests.support.exports import objects, perturbed

# Smaller tables stay in float32.
SIZE = 1100
WORDS = WordTokenizer(["<eos>", "<unk>", *(f"w{i}" for i in range(SIZE - 2))])
SHAPE = dict(vocab_size=SIZE, hidden_size=64, num_heads=4, intermediate_size=128, num_layers=2)
# Of all words, those in texts.
USED = 40
needs_kernel = pytest.mark.skipif(
    int8.op_def_registry.get(int8.KERNEL) is None, reason="needs TensorFlow for x86"
)
pytestmark = pytest.mark.extended


def _texts(count, seed, length=7):
    """Words that count upwards."""
    starts = np.random.default_rng(seed).integers(0, USED, count)
    return [" ".join(f"w{(i + k) % USED}" for k in range(length)) for i in starts]


@pytest.fixture(scope="module")
def task():
    """Knows the next word: the greatest logits of random weights are nearly equal."""
    keras.utils.set_random_seed(0)
    rates = dict.fromkeys(("dropout", "embedding_dropout", "attention_dropout"), 0.0)
    task = bf.CausalLM(bf.build("gpt2", "tiny", **SHAPE, **rates), WORDS, max_length=16)
    task = perturbed(task, 0.05)
    task.compile(optimizer=keras.optimizers.Adam(3e-3))
    task.fit(_texts(3200, 3), batch_size=32, verbose=0)
    return task


@pytest.fixture(scope="module", params=[pytest.param("int8", marks=needs_kernel), "bfloat16"])
def dtype(request):
    return request.param


def _card(path):
    return json.loads((path / "assets.extra" / "bertfam.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def exported(dtype, task, tmp_path_factory):
    options = dict(calibration=_texts(64, 0)) if dtype == "int8" else {}
    directory = tmp_path_factory.mktemp("exports")
    return task.export(directory, dtype=dtype, max_new_tokens=3, **options)


def _nodes(path):
    graph = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    for function in graph.meta_graphs[0].graph_def.library.function:
        yield from function.node_def


def _stored(path):
    reader = tf.train.load_checkpoint(str(path / "variables" / "variables"))
    dtypes = reader.get_variable_to_dtype_map()
    shapes = reader.get_variable_to_shape_map()
    return [(tuple(shape), dtypes[name]) for name, shape in shapes.items()]


def test_greedy_steps(exported, task):
    """The next word after texts that both are given."""
    prompts = _texts(100, 1, 5)
    found = load(exported).run("generate", {"text": objects(prompts)})["text"]
    found = [text.decode().split()[0] for text in found]
    expected = [text.split()[0] for text in task.generate(prompts, max_new_tokens=3)]
    last = [int(text.split()[-1][1:]) for text in prompts]
    learned = np.mean([x == f"w{(i + 1) % USED}" for x, i in zip(expected, last, strict=True)])
    assert learned > 0.9  # otherwise nothing is shown
    equal = np.mean([x == y for x, y in zip(found, expected, strict=True)])
    assert equal >= 0.95


def test_perplexity(exported, task):
    texts = _texts(50, 2)
    found = load(exported).run("", {"text": objects(texts)})
    expected = task.predict(texts)
    tokens = sum(row["tokens"] for row in expected)
    exact = sum(row["log_likelihood"] for row in expected)
    assert found["tokens"].sum() == tokens
    assert abs(np.exp((exact - found["log_likelihood"].sum()) / tokens) - 1) < 0.02


def test_the_table_is_stored_once(exported, dtype):
    assert "causal_lm_head/decoder" in _card(exported)[dtype][dtype]
    table = (SIZE, SHAPE["hidden_size"])
    stored = _stored(exported)
    assert [x for shape, x in stored if shape == table] == [tf.as_dtype(dtype)]
    assert not [
        shape for shape, x in stored if x == tf.float32 and np.prod(shape) >= np.prod(table)
    ]
    for node in _nodes(exported):
        if node.op in ("Cast", "Mul", "Transpose"):
            shapes = node.attr["_output_shapes"].list.shape
            assert all(sorted(d.size for d in x.dim) != sorted(table) for x in shapes)


def test_a_bias_of_the_output_layer(smallest, dtype, tmp_path):
    """Masked language models have one, and logits among their outputs."""
    backbone = bf.build("bert", "tiny", **SHAPE)
    task = perturbed(bf.MaskedLM(backbone, bf.load_tokenizer(smallest)), 0.1)
    texts = ["the film was [MASK] good", "a dull , unhappy [MASK]", "[MASK]"]
    options = dict(calibration=[*texts, "not bad", "good " * 9]) if dtype == "int8" else {}
    served = load(task.export(tmp_path, dtype=dtype, **options))
    packed = task.encode({"text": objects(texts)})
    found = served.run("ids", {name: packed[name].numpy() for name in task.packed_specs})
    exact = task.answer_ids(packed)["logits"].numpy()
    # Of all real tokens, though answers read the head at masks alone.
    real = packed["padding_mask"].numpy() == 1
    error = np.square(found["logits"] - exact)[real].mean() / exact[real].var()
    assert 0 < error**0.5 < 0.1
