"""A SavedModel's function as a layer."""

from __future__ import annotations

from typing import Any

from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.safe_mode import refuse
from meshflow.saved_model.loading import load

__all__ = ["TFSMLayer"]


class TFSMLayer(Layer):
    """A function of a SavedModel, such as `Model.export` writes, as a layer.

    Args:
      filepath: the SavedModel's folder.
      call_endpoint: name of the function or signature that the layer calls.
      call_training_endpoint: the one that it calls in training; default `call_endpoint`.
      trainable: whether the SavedModel's trained variables are trained further.
      name: name of the layer.
      dtype: the layer's dtype.

    Input shape:
      As the function takes it: (batch, ...).

    Output shape:
      As the function gives it: (batch, ...).

    Raises:
      ValueError: for a name that the SavedModel does not have, naming those that it has.

    Example:
      >>> import tempfile
      >>> import meshflow as tf
      >>> folder = tempfile.mkdtemp()
      >>> model = tf.keras.Sequential([tf.keras.Input([3]), tf.keras.layers.Dense(2)])
      >>> model.export(folder, verbose=False)
      >>> layer = tf.keras.layers.TFSMLayer(folder)
      >>> layer(tf.ones([4, 3])).shape, len(layer.trainable_weights)
      (TensorShape([4, 2]), 2)
    """

    def __init__(
        self,
        filepath: Any,
        call_endpoint: str = "serve",
        call_training_endpoint: str | None = None,
        trainable: bool = True,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(trainable=trainable, name=name, dtype=dtype)
        self.filepath, self.call_endpoint = str(filepath), call_endpoint
        self.call_training_endpoint = call_training_endpoint
        loaded = load(self.filepath)
        self._served = [self._endpoint(loaded, call_endpoint)]
        if call_training_endpoint:
            self._served.append(self._endpoint(loaded, call_training_endpoint))
        self._loaded = loaded
        self.built = True

    def _endpoint(self, loaded: Any, name: str) -> Any:
        found = getattr(loaded, name, None) or loaded.signatures.get(name)
        if found is None:
            own = [n for n in vars(loaded) if callable(getattr(loaded, n)) and n[0] != "_"]
            raise ValueError(
                f"The endpoint {name!r} is not in the SavedModel {self.filepath} of a TFSMLayer. It has the functions "
                f"{own} and the signatures {sorted(loaded.signatures)}: give one of them as `call_endpoint`."
            )
        return found

    def call(self, inputs: Any, training: bool = False, **kwargs: Any) -> Any:
        """What the function gives; signatures give a dictionary."""
        return self._served[-1 if training else 0](inputs, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """The configuration; the folder is not part of it, but named by it."""
        own = {"filepath": self.filepath, "call_endpoint": self.call_endpoint}
        return super().get_config() | own | {"call_training_endpoint": self.call_training_endpoint}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: Any = None, safe_mode: bool | None = None
    ) -> Any:
        """The layer with a configuration, which makes this program read the folder that it names.

        Args:
          config: of `get_config`.
          custom_objects: accepted, as of all layers.
          safe_mode: False for a trusted configuration; default as it is being loaded.

        Raises:
          ValueError: in safe mode.
        """
        del custom_objects
        if safe_mode is not False:
            refuse(
                f"a TFSMLayer of the SavedModel {config['filepath']!r}",
                "This makes the program read that folder, and compute what it says, which may mean arbitrary code "
                "execution in TensorFlow.",
            )
        return cls(**config)
