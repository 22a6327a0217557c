"""`make data`, with local copies of the files."""

import hashlib
import io
import json
import tarfile
import zipfile
from dataclasses import replace

import pytest

from tools import fetch_data
from tools.fetch_data import DERIVED, Source, fetch


def _sha256(content):
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def served(tmp_path):
    """Writes a file and returns its address."""

    def write(name, content):
        (tmp_path / name).write_bytes(content)
        return (tmp_path / name).as_uri()

    return write


def _zip(**members):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, text in members.items():
            archive.writestr(name.replace("__", "/"), text)
    return made.getvalue()


def _tar(members):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return made.getvalue()


def test_files_and_members_of_archives(data, served):
    zipped, packed = served("a.zip", _zip(SET__a="one")), served("b.tgz", _tar({"x/b": b"two"}))
    sources = [
        Source("set/a", _sha256(b"one"), zipped, "SET/a"),
        Source("set/b", _sha256(b"two"), packed, "x/b"),
        Source("c", _sha256(b"three"), served("c", b"three")),
    ]
    assert fetch(sources, data) == []
    found = {str(path.relative_to(data)): path.read_bytes() for path in data.rglob("?")}
    assert found == {"set/a": b"one", "set/b": b"two", "c": b"three"}
    assert not (data / "sha256.json").exists()


def test_existing_files_are_kept(data):
    data.mkdir()
    (data / "a").write_text("mine")
    assert fetch([Source("a", _sha256(b"theirs"), "https://nowhere.invalid/a")], data) == []
    assert (data / "a").read_text() == "mine"


def test_other_content_is_refused(data, served):
    (problem,) = fetch([Source("a", _sha256(b"one"), served("a", b"two"))], data)
    assert problem == f"a: its SHA-256 is {_sha256(b'two')}, not {_sha256(b'one')}"
    assert not (data / "a").exists()


def test_an_unknown_digest_is_remembered(data, served, capsys):
    url = served("a", b"one")
    assert fetch([Source("a", "", url)], data) == []
    assert _sha256(b"one") in capsys.readouterr().out
    assert json.loads((data / "sha256.json").read_text()) == {"a": _sha256(b"one")}
    (data / "a").unlink()
    served("a", b"two")
    (problem,) = fetch([Source("a", "", url)], data)
    assert problem.endswith(f"not {_sha256(b'one')}")


def test_one_missing_address_does_not_stop_the_others(data, served, tmp_path):
    archive = served("a.zip", _zip(a="one"))
    sources = [
        Source("gone", "", (tmp_path / "gone").as_uri()),
        Source("no member", "", archive, "b"),
        Source("no archive", "", served("plain", b"text"), "b"),
        Source("no source", "", "gone", "=mrpc-test"),
        Source("a", "", archive, "a"),
    ]
    problems = fetch(sources, data)
    assert [problem.partition(":")[0] for problem in problems] == [s.path for s in sources[:4]]
    assert (data / "a").read_bytes() == b"one"


def test_derived_files(data, served):
    nli = "language\tgold_label\tsentence1\tsentence2\nde\tneutral\ta\tb\nen\tneutral\tc\td\n"
    passages = {f"RACE/dev/{level}/1.txt": b"{}" for level in ("high", "middle")}
    articles = [{"paragraphs": [{"qas": [{"id": f"{x}-1"}]}]} for x in ("thai", "english")]
    sources = [
        Source("en.tsv", "", served("n.zip", _zip(**{"XNLI-1.0__xnli.dev.tsv": nli})), "=xnli-en"),
        Source("race.tar.gz", "", served("r.tar.gz", _tar(passages)), "=race-middle"),
        Source("qa", "", served("q", json.dumps({"data": articles}).encode()), "=tydiqa-english"),
    ]
    assert fetch(sources, data) == []
    assert (data / "en.tsv").read_text() == "c\td\tneutral\n"
    with tarfile.open(data / "race.tar.gz") as archive:
        assert archive.getnames() == ["RACE/dev/middle/1.txt"]
    assert json.loads((data / "qa").read_text())["data"] == articles[1:]


def test_the_table(monkeypatch, data, capsys):
    table = fetch_data.read_table()
    paths = [source.path for source in table]
    assert len(set(paths)) == len(paths)
    assert {s.part[1:] for s in table if s.part.startswith("=")} == DERIVED.keys()
    for i, source in enumerate(table):
        assert len(source.sha256) in (0, 64)
        assert "://" in source.url or source.url in paths[:i]
    monkeypatch.setattr(fetch_data, "DATA", data)
    with pytest.raises(SystemExit):
        fetch_data.main(["glue/sst2"])
    assert "has nothing under glue/sst2" in capsys.readouterr().err


def test_every_known_digest(real_data, data, served):
    """The whole table, from archives that the test creates."""
    sources = [source for source in fetch_data.read_table() if source.sha256]
    members, made_of = {}, {}
    for source in sources:
        if source.part and not source.part.startswith("="):
            file = real_data(source.path)
            members.setdefault(source.url, {})[source.part.replace("/", "__")] = file.read_bytes()
    for i, (url, files) in enumerate(members.items()):
        made_of[url] = served(f"{i}.zip", _zip(**files))
    copies = [
        replace(s, url=made_of.get(s.url, s.url if "://" not in s.url else _own(real_data, s)))
        for s in sources
    ]
    assert fetch(copies, data) == []
    assert sum(path.is_file() for path in data.rglob("*")) == len(sources)


def _own(real_data, source):
    return real_data(source.path).as_uri()
