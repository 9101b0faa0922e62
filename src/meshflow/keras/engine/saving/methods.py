"""What models do with files: a base class of `Model`, made of this package's functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshflow.core.runtime.annotations import CHECKPOINT, inside
from meshflow.keras.engine.saving import (
    configuration,
    exporting,
    models,
    serving_signatures,
    weights,
)

__all__ = ["ModelSaving"]


class ModelSaving:
    """A model's own functions that save and load it."""

    if TYPE_CHECKING:
        # What `Layer` gives it.
        @property
        def name(self) -> str: ...

    def to_json(self, **kwargs: Any) -> str:
        """The architecture as JSON text; see `tf.keras.models.model_from_json`."""
        return configuration.model_to_json(self, **kwargs)

    def get_compile_config(self) -> dict[str, Any] | None:
        """What `compile` was called with, as `compile_from_config` takes it; None for a model that was not compiled."""
        return configuration.compile_arguments(self)

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles the model as another one was.

        Args:
          config: what `get_compile_config` gave.

        Example:
          >>> import meshflow as tf
          >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
          >>> model.compile_from_config({"optimizer": "sgd", "loss": "mse"})
          >>> model.loss
          'mse'
        """
        configuration.compile_from_config(self, config)

    def to_yaml(self, **kwargs: Any) -> str:
        """Is no more: YAML can name any function of Python.

        Raises:
          RuntimeError: always, naming `to_json`.
        """
        raise RuntimeError("to_yaml is not there any more, as YAML may run code: use to_json.")

    @inside(CHECKPOINT, "save")
    def save(
        self, filepath: Any, overwrite: bool = True, save_format: str | None = None, **kwargs: Any
    ) -> None:
        """Saves architecture, weights and training configuration.

        Args:
          filepath: path ending in `.keras`, `.h5`, or a folder.
          overwrite: whether an existing file is replaced.
          save_format: 'keras', 'h5' or 'tf'; default by the path.
          **kwargs: `include_optimizer` and others, see `tf.keras.models.save_model`.
        """
        models.save_model(self, filepath, overwrite=overwrite, save_format=save_format, **kwargs)

    def _saved_functions(self) -> dict[str, Any]:
        return serving_signatures.saved_functions(self)

    def _saved_signatures(self) -> dict[str, Any]:
        return serving_signatures.saved_signatures(self)

    def export(
        self,
        filepath: Any,
        format: str = "tf_saved_model",
        verbose: bool | None = None,
        input_signature: Any = None,
        **kwargs: Any,
    ) -> None:
        """Saves what the model predicts, for use without its code: see `tf.saved_model.load`.

        Args:
          filepath: a folder; for ONNX a file, for LiteRT one whose name ends with '.tflite'.
          format: 'tf_saved_model', 'onnx' (the extra `onnx`), or 'litert'.
          verbose: whether a line says where it was saved; default True.
          input_signature: what the model takes, a list with a `tf.TensorSpec`, `InputSpec`, `Input` or tensor (or
            a structure of them) for each argument; default as it was built, for any size of the batch.
          **kwargs: `opset_version`, for ONNX, the version of its operators, by default 18; for LiteRT the attributes of
            `tf.lite.TFLiteConverter`, such as `optimizations`.

        Raises:
          ValueError: for another format, setting or version, or when the model has not been built.
          TypeError: for an input signature of something else.
          UnimplementedError: for an operation that ONNX or LiteRT does not have, naming it, its layer and why.
        """
        exporting.export(self, filepath, format, verbose, input_signature, **kwargs)

    def save_spec(self, dynamic_batch: bool = True) -> tuple[list[Any], dict[str, Any]] | None:
        """Specs of what the model was called with: of positional arguments, and of others by name.

        Args:
          dynamic_batch: whether the size of the batch is left open.

        Returns:
          `TensorSpec`s, or structures of them; None before the model is built.

        Example:
          >>> import meshflow as tf
          >>> x = tf.keras.Input([3], name="x")
          >>> tf.keras.Model(x, tf.keras.layers.Dense(2)(x)).save_spec()
          ([TensorSpec(shape=(None, 3), dtype=tf.float32, name='x')], {})
        """
        return serving_signatures.save_spec(self, dynamic_batch)

    def save_weights(
        self,
        filepath: Any,
        overwrite: bool = True,
        save_format: str | None = None,
        options: Any = None,
    ) -> Any:
        """Saves the weights.

        Args:
          filepath: path ending in `.h5`, `.safetensors` or `.safetensors.index.json`, or the prefix of a checkpoint in TensorFlow's format.
          overwrite: whether an existing file is replaced.
          save_format: 'h5' or 'tf'; default by the path.
          options: a `tf.train.CheckpointOptions`, for checkpoints.
        """
        return weights.save_weights(self, filepath, overwrite, save_format, options)

    def load_weights(
        self, filepath: Any, skip_mismatch: bool = False, by_name: bool = False, options: Any = None
    ) -> Any:
        """Loads weights saved by `save_weights`.

        Args:
          filepath: the path given to `save_weights`.
          skip_mismatch: whether layers whose shapes differ are skipped (needs by_name).
          by_name: whether layers are matched by name instead of order.
          options: ignored.
        """
        del options
        return weights.load_weights(self, filepath, skip_mismatch=skip_mismatch, by_name=by_name)
