"""Fine-tunes, evaluates, exports, serves and queries a model with real weights: `make quickstart`.

All output is in runs/quickstart.
"""

import json
import shutil
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path

RECIPE = "configs/bert/support_desk.yaml"
OUTPUT = Path("runs/quickstart")
QUESTIONS = [
    "My laptop died and the new one arrives tomorrow. How do I get everything onto it?",
    "you took the money twice this month, I want one of them back",
    "someone in another country seems to be logged in as me",
]


def main() -> None:
    from rich.console import Console

    from bertfam_tf import recipes, tasks
    from bertfam_tf.recipes.reading import load_recipe

    console = Console(width=110)
    clock = time.perf_counter()

    console.rule("1. Fine-tune MiniLM-L6 on the messages of a support desk")
    shutil.rmtree(OUTPUT, ignore_errors=True)
    recipe = load_recipe(RECIPE, [f"output={OUTPUT}"])
    recipes.run(recipe)
    task = tasks.load(OUTPUT / "model")

    console.rule("2. Evaluate on messages it has not seen")
    accuracy = _evaluate(console, task, recipes.read_split(recipe.data, "test"))

    console.rule("3. Export: raw text in, answers out")
    version = task.export(OUTPUT / "export")
    console.print(f"{version}: {_megabytes(version):.0f} MB, reloaded and compared")

    console.rule("4. Serve it, and ask over HTTP")
    answers = _ask(console, OUTPUT / "export")
    seconds = time.perf_counter() - clock
    console.rule()
    console.print(
        f"held-out accuracy {accuracy:.3f}, {len(answers)} answers served, {seconds:.0f} s in all"
    )


def _evaluate(console, task, test) -> float:
    from rich.table import Table

    texts, labels = zip(
        *((row["text"].decode(), label.decode()) for row, label in test.as_numpy_iterator()),
        strict=True,
    )
    found = [answer["label"] for answer in task.predict(list(texts))]
    table = Table("intent", "right", "", "taken for")
    for name in task.labels:
        got = [f for f, label in zip(found, labels, strict=True) if label == name]
        right = got.count(name)
        wrong = Counter(f for f in got if f != name)
        bar = "█" * (right // 2) + "░" * ((len(got) + 1) // 2 - right // 2)
        mistakes = ", ".join(f"{other} {n}" for other, n in wrong.most_common())
        table.add_row(name, f"{right}/{len(got)}", bar, mistakes)
    console.print(table)
    hits = [f == label for f, label in zip(found, labels, strict=True)]
    # The messages of an intent are consecutive, the unusual ones first.
    size = len(labels) // len(task.labels)
    unusual = [hit for i, hit in enumerate(hits) if i % size < size // 2]
    everyday = [hit for i, hit in enumerate(hits) if i % size >= size // 2]
    for what, part in (("everyday", everyday), ("unusual", unusual), ("all", hits)):
        console.print(f"accuracy on {what} messages: {sum(part) / len(part):.3f}")
    return sum(hits) / len(hits)


def _megabytes(directory: Path) -> float:
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file()) / 1e6


def _ask(console, export: Path) -> list[dict]:
    command = [sys.executable, "-m", "bertfam_tf.cli", "serve", str(export), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            ready = server.stdout.readline()
            console.print(ready.strip())
            model = next(word for word in ready.split() if word.startswith("http"))
            request = urllib.request.Request(
                f"{model}:predict", json.dumps({"instances": QUESTIONS}).encode(), method="POST"
            )
            with urllib.request.urlopen(request, timeout=60) as response:
                answers = json.load(response)["predictions"]
        finally:
            server.terminate()
    for question, answer in zip(QUESTIONS, answers, strict=True):
        console.print(f"  {question}\n    → [bold]{answer['label']}[/] {max(answer['scores']):.3f}")
    return answers


if __name__ == "__main__":
    main()
