"""Template of the profile pages: one HTML file with style, scripts and data."""

from __future__ import annotations

import html
import json
from importlib import resources
from typing import Any


def fill_template(name: str, title: str, data: dict[str, Any]) -> str:
    """Return a page that needs no network.

    Args:
      name: Name of the template and of its script.
      title: Title of the window.
      data: JSON data that the script reads.
    """
    folder = resources.files(__package__) / "template"

    def read(file: str) -> str:
        return (folder / file).read_text(encoding="utf-8")

    # An unescaped `<` in a layer's name could end the element that holds the data.
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    page = read(f"{name}.html")
    parts = {
        "title": html.escape(f"{title} - Meshflow profile"),
        "style": read("page.css"),
        "data": text,
        "script": read("common.js") + read(f"{name}.js"),
    }
    for placeholder, value in parts.items():
        before, _, after = page.partition("{{" + placeholder + "}}")
        page = before + value + after
    return page
