"""Modules that methods of datasets need when they are called: what they hold are datasets with these methods."""

from __future__ import annotations

from typing import Any


def nodes() -> Any:
    """The transformations."""
    from meshflow.data import transformations

    return transformations


def sources() -> Any:
    """Where elements come from."""
    from meshflow.data import sources

    return sources
