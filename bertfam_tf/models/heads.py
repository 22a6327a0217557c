"""Specs of heads that several families have.

A family lists its heads with these; ``bertfam_tf.heads`` builds their layers.
"""

from bertfam_tf.registry import (
    LABELS,
    DenseSpec,
    DropoutSpec,
    Field,
    HeadSpec,
    Labels,
    NormSpec,
    TiedOutputSpec,
)

_DROPOUT, _WIDTH = Field("classifier_dropout"), Field("hidden_size")
_ACTIVATION, _EPSILON = Field("activation"), Field("norm_epsilon")


def pooled(rate: Field = _DROPOUT, width: int | Labels = LABELS) -> HeadSpec:
    """Specifies dropout and a dense layer on the pooled output (arXiv 1810.04805, section 4.1)."""
    return HeadSpec(
        "pooled_output", (DropoutSpec(rate), DenseSpec("classifier", "classifier", width))
    )


def first_token(activation: str) -> HeadSpec:
    """Specifies two dense layers on the first token."""
    return HeadSpec(
        "first_token",
        (
            DropoutSpec(_DROPOUT),
            DenseSpec("dense", "classifier.dense", _WIDTH, activation),
            DropoutSpec(_DROPOUT),
            DenseSpec("classifier", "classifier.out_proj", LABELS),
        ),
    )


def tokens(rate: Field = _DROPOUT) -> HeadSpec:
    """Specifies dropout and a dense layer on each token."""
    return HeadSpec(
        "sequence_output", (DropoutSpec(rate), DenseSpec("classifier", "classifier", LABELS))
    )


def span(*before: DropoutSpec) -> HeadSpec:
    """Specifies two logits per token: for the start and for the end of the answer span."""
    return HeadSpec("sequence_output", (*before, DenseSpec("classifier", "qa_outputs", 2)))


def masked_lm(
    dense: str,
    norm: str,
    bias: str,
    decoder: str,
    *,
    width: Field = _WIDTH,
    activation: str | Field = _ACTIVATION,
    epsilon: float | Field = _EPSILON,
) -> HeadSpec:
    """Specifies a dense layer, a norm, and an output projection tied to the token embedding.

    Args:
        dense, norm, bias, decoder: their names in Hugging Face's checkpoints.
        width, activation, epsilon: the same as for ``DenseSpec`` and ``NormSpec``.
    """
    return HeadSpec(
        "sequence_output",
        (
            DenseSpec("dense", dense, width, Field("lm_activation", activation)),
            NormSpec("norm", norm, Field("lm_norm_epsilon", epsilon)),
            TiedOutputSpec(bias, decoder),
        ),
    )


def lm_head(activation: str) -> HeadSpec:
    """Specifies ``masked_lm`` with names that start with ``lm_head``."""
    names = ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "lm_head.decoder")
    return masked_lm(*names, activation=activation)


def causal_lm(decoder: str) -> HeadSpec:
    """Specifies an output projection tied to the token embedding (Radford et al. 2018)."""
    return HeadSpec("sequence_output", (TiedOutputSpec(None, decoder),))


def last_token(name: str) -> HeadSpec:
    """Specifies a dense layer without bias on the last real token."""
    return HeadSpec("last_token", (DenseSpec("classifier", name, LABELS, bias=False),))


def last_token_choice(name: str) -> HeadSpec:
    """Specifies dropout and one logit from the last real token."""
    required = {
        "summary_type": ("cls_index",),
        "summary_use_proj": (True,),
        "summary_proj_to_labels": (True,),
        "summary_activation": (None, ""),
    }
    parts = (DropoutSpec(Field("summary_dropout")), DenseSpec("classifier", name, 1))
    return HeadSpec("last_token", parts, required)
