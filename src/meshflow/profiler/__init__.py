"""`tf.profiler`: where the time of a program, or of a deployed model, goes."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from meshflow.profiler import experimental
from meshflow.profiler.deployed import DeployedProfile, profile_model

if TYPE_CHECKING:

    class Verdict:
        """For editors; see `meshflow.keras.callbacks.verdict`."""

        def __init__(
            self, profile_batch: int | str | tuple[int, int] = (10, 20), log_dir: Any = None
        ) -> None: ...


__all__ = ["DeployedProfile", "Verdict", "experimental", "profile_model"]


def __getattr__(name: str) -> Any:
    if name != "Verdict":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # A callback of Keras, which stands on this package: it is loaded when it is asked for.
    return importlib.import_module("meshflow.keras.callbacks.verdict").Verdict
