"""The reference implementation (Hugging Face transformers on torch) with perturbed weights.

Used by ``make_goldens.py`` and the live tests; nothing in the package imports it. Transformer-XL is
only in transformers 4 (tools/references-requirements.txt), the others are in 5.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

from tests.support.reference_configs import SMALL, UNUSUAL

_NAMES = {
    "albert": "Albert",
    "bert": "Bert",
    "deberta": "DebertaV2",
    "distilbert": "DistilBert",
    "electra": "Electra",
    "gpt": "OpenAIGPT",
    "gpt2": "GPT2",
    "mobilebert": "MobileBert",
    "modernbert": "ModernBert",
    "mpnet": "MPNet",
    "roberta": "Roberta",
    "spanbert": "Bert",
    "tinybert": "Bert",
    "transformer_xl": "TransfoXL",
    "xlm": "XLM",
    "xlm_roberta": "XLMRoberta",
    "xlnet": "XLNet",
}
# Config and encoder classes of the families in the installed transformers.
_BASE: dict[str, tuple[type, type]] = {
    family: (getattr(transformers, name + "Config"), getattr(transformers, name + "Model"))
    for family, name in _NAMES.items()
    if hasattr(transformers, name + "Model")
}
FAMILIES = list(_BASE)
# Task classes, by the names of our heads.
_SUFFIXES = {
    "sequence": "ForSequenceClassification",
    "tokens": "ForTokenClassification",
    "span": "ForQuestionAnswering",
    "choice": "ForMultipleChoice",
    "masked_lm": "ForMaskedLM",
}
_TASKS: dict[str, dict[str, type]] = {
    family: {
        head: getattr(transformers, _NAMES[family] + suffix)
        for head, suffix in _SUFFIXES.items()
        if hasattr(transformers, _NAMES[family] + suffix)
    }
    for family in FAMILIES
}
_TASKS["albert"]["pair"] = transformers.AlbertForPreTraining
for family in ("bert", "tinybert", "mobilebert"):
    _TASKS[family]["pair"] = getattr(transformers, _NAMES[family] + "ForNextSentencePrediction")
_TASKS["gpt"] |= {
    "causal_lm": transformers.OpenAIGPTLMHeadModel,
    "choice": transformers.OpenAIGPTDoubleHeadsModel,
}
_TASKS["gpt2"] |= {
    "causal_lm": transformers.GPT2LMHeadModel,
    "choice": transformers.GPT2DoubleHeadsModel,
}
_TASKS["electra"]["rtd"] = transformers.ElectraForPreTraining
# The class without the suffix uses beam search, a different head.
_TASKS["xlm"]["span"] = transformers.XLMForQuestionAnsweringSimple
_TASKS["xlm"]["masked_lm"] = transformers.XLMWithLMHeadModel
_TASKS["xlnet"]["span"] = transformers.XLNetForQuestionAnsweringSimple
_TASKS["xlnet"]["causal_lm"] = transformers.XLNetLMHeadModel
_TASKS["xlnet"]["permutation_lm"] = transformers.XLNetLMHeadModel
if "transformer_xl" in FAMILIES:
    _TASKS["transformer_xl"]["causal_lm"] = transformers.TransfoXLLMHeadModel
HEADS = [(family, head) for family, tasks in _TASKS.items() for head in tasks]
LABELS = 3

LENGTHS = (7, 23)
BATCH = 3


def perturbed(model: torch.nn.Module, seed: int = 0, stddev: float = 0.3) -> torch.nn.Module:
    """Adds N(0, stddev) to all weights, in place, because default weights hide most mistakes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += stddev * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def build(family: str, **settings) -> torch.nn.Module:
    """The family's encoder, perturbed."""
    torch.manual_seed(0)
    return perturbed(_BASE[family][1](config(family, **settings)))


def config(family: str, **settings) -> Any:
    """The family's config; ``settings`` override transformers' defaults."""
    return _BASE[family][0](**settings)


def build_classifier(family: str, labels: list[str], **settings) -> torch.nn.Module:
    """The family's encoder with its classification head, perturbed."""
    torch.manual_seed(0)
    settings = {**settings, "id2label": dict(enumerate(labels))}
    return perturbed(_TASKS[family]["sequence"](config(family, **settings)))


def build_task(family: str, head: str, **settings) -> torch.nn.Module:
    """A small encoder with a head, perturbed; with LABELS labels where the head has labels."""
    settings = settings or UNUSUAL[family]
    torch.manual_seed(0)
    labels = {"num_labels": LABELS} if head in ("sequence", "tokens") else {}
    return perturbed(_TASKS[family][head](config(family, **settings, **labels)))


def inputs(config, length: int, seed: int = 0, head: str | None = None) -> dict[str, np.ndarray]:
    """Random int32 inputs (BATCH, length) with examples of different lengths, padded on the right.

    XLNet's are padded on the left, the last one on the right. No real token has the padding id,
    because the reference computes no gradient for it. Without a head, families with a memory read
    short inputs as three segments of ``segment_length``, for XLNet with ``perm_mask`` and
    ``target_mapping``.
    """
    rng = np.random.default_rng(seed + length)
    pad, family = config.pad_token_id, config.model_type
    # Of these, half are read from right to left.
    rows = BATCH + 1 if getattr(config, "bi_data", False) else BATCH
    tokens = rng.integers(0, config.vocab_size - (pad is not None), (rows, length))
    tokens += tokens >= (config.vocab_size if pad is None else pad)
    kinds = getattr(config, "type_vocab_size", 1 + (family == "xlnet"))
    segments = rng.integers(0, max(kinds, 1), (rows, length))
    languages = rng.integers(0, getattr(config, "n_langs", 1), (rows, length))
    lengths = np.resize([length, max(length // 2, 1), length - 1], rows)[:, None]
    if pad is None:
        lengths = np.full_like(lengths, length)
    mask = np.arange(length)[None] < lengths
    if family == "xlnet":
        mask = mask[:, ::-1].copy()
        if head is None:  # heads use the last column
            mask[-1] = mask[-1, ::-1]
    # Positions restart in the middle of each example, as in translation pairs.
    positions = np.arange(length)[None] - np.where(
        np.arange(length) < lengths // 2, 0, lengths // 2
    )
    given = {
        "token_ids": np.where(mask, tokens, pad),
        "padding_mask": mask,
        "segment_ids": np.where(mask, segments, 0),
    }
    if family == "xlm":
        given |= {"position_ids": positions, "language_ids": languages}
    short = length < 10 and head is None
    step = -(-length // 3) if short else length
    if family in ("xlnet", "transfo-xl") and short:
        given["segment_length"] = np.array(step)
    if family == "xlnet" and (short or head == "permutation_lm"):
        given |= _permutation(rng, config, mask, step)
    return {name: value.astype("i4") for name, value in given.items()}


def _permutation(rng, config, mask: np.ndarray, segment_length: int) -> dict[str, np.ndarray]:
    """A random permutation of each segment's real tokens, and a target in each that allows one.

    Positions that attend to nothing are not targets, because the reference's attention is uniform.
    """
    rows, length = mask.shape
    starts = range(0, length, segment_length)
    perm_mask = np.zeros((rows, length, length), "i4")
    targets = np.zeros((rows, len(starts), length), "i4")
    causal = config.attn_type == "uni"
    for row in range(rows):
        for k, start in enumerate(starts):
            order = rng.permutation(
                start + np.flatnonzero(mask[row, start : start + segment_length])
            )
            seeing = []
            for i, place in enumerate(order):
                perm_mask[row, place, order[i:]] = 1
                before = order[:i][order[:i] < place] if causal else order[:i]
                if k or (len(before) and not config.same_length):
                    seeing.append(place)
            if seeing:
                targets[row, k, seeing[-1]] = 1
    return {"perm_mask": perm_mask, "target_mapping": targets}


def segments(given: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """The inputs of each segment; without ``segment_length``, there is one segment."""
    length = given["token_ids"].shape[1]
    step = int(given.get("segment_length", length))
    pieces = []
    for start in range(0, length, step):
        part = slice(start, start + step)
        piece = {k: v[:, part] for k, v in given.items() if v.ndim == 2}
        if "perm_mask" in given:
            piece["perm_mask"] = given["perm_mask"][:, part, part]
            piece["target_mapping"] = given["target_mapping"][:, :, part]
        pieces.append(piece)
    return pieces


# Names of the reference's arguments.
_ARGUMENTS = {
    "token_ids": "input_ids",
    "padding_mask": "attention_mask",
    "segment_ids": "token_type_ids",
    "position_ids": "position_ids",
    "language_ids": "langs",
    "perm_mask": "perm_mask",
    "target_mapping": "target_mapping",
}


def run(model: torch.nn.Module, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs and gradients of an encoder, computed in float64.

    In float64, two correct implementations agree to 1e-8; in float32, rounding makes perturbed
    networks differ by more than 1e-5, and by a hundredth with a ReLU near zero.

    Returns:
        ``hidden_states`` (layers + 1, batch, length, hidden), ``pooled_output`` and
        ``query_output`` if they exist, each with a direction whose product with it (at real tokens)
        is summed to the scalar loss, ``gradient/NAME`` of that loss for each of the model's
        weights, and ``new_memory`` (layers, batch, length, hidden) if it exists.
    """
    hidden_parts, queries, memory = [], [], None
    with _doubled(model):
        for piece in segments(given):
            arguments = _arguments(model, piece, memory)
            out = model(**arguments, output_hidden_states=True)
            memory = getattr(out, "mems", None)
            states = out.hidden_states
            if "target_mapping" in arguments:
                states = states[::2]  # in between are those of the queries
                queries.append(out.last_hidden_state)
            hidden_parts.append(torch.stack(states))
    hidden = torch.cat(hidden_parts, dim=2)
    rng = np.random.default_rng(1)
    direction = rng.normal(size=hidden.shape).astype("f4").astype("f8")
    direction *= given["padding_mask"][None, :, :, None]
    loss = (hidden * torch.tensor(direction)).sum()
    result = {"hidden_states": hidden.detach().numpy(), "hidden_direction": direction}
    others = {
        "pooled": getattr(out, "pooler_output", None),
        "query": torch.cat(queries, dim=1) if queries else None,
    }
    for name, other in others.items():
        if other is not None:
            direction = rng.normal(size=other.shape).astype("f4").astype("f8")
            loss = loss + (other * torch.tensor(direction)).sum()
            result |= {f"{name}_output": other.detach().numpy(), f"{name}_direction": direction}
    if memory is not None:
        result["new_memory"] = np.stack([m.numpy().swapaxes(0, 1) for m in memory])
    loss.backward()
    return result | _gradients(model)


def run_task(model: torch.nn.Module, head: str, given: dict[str, np.ndarray]) -> dict:
    """Logits and gradients of an encoder with a head, computed in float64.

    With the head ``choice``, the rows of ``given`` are the choices of one example.

    Returns:
        ``logits``, the ``direction`` whose product with them (at real tokens) sums to the scalar
        loss, and ``gradient/NAME`` of that loss for each of the model's weights.
    """
    logits, memory = [], None
    with _doubled(model):
        for piece in segments(given):
            arguments = _arguments(model, piece, memory)
            mask = arguments.get("attention_mask")
            if "mc_token_ids" in inspect.signature(model.forward).parameters:
                arguments["mc_token_ids"] = mask.sum(1) - 1
            if head == "choice":
                arguments.pop("mems", None)
                arguments = {name: value[None] for name, value in arguments.items()}
                if "mc_token_ids" in arguments:
                    arguments["attention_mask"] = (
                        mask  # GPT supports only one mask for each example
                    )
            out = model(**arguments)
            memory = getattr(out, "mems", None)
            logits.append(_logits(out, head))
    logits = torch.cat(logits, dim=1) if len(logits) > 1 else logits[0]
    direction = np.random.default_rng(1).normal(size=logits.shape).astype("f4").astype("f8")
    mask = given["padding_mask"]
    if head != "permutation_lm" and logits.shape[:2] == mask.shape:
        direction *= mask.reshape(mask.shape + (1,) * (logits.ndim - 2))
    (logits * torch.tensor(direction)).sum().backward()
    return {"logits": logits.detach().numpy(), "direction": direction} | _gradients(model)


def _logits(out: Any, head: str) -> torch.Tensor:
    if head == "span":
        return torch.stack([out.start_logits, out.end_logits], dim=-1)
    if head == "choice":
        return (out.mc_logits if "mc_logits" in out else out.logits)[0]
    return out.sop_logits if "sop_logits" in out else out.logits


@contextmanager
def _doubled(model: torch.nn.Module) -> Iterator[None]:
    """Computes everything in float64, even if the reference requests float32."""
    torch.set_default_dtype(torch.float64)
    model.double()
    model.zero_grad()
    for module in model.modules():
        if hasattr(module, "inv_freq"):
            width = 2 * len(module.inv_freq)
            module.inv_freq = 1 / 10000 ** (torch.arange(0.0, width, 2.0) / width)
    as_other = torch.Tensor.type_as

    def type_as(self, other=None, dtype=None):  # Transformer-XL's call does not have this argument
        return as_other(self, other) if dtype is None else self.to(dtype)

    float_ = mock.patch.object(torch.Tensor, "float", lambda self: self)
    single = mock.patch.object(torch, "float", torch.float64)  # rotary angles
    with single:
        for module in model.modules():
            for kind in getattr(module, "layer_types", []):
                rates, _ = module.compute_default_rope_parameters(module.config, layer_type=kind)
                setattr(module, f"{kind}_inv_freq", rates)
    try:
        with single, float_, mock.patch.object(torch.Tensor, "type_as", type_as), _causal(model):
            yield
    finally:
        torch.set_default_dtype(torch.float32)


class _ForEachRow:
    """XLNet's causal mask: one for the batch, combined with that of each example."""

    def __init__(self, mask: torch.Tensor):
        self.mask = mask

    def __getitem__(self, key: Any) -> torch.Tensor:
        return self.mask[key].repeat(1, 1, BATCH, 1)


def _causal(model: torch.nn.Module) -> AbstractContextManager:
    base = getattr(model, "transformer", model)
    create = getattr(base, "create_mask", None)
    if create is None:
        return nullcontext()
    return mock.patch.object(base, "create_mask", lambda *sizes: _ForEachRow(create(*sizes)))


# Generation -----------------------------------------------------------------------------------

# Families that generate.
GENERATORS: dict[str, dict] = {
    "gpt": {**SMALL["gpt"], "vocab_size": 60, "n_positions": 48},
    "gpt2": {**SMALL["gpt"], "vocab_size": 60, "n_positions": 48},
    "xlnet": {**SMALL["xlnet"], "vocab_size": 60},
}


def build_generator(family: str, seed: int = 3) -> torch.nn.Module:
    """A small language model, perturbed."""
    torch.manual_seed(0)
    return perturbed(_TASKS[family]["causal_lm"](config(family, **GENERATORS[family])), seed)


def prompts(config, seed: int = 3) -> dict[str, np.ndarray]:
    """Prompts of different lengths, padded on the left."""
    tokens = np.random.default_rng(seed).integers(1, config.vocab_size, (3, 9))
    mask = np.arange(9) >= np.array([[0], [4], [8]])
    return {"token_ids": (tokens * mask).astype("i4"), "padding_mask": mask.astype("i4")}


def generation_cases(model: torch.nn.Module, given: dict[str, np.ndarray]) -> list[dict]:
    """Options of each search, without stop tokens and with some that the model generates."""
    greedy = generate(model, given, {"max_new_tokens": 20})
    often = np.bincount(greedy.flatten()).argsort()[::-1]
    none, one, other = [], [int(often[1])], sorted(int(i) for i in often[[0, 2]])
    cases = [
        *({"stop_ids": ids} for ids in (none, one, other)),
        *({"stop_ids": ids, "num_beams": 3} for ids in (none, one, other)),
        {"stop_ids": one, "num_beams": 4, "length_penalty": 0.0},
        {"stop_ids": one, "num_beams": 4, "length_penalty": 3.0},
        {"stop_ids": other, "num_beams": 4, "length_penalty": 3.0},
        {"stop_ids": one, "num_beams": 2, "length_penalty": -1.0},
    ]
    return [{"max_new_tokens": 20, **case} for case in cases]


def generate(
    model: torch.nn.Module,
    given: dict[str, np.ndarray],
    case: dict,
    draw: Callable[[np.ndarray, int], np.ndarray] | None = None,
) -> np.ndarray:
    """New tokens generated by transformers, int32 (batch, new tokens), 0 after stop tokens.

    Args:
        model: from ``build_generator``.
        given: from ``prompts``.
        case: options, as for our ``generate``.
        draw: maps log-probabilities (1, vocabulary) and the number of tokens drawn before to the
            next token, (1,), because torch cannot reproduce our random numbers.
    """
    case = dict(case)
    options = {
        "eos_token_id": case.pop("stop_ids", []) or None,
        "pad_token_id": 0,
        "do_sample": draw is not None,
        # Filters that are enabled by default.
        **({} if draw is None else {"top_k": 0}),
        **case,
    }
    width = given["token_ids"].shape[1]
    rows = []
    # GPT's class counts padding in positions, and XLNet's loses the padding mask, so examples are
    # generated one by one.
    together = model.config.model_type == "gpt2" and draw is None
    for i in [slice(None)] if together else range(len(given["token_ids"])):
        mask = given["padding_mask"][i]
        tokens = given["token_ids"][i] if together else given["token_ids"][i][mask > 0][None]
        mask = mask if together else np.ones_like(tokens)
        with _drawing(draw):
            found = model.generate(
                torch.tensor(tokens).long(), attention_mask=torch.tensor(mask).long(), **options
            )
        rows.extend(found[:, (width if together else tokens.shape[1]) :].numpy())
    longest = max(map(len, rows))
    tokens = np.stack([np.pad(row, (0, longest - len(row))) for row in rows]).astype("i4")
    # Beam search fills up with the stop token instead of 0.
    stops = np.isin(tokens, options["eos_token_id"] or [])
    return np.where(np.cumsum(stops, axis=1) - stops > 0, 0, tokens).astype("i4")


def _drawing(draw: Callable[[np.ndarray, int], np.ndarray] | None) -> AbstractContextManager:
    if draw is None:
        return nullcontext()
    counter = itertools.count()

    def multinomial(probabilities: torch.Tensor, num_samples: int) -> torch.Tensor:
        assert num_samples == 1
        drawn = draw(torch.log(probabilities).numpy(), next(counter))
        return torch.tensor(drawn).long()[:, None]

    return mock.patch.object(torch, "multinomial", multinomial)


def _arguments(model: torch.nn.Module, given: dict[str, np.ndarray], memory: Any = None) -> dict:
    taken = inspect.signature(model.forward).parameters.keys()
    if model.config.model_type in ("xlm", "openai-gpt", "gpt2"):
        taken -= {"token_type_ids"}  # in this family it adds token embeddings
    arguments: dict[str, Any] = {
        theirs: torch.tensor(given[ours]).long()
        for ours, theirs in _ARGUMENTS.items()
        if ours in given and theirs in taken
    }
    for name in ("perm_mask", "target_mapping"):
        if name in arguments:
            arguments[name] = arguments[name].double()
    if "mems" in taken:
        # By default, Transformer-XL's memory is zeros that are attended to.
        rows, config = len(given["token_ids"]), model.config
        empty = [torch.empty(0, rows, config.d_model) for _ in range(config.n_layer)]
        arguments["mems"] = memory or empty
    return arguments


def _gradients(model: torch.nn.Module) -> dict[str, np.ndarray]:
    return {
        f"gradient/{name}": parameter.grad.numpy()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def save(model: torch.nn.Module, directory: Path) -> None:
    """Writes ``config.json`` and ``model.safetensors``."""
    if model.config.model_type != "transfo-xl":
        model.save_pretrained(directory)
        return
    # transformers' save method rejects weights that layers share.
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(directory)
    # As in its files, without weights that the head shares with the embedding.
    once = {name for name, _ in model.named_parameters()}
    tensors = {
        name: parameter.detach().clone().contiguous()
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if name in once or not name.startswith("crit.")
    }
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
