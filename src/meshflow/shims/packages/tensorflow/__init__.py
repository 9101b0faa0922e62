"""Meshflow under the name `tensorflow`; see `meshflow.shims`."""

__import__("meshflow_as_package").load(__name__)
