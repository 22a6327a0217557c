"""BiLSTM: Tang et al. 2019, arXiv 1903.12136, the student of a BERT that was fine-tuned."""

from dataclasses import dataclass

from bertfam_tf import layers
from bertfam_tf.models import bert, encoder, heads
from bertfam_tf.models.base import Config
from bertfam_tf.models.parts import Parts
from bertfam_tf.registry import (
    LABELS,
    DenseSpec,
    DropoutSpec,
    Family,
    Field,
    HeadSpec,
    Labels,
    register,
)
from bertfam_tf.validation import in_range


@dataclass(frozen=True)
class BiLstmConfig(Config):
    """Differs from BERT: word vectors and an LSTM in each direction; no attention, no segments.

    ``hidden_size`` is the width of both directions together, ``intermediate_size`` the width of the
    hidden layer of classifiers. ``dropout`` is the rate after the word vectors and, unless
    ``classifier_dropout`` is another one, in heads.
    """

    vocab_size: int = 30522
    embedding_size: int = 300
    hidden_size: int = 600
    num_layers: int = 1
    intermediate_size: int = 400
    dropout: float = 0.1
    classifier_dropout: float | None = None
    initializer_range: float = 0.02
    pad_id: int = 0


def wire(config: BiLstmConfig, parts: Parts) -> tuple[dict, dict]:
    """Wires token embeddings, and LSTMs in both directions; their final states are pooled.

    Raises:
        ValueError: if the config has no layers, or an odd ``hidden_size``.
    """
    in_range("num_layers", config.num_layers, at_least=1)
    if config.hidden_size % 2:
        raise ValueError(
            f"hidden_size must be even, half for each direction, got {config.hidden_size}."
        )
    inputs = encoder.inputs(config)
    x = parts("token_embedding", encoder.table, config, config.vocab_size, config.embedding_size)(
        inputs["token_ids"]
    )
    x = parts("embedding_dropout", layers.Dropout, config.dropout)(x)
    hidden_states, final = [x], None
    for i in range(config.num_layers):
        layer = parts(f"layer_{i}", layers.BidirectionalLSTM, config.hidden_size // 2)
        x, final = layer(x, inputs["padding_mask"])  # (batch, length, hidden), (batch, hidden)
        hidden_states.append(x)
    return inputs, {"sequence_output": x, "pooled_output": final, "hidden_states": hidden_states}


def _classifier(width: int | Labels = LABELS) -> HeadSpec:
    """Returns a ReLU layer and an output layer on the final states (section 3.1)."""
    return HeadSpec(
        "pooled_output",
        (
            DenseSpec("dense", "dense", Field("intermediate_size"), "relu"),
            DropoutSpec(Field("classifier_dropout")),
            DenseSpec("classifier", "classifier", width),
        ),
    )


register(
    Family(
        name="bilstm",
        config=BiLstmConfig,
        wire=wire,
        sizes={
            "tiny": dict(embedding_size=128, hidden_size=128, intermediate_size=64),
            "base": {},
        },
        tokenizer=bert.TOKENIZER,
        heads={
            "sequence": _classifier(),
            "tokens": heads.tokens(),
            "span": heads.span(),
            "choice": _classifier(1),
        },
        objectives=("distillation",),
        pools_first=False,
    )
)
