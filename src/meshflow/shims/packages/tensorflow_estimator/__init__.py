"""The package of estimators, which TensorFlow installs; see `meshflow.shims`."""

__import__("meshflow_as_package").load(__name__)
