"""Meshflow under the name `tf_keras`; see `meshflow.shims`."""

__import__("meshflow_as_package").load(__name__)
