"""`tf.profiler`: profiles of programs and of deployed models."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from meshflow.core.runtime.tracebacks import hide_frames_of_functions as _hide_frames
from meshflow.environment.types import StrPath
from meshflow.profiler import experimental
from meshflow.profiler.deployed_models import DeployedProfile, profile_model

if TYPE_CHECKING:

    class Verdict:
        """Declaration for editors; see `meshflow.keras.callbacks.verdict`."""

        def __init__(
            self,
            profile_batch: int | str | tuple[int, int] = (10, 20),
            log_dir: StrPath | None = None,
        ) -> None: ...


__all__ = ["DeployedProfile", "Verdict", "experimental", "profile_model"]


def __getattr__(name: str) -> Any:
    if name != "Verdict":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # The callback depends on Keras, a higher layer, so it is imported on first use.
    return importlib.import_module("meshflow.keras.callbacks.verdict").Verdict


_hide_frames(globals())
