"""Writes tests/fixtures: checkpoints written by the original libraries.

    python -m venv garden && garden/bin/pip install -c constraints.txt -e ".[garden]"
    git clone https://github.com/google-research/bert && git -C bert checkout fe35475
    git clone https://github.com/google-research/albert
    garden/bin/python -m tools.make_checkpoint_fixtures --bert bert --albert albert

Each directory contains a small perturbed checkpoint with its config, and the library's outputs
(``expected.npz``): of the encoder, or of the head. The two clones write TF1 checkpoints, and Model
Garden its own. A separate environment is needed because Model Garden installs Keras 2. BERT's clone
is at its first release, whose GELU is the exact one that the published weights were trained with;
later commits approximate it.
"""

import argparse
import importlib.util
import json
import os
import shutil
import sys
import types
from pathlib import Path
from unittest import mock

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # before TensorFlow is imported: its v1 layers need it

import numpy as np
import tensorflow as tf

FIXTURES = Path(__file__).parent.parent / "tests" / "fixtures"
BERT = dict(
    vocab_size=48,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=24,
    max_position_embeddings=12,
    type_vocab_size=2,
    hidden_act="gelu",
    hidden_dropout_prob=0.1,
    attention_probs_dropout_prob=0.1,
    initializer_range=0.02,
)
ALBERT = dict(
    BERT,
    embedding_size=8,
    num_hidden_layers=4,
    num_hidden_groups=2,
    inner_group_num=2,
    down_scale_factor=1,
    gap_size=0,
    num_memory_blocks=0,
    net_structure_type=0,
)
_LENGTH = 9


def inputs() -> dict[str, np.ndarray]:
    """Three examples of different lengths, padded on the right."""
    rng = np.random.default_rng(0)
    mask = np.arange(_LENGTH)[None] < np.array([_LENGTH, 4, 7])[:, None]
    tokens = rng.integers(1, BERT["vocab_size"], mask.shape)
    segments = rng.integers(0, BERT["type_vocab_size"], mask.shape)
    named = {"token_ids": tokens * mask, "padding_mask": mask, "segment_ids": segments * mask}
    return {name: array.astype("i4") for name, array in named.items()}


def _directory(name: str, config_file: str, config: dict) -> Path:
    directory = FIXTURES / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    (directory / config_file).write_text(json.dumps(config, indent=2) + "\n")
    return directory


def _store(directory: Path, given: dict, **outputs) -> None:
    arrays = {name: np.asarray(output) for name, output in outputs.items()}
    np.savez_compressed(directory / "expected.npz", **given, **arrays)
    size = sum(file.stat().st_size for file in directory.iterdir())
    print(f"{directory.name}: {size / 1024:.0f} KiB")


# TF1 ------------------------------------------------------------------------------------------


def _layer_norm(inputs, begin_norm_axis=-1, begin_params_axis=-1, scope=None):
    """TF1's contrib layer norm, which TensorFlow 2 lacks, with its names and epsilon."""
    assert begin_norm_axis == begin_params_axis == -1
    v1 = tf.compat.v1
    with v1.variable_scope(scope, "LayerNorm", [inputs]):
        shape = inputs.shape[-1:]
        beta = v1.get_variable("beta", shape, initializer=v1.zeros_initializer())
        gamma = v1.get_variable("gamma", shape, initializer=v1.ones_initializer())
        mean, variance = tf.nn.moments(inputs, [-1], keepdims=True)
        return tf.nn.batch_normalization(inputs, mean, variance, beta, gamma, 1e-12)


def _modeling(clone: Path, name: str):
    """The clone's modeling.py, run with the v1 interface of the current TensorFlow."""
    layers = types.ModuleType("tensorflow.contrib.layers")
    layers.layer_norm = _layer_norm
    contrib = types.ModuleType("tensorflow.contrib")
    contrib.layers = layers
    v1 = types.ModuleType("tensorflow")
    v1.__dict__.update(tf.compat.v1.__dict__, contrib=contrib)
    stubs = {
        "tensorflow": v1,
        "tensorflow.contrib": contrib,
        "tensorflow.contrib.layers": layers,
        "tensorflow.compat": types.ModuleType("tensorflow.compat"),
        "tensorflow.compat.v1": v1,
    }
    stubs["tensorflow.compat"].v1 = v1
    with mock.patch.dict(sys.modules, stubs):
        spec = importlib.util.spec_from_file_location(name, clone / "modeling.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


def write_tf1(name: str, clone: Path, config: dict, config_class: str, model_class: str) -> None:
    """Writes the model of a clone, with optimizer slots in addition to the weights."""
    modeling = _modeling(clone, name)
    kind = "albert" if "embedding_size" in config else "bert"
    directory = _directory(name, f"{kind}_config.json", config)
    given, v1, rng = inputs(), tf.compat.v1, np.random.default_rng(1)
    with tf.Graph().as_default(), v1.Session() as session:
        model = getattr(modeling, model_class)(
            config=getattr(modeling, config_class).from_dict(config),
            is_training=False,
            input_ids=tf.constant(given["token_ids"]),
            input_mask=tf.constant(given["padding_mask"]),
            token_type_ids=tf.constant(given["segment_ids"]),
        )
        weights = v1.global_variables()
        slots = [
            v1.get_variable(f"{weight.op.name}/{slot}", weight.shape)
            for weight in weights[:3]
            for slot in ("adam_m", "adam_v")
        ]
        step = v1.train.get_or_create_global_step()
        session.run(v1.global_variables_initializer())
        for weight in weights:
            noise = rng.normal(0, 0.3, weight.shape).astype("f4")
            weight.load(session.run(weight) + noise, session)
        outputs = session.run([model.get_sequence_output(), model.get_pooled_output()])
        saver = v1.train.Saver([*weights, *slots, step])
        saver.save(session, str(directory / "bert_model.ckpt"), write_meta_graph=False)
    (directory / "checkpoint").unlink()
    _store(directory, given, sequence_output=outputs[0], pooled_output=outputs[1])


# Model Garden -----------------------------------------------------------------------------------


def _encoder(kind: str, source: dict):
    """Model Garden's encoder, and the section of its parameters."""
    from official.nlp.configs import encoders

    options = {
        "num_layers": source["num_hidden_layers"],
        "num_attention_heads": source["num_attention_heads"],
        "hidden_activation": source["hidden_act"],
    }
    same = "vocab_size hidden_size intermediate_size max_position_embeddings type_vocab_size"
    options |= {name: source[name] for name in same.split()}
    if kind == "albert":
        options["embedding_width"] = ALBERT["embedding_size"]
    section = {"type": kind, kind: options}
    return encoders.build_encoder(encoders.EncoderConfig(section)), section


def _perturbed_outputs(model, more: dict[str, tf.Tensor] | None = None):
    """The outputs of a model for ``inputs``, after all its weights were perturbed."""
    given = inputs()
    theirs = {
        "input_word_ids": tf.constant(given["token_ids"]),
        "input_mask": tf.constant(given["padding_mask"]),
        "input_type_ids": tf.constant(given["segment_ids"]),
        **(more or {}),
    }
    model(theirs)
    rng = np.random.default_rng(1)
    for weight in model.weights:
        weight.assign(weight + rng.normal(0, 0.3, weight.shape).astype("f4"))
    return model(theirs)


def write_garden(name: str, kind: str, key: str, config_file: str) -> None:
    """Writes a Model Garden encoder, saved under ``key`` as by its trainers."""
    import yaml

    config = dict(ALBERT if kind == "albert" else BERT)
    encoder, section = _encoder(kind, config)
    if kind == "albert":
        config |= dict(num_hidden_groups=1, inner_group_num=1)
    outputs = _perturbed_outputs(encoder)
    directory = _directory(name, config_file, config)
    if config_file == "params.yaml":
        params = {"task": {"model": {"encoder": section}}}
        (directory / config_file).write_text(yaml.safe_dump(params))
    tf.train.Checkpoint(**{key: encoder}).write(str(directory / "bert_model.ckpt"))
    names = ("sequence_output", "pooled_output")
    _store(directory, inputs(), **{name: outputs[name] for name in names})


def write_garden_head(name: str, kind: str, head: str) -> None:
    """Writes a model with a head, as Model Garden's trainer saves it.

    Args:
        name: the directory's name.
        kind: the encoder's kind.
        head: ``"classifier"`` with a pooler of its own, which is the default, ``"pooled"`` with the
            encoder's, ``"tagger"``, ``"span"`` or ``"masked_lm"``.
    """
    import tf_keras
    import yaml
    from official.nlp.modeling import models
    from official.nlp.modeling.layers import ClassificationHead

    tags = ["O", "B-X", "I-X"]
    encoder, section = _encoder(kind, BERT)
    described: dict = {"encoder": section}
    task: dict = {"model": described}
    if head in ("classifier", "pooled"):
        pooled = head == "pooled"
        model = models.BertClassifier(encoder, num_classes=3, use_encoder_pooler=pooled)
        described |= {"num_classes": 3, "use_encoder_pooler": pooled}
    elif head == "tagger":
        model = models.BertTokenClassifier(encoder, len(tags), output_encoder_outputs=True)
        described |= {"head_dropout": 0.1, "head_initializer_range": 0.02}
        task["class_names"] = tags
    elif head == "span":
        model = models.BertSpanLabeler(encoder)
    else:
        pairs = ClassificationHead(BERT["hidden_size"], 2, name="next_sentence")
        model = models.BertPretrainerV2(encoder, tf.nn.relu, classification_heads=[pairs])
        described |= {"mlm_activation": "relu", "cls_heads": [{"name": "next_sentence"}]}
    more = {}
    if head == "masked_lm":
        places = np.tile(np.arange(_LENGTH, dtype="i4"), (len(inputs()["token_ids"]), 1))
        more["masked_lm_positions"] = tf.constant(places)
    outputs = _perturbed_outputs(model, more)
    optimizer = tf_keras.optimizers.Adam()
    if head == "classifier":
        optimizer.build(model.trainable_variables)
    if head == "tagger":
        outputs = outputs["logits"]
    elif head == "span":
        outputs = tf.stack(outputs, axis=-1)
    elif head == "masked_lm":
        outputs = outputs["mlm_logits"]
    directory = _directory(name, "params.yaml", {})
    (directory / "params.yaml").write_text(yaml.safe_dump({"task": task}))
    saved = tf.train.Checkpoint(
        global_step=tf.Variable(7, dtype=tf.int64),
        model=model,
        optimizer=optimizer,
        **getattr(model, "checkpoint_items", {}),
    )
    tf.train.CheckpointManager(saved, str(directory), max_to_keep=1).save(checkpoint_number=7)
    # It contains the time, and one checkpoint needs no file that names it.
    (directory / "checkpoint").unlink()
    _store(directory, inputs(), logits=outputs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bert", type=Path, help="a clone of google-research/bert")
    parser.add_argument("--albert", type=Path, help="a clone of google-research/albert")
    options = parser.parse_args()
    if options.bert:
        write_tf1("tf1_bert", options.bert, BERT, "BertConfig", "BertModel")
    if options.albert:
        write_tf1("tf1_albert", options.albert, ALBERT, "AlbertConfig", "AlbertModel")
    write_garden("garden_bert", "bert", "model", "bert_config.json")
    write_garden("garden_bert_v2", "bert_v2", "encoder", "params.yaml")
    write_garden("garden_albert", "albert", "encoder", "albert_config.json")
    write_garden_head("garden_bert_classifier", "bert", "classifier")
    write_garden_head("garden_bert_v2_pooled", "bert_v2", "pooled")
    write_garden_head("garden_albert_tagger", "albert", "tagger")
    write_garden_head("garden_bert_v2_span", "bert_v2", "span")
    write_garden_head("garden_bert_masked_lm", "bert", "masked_lm")


if __name__ == "__main__":
    main()
