"""``bertfam plan``: numbers that were computed by hand, layouts, and errors."""

import json

import keras
import pytest
import tensorflow as tf
import yaml

import bertfam_tf as bf
from bertfam_tf import plan, sources
from bertfam_tf.cli import main
from bertfam_tf.plan.stages import StepNetwork, placeholders
from bertfam_tf.plan.trace import trace
from tests.selection import in_full, only_in

WIDTH, LAYERS, HEADS, INNER, LENGTH, BATCH, TOKENS = 16, 1, 2, 32, 32, 8, 400
SMALL = dict(hidden_size=WIDTH, num_layers=LAYERS, num_heads=HEADS, intermediate_size=INNER,
             max_positions=LENGTH, vocab_size=TOKENS)  # fmt: skip
PREDICTED = 5  # 15 % of 32 tokens


@pytest.fixture
def recipe(tiny, tmp_path):
    """Writes a recipe of pretraining, and returns its file."""

    def make(family="bert", size="tiny", **changes):
        values = {
            "output": str(tmp_path / "run"),
            "model": {"family": family, "size": size, "tokenizer": str(tiny), "overrides": SMALL},
            "data": {"train": ["a.txt"], "dev": ["a.txt"], "format": "full_sentences",
                     "length": LENGTH},
            "objectives": {"mlm": 1.0},
            "train": {"batch_size": BATCH, "steps": 10, "epochs": 1},
        }  # fmt: skip
        for section, value in changes.items():
            merged = isinstance(value, dict) and section in ("model", "data", "train")
            values[section] = {**values[section], **value} if merged else value
        file = tmp_path / "recipe.yaml"
        file.write_text(yaml.safe_dump(values))
        return file

    return make


def planned(file, **devices):
    return plan.plan(plan.read(file), plan.Devices(**{"peak": 1e12, **devices}))


def test_by_hand(recipe):
    [stage] = planned(recipe()).stages
    block = 4 * WIDTH * WIDTH + 2 * WIDTH * INNER  # kernels
    vectors = 4 * WIDTH + INNER + WIDTH + 4 * WIDTH  # biases and norms
    embeddings = (TOKENS + LENGTH + 2 + 2) * WIDTH
    pooler = WIDTH * WIDTH + WIDTH
    head = WIDTH * WIDTH + 3 * WIDTH + TOKENS
    assert stage.parameters == LAYERS * (block + vectors) + embeddings + pooler + head
    # A product has two FLOPs for each weight, and two as expensive ones in its gradient.
    attention = 2 * LENGTH * WIDTH  # queries by keys, probabilities by values
    vocabulary = PREDICTED / LENGTH * (WIDTH * WIDTH + WIDTH * TOKENS)
    expected = 6 * (LAYERS * (block + attention) + vocabulary)
    assert stage.flops_per_token == pytest.approx(expected, rel=1e-12)
    assert stage.step_flops == pytest.approx(BATCH * LENGTH * expected)
    assert stage.seconds == pytest.approx(stage.step_flops / 0.4e12)
    assert stage.weights == 4 * stage.parameters
    # The head does not read the pooler, which is stored and not trained by it.
    assert stage.optimizer == 8 * stage.trained
    assert (stage.data_bytes, stage.tensor_bytes) == (0, 0)


@pytest.mark.extended
def test_a_head_on_the_first_token_computes_no_block_again(recipe):
    data = {"format": "segment_pairs"}
    [alone], [both] = (
        planned(recipe(objectives=dict.fromkeys(names, 1.0), data=data)).stages
        for names in (["mlm"], ["mlm", "nsp"])
    )
    # The pooler and the classifier, forward and backward, of one token of each example.
    more = 3 * 2 * (WIDTH * WIDTH + 2 * WIDTH) / LENGTH
    assert both.flops_per_token - alone.flops_per_token == more


@pytest.mark.full
def test_activations_are_those_that_gradients_read(recipe):
    """The difference that one more block makes, in float32 elements of a token."""

    def activations(layers):
        overrides = {**SMALL, "num_layers": layers, "vocab_size": TOKENS}
        return planned(recipe(model={"overrides": overrides})).stages[0].activations

    found = (activations(4) - activations(3)) / (4 * BATCH * LENGTH)
    scores = HEADS * LENGTH
    # Queries, keys, values, context; of each norm its input, a product with the reciprocal
    # deviation, and its output.
    width = 4 * WIDTH + 2 * 3 * WIDTH
    # Scores, probabilities, and these after dropout. GELU: x / √2, Φ(x), and the output.
    factors = scores + 2 * WIDTH  # of dropout
    expected = width + 3 * scores + 3 * INNER + factors
    # Means and deviations of the norms have a few numbers more.
    assert expected <= found <= expected + 8


@pytest.mark.full
def test_copies_and_parts(recipe):
    file = recipe()
    one = planned(file).stages[0]
    # With n copies each sends 2 (n - 1) / n of the gradients.
    [stage] = planned(file, count=4, bandwidth=1e9).stages
    assert stage.device_batch == BATCH // 4
    assert stage.data_bytes == pytest.approx(2 * 3 / 4 * 4 * one.trained)
    assert stage.step_flops == pytest.approx(one.step_flops / 4)
    assert stage.seconds == pytest.approx(stage.step_flops / 0.4e12 + stage.data_bytes / 1e9)
    # Parts of a batch are computed one after the other, and their gradients are kept.
    [parts] = planned(file, accumulation=4).stages
    assert parts.step_flops == pytest.approx(one.step_flops)
    assert parts.activations < one.activations / 2
    assert parts.gradients >= 4 * one.trained


@pytest.mark.extended
def test_recomputation_and_tensor_parallelism(recipe):
    file = recipe()
    [one] = planned(file).stages
    # Recomputation runs the forward pass of blocks twice.
    [again] = planned(file, recompute=True).stages
    assert again.flops_per_token == one.flops_per_token
    block = 4 * WIDTH * WIDTH + 2 * WIDTH * INNER + 2 * LENGTH * WIDTH
    more = 2 * LAYERS * block * BATCH * LENGTH
    assert again.step_flops == pytest.approx(one.step_flops + more)
    assert again.activations < one.activations
    # Two devices have half of the blocks' kernels, of the vocabulary and of the products.
    [split] = planned(file, count=2, tensor_parallel=2).stages
    halved = LAYERS * (4 * WIDTH * WIDTH + 2 * WIDTH * INNER + 3 * WIDTH + INNER) + TOKENS * WIDTH
    assert split.weights == 4 * (one.parameters - halved / 2)
    assert one.step_flops / 2 < split.step_flops < one.step_flops * 0.55
    # Forward and backward, the outputs of attention and feed-forward of each block.
    assert split.tensor_bytes == 2 * 2 * LAYERS * 4 * BATCH * LENGTH * WIDTH * (2 * 1 / 2)
    assert split.data_bytes == 0


@pytest.mark.full
def test_half_precision(recipe):
    file = recipe()
    one, half = planned(file).stages[0], planned(file, dtype="mixed_bfloat16").stages[0]
    assert half.optimizer == one.optimizer
    # Copies of the kernels, and of what is looked up; norms and softmax are in float32.
    assert 1.0 < half.weights / one.weights <= 1.5
    assert 0.5 < half.activations / one.activations < 1
    assert keras.config.dtype_policy().name == "float32"


@pytest.mark.full
def test_memory_that_does_not_suffice(recipe):
    file = recipe(train={"batch_size": 64})
    needed = planned(file).memory
    found = planned(file, memory=needed / plan.GIB / 2)
    assert not found.fits
    assert "--accumulation" in found.advice[0]
    times = int(found.advice[0].split()[1])
    assert planned(file, memory=needed / plan.GIB / 2, accumulation=times).fits
    assert "Layouts that fit: --accumulation" in plan.table(found)
    nothing = planned(file, memory=1e-6)
    assert nothing.advice == ()
    assert "no other layout" in plan.table(nothing)


@pytest.mark.full
def test_stages(recipe):
    stages = [{"layers": 1, "length": 16, "steps": 3}, {"layers": 2, "steps": 4, "batch_size": 4}]
    found = planned(recipe(stages=stages, train={"steps": None, "epochs": 3}), price=3.0)
    assert [(s.length, s.batch_size, s.steps) for s in found.stages] == [(16, 8, 3), (32, 4, 4)]
    assert found.stages[0].parameters < found.stages[1].parameters
    seconds = [s.steps * s.seconds for s in found.stages]
    assert found.hours == pytest.approx(sum(seconds) / 3600)
    assert found.cost == pytest.approx(3.0 * found.hours)


STREAM = {"objectives": {"clm": 1.0}, "data": {"format": "stream"}}
PRETRAINED = {
    "bert": {"objectives": {"mlm": 1.0, "nsp": 1.0}, "data": {"format": "segment_pairs"}},
    "spanbert": {"objectives": {"mlm": 1.0, "sbo": 1.0}, "masking": {"unit": "span"}},
    "albert": {"objectives": {"mlm": 1.0, "sop": 1.0}, "data": {"format": "segment_pairs"}},
    "electra": {"objectives": {"rtd": 50.0}, "generator": {"hidden_size": 8, "num_heads": 1}},
    "xlnet": {"objectives": {"plm": 1.0}},
    "gpt2": STREAM,
    "transformer_xl": STREAM,
    "distilbert": {}, "roberta": {}, "xlm_roberta": {}, "tinybert": {},
}  # fmt: skip
_OWN = {
    "transformer_xl": {"cutoffs": [], "embedding_size": 16, "head_size": 8, "mem_len": 8},
    "roberta": {"max_positions": LENGTH + 2},
    "xlm_roberta": {"max_positions": LENGTH + 2},
}


@pytest.mark.parametrize("family", in_full(PRETRAINED, ()))
def test_families(recipe, family):
    fields = bf.registry.get(family).config.__dataclass_fields__
    overrides = {
        k: v for k, v in {**SMALL, "num_layers": 2, **_OWN.get(family, {})}.items() if k in fields
    }
    file = recipe(family, **PRETRAINED[family], model={"overrides": overrides})
    [one] = planned(file).stages
    assert one.parameters >= bf.models.count_parameters(family, "tiny", **overrides)
    [again] = planned(file, recompute=True).stages
    assert again.activations < one.activations
    [split] = planned(file, count=2, tensor_parallel=2).stages
    assert split.weights < one.weights
    assert split.tensor_bytes > 0


@pytest.mark.extended
def test_clusters_of_an_adaptive_softmax_by_hand(recipe):
    overrides = {**_OWN["transformer_xl"], "div_val": 1, "hidden_size": WIDTH, "num_layers": 1,
                 "num_heads": HEADS, "intermediate_size": INNER, "vocab_size": TOKENS}  # fmt: skip
    found = []
    for cutoffs in ([], [40, 100]):
        model = {"overrides": {**overrides, "cutoffs": cutoffs}}
        file = recipe("transformer_xl", model=model, **STREAM)
        [stage] = planned(file).stages
        found.append(stage.flops_per_token)
    assert plan.flops_per_token(plan.read(file)) == pytest.approx(found[1], rel=0.1)
    # The sum of 1 / rank is 4.28 up to 40, 5.19 up to 100 and 6.57 up to 400.
    tokens = BATCH * LENGTH
    logits = tokens * 42 + round(tokens * 0.136) * 60 + round(tokens * 0.207) * 300
    assert found[0] - found[1] == 6 * WIDTH * (TOKENS - logits / tokens)


@pytest.mark.full
def test_bert_large(recipe):
    parameters = bf.models.count_parameters("bert", "large")
    assert parameters == 335_141_888
    overrides = {"vocab_size": 30522}
    file = recipe(size="large", model={"overrides": overrides}, data={"length": 128})
    [stage] = planned(file).stages
    assert stage.flops_per_token == pytest.approx(6 * parameters, rel=0.1)
    # arXiv 2205.05198, equation 2, in half precision: s b h (34 + 5 a s / h) for each layer.
    [half] = planned(file, dtype="mixed_bfloat16").stages
    formula = 24 * 128 * BATCH * 1024 * (34 + 5 * 16 * 128 / 1024)
    # Norms and softmax are in float32 here, and GELU reads four tensors.
    assert 1.5 < half.activations / formula < 2.5


@pytest.mark.full
def test_fine_tuning(tiny, tmp_path, capsys):
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "good\tpositive\nbad\tnegative\n" * 5)
    values = {
        "output": "run",
        "model": {"path": str(tiny), "max_length": 16},
        "data": {"train": str(tmp_path / "train.tsv")},
        "train": {"batch_size": 4, "epochs": 2},
    }
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(values))
    arguments = ["plan", str(file), "--peak", "1e12", "--json"]
    assert main(arguments) == 0
    whole = json.loads(capsys.readouterr().out)["stages"][0]
    assert (whole["steps"], whole["length"], whole["device_batch"]) == (6, 16, 4)
    assert main([*arguments[:2], "train.steps=9", *arguments[2:]]) == 0
    assert json.loads(capsys.readouterr().out)["stages"][0]["steps"] == 9
    assert main([*arguments, "--steps", "0"]) == 2
    assert "steps must be at least 1, got 0" in capsys.readouterr().err
    # Without gradients of the blocks two thirds of the products are left out.
    assert main([*arguments[:2], "model.frozen=backbone", *arguments[2:]]) == 0
    frozen = json.loads(capsys.readouterr().out)["stages"][0]
    assert frozen["trained"] < 1000 < frozen["parameters"]
    assert frozen["step_flops"] == pytest.approx(whole["step_flops"] / 3, rel=0.05)
    # Parts of a batch and recomputed blocks are the recipe's, if options do not say.
    settings = ["train.accumulation_steps=2", "train.gradient_checkpointing=true"]
    for options, parts in (([], 2), (["--accumulation", "4"], 4)):
        assert main([*arguments[:2], *settings, *arguments[2:], *options]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["devices"]["accumulation"], found["devices"]["recompute"]) == (parts, True)
        assert found["stages"][0]["device_batch"] == 4 // parts
    # An example of an embedder is several texts, of which all tokens are computed.
    pair, found = '"text": "text", "text_pair": "label"', []
    for columns in (pair, pair + ', "negatives": ["label"]'):
        given = ["task=TextEmbedder", "data.label=null", f"data.columns={{{columns}}}"]
        assert main([*arguments[:2], *given, *arguments[2:]]) == 0
        found.append(json.loads(capsys.readouterr().out)["stages"][0])
    assert [each["steps"] for each in found] == [6, 6]
    assert found[0]["parameters"] < whole["parameters"]  # without a head
    assert found[0]["step_flops"] > 2 * whole["step_flops"]
    assert found[1]["step_flops"] == pytest.approx(1.5 * found[0]["step_flops"])


def test_command(recipe, capsys):
    options = ["--devices", "2", "--peak", "1e12", "--memory", "80", "--price", "2"]
    assert main(["plan", str(recipe()), "train.steps=20", *options]) == 0
    text = capsys.readouterr().out
    assert "parameters" in text
    assert "cost" in text
    assert "The run fits the memory of a device" in text


@pytest.mark.extended
def test_the_peak_that_is_assumed(recipe, capsys):
    """Half precision is twice as fast, and the table names the device."""
    hours = []
    for dtype, peak in (("float32", "156"), ("mixed_bfloat16", "312")):
        assert main(["plan", str(recipe()), "--dtype", dtype]) == 0
        assert f"of {peak} TFLOP/s per device, the assumed peak of an NVIDIA A100" in (
            capsys.readouterr().out
        )
        assert main(["plan", str(recipe()), "--dtype", dtype, "--json"]) == 0
        printed = json.loads(capsys.readouterr().out)
        assert printed["devices"]["peak"] == float(peak) * 1e12
        hours.append(printed["hours"])
    assert hours[0] == pytest.approx(2 * hours[1])


def test_the_old_name_of_mfu(recipe):
    with pytest.warns(FutureWarning, match="share is called mfu"):
        old = plan.Devices(share=0.3)
    assert old == plan.Devices(mfu=0.3)


@only_in("extended", "changes1-devices1-num_heads must be a multiple of tensor_parallel")
@pytest.mark.parametrize(
    ("changes", "devices", "message"),
    [
        ({}, {"count": 3, "tensor_parallel": 2}, "must be a multiple of tensor_parallel 2, got 3"),
        ({}, {"count": 4, "tensor_parallel": 4}, "num_heads must be a multiple of tensor_parallel"),
        ({}, {"count": 3}, "batch size must be a multiple of 3, the 3 copies"),
        ({}, {"mfu": 1.5}, "mfu must be above 0 and at most 1, got 1.5"),
        ({}, {"peak": 0.0}, "peak must be above 0, got 0"),
        ({}, {"accumulation": 0}, "accumulation must be at least 1, got 0"),
        ({}, {"dtype": "float8"}, "dtype must be one of float32, mixed_bfloat16"),
        ({"train": {"steps": None}}, {}, "no train.steps"),
        ({"train": {"batch_size": None, "batch_tokens": 9}}, {}, "batch_tokens must be at least"),
        ({"teacher": "a"}, {}, "of distillation, .*; expected one of pretraining or fine-tuning"),
        ({"objectives": {"mlmm": 1.0}}, {}, "Unknown objective 'mlmm'. Did you mean 'mlm'"),
    ],
)
def test_errors(recipe, changes, devices, message):
    file = recipe(**changes)
    with pytest.raises(ValueError, match=message):
        planned(file, **devices)


def test_a_tokenizer_of_the_hub(recipe, tiny, monkeypatch):
    monkeypatch.setattr(sources, "_hub", lambda name: {"organisation/name": tiny}[name])
    for name in ("organisation/name", "hf://organisation/name"):
        assert planned(recipe(model={"tokenizer": name})).stages


def test_models_with_loops():
    def network(batch):
        backbone = bf.build("bilstm", "base", vocab_size=9, embedding_size=4, hidden_size=4)
        tokens = {"token_ids": ((batch, 5), "int32"), "padding_mask": ((batch, 5), "int32")}

        def loss():
            found = backbone(placeholders(tokens), outputs="sequence_output")
            return [tf.reduce_sum(found["sequence_output"])]

        return StepNetwork([backbone], backbone, loss)

    with pytest.raises(ValueError, match="recurrent networks, cannot be planned"):
        trace(network, "float32", 2)


@pytest.mark.parametrize("task", ["MultipleChoice", "TextEmbedder"])
def test_flops_per_token_of_examples_with_several_texts(tiny, tmp_path, task):
    columns = {
        "MultipleChoice": {"text": "q", "choices": ["a", "b", "c", "d"]},
        "TextEmbedder": {"text": "q", "text_pair": "a"},
    }
    values = {
        "output": "run",
        "model": {"path": str(tiny), "max_length": 16},
        "task": task,
        "data": {"train": "x.tsv", "columns": columns[task]},
        "train": {"steps": 9},
    }
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(values))
    [stage] = planned(file).stages
    assert stage.steps == 9
    assert plan.flops_per_token(plan.read(file), 16) == stage.flops_per_token
