"""`tf.compat.v1.lite`: the converter with the class methods and properties of TensorFlow 1."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

from meshflow.core.runtime.errors import NotAvailableError
from meshflow.core.runtime.unavailable_names import explain_names
from meshflow.environment.types import StrPath
from meshflow.legacy.compat.public_package import tf

__all__ = [
    "Interpreter",
    "OpsSet",
    "Optimize",
    "RepresentativeDataset",
    "TFLiteConverter",
    "TargetSpec",
    "TocoConverter",
    "constants",
    "experimental",
]

Interpreter, OpsSet, Optimize = tf.lite.Interpreter, tf.lite.OpsSet, tf.lite.Optimize
RepresentativeDataset, TargetSpec = tf.lite.RepresentativeDataset, tf.lite.TargetSpec
experimental = tf.lite.experimental
constants = SimpleNamespace(
    FLOAT=tf.float32, FLOAT16=tf.float16, INT8=tf.int8, INT16=tf.int16, INT32=tf.int32, INT64=tf.int64,
    QUANTIZED_UINT8=tf.uint8, STRING=tf.string, TFLITE="TFLITE", GRAPHVIZ_DOT=3,
)  # fmt: skip


class TFLiteConverter(tf.lite.TFLiteConverter):
    """Converter of a SavedModel, a Keras model file, or a frozen graph.

    Attributes:
      post_training_quantize: Whether `optimizations` is not empty; deprecated.
      target_ops: `target_spec.supported_ops`; deprecated.

    Example:
      >>> import meshflow as tf
      >>> converter = tf.compat.v1.lite.TFLiteConverter.from_keras_model_file("m.h5")  # doctest: +SKIP
      >>> content = converter.convert()  # doctest: +SKIP
    """

    @classmethod
    def from_saved_model(
        cls,
        saved_model_dir: StrPath,
        input_arrays: object = None,
        input_shapes: Mapping[str, Sequence[int]] | None = None,
        output_arrays: object = None,
        tag_set: object = None,
        signature_key: str | None = None,
    ) -> TFLiteConverter:
        """Create a converter of one signature of a SavedModel.

        Args:
          saved_model_dir: Directory of the SavedModel.
          input_arrays: Ignored; the signature determines the inputs.
          input_shapes: Must be None; dimensions of unknown size remain unknown.
          output_arrays: Ignored; the signature determines the outputs.
          tag_set: Ignored.
          signature_key: Name of the signature; default 'serving_default'.

        Raises:
          ValueError: If the signature does not exist, or `input_shapes` is passed.
        """
        _check_no_shapes(input_shapes)
        return super().from_saved_model(saved_model_dir, [signature_key or "serving_default"])

    @classmethod
    def from_keras_model_file(
        cls,
        model_file: StrPath,
        input_arrays: object = None,
        input_shapes: Mapping[str, Sequence[int]] | None = None,
        output_arrays: object = None,
        custom_objects: Mapping[str, Any] | None = None,
    ) -> TFLiteConverter:
        """Create a converter of a Keras model file.

        Args:
          model_file: Path of a file that `Model.save` wrote.
          input_arrays: Ignored; the model determines the inputs.
          input_shapes: Must be None; dimensions of unknown size remain unknown.
          output_arrays: Ignored; the model determines the outputs.
          custom_objects: Custom objects for `tf.keras.models.load_model`.

        Raises:
          ValueError: If `input_shapes` is passed.
        """
        _check_no_shapes(input_shapes)
        model = tf.keras.models.load_model(model_file, custom_objects, compile=False)
        return cls.from_keras_model(model)

    @classmethod
    def from_frozen_graph(
        cls,
        graph_def_file: StrPath,
        input_arrays: Sequence[str],
        output_arrays: Sequence[str],
        input_shapes: Mapping[str, Sequence[int]] | None = None,
    ) -> TFLiteConverter:
        """Create a converter of a frozen graph.

        Args:
          graph_def_file: Path of a file with a `GraphDef`.
          input_arrays: Names of the input nodes.
          output_arrays: Names of the output nodes.
          input_shapes: Must be None; dimensions of unknown size remain unknown.

        Raises:
          ValueError: If `input_shapes` is passed.
        """
        _check_no_shapes(input_shapes)
        definition = tf.compat.v1.GraphDef()
        with tf.io.gfile.GFile(graph_def_file, "rb") as file:
            definition.ParseFromString(file.read())
        imported = tf.compat.v1.wrap_function(
            lambda: tf.compat.v1.import_graph_def(definition, name=""), []
        )
        pruned = imported.prune(
            *([_to_tensor_name(n) for n in names] for names in (input_arrays, output_arrays))
        )
        inputs = [imported.graph.get_tensor_by_name(_to_tensor_name(n)) for n in input_arrays]
        specs = [
            tf.TensorSpec(t.shape, t.dtype, name.split(":")[0])
            for t, name in zip(inputs, input_arrays, strict=True)
        ]
        function = tf.function(lambda *tensors: pruned(*tensors), input_signature=specs)
        return cls.from_concrete_functions([function.get_concrete_function()])

    @classmethod
    def from_session(cls, sess: object, input_tensors: object, output_tensors: object) -> NoReturn:
        """Raise an error: sessions do not exist.

        Raises:
          NotAvailableError: Always.
        """
        raise NotAvailableError(
            "tf.compat.v1.lite.TFLiteConverter.from_session: sessions do not exist. Convert a tf.function with "
            "from_concrete_functions, or a frozen graph with from_frozen_graph."
        )

    def get_input_arrays(self) -> list[str]:
        """Return the names of the inputs of the first signature."""
        return list(self._signatures()[0].inputs)

    @property
    def post_training_quantize(self) -> bool:
        """Whether weights are quantized; deprecated, use `optimizations`."""
        return bool(self.optimizations)

    @post_training_quantize.setter
    def post_training_quantize(self, value: bool) -> None:
        _warn_deprecated("post_training_quantize", "optimizations=[Optimize.DEFAULT]")
        self.optimizations = [Optimize.DEFAULT] if value else []

    @property
    def target_ops(self) -> Collection[object]:
        """The supported sets of operators; deprecated, use `target_spec.supported_ops`."""
        return self.target_spec.supported_ops

    @target_ops.setter
    def target_ops(self, value: Collection[object]) -> None:
        _warn_deprecated("target_ops", "target_spec.supported_ops")
        self.target_spec.supported_ops = value


TocoConverter = TFLiteConverter


def _to_tensor_name(name: str) -> str:
    return name if ":" in name else f"{name}:0"


def _warn_deprecated(name: str, instead: str) -> None:
    warnings.warn(f"Property {name} is deprecated, please use {instead} instead.", stacklevel=3)


def _check_no_shapes(shapes: object) -> None:
    if shapes:
        raise ValueError(
            f"input_shapes={shapes!r} is not supported: dimensions of unknown size remain unknown. Resize the inputs "
            "of the interpreter, or convert a function with fixed sizes."
        )


__getattr__ = explain_names("tf.compat.v1.lite")
