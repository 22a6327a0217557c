"""Compares our tokenizers with transformers', which load the files that `save_pretrained` writes.

    python -m tools.compare_published                      # all text; writes the table
    python -m tools.compare_published --sample 2000        # some lines of each section
    python -m tools.compare_published --sample 300 gpt2    # of one tokenizer; writes nothing

Needs transformers (tools/requirements.txt). tests/support/texts.py has the text,
tools/results/published_tokenizers.md the table.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import importlib.metadata
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bertfam_tf.text.published import save_published
from tests.support import texts
from tests.support.subjects import SUBJECTS, Subject

RESULTS = texts.ROOT / "tools" / "results" / "published_tokenizers.md"
GROUPS = ("corpus", "hostile", "characters")
BATCH = 1024
# The entries of config.json that identify the model of a vocabulary.
MODEL_TYPES = {
    "bert-base-uncased": "bert",
    "bert-base-cased": "bert",
    "bert-base-multilingual-cased": "distilbert",
    "gpt2": "gpt2",
    "roberta-base": "roberta",
    "albert-base-v2": "albert",
    "xlnet-base-cased": "xlnet",
    "openai-gpt": "openai-gpt",
    "xlm-mlm-xnli15-1024": "xlm",
}
# XLM's class would need the language of other texts. It is compared on cased text.
ENGLISH_ONLY = {"xlm-mlm-xnli15-1024"}


def published(subject: Subject, directory: Path) -> tuple[Any, Any]:
    """Our tokenizer, and that of transformers for the files that ours wrote."""
    import transformers

    ours = subject.ours()
    if subject.name in ENGLISH_ONLY:  # lower-casing is rejected: see save_published
        ours = ours.from_config({**ours.get_config(), "lower_case": False})
    name = save_published(ours, directory, inputs=["input_ids", "attention_mask"], max_length=10**9)
    config = {"model_type": MODEL_TYPES[subject.name], "tokenizer_class": name}
    (directory / "config.json").write_text(json.dumps(config), "utf-8")
    return ours, transformers.AutoTokenizer.from_pretrained(directory)


def rows(ours: Any, theirs: Any, lines: Sequence[bytes | str]) -> Iterator[tuple]:
    """Yields each line with the ids of both tokenizers."""
    for begin in range(0, len(lines), BATCH):
        batch = list(lines[begin : begin + BATCH])
        found = ours.tokenize(batch).to_list()
        decoded = list(map(texts.decoded, batch))
        expected = theirs(decoded, add_special_tokens=False, verbose=False)["input_ids"]
        yield from zip(batch, found, expected, strict=True)


def compare(subject: Subject, sample: int, show: int) -> dict[str, tuple[int, int, list]]:
    """By group: the number of lines, the number of lines that differ, and the shortest of these."""
    counts = {group: [0, 0] for group in GROUPS}
    differing: dict[str, list] = collections.defaultdict(list)
    with tempfile.TemporaryDirectory() as directory:
        ours, theirs = published(subject, Path(directory))
        for section in texts.sections():
            if section.language != "en" and subject.name in ENGLISH_ONLY:
                continue
            part = section.sample(sample) if sample else section
            for line, found, expected in tqdm(
                rows(ours, theirs, part.lines), f"{subject.name}: {section.name}", len(part.lines)
            ):
                counts[section.group][0] += 1
                if found != expected:
                    counts[section.group][1] += 1
                    differing[section.group].append((line, found, expected))
    for group, found in differing.items():
        found.sort(key=lambda row: len(row[0]))
        for line, a, b in found[:show]:
            pairs = enumerate(zip([*a, -1], [*b, -1], strict=False))
            at = max(0, next(i for i, (one, other) in pairs if one != other) - 2)
            named = [[ours.vocabulary[i] for i in ids[at : at + 9]] for ids in (a, b)]
            tqdm.write(f"  {group} {ascii(line)[:120]}\n    {named[0]}\n    {named[1]}")
    return {group: (*counts[group], differing[group]) for group in GROUPS}


def table(results: dict[str, dict[str, tuple[int, int, list]]], sample: int) -> str:
    """The results as Markdown."""
    option = f" --sample {sample}" if sample else ""
    version = importlib.metadata.version
    lines = [
        "# Published tokenizers in transformers",
        "",
        f"`python -m tools.compare_published{option}`, {datetime.date.today()}: transformers "
        f"{version('transformers')}, tokenizers {version('tokenizers')}.",
        "",
        "Lines for which `AutoTokenizer`, loaded from the files that `save_pretrained` writes, "
        "returns different ids. XLM is compared without lower-casing, which `save_pretrained` does "
        "not support.",
        "",
        "| tokenizer | corpus | hostile | characters | shortest |",
        "| --- | ---: | ---: | ---: | --- |",
    ]
    for name, found in results.items():
        cells = [f"{found[group][1]:,} of {found[group][0]:,}" for group in GROUPS]
        shortest = [row[0] for group in GROUPS for row in found[group][2][:2]]
        lines.append(
            f"| {name} | {' | '.join(cells)} | "
            + ", ".join(f"`{ascii(texts.decoded(line))[:60]}`" for line in shortest)
            + " |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help=", ".join(SUBJECTS))
    parser.add_argument("--sample", type=int, default=0, help="lines of each section; 0 for all")
    parser.add_argument("--show", type=int, default=3, help="lines that differ, of each group")
    options = parser.parse_args()
    results = {}
    for name in options.names or SUBJECTS:
        results[name] = compare(SUBJECTS[name], options.sample, options.show)
        print(name, {group: found[:2] for group, found in results[name].items()}, flush=True)
    if not options.names:
        RESULTS.write_text(table(results, options.sample), "utf-8")


if __name__ == "__main__":
    main()
