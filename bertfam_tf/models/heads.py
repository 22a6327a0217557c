"""Heads as data, of the kinds that several cards have.

A card lists its heads with these; ``bertfam_tf.heads`` builds layers from them.
"""

from bertfam_tf.registry import Decoder, Dense, Dropout, Head, Norm


def pooled(rate: str = "classifier_dropout", width: int | str = "labels") -> Head:
    """Dropout and a dense layer on the pooled output (arXiv 1810.04805, section 4.1)."""
    return Head("pooled_output", (Dropout(rate), Dense("classifier", "classifier", width)))


def first_token(activation: str) -> Head:
    """Two dense layers on the first token."""
    return Head(
        "first_token",
        (
            Dropout("classifier_dropout"),
            Dense("dense", "classifier.dense", "hidden_size", activation),
            Dropout("classifier_dropout"),
            Dense("classifier", "classifier.out_proj", "labels"),
        ),
    )


def tokens(rate: str = "classifier_dropout") -> Head:
    """Dropout and a dense layer on each token."""
    return Head("sequence_output", (Dropout(rate), Dense("classifier", "classifier", "labels")))


def span(*before: Dropout) -> Head:
    """Two scores for each token: that the answer starts there, and that it ends there."""
    return Head("sequence_output", (*before, Dense("classifier", "qa_outputs", 2)))


def masked_lm(
    dense: str,
    norm: str,
    bias: str,
    decoder: str,
    *,
    width: str = "hidden_size",
    activation: str = "activation",
    epsilon: float | str = "norm_epsilon",
) -> Head:
    """A dense layer, a norm, and the token embedding turned round.

    Args:
        dense, norm, bias, decoder: their names in Hugging Face's checkpoints.
        width, activation, epsilon: as ``Dense`` and ``Norm`` take them.
    """
    return Head(
        "sequence_output",
        (
            Dense("dense", dense, width, activation),
            Norm("norm", norm, epsilon),
            Decoder(bias, decoder),
        ),
    )


def lm_head(activation: str) -> Head:
    """``masked_lm`` under the names ``lm_head.…``."""
    names = ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "lm_head.decoder")
    return masked_lm(*names, activation=activation)


def causal_lm(decoder: str) -> Head:
    """The token embedding turned round, without a bias (Radford et al. 2018)."""
    return Head("sequence_output", (Decoder(None, decoder),))


def last_token(name: str) -> Head:
    """A dense layer without a bias on each row's last real token."""
    return Head("last_token", (Dense("classifier", name, "labels", bias=False),))


def last_token_choice(name: str) -> Head:
    """Dropout and one score from each row's last real token."""
    required = {
        "summary_type": ("cls_index",),
        "summary_use_proj": (True,),
        "summary_proj_to_labels": (True,),
        "summary_activation": (None, ""),
    }
    return Head("last_token", (Dropout("summary_dropout"), Dense("classifier", name, 1)), required)
