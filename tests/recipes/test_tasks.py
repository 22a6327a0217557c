"""A recipe of each kind of task, on a few rows of the format that it is published in."""

import json

import pytest
import yaml

import bertfam_tf as bf
from bertfam_tf.cli import main
from bertfam_tf.recipes import evaluate, run
from bertfam_tf.recipes.reading import load_recipe

SQUAD = {
    "data": [
        {
            "paragraphs": [
                {
                    "context": "a good film and a bad plot",
                    "qas": [
                        {"id": "1", "question": "what is bad",
                         "answers": [{"text": "plot", "answer_start": 22}]},
                        {"id": "2", "question": "what is good",
                         "answers": [{"text": "film", "answer_start": 7},
                                     {"text": "good film", "answer_start": 2}]},
                    ],
                }
            ]
        }
    ]
}  # fmt: skip
RACE = {
    "article": "a good film",
    "questions": ["it is _", "what"],
    "options": [["good", "bad", "long", "dull"]] * 2,
    "answers": ["A", "D"],
}
CASES = {
    "TextRegressor": ("t.tsv", "text\ttext_pair\tlabel\na\tb\t2.5\na film\ta plot\t0\nbad\tc\t4\n",
                      {"text_pair": "text_pair"}),
    "MultiLabelClassifier": ("t.csv", 'text,label\na film,"x,y"\nbad,\nplot,x\n', {}),
    "TokenTagger": ("eng.train", "a O\ngood I-X\n\nfilm I-X\n", {"format": "conll",
                                                                "tag_scheme": "iob2"}),
    "SpanQA": ("t.json", json.dumps(SQUAD), {}),
    "Reranker": ("t.tsv", "query\tdocument\tlabel\na\tb\t1\na film\ta plot\t0\nbad\tc\t0.5\n",
                 {"columns": {"query": "query", "document": "document", "label": "label"}}),
    "MultipleChoice": ("t.txt", json.dumps(RACE), {"format": "race"}),
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_a_run_of_each_task(name, smallest, tmp_path, capsys):
    file, content, data = CASES[name]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / file).write_text(content)
    path = str(tmp_path / "data" / ("" if name == "MultipleChoice" else file))
    recipe = {
        "output": str(tmp_path / "run"),
        "model": {"path": str(smallest)},
        "task": name,
        "data": {"train": path, "dev": path, "test": path, **data},
        "train": {"epochs": 1, "batch_size": 2},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    metrics = run(load_recipe(tmp_path / "recipe.yaml"))
    assert "loss" in metrics or len(metrics) > 1
    task = bf.load(tmp_path / "run" / "model")
    assert type(task).__name__ == name
    found = evaluate(task, load_recipe(tmp_path / "recipe.yaml"), "test")
    assert found == pytest.approx(metrics, rel=1e-4, nan_ok=True)
    output = tmp_path / "out.jsonl"
    arguments = ["--input", path, "--output", str(output)]
    arguments += ["--format", data["format"]] if "format" in data else []
    assert main(["predict", str(tmp_path / "run"), *arguments]) == 0
    rows = [json.loads(line) for line in output.open()]
    assert len(rows) == (2 if name in ("SpanQA", "MultipleChoice", "TokenTagger") else 3)
    assert [row.get("id") for row in rows][:1] == (["1"] if name == "SpanQA" else [None])
