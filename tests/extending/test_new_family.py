"""The printed file of a new family, with one difference filled in, has what every family has."""

import subprocess
import sys
from unittest import mock

import numpy as np
import pytest

import bertfam_tf as bf
from bertfam_tf import models, registry, text
from tests import test_families
from tests.selection import only_in
from tools import new_family

FILLED = {
    "TODO: the name as it is written, authors and year, arXiv number.": "Made up: an example.",
    "TODO, in one line.": "embeddings are multiplied by ``scale``.",
    "\n\n    TODO: what each new field means.\n    ": "",
    "# TODO: new fields, each with a default, and other defaults.": "scale: float = 2.0",
    "x = encoder.embed(": "x = config.scale * encoder.embed(",
    "{**LIKE.huggingface.config}": '{**LIKE.huggingface.config, "scale": "scale"}',
}


@pytest.fixture(scope="module", autouse=True)
def registered(tmp_path_factory):
    """As a file in bertfam_tf/models would be."""
    lines = new_family.skeleton("made_up")
    for todo, done in FILLED.items():
        assert lines.count(todo) == 1
        lines = lines.replace(todo, done)
    folder = tmp_path_factory.mktemp("models")
    (folder / "made_up.py").write_text(lines, "utf-8")
    with (
        mock.patch.dict(registry._FAMILIES),
        mock.patch.object(models, "__path__", [*models.__path__, str(folder)]),
    ):
        models._register_families()
        yield
    del models.made_up, sys.modules["bertfam_tf.models.made_up"]


@only_in(
    "full",
    "test_missing_inputs",
    "test_attention_probabilities",
    "test_examples_do_not_attend_to_each_other",
    "test_an_example_of_only_padding_is_finite",
    "test_a_batch_without_examples",
    "test_input_longer_than_max_positions",
)
@pytest.mark.parametrize(
    "check",
    [
        test_families.test_every_family_has_a_tiny_size_and_describes_its_differences,
        test_families.test_every_published_size_is_counted,
        test_families.test_missing_inputs,
        test_families.test_attention_probabilities,
        test_families.test_padding_changes_nothing,
        test_families.test_examples_do_not_attend_to_each_other,
        test_families.test_an_example_of_only_padding_is_finite,
        test_families.test_a_batch_without_examples,
        test_families.test_a_gradient_in_every_weight,
        test_families.test_input_longer_than_max_positions,
    ],
    ids=lambda check: check.__name__,
)
def test_what_holds_for_every_family(check):
    check("made_up")


@pytest.mark.full
@pytest.mark.parametrize("length", [1, 12])
def test_output_shapes(length):
    test_families.test_output_shapes("made_up", length)


@pytest.mark.full
@pytest.mark.parametrize(
    "check",
    [
        test_families.test_keras_file_round_trip,
        test_families.test_saved_model_round_trip,
        test_families.test_tflite_round_trip,
    ],
    ids=lambda check: check.__name__,
)
def test_files(check, tmp_path):
    check("made_up", tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("policy", test_families.POLICIES)
def test_other_precisions(policy):
    test_families.test_other_precisions("made_up", policy)


@pytest.mark.extended
def test_its_checkpoints_and_the_tasks_that_start_from_them(tiny, tmp_path):
    tokenizer = text.load_tokenizer(tiny)
    backbone = bf.build("made_up", "tiny", vocab_size=tokenizer.vocab_size, num_layers=1, scale=3.0)
    task = bf.TextClassifier(backbone, tokenizer, ["no", "yes"])
    task.save_pretrained(tmp_path / "checkpoint")
    again = bf.TextClassifier.from_pretrained(tmp_path / "checkpoint")
    assert again.backbone.family == "made_up"
    assert again.backbone.config.scale == 3
    scores = [each.predict("a fine film")[0]["scores"] for each in (task, again)]
    np.testing.assert_allclose(*scores, atol=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("like", bf.families())
def test_a_copy_of_any_family(like):
    lines = new_family.skeleton("copied", like)
    with mock.patch.dict(registry._FAMILIES):
        exec(compile(lines, "copied.py", "exec"), vars(models).copy() | {"__name__": __name__})
        counts = [bf.count_parameters(family, "tiny") for family in (like, "copied")]
    assert counts[0] == counts[1]


@pytest.mark.full
@pytest.mark.parametrize("check", [["check"], ["format", "--check"]], ids=" ".join)
def test_the_file_is_formatted(check, tmp_path):
    for like in bf.families():
        file = tmp_path / f"{like}.py"
        file.write_text(new_family.skeleton("copied", like), "utf-8")
    command = [sys.executable, "-m", "ruff", *check, "--config", "pyproject.toml", str(tmp_path)]
    subprocess.run(command, check=True)


def test_names_that_are_refused():
    for name, why in (
        ("bert", "is there already"),
        ("encoder", "is there already"),
        ("DeepBert", "must be a module's"),
    ):
        with pytest.raises(ValueError, match=why):
            new_family.skeleton(name)
    with pytest.raises(ValueError, match=r"Unknown family 'bret'. Did you mean 'bert'\?"):
        new_family.skeleton("deep_bert", "bret")
