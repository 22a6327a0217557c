"""Compares our tokenizers with transformers', which load the files that `save_pretrained` writes.

    python -m tools.compare_published                      # all text; writes the table
    python -m tools.compare_published --sample 2000        # some lines of each section
    python -m tools.compare_published --sample 300 gpt2    # of one tokenizer; writes nothing

Needs transformers (tools/requirements.txt). tests/support/texts.py has the text,
tools/results/published_tokenizers.md the table.
"""

from __future__ import annotations

import argparse
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
from tests.support.compare_tokenizers import BATCH, GROUPS, Count, compare, markdown, totals
from tests.support.subjects import SUBJECTS, Subject

RESULTS = texts.ROOT / "tools" / "results" / "published_tokenizers.md"
# The entries of config.json that identify the model of a vocabulary, if not its name's beginning.
MODEL_TYPES = {"bert-base-multilingual-cased": "distilbert", "openai-gpt": "openai-gpt"}
# XLM's class would need the language of other texts. It is compared on cased text.
ENGLISH_ONLY = {"xlm-mlm-xnli15-1024"}


def published(subject: Subject, directory: Path) -> tuple[Any, Any]:
    """Our tokenizer, and that of transformers for the files that ours wrote."""
    import transformers

    ours = subject.ours()
    if subject.name in ENGLISH_ONLY:  # lower-casing is rejected: see save_published
        ours = ours.from_config({**ours.get_config(), "lower_case": False})
    name = save_published(ours, directory, inputs=["input_ids", "attention_mask"], max_length=10**9)
    kind = MODEL_TYPES.get(subject.name, subject.name.partition("-")[0])
    config = {"model_type": kind, "tokenizer_class": name}
    (directory / "config.json").write_text(json.dumps(config), "utf-8")
    return ours, transformers.AutoTokenizer.from_pretrained(directory)


def rows(theirs: Any, lines: Sequence[bytes | str]) -> Iterator[list[int]]:
    """Yields the ids of each line."""
    for begin in range(0, len(lines), BATCH):
        decoded = list(map(texts.decoded, lines[begin : begin + BATCH]))
        yield from theirs(decoded, add_special_tokens=False, verbose=False)["input_ids"]


def differences(subject: Subject, sample: int, show: int) -> list[Count]:
    """The differences in each section, whose lines or some of them are compared."""
    counts = []
    with tempfile.TemporaryDirectory() as directory:
        ours, theirs = published(subject, Path(directory))
        for section in texts.sections():
            if section.language != "en" and subject.name in ENGLISH_ONLY:
                continue
            part = section.sample(sample) if sample else section
            expected = tqdm(
                rows(theirs, part.lines), f"{subject.name}: {section.name}", len(part.lines)
            )
            counts.append(compare(ours, part, expected, show))
    return counts


def cells(counts: list[Count]) -> list[str]:
    """The lines that differ in each group, of how many."""
    by_group = [totals([c for c in counts if c.section.group == group]) for group in GROUPS]
    return [f"{ids:,} of {lines:,}" for lines, ids, _ in by_group]


def table(results: dict[str, list[Count]], sample: int) -> str:
    """The results as Markdown."""
    option = f" --sample {sample}" if sample else ""
    version = importlib.metadata.version
    lines = []
    for name, counts in results.items():
        differing = sorted((line for c in counts for line in c.differing), key=len)[:3]
        shortest = ", ".join(f"`{ascii(texts.decoded(line))[:60]}`" for line in differing)
        lines.append([name, *cells(counts), shortest])
    return (
        "# Published tokenizers in transformers\n\n"
        f"`python -m tools.compare_published{option}`, {datetime.date.today()}: transformers "
        f"{version('transformers')}, tokenizers {version('tokenizers')}.\n\n"
        "Lines for which `AutoTokenizer`, loaded from the files that `save_pretrained` writes, "
        "returns different ids. XLM is compared without lower-casing, which `save_pretrained` does "
        f"not support.\n\n{markdown(['tokenizer', *GROUPS, 'shortest'], lines)}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", choices=[*SUBJECTS, []], help="(all)")
    parser.add_argument("--sample", type=int, default=0, help="lines of each section; 0 for all")
    parser.add_argument("--show", type=int, default=3, help="lines that differ, of each section")
    options = parser.parse_args()
    results = {}
    for name in options.names or SUBJECTS:
        results[name] = differences(SUBJECTS[name], options.sample, options.show)
        print(name, *cells(results[name]), flush=True)
    if not options.names:
        RESULTS.write_text(table(results, options.sample), "utf-8")


if __name__ == "__main__":
    main()
