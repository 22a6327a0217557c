"""``bertfam tokenize``."""

import argparse
import os
import sys
import unicodedata
from collections.abc import Iterator
from itertools import islice
from typing import Any

from bertfam_tf.cli.common import Commands, add_command, print_json


def add(commands: Commands) -> None:
    parser = add_command(commands, "tokenize", run, "show the tokens, ids and byte offsets of text")
    parser.add_argument(
        "path",
        help="the output directory of a recipe, or a checkpoint: directory, package:NAME or hub id",
    )
    parser.add_argument("text", nargs="*", help="texts (default: lines of --input)")
    parser.add_argument(
        "--input", metavar="FILE", help="a file with one text per line (default: standard input)"
    )
    parser.add_argument("--pair", metavar="TEXT", help="a second text; implies --packed")
    parser.add_argument(
        "--packed",
        action="store_true",
        help="show model inputs, with special tokens and padding",
    )
    parser.add_argument(
        "--max-length", type=int, default=512, help="of packed texts (default: %(default)s)"
    )
    machine = parser.add_mutually_exclusive_group()
    machine.add_argument("--ids", action="store_true", help="only ids, one line per text")
    machine.add_argument("--json", action="store_true", help="one line of JSON per text")


def run(options: argparse.Namespace) -> None:
    from bertfam_tf.recipes.directory import model_directory
    from bertfam_tf.text import Packer, load_tokenizer

    texts = _texts(options)
    tokenizer = load_tokenizer(model_directory(options.path))
    packer = None
    if options.packed or options.pair is not None:
        packer = Packer(tokenizer.layout, tokenizer.special_ids, options.max_length)
    pair = None if options.pair is None else os.fsencode(options.pair)
    if not (options.ids or options.json):
        special = [
            f"{role} {tokenizer.id_to_token(index)}" + f" {index}" * (not tokenizer.token_shape)
            for role, index in tokenizer.special_ids.items()
        ]
        name = f"{type(tokenizer).__name__}, {tokenizer.vocab_size:,} pieces"
        print("; ".join([name, *special]))
    while batch := list(islice(texts, 64)):
        rows = _packed(tokenizer, packer, batch, pair) if packer else _pieces(tokenizer, batch)
        for text, row in zip(batch, rows, strict=True):
            if options.ids:
                print(*row["token_ids"])
            elif options.json:
                shown = {"text": text.decode("utf-8", "replace")}
                print_json(shown | row)
            else:
                print(f"\n{_visible(text)}", *([] if pair is None else [_visible(pair)]))
                if tokenizer.token_shape:
                    del row["token_ids"]  # which the pieces show
                print(_table(row, [text, pair or b""]))


def _texts(options: argparse.Namespace) -> Iterator[bytes]:
    """Yields texts as bytes, because they may not be UTF-8."""
    if options.text and options.input:
        raise ValueError("both texts and --input are given, expected one of them")
    if options.text:
        return map(os.fsencode, options.text)
    # Open until the process ends.
    lines = open(options.input, "rb") if options.input else sys.stdin.buffer  # noqa: SIM115
    return (line.removesuffix(b"\n").removesuffix(b"\r") for line in lines)


def _pieces(tokenizer: Any, texts: list[bytes]) -> list[dict[str, list]]:
    """The pieces of each text, by column."""
    rows = zip(*(part.to_list() for part in tokenizer.tokenize_with_offsets(texts)), strict=True)
    return [
        {"token_ids": ids, "pieces": list(map(tokenizer.id_to_token, ids)),
         "starts": starts, "ends": ends}
        for ids, starts, ends in rows
    ]  # fmt: skip


def _packed(
    tokenizer: Any, packer: Any, texts: list[bytes], pair: bytes | None
) -> list[dict[str, list]]:
    """The packed inputs of each text, by column; offsets and source are None at special tokens."""
    parts = [tokenizer.tokenize_with_offsets(texts)]
    if pair is not None:
        parts.append(tokenizer.tokenize_with_offsets([pair] * len(texts)))
    filled = packer.fill([ids for ids, _, _ in parts])
    inputs = {name: value.numpy().tolist() for name, value in filled.inputs.items()}
    places = [filled.pieces(index).numpy().tolist() for index in range(len(parts))]
    rows = []
    for row in range(len(texts)):
        columns = {name: values[row] for name, values in inputs.items()}
        sources: list[Any] = [(None, None, None)] * len(columns["token_ids"])
        for name, (_, starts, ends), place in zip("ab", parts, places, strict=False):
            spans = list(zip(starts[row].numpy().tolist(), ends[row].numpy().tolist(), strict=True))
            sources = [
                (name, *spans[piece]) if piece >= 0 else source
                for piece, source in zip(place[row], sources, strict=True)
            ]
        columns["pieces"] = list(map(tokenizer.id_to_token, columns["token_ids"]))
        for index, name in enumerate(("from", "starts", "ends")):
            columns[name] = [source[index] for source in sources]
        rows.append(columns)
    return rows


_HEADINGS = {"token_ids": "id", "padding_mask": "mask", "segment_ids": "segment", "from": "from"}


def _table(row: dict[str, list], texts: list[bytes]) -> str:
    """Formats a table with one line per piece and the text that it covers."""
    sources = row.get("from") or ["a"] * len(row["pieces"])
    columns = [
        [heading, *("" if value is None else str(value) for value in row[name])]
        for name, heading in _HEADINGS.items()
        if name in row
    ]
    columns += [["bytes"], ["piece"], ["text"]]
    for piece, source, start, end in zip(
        row["pieces"], sources, row["starts"], row["ends"], strict=True
    ):
        data = b"" if source is None else texts["ab".index(source)][start:end]
        columns[-3].append("" if source is None else f"{start}-{end}")
        columns[-2].append(_visible(piece.encode("utf-8")))
        columns[-1].append("" if source is None else _visible(data))
    widths = [max(map(_width, column)) for column in columns]
    return "\n".join(
        "  ".join(
            cell + " " * (width - _width(cell)) for cell, width in zip(line, widths, strict=True)
        ).rstrip()
        for line in zip(*columns, strict=True)
    )


def _visible(data: bytes) -> str:
    """Text in one line, with invisible characters escaped as in Python."""
    text = data.decode("utf-8", "backslashreplace")
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def _width(text: str) -> int:
    """Returns the columns that a terminal uses for text (Unicode Standard Annex 11)."""
    return sum(
        0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF")
        for char in text
    )
