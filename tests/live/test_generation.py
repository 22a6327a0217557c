"""Generation against transformers' on the same weights, token for token."""

import numpy as np
import pytest
import tensorflow as tf

from bertfam_tf import generation
from bertfam_tf.generation import Options
from tests.generation.test_generation import generate, make_step

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.support import reference  # noqa: E402

pytestmark = pytest.mark.live


@pytest.mark.parametrize("seed", [3, 7])
@pytest.mark.parametrize("family", reference.GENERATORS)
def test_tokens(family, seed, tmp_path):
    model = reference.build_generator(family, seed)
    reference.save(model, tmp_path)
    given = reference.prompts(model.config, seed)
    step = make_step(tmp_path)
    different = set()
    cases = reference.generation_cases(model, given)
    for case in [*cases, *({**case, "min_new_tokens": 9} for case in cases[2::4])]:
        theirs = reference.generate(model, given, case)
        ours = generate(step, **given, **case)
        np.testing.assert_array_equal(ours, theirs, err_msg=str(case))
        different.add(theirs.tobytes())
    assert len(different) >= 3


@pytest.mark.parametrize("family", reference.GENERATORS)
def test_repetition(family, tmp_path):
    model = reference.build_generator(family)
    reference.save(model, tmp_path)
    given, step = reference.prompts(model.config), make_step(tmp_path)
    # One by one: transformers counts padding as a token.
    prompts = [{n: x[i : i + 1, x.shape[1] - k :] for n, x in given.items()}
               for i, k in enumerate(given["padding_mask"].sum(1))]  # fmt: skip
    for case in (
        {"repetition_penalty": 1.8},
        {"no_repeat_ngram_size": 1},
        {"repetition_penalty": 0.7, "no_repeat_ngram_size": 3},
        {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "num_beams": 4},
    ):
        case["max_new_tokens"] = 20
        theirs = [reference.generate(model, prompt, case)[0] for prompt in prompts]
        np.testing.assert_array_equal(generate(step, **given, **case), theirs, err_msg=str(case))


FILTERS = [
    dict(temperature=0.7),
    dict(top_k=5),
    dict(top_p=0.8),
    dict(temperature=1.7, top_k=20, top_p=0.9),
    dict(temperature=0.2, top_p=0.5),
    dict(top_k=1, top_p=0.01),
    dict(min_p=0.05),
    dict(temperature=2.0, top_k=50, top_p=0.95, min_p=0.2),
]


@pytest.mark.parametrize("family", reference.GENERATORS)
def test_drawn_tokens(family, tmp_path):
    """Both draw by the same random numbers, from the distributions that each computes itself."""
    model = reference.build_generator(family)
    reference.save(model, tmp_path)
    given = {name: value[:1] for name, value in reference.prompts(model.config).items()}
    step, seed = make_step(tmp_path), tf.constant([3, 4])
    different = set()
    for options in FILTERS:

        def draw(log_probabilities, index):
            return generation.sample(
                tf.constant(log_probabilities), Options(temperature=1.0), seed, index
            ).numpy()

        case = {"max_new_tokens": 30, **options}
        theirs = reference.generate(model, given, case, draw)
        np.testing.assert_array_equal(generate(step, **given, **case, seed=seed), theirs)
        different.add(theirs.tobytes())
    assert len(different) >= 4


@pytest.mark.parametrize("options", FILTERS)
def test_filtered_distributions(options):
    from transformers.generation import logits_process as theirs

    logits = np.random.default_rng(0).normal(0, 3, (8, 200)).astype("float32")
    kinds = {
        "temperature": theirs.TemperatureLogitsWarper,
        "top_k": theirs.TopKLogitsWarper,
        "top_p": theirs.TopPLogitsWarper,
        "min_p": theirs.MinPLogitsWarper,
    }
    expected = torch.tensor(logits)
    for name, kind in kinds.items():
        if name in options:
            expected = kind(options[name])(None, expected)
    found = generation.filter_logits(tf.constant(logits), Options(**options))
    np.testing.assert_allclose(
        tf.nn.softmax(found), torch.softmax(expected, dim=-1).numpy(), atol=1e-6
    )
