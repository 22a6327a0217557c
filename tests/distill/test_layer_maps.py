"""Layer maps of the papers."""

import pytest

from bertfam_tf.distill import layer_map


@pytest.mark.parametrize(
    ("name", "student", "teacher", "expected"),
    [
        ("uniform", 4, 12, [3, 6, 9, 12]),  # TinyBERT-4
        ("uniform", 6, 12, [2, 4, 6, 8, 10, 12]),
        ("uniform", 4, 6, [2, 3, 4, 6]),
        ("every_other", 6, 12, [1, 3, 5, 8, 10, 12]),  # DistilBERT's 0, 2, 4, 7, 9, 11
        ("every_other", 3, 6, [1, 3, 6]),
        ("every_other", 1, 6, [1]),
        ("top", 4, 12, [9, 10, 11, 12]),
        ("bottom", 4, 12, [1, 2, 3, 4]),
        ("skip", 6, 12, [2, 4, 6, 8, 10]),  # PKD-Skip
        ("pkd_last", 6, 12, [7, 8, 9, 10, 11]),
        ([6, 12], 2, 12, [6, 12]),
    ],
)
def test_maps(name, student, teacher, expected):
    assert list(layer_map(name, student, teacher).values()) == expected
    assert list(layer_map(name, student, teacher)) == list(range(1, len(expected) + 1))


def test_the_last_layers_and_a_table():
    assert layer_map("last", 4, 12) == {4: 12}
    assert layer_map({0: 0, 2: 5}, 2, 6) == {0: 0, 2: 5}


@pytest.mark.parametrize(
    ("layers", "error"),
    [
        ("unifrom", "Unknown layer map 'unifrom'.*uniform"),
        (3, "A layer map is a name, a list or a mapping of layers, got 3"),
        ([1, 7], "layer 7 of the teacher, which has the layers 1 to 6"),
        ([1, 2, 3], "layer 3 of the student, which has the layers 1 to 2"),
    ],
)
def test_errors(layers, error):
    with pytest.raises(ValueError, match=error):
        layer_map(layers, 2, 6)


def test_more_layers_than_the_teacher():
    with pytest.raises(ValueError, match="'top' needs at least as many layers in the teacher"):
        layer_map("top", 6, 3)
