"""Saved models behind HTTP, by TensorFlow Serving's REST protocol; see `meshflow serve`."""

from meshflow.serving.application import application
from meshflow.serving.server import serve
from meshflow.serving.versions import Settings

__all__ = ["Settings", "application", "serve"]
