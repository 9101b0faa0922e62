"""`tf.compat.v1.lite`: the converter with version 1's class methods and properties."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from meshflow.core.runtime.errors import NotAvailableError
from meshflow.legacy.compat.surface import tf

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
    QUANTIZED_UINT8=tf.uint8, STRING=tf.string, TFLITE="TFLITE",
)  # fmt: skip


class TFLiteConverter(tf.lite.TFLiteConverter):
    """Converts a saved model, the file of a Keras model, or a frozen graph.

    Attributes:
      post_training_quantize: whether `optimizations` has any; deprecated.
      target_ops: `target_spec.supported_ops`; deprecated.

    Example:
      >>> import meshflow as tf
      >>> converter = tf.compat.v1.lite.TFLiteConverter.from_keras_model_file("m.h5")  # doctest: +SKIP
      >>> content = converter.convert()  # doctest: +SKIP
    """

    @classmethod
    def from_saved_model(
        cls,
        saved_model_dir: Any,
        input_arrays: Any = None,
        input_shapes: Mapping[str, Sequence[int]] | None = None,
        output_arrays: Any = None,
        tag_set: Any = None,
        signature_key: str | None = None,
    ) -> Any:
        """A converter of one signature of a saved model.

        Args:
          saved_model_dir: the folder.
          input_arrays, output_arrays: accepted: the signature has its inputs and outputs.
          input_shapes: must be None: sizes that are open stay open.
          tag_set: accepted.
          signature_key: the signature; default 'serving_default'.

        Raises:
          ValueError: for a signature that is not there, and for `input_shapes`.
        """
        _refuse_shapes(input_shapes)
        return super().from_saved_model(saved_model_dir, [signature_key or "serving_default"])

    @classmethod
    def from_keras_model_file(
        cls,
        model_file: Any,
        input_arrays: Any = None,
        input_shapes: Mapping[str, Sequence[int]] | None = None,
        output_arrays: Any = None,
        custom_objects: Mapping[str, Any] | None = None,
    ) -> Any:
        """A converter of a Keras model in a file.

        Args:
          model_file: of `Model.save`.
          input_arrays, output_arrays: accepted: the model has its inputs and outputs.
          input_shapes: must be None: sizes that are open stay open.
          custom_objects: as `tf.keras.models.load_model` takes them.

        Raises:
          ValueError: for `input_shapes`.
        """
        _refuse_shapes(input_shapes)
        model = tf.keras.models.load_model(model_file, custom_objects, compile=False)
        return cls.from_keras_model(model)

    @classmethod
    def from_frozen_graph(
        cls,
        graph_def_file: Any,
        input_arrays: Sequence[str],
        output_arrays: Sequence[str],
        input_shapes: Mapping[str, Sequence[int]] | None = None,
    ) -> Any:
        """A converter of a frozen graph.

        Args:
          graph_def_file: a file with a `GraphDef`.
          input_arrays, output_arrays: names of nodes.
          input_shapes: must be None: sizes that are open stay open.

        Raises:
          ValueError: for `input_shapes`.
        """
        _refuse_shapes(input_shapes)
        definition = tf.compat.v1.GraphDef()
        with tf.io.gfile.GFile(graph_def_file, "rb") as file:
            definition.ParseFromString(file.read())
        wrapped = tf.compat.v1.wrap_function(
            lambda: tf.compat.v1.import_graph_def(definition, name=""), []
        )
        pruned = wrapped.prune(
            *([_of_node(n) for n in names] for names in (input_arrays, output_arrays))
        )
        given = [wrapped.graph.get_tensor_by_name(_of_node(n)) for n in input_arrays]
        specs = [
            tf.TensorSpec(t.shape, t.dtype, name.split(":")[0])
            for t, name in zip(given, input_arrays, strict=True)
        ]
        function = tf.function(lambda *tensors: pruned(*tensors), input_signature=specs)
        return cls.from_concrete_functions([function.get_concrete_function()])

    @classmethod
    def from_session(cls, sess: Any, input_tensors: Any, output_tensors: Any) -> Any:
        """There are no sessions.

        Raises:
          NotAvailableError: always.
        """
        raise NotAvailableError(
            "tf.compat.v1.lite.TFLiteConverter.from_session: sessions do not exist. Make a tf.function of what it runs "
            "and convert that with from_concrete_functions, or a frozen graph with from_frozen_graph."
        )

    def get_input_arrays(self) -> list[str]:
        """The names of the first signature's inputs."""
        return list(self._signatures()[0].inputs)

    @property
    def post_training_quantize(self) -> bool:
        """Whether weights are quantized; deprecated for `optimizations`."""
        return bool(self.optimizations)

    @post_training_quantize.setter
    def post_training_quantize(self, value: bool) -> None:
        _deprecated("post_training_quantize", "optimizations=[Optimize.DEFAULT]")
        self.optimizations = [Optimize.DEFAULT] if value else []

    @property
    def target_ops(self) -> Any:
        """The sets of operators; deprecated for `target_spec.supported_ops`."""
        return self.target_spec.supported_ops

    @target_ops.setter
    def target_ops(self, value: Any) -> None:
        _deprecated("target_ops", "target_spec.supported_ops")
        self.target_spec.supported_ops = value


TocoConverter = TFLiteConverter


def _of_node(name: str) -> str:
    return name if ":" in name else f"{name}:0"


def _deprecated(name: str, instead: str) -> None:
    warnings.warn(f"Property {name} is deprecated, please use {instead} instead.", stacklevel=3)


def _refuse_shapes(shapes: Any) -> None:
    if shapes:
        raise ValueError(
            f"input_shapes={shapes!r}: sizes that are open stay open; resize the interpreter's inputs, or convert a "
            "function with fixed sizes."
        )
