"""``bertfam vocabulary``."""

import argparse

from bertfam_tf.cli.common import Commands, add_command


def add(commands: Commands) -> None:
    parser = add_command(commands, "vocabulary", run, "train a vocabulary on text files")
    parser.add_argument("kind", help="wordpiece, byte-bpe, bpe, sentencepiece or words")
    parser.add_argument("--input", nargs="+", required=True, metavar="FILE", help="text in UTF-8")
    parser.add_argument("--size", type=int, help="number of entries, special tokens included")
    parser.add_argument("--output", required=True, metavar="DIR", help="new or empty")
    parser.add_argument("--special", metavar="TOKENS", help="separated by commas: '[PAD],[UNK]'")
    parser.add_argument("--min-count", type=int, help="minimum frequency of entries")
    parser.add_argument(
        "--lower-case", action=argparse.BooleanOptionalAction, help="(depends on the kind)"
    )


def run(options: argparse.Namespace) -> None:
    from bertfam_tf.text.training import train_vocabulary

    tokenizer = train_vocabulary(
        options.kind,
        options.input,
        options.output,
        size=options.size,
        special=options.special and options.special.split(","),
        lower_case=options.lower_case,
        min_count=options.min_count,
    )
    print(f"{tokenizer.vocab_size:,} entries in {options.output}")
