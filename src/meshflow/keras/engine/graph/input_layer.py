"""`Input` and `InputLayer`: the inputs of Functional models."""

from __future__ import annotations

from typing import TypeAlias, TypedDict, Unpack

from meshflow.core.dispatch.composite import SparseTensorSpec
from meshflow.core.values import dtypes
from meshflow.core.values.composite import (
    CompositeSpec,
    is_composite_spec,
    is_extension_spec,
)
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import Config
from meshflow.keras import settings
from meshflow.keras.engine.graph.json_values import deserialize_value, serialize_value
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor, Node
from meshflow.ops.ragged import RaggedTensorSpec

BatchShape: TypeAlias = tuple[int | None, ...] | None


class BatchShapeArguments(TypedDict, total=False):
    """Further arguments of `Input` and `InputLayer`."""

    batch_shape: ShapeLike
    batch_input_shape: ShapeLike


class InputLayer(Layer):
    """Layer that represents an input of a model.

    Args:
      input_shape: Shape without the batch dimension.
      batch_size: Batch size, or None if it varies.
      dtype: Dtype of the input; default `floatx()`.
      input_tensor: Not supported.
      sparse: Whether the values are `tf.SparseTensor`s.
      name: Name of the input.
      ragged: Whether the values are `tf.RaggedTensor`s: sizes None in `shape` are ragged, from the
        first one to the last one.
      type_spec: `TensorSpec`, `SparseTensorSpec`, `RaggedTensorSpec` or spec of an extension type with a
        shape, instead of these arguments.
      **kwargs: `batch_input_shape`.

    Input shape:
      None: the layer has no inputs.

    Output shape:
      (batch, *input_shape).

    Raises:
      ValueError: If no shape is given, or an argument is unknown.
      NotImplementedError: For `input_tensor`.

    Example:
      >>> first = tf.keras.layers.InputLayer(input_shape=(3,))
      >>> model = tf.keras.Sequential([first, tf.keras.layers.Dense(2)])
      >>> model.input_shape, model.output_shape
      ((None, 3), (None, 2))
    """

    def __init__(
        self,
        input_shape: ShapeLike = None,
        batch_size: int | None = None,
        dtype: DTypeLike | None = None,
        input_tensor: object = None,
        sparse: bool = False,
        name: str | None = None,
        ragged: bool = False,
        type_spec: TensorSpec | CompositeSpec | None = None,
        **kwargs: Unpack[BatchShapeArguments],
    ) -> None:
        if input_tensor is not None:
            raise NotImplementedError(
                "Input(tensor=...) is not supported: call the layers on the tensor instead."
            )
        self.ragged = ragged or isinstance(type_spec, RaggedTensorSpec)
        self.sparse = sparse or isinstance(type_spec, SparseTensorSpec)
        if self.ragged and self.sparse:
            raise ValueError("Cannot set both sparse and ragged to True in a Keras input.")
        unknown = sorted(kwargs.keys() - {"batch_input_shape"})
        if unknown:
            raise ValueError(f"Unrecognized keyword arguments: {unknown}")
        batch_input_shape = kwargs.get("batch_input_shape")
        given = (input_shape, batch_size, batch_input_shape, dtype)
        if type_spec is not None and any(value is not None for value in given):
            raise ValueError(
                f"Input: type_spec={type_spec} defines the shape and dtype, so all other args except `name` must be None."
            )
        if input_shape is not None and batch_input_shape is not None:
            raise ValueError(
                "Only provide the `input_shape` OR `batch_input_shape` argument to InputLayer, not both at the same time."
            )
        if type_spec is not None:
            output = KerasTensor(type_spec)
            has_rank = output.shape.rank is not None
            batch_shape: BatchShape = tuple(output.shape.as_list()) if has_rank else None
            dtype = output.dtype
        elif batch_input_shape is not None:
            batch_shape = tuple(TensorShape(batch_input_shape))
        elif input_shape is not None:
            inner = (input_shape,) if isinstance(input_shape, int) else tuple(input_shape)
            batch_shape = (batch_size, *inner)
        else:
            raise ValueError(
                "Please provide to Input a `shape` or a `tensor` or a `type_spec` argument."
            )
        name = name or settings.make_unique_name("input", zero_based=False)
        input_dtype = dtypes.as_dtype(dtype or settings.floatx())
        super().__init__(name=name, dtype=input_dtype.name)
        self._batch_input_shape = batch_shape  # type: ignore[assignment]  # None for an unknown rank
        self.built = True
        self.is_placeholder = True
        if self.ragged or self.sparse or is_extension_spec(type_spec):
            spec = type_spec or _make_composite_spec(batch_shape, input_dtype, self.ragged)
        else:
            spec = TensorSpec(batch_shape, input_dtype, name)
        output = KerasTensor(spec, name=name)
        Node(self, (), {}, output)

    @property
    def input_shape(self) -> list[BatchShape]:
        """Return the shape in a list, as Keras does for input layers only."""
        return [self._batch_input_shape]

    output_shape = input_shape

    def get_config(self) -> Config:
        """Return the configuration."""
        type_spec = self.inbound_nodes[0].outputs.type_spec
        shape, dtype = self._batch_input_shape, dtypes.as_dtype(self.dtype)
        is_default = (
            type_spec == _make_composite_spec(shape, dtype, self.ragged)
            if is_composite_spec(type_spec)
            else shape is not None
        )
        if not is_default:
            return {"name": self.name, "type_spec": serialize_value(type_spec)}
        return {
            "batch_input_shape": self._batch_input_shape,
            "dtype": self.dtype,
            "sparse": self.sparse,
            "ragged": self.ragged,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: Config) -> InputLayer:
        """Create the layer from its configuration."""
        type_spec = deserialize_value(config.get("type_spec"))
        if type_spec is None:
            # Keras since 2.16 writes whether None is accepted.
            return cls(**{k: v for k, v in config.items() if k != "optional"})
        # Earlier versions also wrote the shape and dtype.
        return cls(name=config.get("name"), type_spec=type_spec)


def _make_composite_spec(
    batch_shape: BatchShape, dtype: dtypes.DType, is_ragged: bool
) -> SparseTensorSpec | RaggedTensorSpec:
    if not is_ragged or batch_shape is None:
        return SparseTensorSpec(batch_shape, dtype)
    ragged_axes = [axis for axis, size in enumerate(batch_shape) if axis and size is None]
    return RaggedTensorSpec(batch_shape, dtype, ragged_axes[-1] if ragged_axes else 0)


def Input(
    shape: ShapeLike = None,
    batch_size: int | None = None,
    name: str | None = None,
    dtype: DTypeLike | None = None,
    sparse: bool | None = None,
    tensor: object = None,
    ragged: bool | None = None,
    type_spec: TensorSpec | CompositeSpec | None = None,
    **kwargs: Unpack[BatchShapeArguments],
) -> Tensor:
    """Create a symbolic input of a model.

    Args:
      shape: Shape without the batch dimension; None for sizes that vary.
      batch_size: Batch size, or None if it varies.
      name: Name of the input, which is its key when inputs are passed as a dictionary.
      dtype: Dtype; default `floatx()`.
      sparse: Whether the values are `tf.SparseTensor`s.
      tensor: Not supported.
      ragged: Whether the values are `tf.RaggedTensor`s: sizes None in `shape` are ragged, from the
        first one to the last one.
      type_spec: `TensorSpec`, `SparseTensorSpec`, `RaggedTensorSpec` or spec of an extension type with a
        shape, instead of these arguments.
      **kwargs: `batch_shape` or `batch_input_shape`, the shape with the batch dimension.

    Returns:
      A symbolic tensor.

    Raises:
      ValueError: If both or neither of `shape` and `batch_shape` are given.

    Example:
      >>> x = tf.keras.Input(shape=(3,))
      >>> y = tf.nn.relu(x * 2.0)
      >>> y.shape
      TensorShape([None, 3])
    """
    shapes = kwargs.pop("batch_shape", None), kwargs.pop("batch_input_shape", None)
    batch_shape = next((s for s in shapes if s is not None), None)
    if kwargs:
        raise ValueError(f"Unrecognized keyword arguments to Input: {sorted(kwargs)}")
    if shape is not None and batch_shape is not None:
        raise ValueError(
            "Only provide the `shape` OR `batch_input_shape` argument to Input, not both at the same time."
        )
    layer = InputLayer(
        input_shape=shape,
        batch_size=batch_size,
        dtype=dtype,
        input_tensor=tensor,
        sparse=bool(sparse),
        name=name,
        ragged=bool(ragged),
        type_spec=type_spec,
        batch_input_shape=batch_shape,
    )
    return layer.inbound_nodes[0].outputs
