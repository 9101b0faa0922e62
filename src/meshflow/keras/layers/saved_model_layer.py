"""`TFSMLayer`: a layer that calls a function of a SavedModel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshflow.core.values.dtypes import DTypeLike
from meshflow.environment.types import Config, PyTree, StrPath
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.safe_mode import is_in_safe_mode, require_unsafe_mode, safe_mode_scope
from meshflow.saved_model.loader import load

__all__ = ["TFSMLayer"]


class TFSMLayer(Layer):
    """Layer that calls a function of a SavedModel, for example of one that `Model.export` wrote.

    Args:
      filepath: Folder of the SavedModel.
      call_endpoint: Name of the function or signature that the layer calls.
      call_training_endpoint: Name of the function or signature that it calls in training; default
        `call_endpoint`.
      trainable: Whether to train the trainable variables of the SavedModel.
      name: Name of the layer.
      dtype: Dtype of the layer.

    Input shape:
      The shape that the function accepts: (batch, ...).

    Output shape:
      The shape of the result of the function: (batch, ...).

    Raises:
      ValueError: If the SavedModel has no function or signature of that name.

    Example:
      >>> import tempfile
      >>> folder = tempfile.mkdtemp()
      >>> model = tf.keras.Sequential([tf.keras.Input([3]), tf.keras.layers.Dense(2)])
      >>> model.export(folder, verbose=False)
      >>> layer = tf.keras.layers.TFSMLayer(folder)
      >>> layer(tf.ones([4, 3])).shape, len(layer.trainable_weights)
      (TensorShape([4, 2]), 2)
    """

    def __init__(
        self,
        filepath: StrPath,
        call_endpoint: str = "serve",
        call_training_endpoint: str | None = None,
        trainable: bool = True,
        name: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(trainable=trainable, name=name, dtype=dtype)
        self.filepath, self.call_endpoint = str(filepath), call_endpoint
        self.call_training_endpoint = call_training_endpoint
        loaded = load(self.filepath)
        self._endpoints = [self._find_endpoint(loaded, call_endpoint)]
        if call_training_endpoint:
            self._endpoints.append(self._find_endpoint(loaded, call_training_endpoint))
        self._loaded = loaded
        self.built = True

    def _find_endpoint(self, loaded: Any, name: str) -> Callable[..., Any]:
        endpoint = getattr(loaded, name, None) or loaded.signatures.get(name)
        if endpoint is None:
            functions = [n for n in vars(loaded) if callable(getattr(loaded, n)) and n[0] != "_"]
            raise ValueError(
                f"The endpoint {name!r} is not in the SavedModel {self.filepath} of a TFSMLayer. It has the functions "
                f"{functions} and the signatures {sorted(loaded.signatures)}: give one of them as `call_endpoint`."
            )
        return endpoint

    def call(self, inputs: PyTree, training: bool = False, **kwargs: Any) -> PyTree:
        """Call the function; a signature returns a dictionary."""
        return self._endpoints[-1 if training else 0](inputs, **kwargs)

    def get_config(self) -> Config:
        """Return the configuration; it contains the path of the folder, not its contents."""
        endpoints = {
            "call_endpoint": self.call_endpoint,
            "call_training_endpoint": self.call_training_endpoint,
        }
        return super().get_config() | {"filepath": self.filepath} | endpoints

    @classmethod
    def from_config(
        cls,
        config: Config,
        custom_objects: dict[str, Any] | None = None,
        safe_mode: bool | None = None,
    ) -> Any:
        """Create a layer from a configuration; this reads the folder that the configuration names.

        Args:
          config: Result of `get_config`.
          custom_objects: Ignored.
          safe_mode: False if the configuration is trusted; by default the mode of the current load
            applies.

        Raises:
          ValueError: If safe mode is on.
        """
        del custom_objects
        with safe_mode_scope(is_in_safe_mode() and safe_mode):
            require_unsafe_mode(
                f"a TFSMLayer of the SavedModel {config['filepath']!r}",
                "This makes the program read that folder, and compute what it says, which may mean arbitrary code "
                "execution in TensorFlow.",
            )
        return cls(**config)
