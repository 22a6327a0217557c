"""The documentation, without building it: links, tables of contents, pages made from code."""

import json
import re
import subprocess

import pytest

import bertfam_tf as bf
from bertfam_tf import models, registry
from tools.docs import links, reference
from tools.docs.signatures import signatures

PAGES = sorted((links.ROOT / "docs").rglob("*.md"))


@pytest.fixture(scope="module")
def written():
    return reference.pages()


def test_relative_links_lead_somewhere():
    # Of all Markdown files that git has, and new ones.
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=links.ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    files = [links.ROOT / name for name in listed if (links.ROOT / name).is_file()]
    assert len(files) > len(PAGES)
    assert [line for file in files for line in links.broken_links(file)] == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[a](missing.md)", "there is no missing.md"),
        ("[a](../README.md#no-such)", "README.md has no heading #no-such"),
        ("[a](#here)\n\n## There", "docs/page.md has no heading #here"),
        ("![a](missing.png)", "there is no missing.png"),
        ("[a](../../outside.md)", "there is no ../../outside.md"),
        ("[a](#a-heading-1)\n\n# A heading\n\n## A `heading`", None),
        ("```\n[a](missing.md)\n```", None),
        ("[a](https://example.com/missing.md)", None),
        ("[a](../serving)", None),
    ],
)
def test_a_link_that_leads_nowhere_is_found(tmp_path, monkeypatch, text, problem):
    monkeypatch.setattr(links, "ROOT", tmp_path)
    for name in ("docs/page.md", "README.md", "serving/README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("# Title\n", "utf-8")
    page = tmp_path / "docs/page.md"
    page.write_text(text, "utf-8")
    expected = [] if problem is None else [f"docs/page.md:1: {problem}"]
    assert links.broken_links(page) == expected


def test_links_are_those_of_the_new_place(tmp_path, monkeypatch):
    monkeypatch.setattr(links, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "table.md").write_text("# A table\n", "utf-8")
    page = tmp_path / "docs/page.md"
    page.write_text("[a](../table.md#a-table) [b](#c)\n# C\n`````\n[a](x.md)\n`````\n", "utf-8")
    text, linked = links.moved(page, lambda file: file.name)
    assert text == "[a](table.md#a-table) [b](#c)\n# C\n`````\n[a](x.md)\n`````\n"
    assert linked == [tmp_path / "table.md", page]


def test_every_page_is_in_a_table_of_contents():
    """From the index on, as Sphinx' own check of the build."""
    found, waiting = set(), [links.ROOT / "docs/index.md"]
    while waiting:
        page = waiting.pop()
        if page.is_file() and page not in found:
            found.add(page)
            for block in re.findall(r"```{toctree}\n(.*?)```", page.read_text("utf-8"), re.S):
                names = [line for line in block.split("\n") if line and not line.startswith(":")]
                waiting += [page.parent / f"{name}.md" for name in names]
    assert found == set(PAGES)


@pytest.mark.parametrize("family", models.families())
def test_each_family_has_a_page(written, family):
    text = written[f"families/{family}.md"]
    record = registry.get(family)
    assert all(f"| `{size}` |" in text for size in record.sizes)
    assert f"\n{family}\n" in written["families/index.md"]


@pytest.mark.parametrize("task", reference.task_names())
def test_each_task_has_a_page(written, task):
    text = written[f"tasks/{task}.md"]
    assert f".. autoclass:: bertfam_tf.{task}\n" in text
    assert "| `serving_default` |" in text
    assert f"\n{task}\n" in written["tasks/index.md"]


def test_pages_of_code_have_all_public_names(written):
    names = set(bf.__all__) - {"__version__"} - set(reference.task_names())
    page = written["api/bertfam_tf.md"]
    assert [name for name in names if f":: bertfam_tf.{name}\n" not in page] == []


@pytest.mark.full
def test_signatures_are_those_of_the_code():
    stored = json.loads(reference.SIGNATURES.read_text("utf-8"))
    assert json.loads(json.dumps(signatures())) == stored
