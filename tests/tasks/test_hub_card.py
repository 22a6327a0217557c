"""The README of a published task, and its upload to the hub."""

import json
import re
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

import bertfam_tf as bf
from bertfam_tf.cli import main
from bertfam_tf.sources import CheckpointError

SCORES = {
    "accuracy": 0.9375,
    "loss": 0.25,
    "samples": {"a": "b"},
    "runs": None,
    "bad": float("nan"),
}
ABOUT = {"language": "en", "license": "apache-2.0", "base_model": "org/model", "dataset": "SST-2"}


@pytest.fixture
def task(smallest):
    return bf.TextClassifier.from_pretrained(smallest)


@pytest.mark.extended
def test_the_card(task, tmp_path):
    """The hub reads its front matter; people read labels, scores, and code that runs."""
    task.save_pretrained(tmp_path / "desk", metrics=SCORES, **ABOUT)
    card = ModelCard.load(tmp_path / "desk" / "README.md")
    assert card.data.language == "en"
    assert card.data.license == "apache-2.0"
    assert card.data.base_model == "org/model"
    assert card.data.library_name == "transformers"
    assert card.data.pipeline_tag == "text-classification"
    results = [(r.metric_type, r.metric_value, r.dataset_name) for r in card.data.eval_results]
    assert results == [("accuracy", 0.9375, "SST-2"), ("loss", 0.25, "SST-2")]
    assert "| 0 | negative |" in card.text
    assert "| accuracy | 0.9375 |" in card.text
    assert "bad" not in card.text
    theirs, ours = re.findall(r"```python\n(.*?)```", card.text, re.DOTALL)
    assert "pipeline('text-classification', model='desk')" in theirs
    assert "task.predict(['a fine film'])" in ours
    names: dict = {}
    exec(ours.replace("'desk'", repr(str(tmp_path / "desk"))), names)
    assert names["task"].predict(["good"]) is not None
    # The model is read as before.
    assert bf.TextClassifier.from_pretrained(tmp_path / "desk").labels == task.labels


def test_a_card_without_what_is_unknown(task, tmp_path):
    task.save_pretrained(tmp_path / "desk")
    card = ModelCard.load(tmp_path / "desk" / "README.md")
    assert card.data.language is None
    assert card.data.eval_results is None
    assert "## Scores" not in card.text


def test_labels_that_are_markup(smallest, tmp_path):
    labels = ["a|b", "<script>", "---\nx: y"]
    task = bf.TextClassifier.from_pretrained(smallest, labels=labels)
    task.save_pretrained(tmp_path / "desk", language=["en", "de"])
    card = ModelCard.load(tmp_path / "desk" / "README.md")
    assert card.data.language == ["en", "de"]
    assert "| 0 | a\\|b |\n| 1 | &lt;script> |\n| 2 | --- x: y |" in card.text


def test_other_libraries(smallest, tmp_path):
    bf.TextEmbedder.from_pretrained(smallest).save_pretrained(tmp_path / "vectors")
    card = ModelCard.load(tmp_path / "vectors" / "README.md")
    assert card.data.library_name == "sentence-transformers"
    assert card.data.pipeline_tag == "sentence-similarity"
    assert "SentenceTransformer('vectors')" in card.text


def test_a_run_with_its_scores(task, tmp_path, capsys):
    """``bertfam convert`` reads the run's metrics.json."""
    task.save(tmp_path / "run" / "model")
    (tmp_path / "run" / "recipe.yaml").write_text("{}")
    (tmp_path / "run" / "metrics.json").write_text(json.dumps({"accuracy": 0.5}))
    source, target = str(tmp_path / "run"), str(tmp_path / "out")
    assert main(["convert", source, target, "--language", "en", "--dataset", "desk"]) == 0
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert [r.metric_value for r in card.data.eval_results] == [0.5]
    assert main(["convert", target, str(tmp_path / "again"), "--license", "mit"]) == 2
    assert "--license is for saved tasks" in capsys.readouterr().err


class Api:
    """Records what ``huggingface_hub.HfApi`` would upload."""

    def __init__(self):
        self.calls = []

    def create_repo(self, **arguments):
        self.calls.append(("create_repo", arguments))

    def upload_folder(self, folder_path, **arguments):
        names = sorted(path.name for path in Path(folder_path).iterdir())
        card = (Path(folder_path) / "README.md").read_text("utf-8")
        self.calls.append(("upload_folder", {**arguments, "names": names, "card": card}))
        return "https://huggingface.co/org/desk/commit/1"


def test_push_to_hub(task):
    api = Api()
    url = task.push_to_hub("org/desk", private=True, api=api, language="en")
    assert url == "https://huggingface.co/org/desk/commit/1"
    (first, created), (second, uploaded) = api.calls
    assert (first, second) == ("create_repo", "upload_folder")
    assert created == {"repo_id": "org/desk", "private": True, "exist_ok": True}
    assert {"README.md", "config.json", "model.safetensors"} <= set(uploaded["names"])
    assert uploaded["repo_id"] == "org/desk"
    assert "model='org/desk'" in uploaded["card"]
    with pytest.raises(TypeError, match="licence"):
        task.push_to_hub("org/desk", api=api, licence="mit")


def test_what_cannot_be_published_creates_no_repository(smallest):
    api = Api()
    task = bf.FewShotClassifier.from_pretrained(smallest, ["a", "b"])
    with pytest.raises(CheckpointError, match=r"embedder\.save_pretrained"):
        task.push_to_hub("org/desk", api=api)
    assert not api.calls
