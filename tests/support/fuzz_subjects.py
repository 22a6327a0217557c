"""Small valid checkpoints, tokenizers, recipes and tasks, which `tools.fuzz_files` damages."""

import importlib.util
import json
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def subjects(directory: Path, all_kinds: bool = True) -> dict[str, list[str]]:
    """Creates the valid directories; returns the name of each and the functions that read it.

    Args:
        directory: the parent directory.
        all_kinds: whether to include those that take seconds to create or load.
    """
    made: dict[str, list[str]] = {}

    def add(name: str, source: Path | None, *verbs: str) -> Path:
        made[name] = list(verbs)
        target = directory / name
        if source is None:
            target.mkdir()
        else:
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.npz"))
        return target

    goldens = ROOT / "tests" / "goldens"
    for family in sorted(path.name for path in goldens.iterdir() if path.is_dir()):
        if all_kinds or family == "bert":
            add(f"hf_{family}", goldens / family / "default", "backbone")
    for folder in (ROOT / "tests" / "support" / "tokenizers").iterdir():
        add(folder.name, folder, "tokenizer")
    recipe = add("recipe", None, "recipe")
    shutil.copy(ROOT / "configs" / "bert" / "sst2.yaml", recipe / "recipe.yaml")
    fixtures = ROOT / "tests" / "fixtures"
    add("garden_bert_v2", fixtures / "garden_bert_v2", "backbone", "convert")
    if not all_kinds:
        return made
    tiny = goldens / "bert" / "classifier"
    add("hf_classifier", tiny, "backbone", "convert", "classifier", "tokenizer")
    _sharded(add("hf_sharded", tiny, "backbone", "convert"))
    for name in ("tf1_bert", "tf1_albert", "garden_bert", "garden_albert"):
        add(name, fixtures / name, "backbone", "convert")
    if importlib.util.find_spec("torch"):
        _pickled(add("torch", tiny, "backbone", "convert"))
    if importlib.util.find_spec("keras_hub"):
        _preset(add("keras_hub", None, "backbone", "convert"))
    _sentencepiece(add("sentencepiece", None, "tokenizer"))
    _task(add("task", None, "task"), tiny)
    return made


def _sharded(directory: Path) -> None:
    from safetensors.numpy import load_file, save_file

    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    index = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(sorted(tensors))}
    for shard in set(index.values()):
        part = {name: tensors[name] for name in index if index[name] == shard}
        save_file(part, directory / shard)
    text = json.dumps({"weight_map": index})
    (directory / "model.safetensors.index.json").write_text(text)


def _pickled(directory: Path) -> None:
    import torch
    from safetensors.torch import load_file

    torch.save(load_file(directory / "model.safetensors"), directory / "pytorch_model.bin")
    (directory / "model.safetensors").unlink()


def _preset(directory: Path) -> None:
    import keras_hub

    sizes = dict(vocabulary_size=48, num_layers=2, num_heads=4, hidden_dim=16)
    backbone = keras_hub.models.BertBackbone(**sizes, intermediate_dim=24, max_sequence_length=12)
    backbone.save_to_preset(str(directory))


def _sentencepiece(directory: Path) -> None:
    import io

    import sentencepiece

    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["hello world, the cat sat; good news 1,2"] * 40),
        model_writer=out,
        vocab_size=60,
        hard_vocab_limit=False,
        user_defined_symbols=["½x"],
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        pad_id=3,
        minloglevel=2,
    )
    (directory / "spiece.model").write_bytes(out.getvalue())
    config = {"tokenizer_class": "AlbertTokenizer", "do_lower_case": True, "keep_accents": False}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def _task(directory: Path, checkpoint: Path) -> None:
    import bertfam_tf as bf

    directory.rmdir()
    bf.TextClassifier.from_pretrained(checkpoint).save(directory)
