"""Small recipes of all kinds of training, and the files that they read."""

ROWS = [("a good film", "pos"), ("the bad movie", "neg"), ("it is", "pos"), ("very dull", "neg")]
TEXT = "\n".join(["The good film. The bad plot!", "It is a film. It is dull.", ""] * 6)
TRAIN = {"epochs": 9, "batch_size": 2, "backup_steps": 1, "log_steps": 1, "minutes": 1}
SIZES = dict(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=16)
ELMO = {"filter_counts": [4, 4, 8], "hidden_size": 16, "cell_size": 16}


def pretraining(tiny, family, objective, format, **others):
    overrides = ELMO if family == "elmo" else SIZES
    return {
        "model": {
            "family": family,
            "size": "tiny",
            "tokenizer": "characters" if family == "elmo" else str(tiny),
            "overrides": overrides,
        },
        "data": {"train": ["text.txt"], "dev": ["text.txt"], "format": format, "length": 16},
        "objectives": {objective: 1.0},
        "train": {k: v for k, v in TRAIN.items() if k != "epochs" or "stages" not in others},
        **others,
    }


def recipes(tiny, smallest):
    """The command and the recipe of each kind of training."""
    data = {"train": "rows.tsv", "dev": "rows.tsv"}
    fine_tuning = {"model": {"path": str(smallest)}, "data": data, "train": TRAIN}
    stages = [{"steps": 9, "length": 8}, {"steps": 9}]
    terms = {"logits_error": {}}
    return {
        "fine_tuning": ("train", fine_tuning),
        "several tasks": (
            "train",
            {
                "model": {"path": str(smallest)},
                "tasks": {name: {"data": data} for name in ("film", "other")},
                "train": TRAIN,
            },
        ),
        "stream": ("pretrain", pretraining(tiny, "gpt2", "clm", "stream")),
        "sentences": ("pretrain", pretraining(tiny, "bert", "mlm", "full_sentences")),
        "stages": (
            "pretrain",
            pretraining(tiny, "bert", "mlm", "full_sentences", stages=stages),
        ),
        "words": ("pretrain", pretraining(tiny, "elmo", "bilm", "sentences")),
        "distillation": (
            "distill",
            {
                "teacher": "teacher/model",
                "student": {"num_layers": 1, "layers": "none"},
                "data": data,
                "stages": [{"terms": terms, "train": TRAIN}] * 2,
            },
        ),
    }


KINDS = ["fine_tuning", "several tasks", "stream", "sentences", "stages", "words", "distillation"]


def write_files(directory):
    """Writes the files that the recipes read, relative to a directory."""
    (directory / "text.txt").write_text(TEXT)
    rows = "".join(f"{text}\t{label}\n" for text, label in ROWS * 4)
    (directory / "rows.tsv").write_text("text\tlabel\n" + rows)
