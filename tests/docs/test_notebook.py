"""The notebook of the tour: the page's text and code, and nothing that a machine has added."""

import json

from tests.docs.test_code_blocks import of_language
from tools import make_notebook


def test_it_is_up_to_date():
    assert make_notebook.NOTEBOOK.read_text("utf-8") == make_notebook.notebook(), "make notebook"


def test_its_code_is_that_of_the_page():
    """Which tests/docs/test_code_blocks.py runs."""
    cells = json.loads(make_notebook.NOTEBOOK.read_text("utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert code == [block.source.rstrip() for block in of_language("docs/tour.md", "python")]
    assert all(not cell["outputs"] for cell in cells if cell["cell_type"] == "code")
