"""Sphinx' configuration, for the pages that tools/docs writes: `make docs`."""

from pygments.lexers.shell import BashLexer

import bertfam_tf

project = "bertfam_tf"
version = release = bertfam_tf.__version__
copyright = "the authors of bertfam_tf, Apache-2.0"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
# Dashes alone: quotes in prose are often those of an empty string.
smartquotes_action = "D"

myst_heading_anchors = 4

# Signatures show types as they are written in the code.
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
# Keras' docstrings are Markdown, which Sphinx would read as reStructuredText.
autodoc_inherit_docstrings = False
add_module_names = False
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_custom_sections = [(name, "params_style") for name in ("Fields", "Call", "Update")]
maximum_signature_line_length = 90

html_theme = "furo"
html_title = "bertfam_tf"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "monokai"

linkcheck_timeout = 20
linkcheck_retries = 2


def setup(app):
    # Commands have no prompts, without which Pygments' own lexer of consoles takes them for output.
    app.add_lexer("console", BashLexer)
