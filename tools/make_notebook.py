"""Writes docs/tour.ipynb from docs/tour.md: make notebook

Python blocks become cells of code, without outputs; tests/docs/test_notebook.py compares the two.
"""

import re
from pathlib import Path

import jupytext
import nbformat

PAGE = Path(__file__).parent.parent / "docs" / "tour.md"
NOTEBOOK = PAGE.with_suffix(".ipynb")


def notebook() -> str:
    """The notebook as JSON, the same for the same page."""
    # Comments to the tests of the page.
    text = re.sub(r"<!-- .* -->\n", "", PAGE.read_text("utf-8"))
    made = jupytext.reads(text, "md")
    made.metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(made.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
    nbformat.validate(made)
    return nbformat.writes(made) + "\n"


if __name__ == "__main__":
    NOTEBOOK.write_text(notebook(), "utf-8")
    print(NOTEBOOK)
