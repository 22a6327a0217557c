"""Measures whole recipes beside transformers' Trainer, from process start to the saved model.

    python -m tools.recipes_speed [--examples N] [--cores 1 2] [--recipes sst2 …]

Both fine-tune one checkpoint on the same examples with the recipe's settings, evaluate on the dev
split and save, each in a process of its own, in turns. ``--examples`` takes the first of the
training split, and as large a part of the dev split. Writes tools/results/recipes_speed.md. Needs
tools/requirements.txt.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RESULT = Path(__file__).parent / "results" / "recipes_speed.md"
RECIPES = {"sst2": "accuracy", "stsb": "spearman", "conll2003": "f1", "mrpc": "accuracy"}
# The last two are values of ``train_sampling_strategy``.
SIDES = ("ours", "random", "group_by_length")


def train(job: dict[str, Any]) -> None:
    """Fine-tunes with the Trainer; without bertfam_tf and TensorFlow, which take time to import."""
    import transformers as hf

    tags = job["tags"]
    tokenizer = hf.AutoTokenizer.from_pretrained(job["checkpoint"])
    kind = hf.AutoModelForTokenClassification if tags else hf.AutoModelForSequenceClassification
    model = kind.from_pretrained(job["checkpoint"], num_labels=job["num_labels"])

    def examples(split: str) -> list[dict[str, Any]]:
        texts, labels = json.loads(Path(job[split]).read_text("utf-8"))
        columns = [texts] if tags else [list(column) for column in zip(*texts, strict=True)]
        options = {"truncation": True, "max_length": job["max_length"]}
        encoded = tokenizer(*columns, is_split_into_words=tags, **options)
        for i, given in enumerate(labels if tags else ()):
            words = encoded.word_ids(i)
            first = [w is not None and w != words[p - 1] for p, w in enumerate(words)]
            labels[i] = [given[w] if f else -100 for w, f in zip(words, first, strict=True)]
        columns = [*encoded.values(), labels]
        return [dict(zip([*encoded, "labels"], x, strict=True)) for x in zip(*columns, strict=True)]

    collator = hf.DataCollatorForTokenClassification if tags else hf.DataCollatorWithPadding
    fixed = {"use_cpu": True, "report_to": "none", "save_strategy": "no", "disable_tqdm": True}
    arguments = hf.TrainingArguments(job["output"], **fixed, **job["arguments"])
    trainer = hf.Trainer(model, arguments, collator(tokenizer), examples("train"))
    trainer.train()
    # With ``group_by_length``, predictions have another order than the examples.
    found, labels, _ = trainer.predict(examples("dev"))
    if tags:
        found, kept = found.argmax(-1), labels != -100
        found, labels = (
            [x[k].tolist() for x, k in zip(y, kept, strict=True)] for y in (found, labels)
        )
    else:
        found, labels = found.tolist(), labels.tolist()
    trainer.save_model()
    Path(job["output"], "dev.json").write_text(json.dumps([found, labels]), "utf-8")


def prepare(name: str, examples: int, folder: Path) -> tuple[list[str], dict[str, Any], Any]:
    """Writes examples; returns the command of ours, the Trainer's job, and a function to score."""
    import numpy as np

    from bertfam_tf.metrics import entity_scores
    from bertfam_tf.recipes.reading import expand, load_recipe
    from bertfam_tf.sources import resolve
    from tests.support.finetune_reference import read_texts, read_words, scores_of

    path = f"configs/bert/{name}.yaml"
    data, tags = load_recipe(path, []).data, name == "conll2003"
    end = "\n\n" if tags else "\n"
    part = 1.0
    for split in ("train", "dev"):
        lines = expand(getattr(data, split)).read_text("utf-8-sig").strip().split(end)
        count = min(examples, len(lines)) if split == "train" else round(part * len(lines))
        part = count / len(lines)
        (folder / split).write_text(end.join(lines[: count + 1]) + end, "utf-8")  # a header
    files = [f"data.{split}={folder / split}" for split in ("train", "dev")]
    recipe = load_recipe(path, files)
    read, settings = read_words if tags else read_texts, recipe.train
    rows = {split: read(recipe.data, split) for split in ("train", "dev")}
    flat = [x for _, y in rows.values() for row in y for x in (row if tags else [row])]
    names = [] if recipe.task == "TextRegressor" else sorted(set(flat))
    number: Any = names.index if names else float
    job: dict[str, Any] = {"tags": tags, "checkpoint": str(resolve(recipe.model.path))}
    job |= {"max_length": recipe.model.max_length, "num_labels": len(names) or 1}
    for split, (texts, labels) in rows.items():
        ids = [[*map(number, x)] if tags else number(x) for x in labels]
        job[split] = str(folder / f"{split}.json")
        Path(job[split]).write_text(json.dumps([texts, ids]), "utf-8")
    sizes = ("per_device_train_batch_size", "per_device_eval_batch_size")
    job["arguments"] = dict.fromkeys(sizes, settings.batch_size) | {
        "num_train_epochs": settings.epochs,
        "learning_rate": settings.learning_rate,
        "weight_decay": settings.weight_decay,
        "warmup_steps": settings.warmup,
        "adam_epsilon": settings.epsilon,
    }

    def score(found: list, labels: list) -> dict[str, float]:
        if tags:
            named = ([[names[i] for i in row] for row in rows] for rows in (labels, found))
            return entity_scores(*named)
        return scores_of(np.array(found), np.array(labels), not names)

    return ["-m", "bertfam_tf.cli", "train", path, *files], job, score


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--examples", type=int, default=10**9)
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=[*RECIPES])
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        train(json.loads(options.job))
        return
    from tests.support.texts import DATA
    from tools.bench import machine
    from tools.bench.cpu.report import table

    os.environ.setdefault("BERTFAM_DATA", str(DATA))
    available, lines = [*map(str, sorted(os.sched_getaffinity(0)))], []
    for name in options.recipes:
        for cores in options.cores:
            cells, own, chosen = [name, str(cores)], 0.0, ",".join(available[-cores:])
            with tempfile.TemporaryDirectory() as folder:
                ours, job, score = prepare(name, options.examples, Path(folder))
                for side in SIDES:
                    output = Path(folder, side)
                    job["output"] = str(output)
                    job["arguments"]["train_sampling_strategy"] = side
                    command = [*ours, f"output={output}"]
                    if side != "ours":
                        command = ["-m", "tools.recipes_speed", "--job", json.dumps(job)]
                    command = ["taskset", "-c", chosen, sys.executable, *command]
                    start = time.perf_counter()
                    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                    seconds = time.perf_counter() - start
                    file = output / ("metrics.json" if side == "ours" else "dev.json")
                    found = json.loads(file.read_text("utf-8"))
                    scores = found if side == "ours" else score(*found)
                    own = seconds if side == "ours" else own
                    ratio = "" if side == "ours" else f" ({own / seconds:.2f})"
                    cells.append(f"{seconds:.0f} s{ratio}, {100 * scores[RECIPES[name]]:.1f}")
                    print(name, cores, side, cells[-1], flush=True)
            lines.append(cells)
    count = f"the first {options.examples:,}" if options.examples < 10**9 else "all"
    names = ("tensorflow", "keras", "torch", "transformers", "accelerate")
    text = f"""# Whole recipes beside transformers' Trainer

`python -m tools.recipes_speed`, {datetime.date.today()}, {machine.cpu()} \
({", ".join(machine.vectors())}), {machine.versions(names)}.

MiniLM-L6, `configs/bert`, {count} examples. Seconds from process start to the saved model, with \
evaluation on the dev split; in brackets, our time divided by the Trainer's; then the score \
({", ".join(f"{recipe}: {metric}" for recipe, metric in RECIPES.items())}). Ours sorts windows of \
32 batches by length by default; the Trainer's default is a random order.

{table(["recipe", "cores", "ours", "Trainer", "Trainer, `group_by_length`"], lines)}
"""
    RESULT.write_text(text, "utf-8")
    print(text)


if __name__ == "__main__":
    main()
