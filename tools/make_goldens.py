"""Writes tests/goldens: small perturbed checkpoints and the reference's outputs.

    python -m tools.make_goldens [FAMILY…]

Needs torch and transformers (tools/requirements.txt; for Transformer-XL, which they dropped,
tools/references-requirements.txt). Each directory holds a checkpoint in
Hugging Face's format and, per input length, the inputs, outputs and gradients.
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import torch

from tests.support import reference
from tests.support.reference_configs import SMALL, VARIANTS

GOLDENS = Path(__file__).parent.parent / "tests" / "goldens"
# A vocabulary for the golden classifier, so that it runs from text.
PIECES = """
    [PAD] [UNK] [CLS] [SEP] [MASK] the a fine bad good film movie was is not very play ##ing
    ##s ##ly un ##happy , . ! ? great dull it i we you they story plot act ##or cast long short
""".split()
# Families whose golden classifier runs from text.
CLASSIFIERS = ("bert",)
LABELS = ["negative", "neutral", "positive"]
TEXTS = ["The film was very good!", "a dull, unhappy story.", "", "acting was not great?"]


def _saved(model: torch.nn.Module, directory: Path) -> Path:
    """Writes a checkpoint in place of an earlier one, without settings of generation."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    reference.save(model, directory)
    (directory / "generation_config.json").unlink(missing_ok=True)
    return directory


def _write_backbone(family: str, variant: str, settings: dict) -> None:
    settings = {**SMALL[family], **settings}
    model = reference.build(family, **settings)
    directory = _saved(model, GOLDENS / family / variant)
    for length in reference.LENGTHS:
        given = reference.inputs(model.config, length)
        expected = {name: value.astype("f4") for name, value in reference.run(model, given).items()}
        np.savez_compressed(directory / f"length_{length}.npz", **given, **expected)


def _write_classifier(family: str) -> None:
    vocabulary = PIECES + [f"[unused{i}]" for i in range(64 - len(PIECES))]
    model = reference.build_classifier(family, LABELS, **SMALL[family])
    directory = _saved(model, GOLDENS / family / "classifier")
    (directory / "vocab.txt").write_text("\n".join(vocabulary) + "\n", "utf-8")
    from transformers import BertTokenizer

    tokenizer = BertTokenizer(str(directory / "vocab.txt"), do_lower_case=True)
    encoded = tokenizer(TEXTS, padding=True, return_tensors="pt")
    pairs = tokenizer(TEXTS, TEXTS[::-1], padding=True, return_tensors="pt")
    with torch.no_grad():
        single, pair = model(**encoded).logits.numpy(), model(**pairs).logits.numpy()
    np.savez_compressed(directory / "logits.npz", texts=np.array(TEXTS), single=single, pair=pair)


def _write_head(family: str, head: str) -> None:
    model = reference.build_task(family, head)
    directory = _saved(model, GOLDENS / family / "heads" / head)
    given = reference.inputs(model.config, reference.LENGTHS[0], head=head)
    logits = reference.run_task(model, head, given)["logits"].astype("f4")
    np.savez_compressed(directory / "logits.npz", **given, logits=logits)


def _write_language_model(variant: str) -> None:
    """Writes Transformer-XL's with gradients, because it has no live test."""
    family, head = "transformer_xl", "causal_lm"
    settings = {**SMALL[family], **VARIANTS[family][variant]}
    model = reference.build_task(family, head, **settings)
    directory = _saved(model, GOLDENS / family / f"lm_{variant}")
    given = reference.inputs(model.config, reference.LENGTHS[0])
    expected = reference.run_task(model, head, given)
    expected = {name: value.astype("f4") for name, value in expected.items()}
    np.savez_compressed(directory / "log_probabilities.npz", **given, **expected)


def _write_generation(family: str) -> None:
    model = reference.build_generator(family)
    directory = _saved(model, GOLDENS / family / "generation")
    given = reference.prompts(model.config)
    cases = reference.generation_cases(model, given)
    tokens = {f"tokens_{i}": reference.generate(model, given, case) for i, case in enumerate(cases)}
    np.savez_compressed(directory / "tokens.npz", cases=json.dumps(cases), **given, **tokens)


def main() -> None:
    for family in sys.argv[1:] or reference.FAMILIES:
        for variant, settings in VARIANTS[family].items():
            _write_backbone(family, variant, settings)
        for head in [head for name, head in reference.HEADS if name == family]:
            _write_head(family, head)
        if family in reference.GENERATORS:
            _write_generation(family)
        if family in CLASSIFIERS:
            _write_classifier(family)
        if family == "transformer_xl":
            for variant in ("default", "shared_biases", "one_table", "plain_embedding"):
                _write_language_model(variant)
    files = [file for file in GOLDENS.rglob("*") if file.is_file()]
    print(f"{len(files)} files, {sum(f.stat().st_size for f in files) / 1e6:.2f} MB in {GOLDENS}")


if __name__ == "__main__":
    main()
