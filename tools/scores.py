"""Fine-tunes with recipes, with ours and the reference implementation, and writes the scores.

    python -m tools.scores [NAME …]     # writes tools/results/scores.md
    python -m tools.scores --table      # only the table of finished runs

Each run is a separate process, alternating between ours and the reference. Scores are stored in
tools/results/scores.json, from which the next call resumes; interrupted runs of ours also resume.
Remove an entry to run it again. Needs the packages that `make live` installs.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from tests.support.texts import DATA

ROOT = Path(__file__).parent.parent
RUNS = ROOT / "runs" / "scores"
RESULT = ROOT / "tools" / "results" / "scores.md"
DONE = RESULT.with_suffix(".json")
_TEST = "test_"


@dataclass(frozen=True)
class Score:
    """One line of the table.

    Fields:
        recipe: path in ``configs``, without suffix.
        metrics: names of metrics that both print; with the prefix "test_" for the test split.
        overrides: overrides of the recipe.
        seeds: seeds, one run for each.
        prepare: writes files that the overrides refer to.
        to_percent: factor of the metrics in the table.
    """

    recipe: str
    metrics: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0, 1, 2)
    prepare: Callable[[], None] | None = None
    to_percent: int = 100


def hold_out() -> None:
    """Splits TyDi QA's training questions into two files, the last tenth as the dev split."""
    file = DATA / "tydiqa" / "tydiqa.goldp.en.train.json"
    whole = json.loads(file.read_text("utf-8"))
    cut = len(whole["data"]) * 9 // 10
    for split, part in (("train", whole["data"][:cut]), ("dev", whole["data"][cut:])):
        (RUNS / f"tydiqa.{split}.json").write_text(json.dumps({**whole, "data": part}), "utf-8")


_ONE_EPOCH = ("train.epochs=1",)
# Full training would take a day on two cores; for fewer steps, the recipe's rate is too low.
_RACE = (
    *("train.epochs=1", "train.learning_rate=1.0e-4"),
    *("data.limit=3000", "model.max_length=128"),
)
# TyDi QA's dev split has no answers, so a tenth of the training questions is used instead.
_HELD_OUT = tuple(f"data.{split}=runs/scores/tydiqa.{split}.json" for split in ("train", "dev"))
SCORES = {
    "mrpc": Score("bert/mrpc", ("accuracy",)),
    "rte": Score("bert/rte", ("accuracy",)),
    "cola": Score("bert/cola", ("matthews",)),
    "stsb": Score("bert/stsb", ("spearman",)),
    "sst2": Score("bert/sst2_full", ("accuracy",), overrides=_ONE_EPOCH, seeds=(0, 1)),
    "conll2003": Score("bert/conll2003", ("f1", "test_f1"), overrides=_ONE_EPOCH),
    "tydiqa": Score(
        "bert/tydiqa", ("f1", "test_f1"), overrides=_HELD_OUT,
        seeds=(0, 1), prepare=hold_out, to_percent=1,
    ),
    "race": Score("bert/race_middle", ("accuracy",), overrides=_RACE),
}  # fmt: skip


def run(name: str, side: str, seed: int) -> dict:
    """The metrics of one run, and its total processor time."""
    score = SCORES[name]
    if score.prepare is not None:
        score.prepare()
    output = RUNS / f"{name}_{seed}"
    given = [f"train.seed={seed}", f"output={output}", *score.overrides]
    recipe = f"configs/{score.recipe}.yaml"
    on_test = any(metric.startswith(_TEST) for metric in score.metrics)
    if side == "ours":
        command = [sys.executable, "-m", "bertfam_tf.cli", "train", recipe, *given]
    else:
        test = ("--split", "test") if on_test else ()
        command = [sys.executable, "-m", "tests.support.finetune_reference", recipe, *given, *test]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with (RUNS / f"{output.name}_{side}.log").open("ab") as log:
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, check=True)
    if side == "ours":
        found = json.loads((output / "metrics.json").read_text("utf-8"))
        if on_test:
            command = [sys.executable, "-m", "bertfam_tf.cli", "evaluate", str(output)]
            done = subprocess.run(
                [*command, "--split", "test"], cwd=ROOT, stdout=subprocess.PIPE, check=True
            )
            tested = json.loads(done.stdout.decode().strip().splitlines()[-1])
            found |= {f"{_TEST}{key}": value for key, value in tested.items()}
    else:
        found = json.loads(done.stdout.decode().strip().splitlines()[-1])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Processor time, which other processes hardly affect.
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {**found, "cpu_seconds": round(seconds)}


def table(found: dict[str, dict]) -> str:
    """The table of all finished runs."""
    rows = [
        "| recipe | metric | ours | mean | reference | mean | Δ | core seconds, ours / reference |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, score in SCORES.items():
        for metric in score.metrics:
            cells, means, times = [name, metric.replace("_", " ")], [], []
            for side in ("ours", "reference"):
                keys = [f"{name}/{side}/{seed}" for seed in score.seeds]
                runs = [found[key] for key in keys if key in found]
                values = [score.to_percent * run[metric] for run in runs]
                cells += [" ".join(f"{v:.2f}" for v in values) or "–"]
                means += [statistics.mean(values)] if values else []
                cells += [f"{means[-1]:.2f}" if values else "–"]
                # The minimum, because other processes can only increase it.
                times += [f"{min(run['cpu_seconds'] for run in runs)}" if runs else "–"]
            cells += [f"{means[0] - means[1]:+.2f}" if len(means) == 2 else "–"]
            if cells[2] != "–":
                rows.append(f"| {' | '.join(cells)} | {' / '.join(times)} |")
    return (
        "# Scores\n\n`python -m tools.scores`: MiniLM-L6 fine-tuned with the recipes in "
        "`configs/bert` on one x86-64 core. Scores are on the dev split unless another is named, "
        "one for each seed, and the mean of the completed runs. The reference is transformers on "
        "torch with the same examples, batches, optimizer and schedule. Times are of whole "
        "processes including startup and evaluation, the minimum over seeds; our times do not "
        "include the evaluation on the test split.\n\n" + "\n".join(rows) + "\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*SCORES, []])
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    os.environ.setdefault("BERTFAM_DATA", str(DATA))  # used in recipes
    RUNS.mkdir(parents=True, exist_ok=True)
    found = json.loads(DONE.read_text("utf-8")) if DONE.is_file() else {}
    todo = [
        (name, side, seed)
        # The first seed of all recipes first, so that the table is complete early.
        for turn in range(max(len(score.seeds) for score in SCORES.values()))
        for name in options.names or SCORES
        for seed in SCORES[name].seeds[turn : turn + 1]
        for side in ("ours", "reference")
        if f"{name}/{side}/{seed}" not in found
    ]
    for name, side, seed in tqdm([] if options.table else todo):
        tqdm.write(f"{name}, {side}, seed {seed}")
        found[f"{name}/{side}/{seed}"] = run(name, side, seed)
        DONE.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    print(table(found))
    RESULT.write_text(table(found), "utf-8")


if __name__ == "__main__":
    main()
