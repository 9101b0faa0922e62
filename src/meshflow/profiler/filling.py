"""Pages of profiles: one HTML file each, of a template, its style and scripts, and data."""

from __future__ import annotations

import html
import json
from importlib import resources
from typing import Any

__all__ = ["filled"]


def filled(name: str, title: str, data: dict[str, Any]) -> str:
    """A page that needs no network.

    Args:
      name: of the template and of its script.
      title: the window's.
      data: what the script draws.
    """
    folder = resources.files(__package__) / "template"

    def read(file: str) -> str:
        return (folder / file).read_text(encoding="utf-8")

    # `<` would let a layer's name end the element that holds the data.
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    page = read(f"{name}.html")
    parts = {
        "title": html.escape(f"{title} - Meshflow profile"),
        "style": read("page.css"),
        "data": text,
        "script": read("common.js") + read(f"{name}.js"),
    }
    for place, value in parts.items():
        before, _, after = page.partition("{{" + place + "}}")
        page = before + value + after
    return page
