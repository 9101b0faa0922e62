"""Meshflow under the name `keras`; see `meshflow.shims`."""

try:
    from meshflow.shims.shim_modules import convert_package
except ModuleNotFoundError as error:
    raise ImportError(
        f"{__file__} loads Meshflow as `{__name__}`, but this Python has no package {error.name!r}. "
        "Install meshflow-tf here, or remove the folder from PYTHONPATH."
    ) from error

convert_package(__name__)
