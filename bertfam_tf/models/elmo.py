"""ELMo: Peters et al. 2018, arXiv 1802.05365."""

from dataclasses import dataclass

import keras

from bertfam_tf import layers
from bertfam_tf.models import formats, heads
from bertfam_tf.models.base import Config
from bertfam_tf.models.parts import Parts
from bertfam_tf.registry import DropoutSpec, Family, TokenizerSpec, register
from bertfam_tf.validation import in_range


@dataclass(frozen=True)
class ElmoConfig(Config):
    """Differs from BERT: words as characters, and LSTMs of two language models; no attention.

    ``hidden_size`` is the width of both directions together. Convolution ``f`` has
    ``filter_counts[f]`` filters over ``filter_widths[f]`` characters. ``dropout`` is the rate on
    the input of heads, unless ``classifier_dropout`` is another one. ``initializer_range`` applies
    to heads.
    """

    vocab_size: int = 262
    max_characters: int = 50
    embedding_size: int = 16
    filter_widths: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7)
    filter_counts: tuple[int, ...] = (32, 32, 64, 128, 256, 512, 1024)
    activation: str = "relu"
    num_highways: int = 2
    hidden_size: int = 1024
    cell_size: int = 4096
    cell_clip: float = 3.0
    projection_clip: float = 3.0
    num_layers: int = 2
    dropout: float = 0.5
    classifier_dropout: float | None = None
    initializer_range: float = 0.02

    @property
    def num_filters(self) -> int:
        """The number of convolutions."""
        return len(self.filter_widths)

    @property
    def num_states(self) -> int:
        """The number of representations that are mixed."""
        return self.num_layers + 1


def wire(config: ElmoConfig, parts: Parts) -> tuple[dict, dict]:
    """Wires words from characters, LSTMs with residual sums, and a trainable mix of all layers.

    The mix is the ``sequence_output``. The ``pooled_output`` is its maximum over real tokens, as
    Peters, Ruder and Smith pool ELMo for classification (arXiv 1903.05987, section 3). Texts do not
    depend on earlier batches: AllenNLP's implementation carries states from batch to batch.

    Raises:
        ValueError: if a field is out of range.
    """
    _check(config)
    inputs = {
        "token_ids": keras.Input((None, config.max_characters), dtype="int32", name="token_ids"),
        "padding_mask": keras.Input((None,), dtype="int32", name="padding_mask"),
    }
    units, mask = config.hidden_size // 2, inputs["padding_mask"]
    words = parts(
        "token_encoder",
        layers.CharacterCNN,
        config.vocab_size,
        config.embedding_size,
        tuple(zip(config.filter_widths, config.filter_counts, strict=True)),
        config.num_highways,
        units,
        layers.activation(config.activation),
    )(inputs["token_ids"])
    words = layers.zero_padding(words, mask)
    x = keras.ops.concatenate([words, words], axis=-1)  # (batch, length, hidden)
    hidden_states = [x]
    clips = config.cell_clip, config.projection_clip
    for i in range(config.num_layers):
        lstm = layers.ProjectedBidirectionalLSTM
        states = parts(f"layer_{i}", lstm, units, config.cell_size, *clips)(x, mask)
        x = states + x if i else states
        hidden_states.append(x)
    mixed = parts("scalar_mix", layers.ScalarMix)(hidden_states)
    pooled = parts("pooling", layers.TokenPooling, ["max"])(mixed, mask)
    return inputs, {
        "sequence_output": mixed,
        "pooled_output": pooled,
        "hidden_states": hidden_states,
    }


# Bounds the time to build a model from a hostile config.
_MAX_CHARACTERS = 256


def _check(config: ElmoConfig) -> None:
    widths, counts = config.filter_widths, config.filter_counts
    if not widths or len(widths) != len(counts) or min(*widths, *counts) < 1:
        raise ValueError(
            "filter_widths and filter_counts must be equally many positive numbers, got "
            f"{list(widths)} and {list(counts)}."
        )
    if not max(widths) <= config.max_characters <= _MAX_CHARACTERS:
        raise ValueError(
            f"max_characters must be from the largest of filter_widths, {max(widths)}, to "
            f"{_MAX_CHARACTERS}, got {config.max_characters}."
        )
    for name, least in (("num_layers", 1), ("cell_size", 1), ("num_highways", 0)):
        in_range(name, getattr(config, name), at_least=least)
    if config.hidden_size % 2:
        raise ValueError(
            f"hidden_size must be even, half for each direction, got {config.hidden_size}."
        )


register(
    Family(
        name="elmo",
        config=ElmoConfig,
        wire=wire,
        sizes={
            "tiny": dict(
                filter_widths=(1, 2, 3),
                filter_counts=(16, 16, 32),
                num_highways=1,
                hidden_size=128,
                cell_size=128,
            ),
            "small": dict(num_highways=1, hidden_size=256, cell_size=1024),
            "medium": dict(num_highways=1, hidden_size=512, cell_size=2048),
            "original": {},
        },
        tokenizer=TokenizerSpec("characters", "CharacterTokenizer"),
        heads={
            "sequence": heads.pooled(),
            "tokens": heads.tokens(),
            "span": heads.span(DropoutSpec()),
            "choice": heads.pooled(width=1),
        },
        objectives=("bilm",),
        formats={"allennlp": formats.ALLENNLP},
        indices={"i": "num_layers", "f": "num_filters", "h": "num_highways"},
        pools_first=False,
    )
)
