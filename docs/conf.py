"""Configuration of the documentation."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import api_reference

project = "Meshflow"
author = "The Meshflow Authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
exclude_patterns = ["_build"]
autodoc_typehints = "none"
suppress_warnings = ["autodoc", "ref", "docutils", "myst"]
napoleon_google_docstring = True


def setup(app):
    """Writes the pages of the reference before Sphinx reads them."""
    api_reference.write(Path(__file__).parent / "_build" / "api")
