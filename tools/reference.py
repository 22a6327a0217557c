"""The reference implementation (Hugging Face transformers on torch) with perturbed weights.

Used by ``make_goldens.py`` and by the live tests; nothing in the package imports it.
"""

from pathlib import Path

import numpy as np
import torch
import transformers

# Settings of each family that take different paths through the code: each gets a golden and a
# live comparison. Keys are the names of transformers' config classes.
SMALL = dict(
    vocab_size=64,
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=48,
    max_position_embeddings=24,
)
VARIANTS: dict[str, dict[str, dict]] = {
    "bert": {
        "default": {},
        "tanh_gelu": dict(hidden_act="gelu_new", layer_norm_eps=1e-5, type_vocab_size=3),
        "relu": dict(hidden_act="relu", layer_norm_eps=1e-3, pad_token_id=5),
    },
}
_BASE = {"bert": (transformers.BertConfig, transformers.BertModel)}
_SEQUENCE = {"bert": transformers.BertForSequenceClassification}

LENGTHS = (7, 23)
BATCH = 3


def perturbed(model: torch.nn.Module, seed: int = 0, stddev: float = 0.3) -> torch.nn.Module:
    """Adds N(0, stddev) to all weights, in place: default weights hide most mistakes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += stddev * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def build(family: str, **settings) -> torch.nn.Module:
    """The family's encoder, perturbed."""
    config, model = _BASE[family]
    torch.manual_seed(0)
    return perturbed(model(config(**settings)))


def build_classifier(family: str, labels: list[str], **settings) -> torch.nn.Module:
    """The family's encoder with its classification head, perturbed."""
    config, _ = _BASE[family]
    torch.manual_seed(0)
    settings = {**settings, "id2label": dict(enumerate(labels))}
    return perturbed(_SEQUENCE[family](config(**settings)))


def inputs(config, length: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Random int32 inputs (BATCH, length) with rows of different lengths, padded on the right.

    No real token is the padding id: the reference gives that row of the table no gradient.
    """
    rng = np.random.default_rng(seed + length)
    pad = config.pad_token_id
    tokens = rng.integers(0, config.vocab_size - 1, (BATCH, length))
    tokens += tokens >= pad
    segments = rng.integers(0, getattr(config, "type_vocab_size", 1), (BATCH, length))
    lengths = np.array([length, max(length // 2, 1), length - 1])[:, None]
    mask = np.arange(length)[None] < lengths
    return {
        "token_ids": np.where(mask, tokens, pad).astype("i4"),
        "padding_mask": mask.astype("i4"),
        "segment_ids": np.where(mask, segments, 0).astype("i4"),
    }


def run(model: torch.nn.Module, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs and gradients of an encoder, computed in float64.

    There, two right implementations agree to 1e-8; in float32 rounding alone makes perturbed
    networks differ by more than 1e-5, and a ReLU near its kink by a hundredth.

    Returns:
        ``hidden_states`` (layers + 1, batch, length, hidden), ``pooled_output``, the directions
        ``hidden_direction`` and ``pooled_direction`` whose products with them (at real tokens)
        sum to the scalar loss, and ``gradient/NAME`` of that loss for each of the model's weights.
    """
    model = model.double()
    model.zero_grad()
    out = model(
        input_ids=torch.tensor(given["token_ids"]).long(),
        attention_mask=torch.tensor(given["padding_mask"]).long(),
        token_type_ids=torch.tensor(given["segment_ids"]).long(),
        output_hidden_states=True,
    )
    hidden = torch.stack(out.hidden_states)
    rng = np.random.default_rng(1)
    directions = {
        "hidden_direction": rng.normal(size=hidden.shape).astype("f4").astype("f8"),
        "pooled_direction": rng.normal(size=out.pooler_output.shape).astype("f4").astype("f8"),
    }
    directions["hidden_direction"] *= given["padding_mask"][None, :, :, None]
    loss = (hidden * torch.tensor(directions["hidden_direction"])).sum()
    loss = loss + (out.pooler_output * torch.tensor(directions["pooled_direction"])).sum()
    loss.backward()
    gradients = {
        f"gradient/{name}": parameter.grad.numpy()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    return {
        "hidden_states": hidden.detach().numpy(),
        "pooled_output": out.pooler_output.detach().numpy(),
        **directions,
        **gradients,
    }


def save(model: torch.nn.Module, directory: Path) -> None:
    """Writes ``config.json`` and ``model.safetensors``."""
    model.save_pretrained(directory)
