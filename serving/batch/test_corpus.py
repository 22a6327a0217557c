"""Forming examples of pretraining, on Beam's local runner; make batch-test runs this."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tensorflow as tf

from serving.batch import corpus

ROOT = Path(__file__).parents[2]
TOKENIZER = ROOT / "tests" / "goldens" / "bert" / "classifier"
WORKERS = ("--direct_num_workers", "4", "--direct_running_mode", "multi_processing")


@pytest.fixture
def texts(tmp_path):
    draw = random.Random(0)
    words = ["good", "bad", "film", "plot", "the", "dull"]
    for name in ("a", "b", "c"):
        lines = [
            " ".join(draw.choices(words, k=draw.randint(2, 12))) + "."
            if draw.random() < 0.8
            else ""
            for _ in range(2000)
        ]
        (tmp_path / f"{name}.txt").write_text("\n".join(lines))
    return tmp_path / "*.txt"


def arguments(texts, output, *others):
    given = ("--input", texts, "--output", output, "--tokenizer", TOKENIZER, "--length", "32")
    given += ("--format", "segment_pairs", "--unit-bytes", "10000", *others)
    return [sys.executable, *map(str, (corpus.__file__, *given))]


def run(*given):
    """The last line that it says."""
    done = subprocess.run(arguments(*given), capture_output=True, text=True, timeout=300)
    return (done.stdout if done.returncode == 0 else done.stderr).splitlines()[-1]


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_shards_are_the_same_with_any_number_of_workers_and_after_kills(texts, tmp_path):
    said = run(texts, tmp_path / "one")
    whole = content(tmp_path / "one")
    card = json.loads(whole.pop("card.json"))
    counts = card["counts"]
    assert said == (
        f"{counts['documents']:,} documents, {counts['sentences']:,} sentences, "
        f"{counts['tokens']:,} tokens, {counts['examples']:,} examples"
    )
    assert len(card["shards"]) > 5
    assert sorted(whole) == [row["file"] for row in card["shards"]]
    labels = counts["labels"]
    assert 0.4 < labels["1"] / (labels["0"] + labels["1"]) < 0.5
    records = tf.data.TFRecordDataset([str(tmp_path / "one" / name) for name in sorted(whole)])
    assert sum(1 for _ in records) == counts["examples"]
    assert run(texts, tmp_path / "four", *WORKERS) == said
    assert content(tmp_path / "four") == content(tmp_path / "one")

    killed = tmp_path / "killed"
    for shards in (1, 3):
        process = subprocess.Popen(arguments(texts, killed), start_new_session=True)
        while process.poll() is None and len(list(killed.glob("counts-*"))) < shards:
            time.sleep(0.001)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert not (killed / "card.json").exists()
    assert run(texts, killed) == said
    assert content(killed) == content(tmp_path / "one")
    assert run(texts, killed) == said
    assert "seed is 0, expected 1" in run(texts, killed, "--seed", "1")


def test_errors(texts, tmp_path, monkeypatch):
    for inputs, others, message in (
        (texts, ("--length", "3"), "length must leave room for two tokens"),
        (texts, ("--unit-bytes", "0"), "must be at least 1 byte"),
        (tmp_path / "none-*.txt", (), "There is no file"),
    ):
        monkeypatch.setattr(sys, "argv", arguments(inputs, tmp_path / "no", *others)[1:])
        with pytest.raises(SystemExit, match=message):
            corpus.main()


def test_a_data_set_of_tensorflow_datasets(tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets")
    features = tfds.features.FeaturesDict({"text": tfds.features.Text()})
    rows = [{"text": f"good film {i}.\n\nbad plot."} for i in range(50)]
    tfds.dataset_builders.store_as_tfds_dataset(
        name="reviews",
        version="1.0.0",
        data_dir=tmp_path / "data",
        split_datasets={
            "train": tf.data.Dataset.from_generator(
                lambda: rows, output_signature={"text": tf.TensorSpec([], tf.string)}
            )
        },
        features=features,
    )
    command = [sys.executable, corpus.__file__, "--tfds", "reviews:1.0.0", "--data-dir"]
    command += [tmp_path / "data", "--tokenizer", TOKENIZER, "--output", tmp_path / "out"]
    command += ["--unit-bytes", "1000"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert (card["counts"]["documents"], card["counts"]["sentences"]) == (50, 100)
    assert len(card["shards"]) > 1
    assert card["files"][0]["bytes"] > 0
