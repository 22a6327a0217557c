"""tensorflow-datasets' own builders, whose downloads are replaced by files that were written here.

The files lie where the builders keep what they have downloaded, so that all that comes after the
download is theirs: unpacking, reading, features, storing.
"""

import io
import json
import tarfile
import zipfile

import numpy as np
import pytest

import bertfam_tf as bf
from bertfam_tf.data import as_value_errors, read_rows, targets
from bertfam_tf.data.published import Published
from bertfam_tf.recipes.reading import load_recipe
from bertfam_tf.recipes.submissions import write_submission

pytest.importorskip("importlib_resources")  # which etils, of tensorflow-datasets, forgets to name
tfds = pytest.importorskip("tensorflow_datasets")
tfds.disable_progress_bar()


def _zip(files):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return stream.getvalue()


def _tar(files):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return stream.getvalue()


@pytest.fixture
def downloaded(tmp_path):
    """Puts files where a data set's builder looks for its downloads; the data directory."""
    from tensorflow_datasets.core.download import resource

    def put(name, files):
        builder = tfds.builder(name, data_dir=tmp_path)
        for url, content in files.items():
            info = (builder.url_infos or {}).get(url)
            fname = resource.get_dl_fname(url, info.checksum if info else None)
            file = tmp_path / "downloads" / builder.name / fname
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
            file.with_name(f"{fname}.INFO").write_text(
                json.dumps(
                    {
                        "dataset_names": [builder.name],
                        "urls": [url],
                        "url_info": {"checksum": "0", "size": 1, "filename": url.split("/")[-1]},
                    }
                )
            )
        return str(tmp_path)

    return put


def _elements(rows):
    with as_value_errors():
        found = list(rows.dataset().as_numpy_iterator())
    assert len(found) == rows.count
    return found


GLUE = "https://dl.fbaipublicfiles.com/glue/data"
ROWS = "index\tsentence1\tsentence2\tlabel\n" + "".join(
    f'{i}\t"a {i}\t😀 {i}\t{label}\n'
    for i, label in enumerate(["entailment", "not_entailment"] * 20)
)


@pytest.mark.extended
def test_glue(downloaded):
    archive = _zip({f"RTE/{split}.tsv": ROWS for split in ("train", "dev")}
                   | {"RTE/test.tsv": "index\tsentence1\tsentence2\n0\tx\ty\n"})  # fmt: skip
    where = downloaded("glue/rte", {f"{GLUE}/RTE.zip": archive})
    names = ["entailment", "not_entailment"]
    rows = read_rows("validation", tfds="glue/rte", data_dir=where, target=targets.Name(names))
    found = _elements(rows)
    assert rows.count == 40
    pairs = {(f'"a {i}'.encode(), f"😀 {i}".encode(), names[i % 2].encode()) for i in range(40)}
    assert {(x["text"], x["text_pair"], y) for x, y in found} == pairs
    assert [x["text"] for x, _ in _elements(rows)] == [x["text"] for x, _ in found]
    assert read_rows("train[:10]", tfds="glue/rte", data_dir=where).count == 10
    swapped = {"text": "sentence2", "label": "label"}
    rows = read_rows("train", swapped, tfds="glue/rte", data_dir=where, target=targets.Name())
    assert {frozenset(x) for x, _ in _elements(rows)} == {frozenset(["text"])}
    assert rows.target.names == names
    with pytest.raises(ValueError, match=r"glue/rte test: row 0: There is no label"):
        read_rows("test", tfds="glue/rte", data_dir=where, target=targets.Name())
    with pytest.raises(ValueError, match="Unknown split 'dev'"):
        read_rows("dev", tfds="glue/rte", data_dir=where)
    with pytest.raises(ValueError, match="Unknown feature 'sentence'"):
        Published("glue/rte", {"text": "sentence"}, where)


def test_glue_of_one_text_and_numbers(downloaded):
    text = "0\t1\t\tfine\n0\t0\t*\tbad it\n"
    where = downloaded(
        "glue/cola",
        {f"{GLUE}/CoLA.zip": _zip({f"CoLA/{s}.tsv": text for s in ("train", "dev")}
                                  | {"CoLA/test.tsv": "index\tsentence\n0\tx\n"})},
    )  # fmt: skip
    found = _elements(read_rows("train", tfds="glue/cola", data_dir=where, target=targets.Name()))
    assert sorted((x["text"], y) for x, y in found) == [
        (b"bad it", b"unacceptable"),
        (b"fine", b"acceptable"),
    ]
    rows = "index\tsentence1\tsentence2\tscore\n0\ta\tb\t2.5\n"
    where = downloaded("glue/stsb", {
        f"{GLUE}/STS-B.zip": _zip({f"STS-B/{s}.tsv": rows for s in ("train", "dev", "test")})
    })  # fmt: skip
    found = _elements(read_rows("train", tfds="glue/stsb", data_dir=where, target=targets.Number()))
    assert found == [({"text": b"a", "text_pair": b"b"}, b"2.5")]


@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_squad(downloaded, version):
    def question(name, *answers):
        found = [{"text": text, "answer_start": start} for text, start in answers]
        return {"id": name, "question": f"q{name}", "answers": found, "is_impossible": not found}

    questions = [question("1", ("😀 b", 2), ("b", 4)), question("2", ("é", 0))]
    questions += [question("3")] if version == "2.0" else []
    article = {"title": "t", "paragraphs": [{"context": "é 😀 b", "qas": questions}]}
    content = json.dumps({"data": [article]})
    url = "https://rajpurkar.github.io/SQuAD-explorer/dataset"
    name = f"squad/v{version}"
    where = downloaded(name, {f"{url}/{s}-v{version}.json": content for s in ("train", "dev")})
    rows = read_rows("validation", tfds=name, data_dir=where, target=targets.Answers())
    found = {
        x["question"].decode(): (
            x["context"].decode(),
            y["answer"].decode(),
            int(y["answer_start"]),
            [a.decode() for a in y["answers"]],
        )
        for x, y in _elements(rows)
    }
    assert found == {
        "q1": ("é 😀 b", "😀 b", 2, ["😀 b", "b"]),
        "q2": ("é 😀 b", "é", 0, ["é", ""]),
        **({"q3": ("é 😀 b", "", -1, ["", ""])} if version == "2.0" else {}),
    }
    assert {row.id for row in rows} == {q["id"] for q in questions}


def test_conll2003(downloaded):
    text = "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\nPeter NNP B-NP B-PER\n"
    archive = _zip({f"{name}.txt": text for name in ("train", "valid", "test")})
    where = downloaded("conll2003", {"https://data.deepai.org/conll2003.zip": archive})
    rows = read_rows("dev", tfds="conll2003", data_dir=where, target=targets.Tags())
    assert {(x["text"], y) for x, y in _elements(rows)} >= {(b"EU rejects", b"B-ORG O")}
    other = {"text": "tokens", "label": "pos"}
    rows = read_rows("dev", other, tfds="conll2003", data_dir=where, target=targets.Tags())
    assert {y for _, y in _elements(rows)} >= {b"NNP VBZ"}


def test_race(downloaded):
    passage = json.dumps(
        {
            "id": "middle1.txt",
            "article": "a",
            "questions": ["q _", "r"],
            "options": [["1", "2", "3", "4"], ["5", "6", "7", "8"]],
            "answers": ["D", "A"],
        }
    )
    archive = _tar({f"RACE/{s}/middle/1.txt": passage for s in ("train", "dev", "test")})
    where = downloaded(
        "race/middle", {"http://www.cs.cmu.edu/~glai1/data/race/RACE.tar.gz": archive}
    )
    rows = read_rows("test", tfds="race/middle", data_dir=where, target=targets.Choice())
    assert [
        (x["text"], x["question"], x["choices"].tolist(), int(y)) for x, y in _elements(rows)
    ] == [(b"a", b"q _", [b"1", b"2", b"3", b"4"], 3), (b"a", b"r", [b"5", b"6", b"7", b"8"], 0)]


@pytest.mark.extended
def test_xnli(downloaded):
    # The features of premises are all fifteen languages.
    languages = "ar bg de el en es fr hi ru sw th tr ur vi zh".split()
    lines = ["language\tgold_label\tpairID\tsentence1\tsentence2"]
    lines += [f"{each}\tneutral\t1\tp {each}\th {each}" for each in languages]
    text = "\n".join(lines) + "\n"
    archive = _zip({f"XNLI-1.0/xnli.{split}.tsv": text for split in ("dev", "test")})
    where = downloaded("xnli", {"https://cims.nyu.edu/~sbowman/xnli/XNLI-1.0.zip": archive})
    rows = read_rows("test", tfds="xnli", data_dir=where, target=targets.Name())
    assert _elements(rows) == [({"text": b"p en", "text_pair": b"h en"}, b"neutral")]
    german = {"text": "premise.de", "text_pair": "hypothesis.de", "label": "label"}
    rows = read_rows("test", german, tfds="xnli", data_dir=where, target=targets.Name())
    assert _elements(rows) == [({"text": b"p de", "text_pair": b"h de"}, b"neutral")]
    german["text_pair"] = "hypothesis.xx"
    with pytest.raises(ValueError, match=r"xnli test: row 0: Unknown language 'xx'"):
        read_rows("test", german, tfds="xnli", data_dir=where, target=targets.Name())


class Reviews(tfds.core.GeneratorBasedBuilder):
    """A data set of a user's own, whose columns nobody knows."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {
            "body": {"words": tfds.features.Text()},
            "stars": tfds.features.Scalar(np.int64),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        yield 0, {"body": {"words": "a\0b"}, "stars": 4}


def test_a_data_set_of_ones_own(tmp_path):
    with pytest.raises(
        ValueError, match=r"data\.columns must specify which features of reviews to use: bo"
    ):
        Published("reviews", None, str(tmp_path))
    columns = {"text": "body.words", "label": "stars"}
    rows = read_rows(
        "train", columns, tfds="reviews", data_dir=str(tmp_path), target=targets.Number()
    )
    assert _elements(rows) == [({"text": b"a\0b"}, b"4")]


def test_a_data_set_that_nobody_knows(tmp_path):
    with pytest.raises(ValueError, match="tensorflow-datasets has no gleu/mrpc"):
        Published("gleu/mrpc", None, str(tmp_path))


@pytest.mark.extended
def test_a_submission_has_the_order_of_glue(downloaded, tmp_path, smallest):
    """tensorflow-datasets shuffles a split when it prepares it."""
    labelled = "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n1\tc\td\tnot_entailment\n"
    tests = "index\tsentence1\tsentence2\n" + "".join(f"{i}\tgood {i}\tx\n" for i in range(30))
    files = {"RTE/train.tsv": labelled, "RTE/dev.tsv": labelled, "RTE/test.tsv": tests}
    where = downloaded("glue/rte", {f"{GLUE}/RTE.zip": _zip(files)})
    data = {"train": "train", "test": "test", "tfds": "glue/rte", "data_dir": where}
    recipe = {"output": str(tmp_path / "run"), "model": {"path": str(smallest)}, "data": data}
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    task = bf.TextClassifier.from_pretrained(smallest, labels=["not_entailment", "entailment"])
    assert write_submission(task, load_recipe(tmp_path / "recipe.yaml"), tmp_path / "RTE.tsv") == 30
    lines = (tmp_path / "RTE.tsv").read_text().splitlines()[1:]
    answers = task.predict([(f"good {i}", "x") for i in range(30)])
    assert lines == [f"{i}\t{answer['label']}" for i, answer in enumerate(answers)]
