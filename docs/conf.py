"""Sphinx's settings of the documentation: `make docs` builds it strictly, without a network.

The source folder is the checkout, so that links to examples and plugins are those that readers of the files follow.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import generated  # noqa: E402, which is beside this file

from delegate import __version__  # noqa: E402

project = "delegate"
release = __version__
root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "examples/**",
    "plugins/*/README.md",
    "plugins/*/delegate_*/*/README.md",
    "benchmarks/README.md",
    "*.md",
]
exclude_patterns = ["**/.*", "build", "README.md"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # records and generated parts may begin with a heading of the second level

smartquotes = False  # they would make one dash of the two of an option
default_role = "code"  # docstrings have single backticks
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "undoc-members": False, "show-inheritance": True}
napoleon_numpy_docstring = False
napoleon_use_ivar = True
python_maximum_signature_line_length = 90

html_theme = "furo"
html_title = f"delegate {release}"
html_extra_path = ["site"]
html_show_sourcelink = False
html_show_search_summary = False  # it reads pages by fetch, which browsers forbid for local files
html_copy_source = False
html_show_copyright = False
html_theme_options = {"top_of_page_buttons": []}
pygments_style = "friendly"
pygments_dark_style = "native"


def setup(app: Sphinx) -> None:
    """Fill in the parts of pages that come from code."""
    app.connect("source-read", _complete)


def _complete(app: Sphinx, name: str, source: list[str]) -> None:
    source[0] = generated.filled(source[0])
    if name.endswith(("index", "design/README", "examples/README")):
        source[0] += generated.contents(source[0])
