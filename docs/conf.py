"""Configure Sphinx: Markdown pages, and an API reference generated from the docstrings."""

import os
import sys
from pathlib import Path

# The reference imports the package, which must not occupy an accelerator or fill a cache.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MESHFLOW_CACHE_DIR", "")
sys.path.insert(0, str(Path(__file__).parent))

import meshflow

project = "Meshflow"
author = "The Meshflow Authors"
copyright = f"2026, {author}"
release = version = meshflow.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "api_reference",
]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = "Meshflow"
html_static_path = ["_static"]
html_css_files = ["landing.css"]

# Napoleon does not know these sections of our docstrings.
napoleon_use_ivar = True
napoleon_custom_sections = ["Input shape", "Output shape", "Formula"]

# Docstrings are also read in the source, so a single backtick means code.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_preserve_defaults = True
toc_object_entries = False
suppress_warnings = ["ref.python"]
