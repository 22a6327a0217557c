"""Pages show hostile texts as text: no script of theirs runs, and what follows keeps its order."""

import json
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest

from bertfam_serve.ui_answers import MarkedText, NamedValue, Scores, TextPart
from bertfam_serve.ui_html import STYLE, markup
from bertfam_tf.analysis.page import write_page
from bertfam_tf.analysis.report import Report
from bertfam_tf.attention_html import attention_html, page

TEXTS = [
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "<!--<script>",
    "\" onmouseover='alert(1)' x=\"",
    "a\u2028b\u2029c\x85d",
    "\u202eabc\u2066",
    "\x00\x1b[31m\x07",
    "\ud800 half",
    "{{ x }} ${x} \\u003cscript\\u003e",
]


class Elements(HTMLParser):
    """The tags, attributes and texts of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attributes]

    def handle_data(self, data):
        self.text.setdefault(self.tags[-1] if self.tags else "", []).append(data)


def _utf8(text):
    return text.encode("utf-8", "replace").decode()


def _plain(make):
    """The tags and attributes of a page of harmless texts, which those of others must equal."""
    return Elements(make(["plain"] * len(TEXTS)))


@pytest.fixture(params=["attention", "words", "report", "answer"])
def make(request, tmp_path):
    return {"attention": _attention, "words": _words, "report": _report, "answer": _answer}[
        request.param
    ](tmp_path)


def _attention(tmp_path):
    layers = [np.ones((1, len(TEXTS), len(TEXTS)), "float32")]
    return lambda texts: page("Attention", attention_html(texts, layers))


def _words(tmp_path):
    def made(texts):
        words = [(SimpleNamespace(text=text), 0.5) for text in texts]
        found = SimpleNamespace(words=words, target=texts[0], baseline=0.0, score=1.0)
        return write_page(tmp_path / "words.html", None, found).read_text("utf-8")

    return made


def _report(tmp_path):
    def made(texts):
        count = len(texts)
        scores = np.eye(count)[::-1]
        labels = [f"{text} {i}" for i, text in enumerate(texts)]
        texts = [f"{text} {i // 2}" if "plain" in text else text for i, text in enumerate(texts)]
        report = Report(labels, texts, np.arange(count), scores)
        return report.write(tmp_path / "report.html", texts[0]).read_text("utf-8")

    return made


def _answer(tmp_path):
    def made(texts):
        parts = [TextPart(text, text if i % 2 else "", 0.5) for i, text in enumerate(texts)]
        items = [(text, 0.5) for text in texts]
        values = [NamedValue(text, text) for text in texts]
        return markup([MarkedText(parts), Scores(texts[0], items), *values])

    return made


def test_texts_add_no_elements(make):
    found = Elements(make(TEXTS))
    plain = _plain(make)
    assert set(found.tags) == set(plain.tags)
    assert found.tags.count("script") == plain.tags.count("script")
    assert set(found.attributes) == set(plain.attributes)


def test_tokens_arrive_in_the_script(tmp_path):
    found = Elements(_attention(tmp_path)(TEXTS))
    assert json.loads(found.text["script"][0])["tokens"] == TEXTS
    assert not [char for char in found.text["script"][0] if ord(char) > 126 or char == "<"]


def test_words_arrive_and_end_their_direction(tmp_path):
    content = _words(tmp_path)(TEXTS)
    shown = [text.replace("\x85", "\x85") for text in Elements(content).text["span"]]
    assert [text for text in shown if text.strip()] == [_utf8(text) for text in TEXTS]
    for style in (content, STYLE):
        assert "unicode-bidi: isolate" in style
