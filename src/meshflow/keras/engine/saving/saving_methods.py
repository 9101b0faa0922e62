"""The methods of `Model` that save and load files; they call the functions of this package."""

from __future__ import annotations

import collections
import re
from typing import TYPE_CHECKING, Any, Literal, Unpack

from meshflow.checkpoint.object_graph import list_children
from meshflow.core.dispatch.symbolic_calls import run_outside_of_graphs
from meshflow.core.runtime.annotations import CHECKPOINT, annotate_region
from meshflow.core.runtime.tracebacks import hide_frames_of_methods
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import Config, PyTree, StrPath
from meshflow.keras.engine.saving import (
    model_configuration,
    model_export,
    model_files,
    serving_signatures,
    weight_files,
)
from meshflow.keras.engine.saving.model_files import SaveArguments
from meshflow.keras.literals import SaveFormat

if TYPE_CHECKING:
    from meshflow.checkpoint.options import CheckpointOptions


@hide_frames_of_methods
class ModelSaving:
    """The methods of `Model` that save and load files; a base class of it."""

    if TYPE_CHECKING:
        # `Layer` provides this property.
        @property
        def name(self) -> str:
            """Return the name of the model."""

    def to_json(self, **kwargs: Any) -> str:
        """Format the architecture as JSON text, which `tf.keras.models.model_from_json` reads.

        Args:
          **kwargs: Arguments of `json.dumps`.
        """
        return model_configuration.model_to_json(self, **kwargs)

    def get_compile_config(self) -> Config | None:
        """Return the arguments of `compile` in the form that `compile_from_config` accepts.

        Returns:
          Serialized arguments by name, or None if the model was not compiled.
        """
        return model_configuration.get_compile_arguments(self)

    def compile_from_config(self, config: Config) -> None:
        """Compile the model with serialized arguments.

        Args:
          config: Result of `get_compile_config`.

        Example:
          >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
          >>> model.compile_from_config({"optimizer": "sgd", "loss": "mse"})
          >>> model.loss
          'mse'
        """
        model_configuration.compile_from_config(self, config)

    def to_yaml(self, **kwargs: Any) -> str:
        """Raise an error, because YAML files can call any Python function.

        Args:
          **kwargs: Ignored.

        Raises:
          RuntimeError: always; the message recommends `to_json`.
        """
        raise RuntimeError(
            "Model.to_yaml was removed, because a YAML file can run arbitrary code. Use Model.to_json instead."
        )

    @run_outside_of_graphs
    @annotate_region(CHECKPOINT, "save")
    def save(
        self,
        filepath: StrPath,
        overwrite: bool = True,
        save_format: SaveFormat | None = None,
        **kwargs: Unpack[SaveArguments],
    ) -> None:
        """Save the architecture, the weights and the training configuration.

        Args:
          filepath: Path that ends in `.keras` or `.h5`, or a folder.
          overwrite: Whether to replace an existing file.
          save_format: 'keras', 'h5' or 'tf'. Default: chosen by the path.
          **kwargs: `include_optimizer` and other arguments of `tf.keras.models.save_model`.
        """
        model_files.save_model(
            self, filepath, overwrite=overwrite, save_format=save_format, **kwargs
        )

    def _saved_functions(self) -> dict[str, Any]:
        return serving_signatures.make_saved_functions(self)

    def _saved_signatures(self) -> dict[str, Any]:
        return serving_signatures.make_saved_signatures(self)

    def export(
        self,
        filepath: StrPath,
        format: Literal["tf_saved_model", "onnx", "litert"] = "tf_saved_model",
        verbose: bool | None = None,
        input_signature: PyTree = None,
        **kwargs: Any,
    ) -> None:
        """Save the model's prediction for use without its code; see `tf.saved_model.load`.

        Args:
          filepath: A folder; for ONNX a file; for LiteRT a file with a name that ends in '.tflite'.
          format: 'tf_saved_model', 'onnx' (needs the extra `onnx`), or 'litert'.
          verbose: Whether to print the path. Default: True.
          input_signature: Specs of the model's arguments: a list with a `tf.TensorSpec`,
            `InputSpec`, `Input` or tensor (or a nested structure of them) for each argument.
            Default: the specs that the model was built with, for any batch size.
          **kwargs: For ONNX `opset_version`, the version of its operators (default 18); for LiteRT
            the attributes of `tf.lite.TFLiteConverter`, such as `optimizations`.

        Raises:
          ValueError: if the format, a setting or a version is unknown, or if the model was not
            built.
          TypeError: if the input signature has an invalid entry.
          UnimplementedError: if ONNX or LiteRT does not have an operation; the message names it,
            its layer and the reason.
        """
        model_export.export_model(self, filepath, format, verbose, input_signature, **kwargs)

    def get_weight_paths(self) -> dict[str, Variable]:
        """Return the variables by the shortest path of attributes to each, with dots; layers of a Functional model have their names.

        Example:
          >>> class Small(tf.keras.Model):
          ...     def __init__(self):
          ...         super().__init__()
          ...         self.dense = tf.keras.layers.Dense(3, use_bias=False)
          ...     def call(self, inputs):
          ...         return self.dense(inputs)
          >>> model = Small()
          >>> _ = model(tf.ones([1, 2]))
          >>> list(model.get_weight_paths())
          ['dense.kernel']
        """
        paths: dict[str, Variable] = {}
        queue: collections.deque[tuple[str, Any]] = collections.deque([("", self)])
        visited = {id(self)}
        while queue:
            path, owner = queue.popleft()
            for name, child in list_children(owner).items():
                if id(child) in visited:
                    continue
                visited.add(id(child))
                if re.fullmatch(r"layer(_with_weights)?-\d+", name):
                    name = child.name
                queue.append((f"{path}{name}.", child))
                if isinstance(child, Variable):
                    paths[f"{path}{name}"] = child
        return paths

    def save_spec(self, dynamic_batch: bool = True) -> tuple[list[Any], dict[str, Any]] | None:
        """Return the specs of the model's arguments: of positional ones, and of keyword arguments by name.

        Args:
          dynamic_batch: Whether the batch size is None.

        Returns:
          `TensorSpec`s, or nested structures of them. None if the model is not built.

        Example:
          >>> x = tf.keras.Input([3], name="x")
          >>> tf.keras.Model(x, tf.keras.layers.Dense(2)(x)).save_spec()
          ([TensorSpec(shape=(None, 3), dtype=tf.float32, name='x')], {})
        """
        return serving_signatures.get_save_spec(self, dynamic_batch)

    @run_outside_of_graphs
    def save_weights(
        self,
        filepath: StrPath,
        overwrite: bool = True,
        save_format: SaveFormat | None = None,
        options: CheckpointOptions | None = None,
    ) -> None:
        """Save the weights.

        Args:
          filepath: Path that ends in `.h5`, `.safetensors` or `.safetensors.index.json`, or the
            prefix of a checkpoint in TensorFlow's format.
          overwrite: Whether to replace an existing file.
          save_format: 'h5' or 'tf'. Default: chosen by the path.
          options: Options for checkpoints.
        """
        weight_files.save_weights(self, filepath, overwrite, save_format, options)

    @run_outside_of_graphs
    def load_weights(
        self,
        filepath: StrPath,
        skip_mismatch: bool = False,
        by_name: bool = False,
        options: CheckpointOptions | None = None,
    ) -> Any:
        """Load weights that `save_weights` wrote.

        Args:
          filepath: Path that was passed to `save_weights`.
          skip_mismatch: Whether to skip layers with other shapes (needs `by_name` for `.h5` files).
          by_name: Whether to match layers by name instead of order.
          options: Ignored.

        Returns:
          A `CheckpointLoadStatus` for checkpoints, otherwise None.
        """
        del options
        return weight_files.load_weights(
            self, filepath, skip_mismatch=skip_mismatch, by_name=by_name
        )
