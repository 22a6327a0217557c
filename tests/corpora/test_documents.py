"""Documents and sentences of text files."""

import pytest

from bertfam_tf.corpora.documents import find_files, read_documents, split_sentences


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("“Yes!” She left. “No.”", ["“Yes!”", "She left.", "“No.”"]),
        ("It cost 3.50 pounds. 12 people came.", ["It cost 3.50 pounds.", "12 people came."]),
        ("He said so. and left", ["He said so. and left"]),
        ("Ja. Über uns. Äpfel", ["Ja.", "Über uns.", "Äpfel"]),
        ("и т. д. и т. п. Да. Это", ["и т. д. и т. п.", "Да.", "Это"]),
        ("今天很好。我们去！“好。”（你呢？）", ["今天很好。", "我们去！", "“好。”", "（你呢？）"]),
        ("好！真的？！不。。。好。", ["好！", "真的？！", "不。。。", "好。"]),
        ("“好！”，他说。", ["“好！”，他说。"]),
        ("これはペンです。 それは", ["これはペンです。", "それは"]),
        ("यह है। वह क्या? वह", ["यह है।", "वह क्या?", "वह"]),
        ("هل أنت؟ نعم۔ شكرا.", ["هل أنت؟", "نعم۔", "شكرا."]),
        ("Sí. ¿Qué? „Ja.“", ["Sí.", "¿Qué?", "„Ja.“"]),
        ("no end", ["no end"]),
        ("", [""]),
    ],
)
def test_sentences(text, sentences):
    assert split_sentences(text) == sentences


TEXT = "\ufeffA b. C d.\r\nE.\n\n\n  F g.  \n\nH. I."


@pytest.mark.parametrize(
    ("documents", "sentences", "expected"),
    [
        ("blank_line", "line", [["A b. C d.", "E."], ["F g."], ["H. I."], ["x"]]),
        ("blank_line", "split", [["A b.", "C d.", "E."], ["F g."], ["H.", "I."], ["x"]]),
        ("file", "line", [["A b. C d.", "E.", "F g.", "H. I."], ["x"]]),
        ("line", "split", [["A b.", "C d."], ["E."], ["F g."], ["H.", "I."], ["x"]]),
    ],
)
def test_documents(tmp_path, documents, sentences, expected):
    (tmp_path / "a.txt").write_bytes(TEXT.encode())
    (tmp_path / "b.txt").write_text("x")
    files = find_files([tmp_path / "*.txt"])
    assert [list(each) for each in read_documents(files, documents, sentences)] == expected


def test_a_document_that_is_not_read_to_its_end(tmp_path):
    (tmp_path / "a").write_text("a\nb\n\nc\nd\n")
    assert [next(each) for each in read_documents([tmp_path / "a"])] == ["a", "c"]


def test_errors(tmp_path):
    with pytest.raises(ValueError, match=r"There is no file .*\*\.md"):
        find_files([tmp_path / "*.md"])
    with pytest.raises(ValueError, match="documents must be one of blank_line, file, line"):
        read_documents([], "page")
    with pytest.raises(ValueError, match="sentences must be line or split"):
        read_documents([], "file", "words")
    (tmp_path / "a").write_bytes(b"good\n\xff\n")
    with pytest.raises(ValueError, match="a must be UTF-8"):
        [list(each) for each in read_documents([tmp_path / "a"])]
