"""Writes the ids of Hugging Face's tokenizers for ALBERT, XLNet, GPT and XLM.

    make tokenizer-references

Runs in a separate environment (tools/references-requirements.txt), because later versions of
transformers do not have the Python tokenizers that the published models were trained with. For each
section of tests/support/texts.py, one file build/tokenizer-references/TOKENIZER/KIND/SECTION.npz is
written, with the concatenated ids, the number of ids of each line and the digest of the lines;
existing files are kept, so that an interrupted run can be continued. KIND is "python" or, with
--fast, "fast-" and the version of transformers: the fast classes are not the reference, but their
differences are listed.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.support import texts
from tests.support.tokenizer_references import is_done, path_of

NAMES = ("albert-base-v2", "xlnet-base-cased", "openai-gpt", "xlm-mlm-xnli15-1024")
# The classes that also exist for the `tokenizers` library, and the file names that these expect.
FAST = {
    "albert-base-v2": ("AlbertTokenizer", {"30k-clean.model": "spiece.model"}),
    "xlnet-base-cased": ("XLNetTokenizer", {"spiece.model": "spiece.model"}),
    "openai-gpt": (
        "OpenAIGPTTokenizer",
        {"encoder_bpe_40000.json": "vocab.json", "vocab_40000.bpe": "merges.txt"},
    ),
}
XLM_SPECIAL = ["<s>", "</s>", "<pad>", "<unk>", *(f"<special{i}>" for i in range(10))]
XLM_VOCABULARY = 95_000


def write_ids(path: Path, section: texts.Section, rows: list[list[int]]) -> None:
    """Writes the file that `read_ids` reads, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished.npz")
    np.savez_compressed(
        unfinished,
        ids=np.array([piece for row in rows for piece in row], np.int32),
        lengths=np.array([len(row) for row in rows], np.int32),
        digest=np.array(section.digest()),
    )
    os.replace(unfinished, path)


# The tokenizers.


def xlm_vocabulary(source: Path) -> dict[str, int]:
    """Converts fastBPE's list of pieces with counts to the mapping in XLM's vocab.json.

    The special tokens come first, in the order of the dictionary in XLM's code, then the file's
    pieces, up to the number of embeddings of the published model. fastBPE marks pieces that do not
    end a word by a trailing "@@", the mapping marks those that do by "</w>".
    """
    pieces = list(XLM_SPECIAL)
    for line in source.read_text("utf-8").split("\n"):
        if line:
            piece, _ = line.rsplit(" ", 1)
            pieces.append(piece[:-2] if piece.endswith("@@") else f"{piece}</w>")
    return {piece: index for index, piece in enumerate(pieces[:XLM_VOCABULARY])}


def python_tokenizer(name: str, scratch: Path) -> Callable[[str, str], list[int]]:
    """Returns a function from text and language to ids."""
    import transformers

    folder = texts.DATA / "vocab" / name
    if name == "albert-base-v2":
        made = transformers.AlbertTokenizer(str(folder / "30k-clean.model"), do_lower_case=True)
    elif name == "xlnet-base-cased":
        made = transformers.XLNetTokenizer(str(folder / "spiece.model"), do_lower_case=False)
    elif name == "openai-gpt":
        files = ("encoder_bpe_40000.json", "vocab_40000.bpe")
        made = transformers.OpenAIGPTTokenizer(*(str(folder / file) for file in files))
    else:
        vocabulary = scratch / "vocab.json"
        vocabulary.write_text(json.dumps(xlm_vocabulary(folder / "vocab_xnli_15")), "utf-8")
        made = transformers.XLMTokenizer(str(vocabulary), str(folder / "codes_xnli_15"))
        plain = made._tokenize

    def ids(text: str, language: str) -> list[int]:
        if name.startswith("xlm"):
            # `tokenize` has no argument for the language; only this inner step has.
            made._tokenize = functools.partial(plain, lang=language)
        return made.convert_tokens_to_ids(made.tokenize(text))

    return ids


def fast_tokenizer(name: str, scratch: Path) -> Any:
    """Builds a tokenizer of the fast class in a folder.

    Raises:
        KeyError: there is no such class.
    """
    from transformers import AutoTokenizer

    kind, files = FAST[name]
    for file, renamed in files.items():
        shutil.copy(texts.DATA / "vocab" / name / file, scratch / renamed)
    (scratch / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
    made = AutoTokenizer.from_pretrained(str(scratch), use_fast=True)
    assert made.is_fast
    return made


def fast_ids(name: str, scratch: Path) -> Callable[[str, str], list[int]]:
    """Returns a function from text and language to the ids of the fast class."""
    backend = fast_tokenizer(name, scratch).backend_tokenizer
    return lambda text, _: backend.encode(text, add_special_tokens=False).ids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(NAMES)} (default: all)")
    parser.add_argument("--fast", action="store_true", help="the fast classes")
    arguments = parser.parse_intermixed_args()
    possible = FAST if arguments.fast else NAMES
    names = arguments.names or list(possible)
    if set(names) - set(possible):
        parser.error(f"tokenizers are {', '.join(possible)}")

    import transformers
    from tqdm import tqdm

    transformers.logging.set_verbosity_error()
    kind = f"fast-{transformers.__version__}" if arguments.fast else "python"
    make = fast_ids if arguments.fast else python_tokenizer
    todo = [
        (name, section, path_of(name, kind, section))
        for section in texts.sections()
        for name in names
    ]
    todo = [job for job in todo if not is_done(job[2], job[1])]
    total = sum(len(section.lines) for _, section, _ in todo)
    with (
        tqdm(total=total, unit=" lines", unit_scale=True, mininterval=5) as bar,
        tempfile.TemporaryDirectory() as scratch,
    ):
        made: dict[str, Callable[[str, str], list[int]]] = {}
        for name, section, path in todo:
            bar.set_description(f"{name}: {section.name}")
            if name not in made:
                folder = Path(scratch, name)
                folder.mkdir()
                made[name] = make(name, folder)
            rows = []
            for line in section.lines:
                rows.append(made[name](texts.decoded(line), section.language))
                bar.update()
            write_ids(path, section, rows)


if __name__ == "__main__":
    main()
