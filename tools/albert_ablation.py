"""Prints how many parameters ALBERT's ways of sharing leave: python -m tools.albert_ablation

The ablations of ALBERT (Lan et al. 2019, arXiv 1909.11942, tables 3 and 4) on the base shape,
counted from the models themselves.
"""

from bertfam_tf.models import config_of, count_parameters

SHARING = ("all", "attention", "feed_forward", "none")
SIZES = (64, 128, 256, 768)


def table() -> dict[tuple[int, str], int]:
    """Parameters for each width of the embeddings and each way of sharing.

    As the paper counts them: with the pooler, except where nothing is shared, and without a
    projection from 768 to 768.
    """
    hidden = config_of("albert").hidden_size
    return {
        (size, sharing): count_parameters(
            "albert",
            embedding_size=size,
            sharing=sharing,
            project_embeddings=size != hidden,
            pooler=sharing != "none",
        )
        for size in SIZES
        for sharing in SHARING
    }


def main() -> None:
    print("Millions of parameters of ALBERT-base by what its layers share")
    row = "{:>5}" + "{:>14}" * len(SHARING)
    print(row.format("E", *SHARING))
    counts = table()
    for size in SIZES:
        print(row.format(size, *(f"{counts[size, sharing] / 1e6:.1f}" for sharing in SHARING)))
    print("With the pooler (0.6); without it where nothing is shared, as the paper's figures are.")


if __name__ == "__main__":
    main()
