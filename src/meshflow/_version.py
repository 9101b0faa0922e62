"""Version of Meshflow, read by the build and by `meshflow.version`."""

__version__ = "0.2.0"
