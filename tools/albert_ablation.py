"""Prints the number of parameters of ALBERT's sharing schemes: python -m tools.albert_ablation

The ablations of ALBERT (Lan et al. 2019, arXiv 1909.11942, tables 3 and 4) for the base size,
counted from the models.
"""

from bertfam_tf.models import config_of, count_parameters

SHARING = ("all", "attention", "feed_forward", "none")
SIZES = (64, 128, 256, 768)


def table() -> dict[tuple[int, str], int]:
    """The number of parameters by embedding width and sharing scheme.

    Counted as in the paper: with the pooler, except if nothing is shared, and without a projection
    from 768 to 768.
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
    print("With the pooler (0.6), but without it if nothing is shared, as in the paper.")


if __name__ == "__main__":
    main()
