"""Writes tests/goldens/elmo: small perturbed checkpoints and what AllenNLP's ELMo computes.

    make elmo-goldens

Needs AllenNLP without its dependencies (tools/elmo-requirements.txt): its modules of the model run
as they are, and stand-ins are imported for the rest of the library. Each directory holds
``options.json``, HDF5 weights and, for batches of sentences of different lengths, character ids,
outputs and gradients, computed in float64. AllenNLP's ELMo carries its states from batch to batch;
here each batch is the first one.
"""

import functools
import importlib
import json
import shutil
import sys
import types
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import numpy as np
import torch

GOLDENS = Path(__file__).parent.parent / "tests" / "goldens" / "elmo"
SENTENCES = {
    5: [["Ein", "Café", "."], ["日本語"], []],
    8: [
        ["x" * 70, "x" + "é" * 40, "über", "U.S.", "'s", "0"],
        ["no", "😀"],
        ["one", "more", "word"],
    ],
}
_OPTIONS: dict[str, Any] = {
    "lstm": {
        "use_skip_connections": True,
        "projection_dim": 6,
        "dim": 9,
        "n_layers": 2,
        # Small enough that many values are clipped.
        "cell_clip": 0.5,
        "proj_clip": 0.4,
    },
    "char_cnn": {
        "activation": "relu",
        "filters": [[1, 3], [2, 4], [4, 5]],
        "n_highway": 2,
        "embedding": {"dim": 3},
        "n_characters": 262,
        "max_characters_per_token": 50,
    },
}
VARIANTS: dict[str, dict[str, dict]] = {
    "default": {"lstm": {}, "char_cnn": {}},
    "tanh": {
        "lstm": {"n_layers": 1, "cell_clip": 3, "proj_clip": 0},
        "char_cnn": {"activation": "tanh", "n_highway": 1},
    },
}


@functools.cache
def reference() -> tuple[Any, Any, Any]:
    """AllenNLP's ``Elmo``, its function that adds sentence boundaries, and its mapper of words."""
    root = find_spec("allennlp")
    assert root is not None
    assert root.submodule_search_locations
    home = Path(root.submodule_search_locations[0])
    packages = ("", ".common", ".data", ".data.token_indexers", ".modules", ".nn")
    for package in packages:
        module = types.ModuleType(f"allennlp{package}")
        module.__path__ = [str(home.joinpath(*package.split(".")[1:]))]
        sys.modules[module.__name__] = module

    class Registered:
        register = staticmethod(lambda *_: lambda cls: cls)

    def stand_in(name: str, **contents: Any) -> None:
        module = sys.modules.setdefault(f"allennlp.{name}", types.ModuleType(f"allennlp.{name}"))
        for each, value in contents.items():
            setattr(module, each, value)

    stand_in("common", FromParams=object)
    stand_in("common.checks", ConfigurationError=ValueError)
    stand_in("common.file_utils", cached_path=lambda path: path)
    unused = ("lazy_groups_of", "int_to_device", "is_distributed", "is_global_primary")
    stand_in("common.util", pad_sequence_to_length=None, **dict.fromkeys(unused))
    classes = "instance.Instance vocabulary.Vocabulary batch.Batch fields.TextField"
    for each in (*classes.split(), "tokenizers.Token", "tokenizers.token_class.Token"):
        module, _, name = each.rpartition(".")
        stand_in(f"data.{module}", **{name: object})
    stand_in("data.token_indexers.token_indexer", TokenIndexer=Registered, IndexedTokenList=dict)
    # Weights are read from the file.
    stand_in("nn.initializers", block_orthogonal=lambda *_: None)
    elmo = importlib.import_module("allennlp.modules.elmo")
    return elmo.Elmo, elmo.add_sentence_boundary_token_ids, elmo.ELMoCharacterMapper()


def shapes(options: dict[str, dict]) -> dict[str, tuple[int, ...]]:
    """The datasets of a file of weights, by name."""
    lstm, cnn = options["lstm"], options["char_cnn"]
    units, cell, width = lstm["projection_dim"], lstm["dim"], cnn["embedding"]["dim"]
    total = sum(count for _, count in cnn["filters"])
    found: dict[str, tuple[int, ...]] = {"char_embed": (261, width)}
    for f, (size, count) in enumerate(cnn["filters"]):
        found |= {f"CNN/W_cnn_{f}": (1, size, width, count), f"CNN/b_cnn_{f}": (count,)}
    for h in range(cnn["n_highway"]):
        for part in ("carry", "transform"):
            found |= {f"CNN_high_{h}/W_{part}": (total, total), f"CNN_high_{h}/b_{part}": (total,)}
    found |= {"CNN_proj/W_proj": (total, units), "CNN_proj/b_proj": (units,)}
    for direction in range(2):
        for i in range(lstm["n_layers"]):
            prefix = f"RNN_{direction}/RNN/MultiRNNCell/Cell{i}/LSTMCell"
            found |= {
                f"{prefix}/W_0": (2 * units, 4 * cell),
                f"{prefix}/B": (4 * cell,),
                f"{prefix}/W_P_0": (cell, units),
            }
    return found


def write(directory: Path, options: dict[str, dict], seed: int = 0) -> None:
    """A checkpoint in AllenNLP's format with random weights."""
    rng = np.random.default_rng(seed)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    (directory / "options.json").write_text(json.dumps(options) + "\n", "utf-8")
    with h5py.File(directory / "weights.hdf5", "w", libver="latest") as file:
        for name, shape in shapes(options).items():
            fan_in = np.prod(shape[:-1]) if len(shape) > 1 and name != "char_embed" else 1
            array = rng.normal(0, 1 / np.sqrt(fan_in), shape) + rng.normal(0, 0.3, shape)
            # The reference adds 1 to some biases in float32: exact for these numbers.
            file[name] = (np.round(array * 1024) / 1024).astype("f4")


def gradients(elmo: Any, options: dict[str, dict]) -> dict[str, np.ndarray]:
    """The gradient of every dataset by name, in its shape but without a first axis of 1."""
    bilm = elmo._elmo_lstm
    words, lstm = bilm._token_embedder, bilm._elmo_lstm
    found = {"char_embed": words._char_embedding_weights.grad}
    for f, convolution in enumerate(words._convolutions):
        found[f"CNN/W_cnn_{f}"] = convolution.weight.grad.permute(2, 1, 0)
        found[f"CNN/b_cnn_{f}"] = convolution.bias.grad
    for h, highway in enumerate(words._highways._layers):
        for part, sign, i in (("transform", 1, 0), ("carry", -1, 1)):
            found[f"CNN_high_{h}/W_{part}"] = sign * highway.weight.grad.chunk(2)[i].T
            found[f"CNN_high_{h}/b_{part}"] = sign * highway.bias.grad.chunk(2)[i]
    found["CNN_proj/W_proj"] = words._projection.weight.grad.T
    found["CNN_proj/b_proj"] = words._projection.bias.grad

    def stored(gradient: torch.Tensor) -> torch.Tensor:
        enter, keep, candidate, leave = gradient.chunk(4)
        return torch.cat([enter, candidate, keep, leave]).transpose(0, -1)

    for direction, cells in enumerate((lstm.forward_layers, lstm.backward_layers)):
        for i, cell in enumerate(cells):
            prefix = f"RNN_{direction}/RNN/MultiRNNCell/Cell{i}/LSTMCell"
            weights = [cell.input_linearity.weight.grad, cell.state_linearity.weight.grad]
            found[f"{prefix}/W_0"] = torch.cat([stored(each) for each in weights])
            found[f"{prefix}/B"] = stored(cell.state_linearity.bias.grad)
            found[f"{prefix}/W_P_0"] = cell.state_projection.weight.grad.T
    assert found.keys() == shapes(options).keys()
    mix = elmo.scalar_mix_0
    found["scalar_mix/scalars"] = torch.cat([each.grad for each in mix.scalar_parameters])
    found["scalar_mix/gamma"] = mix.gamma.grad[0]
    return {f"gradient/{name}": value.detach().numpy() for name, value in found.items()}


def run(
    directory: Path,
    sentences: list[list[str]],
    scalars: list[float] | None = None,
    gamma: float = 1,
    dtype: str = "float32",
) -> dict[str, np.ndarray]:
    """Inputs, outputs and gradients of AllenNLP's ELMo, computed in float64.

    Args:
        directory: the checkpoint.
        sentences: words.
        scalars, gamma: the parameters of the mix; None for zeros.
        dtype: the dtype of the returned arrays.
    """
    make, add_boundaries, mapper = reference()
    options = json.loads((directory / "options.json").read_text("utf-8"))
    elmo = make(
        str(directory / "options.json"),
        str(directory / "weights.hdf5"),
        num_output_representations=1,
        requires_grad=True,
        dropout=0.0,
        keep_sentence_boundaries=True,
    ).double()
    with torch.no_grad():
        for parameter, value in zip(
            elmo.scalar_mix_0.scalar_parameters, scalars or [], strict=bool(scalars)
        ):
            parameter.fill_(value)
        elmo.scalar_mix_0.gamma.fill_(gamma)
    longest = max(map(len, sentences))
    width = options["char_cnn"]["max_characters_per_token"]
    ids = torch.zeros(len(sentences), longest, width, dtype=torch.long)
    for row, words in enumerate(sentences):
        for j, word in enumerate(words):
            ids[row, j] = torch.tensor(mapper.convert_word_to_char_ids(word))
    begin = torch.tensor(mapper.beginning_of_sentence_characters) + 1
    end = torch.tensor(mapper.end_of_sentence_characters) + 1
    token_ids, mask = add_boundaries(ids, (ids > 0).any(-1), begin, end)
    seen: dict[str, Any] = {}
    forward = elmo._elmo_lstm.forward

    def noted(*args: Any) -> Any:
        seen.update(forward(*args))
        return seen

    with mock.patch.object(elmo._elmo_lstm, "forward", noted):
        mixed = elmo(ids)["elmo_representations"][0]
    hidden = torch.stack(seen["activations"])
    rng = np.random.default_rng(1)
    directions = [rng.normal(size=tuple(each.shape)).astype("f4") for each in (hidden, mixed)]
    loss = sum(
        (each * torch.tensor(d)).sum() for each, d in zip((hidden, mixed), directions, strict=True)
    )
    loss.backward()
    found = {
        "hidden_states": hidden.detach().numpy(),
        "sequence_output": mixed.detach().numpy(),
        "hidden_direction": directions[0],
        "sequence_direction": directions[1],
        **gradients(elmo, options),
    }
    given = {"token_ids": token_ids.numpy(), "padding_mask": mask.numpy()}
    return {
        **{name: value.astype("i4") for name, value in given.items()},
        **{name: value.astype(dtype) for name, value in found.items()},
    }


def main() -> None:
    for variant, changed in VARIANTS.items():
        options = {part: {**_OPTIONS[part], **changed[part]} for part in _OPTIONS}
        directory = GOLDENS / variant
        write(directory, options)
        for length, sentences in SENTENCES.items():
            if variant != "default" and length != min(SENTENCES):
                continue
            found = run(directory, sentences)
            assert found["token_ids"].shape[1] == length
            np.savez_compressed(directory / f"length_{length}.npz", **found)
    sentences = SENTENCES[8]
    mixed = run(GOLDENS / "default", sentences, [0.5, -1.0, 1.5], 0.75)
    kept = ("token_ids", "padding_mask", "sequence_output")
    np.savez_compressed(
        GOLDENS / "default" / "mixed.npz",
        words=np.array(json.dumps(sentences, ensure_ascii=False)),
        **{name: mixed[name] for name in kept},
    )


if __name__ == "__main__":
    main()
