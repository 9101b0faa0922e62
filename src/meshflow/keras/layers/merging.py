"""Layers that merge several inputs: sums, products, concatenation."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Unpack

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Config, PyTree
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.layer.layer_arguments import RegularizedArguments
from meshflow.ops import array, math, sparse_elements
from meshflow.ops.linalg import einsum

__all__ = [
    "Add",
    "Average",
    "Concatenate",
    "Dot",
    "Maximum",
    "Minimum",
    "Multiply",
    "Subtract",
    "add",
    "average",
    "concatenate",
    "dot",
    "maximum",
    "minimum",
    "multiply",
    "subtract",
]

_Axes = int | Sequence[int]
_Inputs = Sequence[TensorLike]
_Masks = Sequence[Tensor | None] | None


class Merge(Layer):
    """Base class of layers that combine tensors element by element, with broadcasting."""

    def __init__(self, **kwargs: Unpack[RegularizedArguments]) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

    def build(self, input_shape: Sequence[ShapeLike]) -> None:
        """Check the number of inputs."""
        if (
            not isinstance(input_shape, (list, tuple))
            or isinstance(input_shape, TensorShape)
            or len(input_shape) < 1
        ):
            raise ValueError(
                f"A merge layer should be called on a list of inputs (at least 1). Received: input_shape={input_shape} (layer {self.name})."
            )
        self.built = True

    def call(self, inputs: _Inputs) -> Tensor:
        """Combine the inputs."""
        rank = max(len(x.shape) for x in inputs)
        # Missing axes are inserted after the batch.
        full = []
        for x in inputs:
            while len(x.shape) < rank:
                x = array.expand_dims(x, 1)
            full.append(x)
        return self._merge_function(full)

    def _merge_function(self, inputs: list[Tensor]) -> Tensor:
        """Combine tensors of the same rank."""
        return functools.reduce(self._combine, inputs)

    def _combine(self, x: Tensor, y: Tensor) -> Tensor:
        """Combine two tensors; subclasses define this method or `_merge_function`."""
        raise NotImplementedError

    def compute_mask(self, inputs: _Inputs, mask: _Masks = None) -> Tensor | None:
        """Compute the logical AND of the masks."""
        masks = [math.cast(m, "bool") for m in self._check_masks(inputs, mask) if m is not None]
        return functools.reduce(math.logical_and, masks) if masks else None

    def _check_masks(self, inputs: _Inputs, mask: _Masks) -> Sequence[Tensor | None]:
        """Return the masks, or none of them for None; check that each input has one."""
        if mask is None:
            return ()
        for name, value in (("mask", mask), ("inputs", inputs)):
            if not isinstance(value, (list, tuple)):
                raise ValueError(f"{self.name}: `{name}` should be a list. Received: {value}")
        if len(inputs) != len(mask):
            raise ValueError(
                f"{self.name}: The lists `inputs` and `mask` should have the same length, got {len(inputs)} and {len(mask)}."
            )
        return mask


class Add(Merge):
    """Sum of the inputs.

    Input shape:
      A list of tensors of the same shape, or of shapes that broadcast.

    Output shape:
      The broadcast shape.

    Example:
      >>> tf.keras.layers.Add()([tf.constant([1.0, 2.0]), tf.constant([10.0, 20.0])]).numpy().tolist()
      [11.0, 22.0]
    """

    def _combine(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


class Subtract(Merge):
    """Difference of two inputs.

    Input shape:
      A list of two tensors of the same shape, or of shapes that broadcast.

    Output shape:
      The broadcast shape.

    Example:
      >>> tf.keras.layers.Subtract()([tf.constant([5.0, 7.0]), tf.constant([1.0, 9.0])]).numpy().tolist()
      [4.0, -2.0]
    """

    def _merge_function(self, inputs: list[Tensor]) -> Tensor:
        """Compute the difference."""
        if len(inputs) != 2:
            raise ValueError(
                f"A `Subtract` layer should be called on exactly 2 inputs. Received: inputs={inputs}"
            )
        return inputs[0] - inputs[1]


class Multiply(Merge):
    """Product of the inputs.

    Input shape:
      A list of tensors of the same shape, or of shapes that broadcast.

    Output shape:
      The broadcast shape.

    Example:
      >>> tf.keras.layers.Multiply()([tf.constant([5.0, 7.0]), tf.constant([2.0, 3.0])]).numpy().tolist()
      [10.0, 21.0]
    """

    def _combine(self, x: Tensor, y: Tensor) -> Tensor:
        return x * y


class Average(Add):
    """Mean of the inputs.

    Input shape:
      A list of tensors of the same shape, or of shapes that broadcast.

    Output shape:
      The broadcast shape.

    Example:
      >>> tf.keras.layers.Average()([tf.constant([1.0, 2.0]), tf.constant([3.0, 8.0])]).numpy().tolist()
      [2.0, 5.0]
    """

    def _merge_function(self, inputs: list[Tensor]) -> Tensor:
        """Compute the mean."""
        return super()._merge_function(inputs) / len(inputs)


class Maximum(Merge):
    """Elementwise maximum of the inputs.

    Input shape:
      A list of tensors of the same shape, or of shapes that broadcast.

    Output shape:
      The broadcast shape.

    Example:
      >>> tf.keras.layers.Maximum()([tf.constant([5.0, 7.0]), tf.constant([1.0, 9.0])]).numpy().tolist()
      [5.0, 9.0]
    """

    def _combine(self, x: Tensor, y: Tensor) -> Tensor:
        return math.maximum(x, y)


class Minimum(Merge):
    """Elementwise minimum of the inputs.

    Input shape:
      A list of tensors of the same shape, or of shapes that broadcast.

    Output shape:
      The broadcast shape.

    Example:
      >>> tf.keras.layers.Minimum()([tf.constant([5.0, 7.0]), tf.constant([1.0, 9.0])]).numpy().tolist()
      [1.0, 7.0]
    """

    def _combine(self, x: Tensor, y: Tensor) -> Tensor:
        return math.minimum(x, y)


class Concatenate(Merge):
    """Concatenation of the inputs.

    Args:
      axis: Axis along which to concatenate.
      **kwargs: Arguments of `Layer`.

    Input shape:
      A list of tensors with the same sizes except at `axis`.

    Output shape:
      The shape of an input, with the sum of the sizes at `axis`.

    Example:
      >>> tf.keras.layers.Concatenate(axis=1)([tf.ones([2, 3]), tf.ones([2, 1])]).shape
      TensorShape([2, 4])
    """

    def __init__(self, axis: int = -1, **kwargs: Unpack[RegularizedArguments]) -> None:
        super().__init__(**kwargs)
        self.axis = axis

    def build(self, input_shape: Sequence[ShapeLike]) -> None:
        """Check that the sizes match except at `axis`."""
        super().build(input_shape)
        shapes = [TensorShape(s).as_list() for s in input_shape]
        rank = len(shapes[0])
        for shape in shapes[1:]:
            for i in range(rank):
                differ = len(shape) != rank or (
                    i != self.axis % rank
                    and None not in (shape[i], shapes[0][i])
                    and shape[i] != shapes[0][i]
                )
                if differ:
                    raise ValueError(
                        f"A `Concatenate` layer requires inputs with matching shapes except for the concatenation axis. Received: input_shape={shapes}"
                    )

    def call(self, inputs: _Inputs) -> PyTree:
        """Concatenate the inputs."""
        if all(isinstance(x, SparseTensor) for x in inputs):
            return sparse_elements.concat(self.axis, inputs)
        return array.concat(list(inputs), self.axis)

    def compute_mask(self, inputs: _Inputs, mask: _Masks = None) -> Tensor | None:
        """Concatenate the masks, or compute their logical AND if `axis` is an axis of features."""
        masks = self._check_masks(inputs, mask)
        like = next((m for m in masks if m is not None), None)
        if like is None:
            return None
        rank = len(inputs[0].shape)
        if self.axis % rank >= len(like.shape):
            return super().compute_mask(inputs, mask)
        full = [
            array.ones(x.shape[: len(like.shape)], "bool") if m is None else math.cast(m, "bool")
            for x, m in zip(inputs, masks, strict=True)
        ]
        return array.concat(full, self.axis % rank)

    def get_config(self) -> Config:
        """Return the configuration."""
        return {**super().get_config(), "axis": self.axis}


class Dot(Merge):
    """Dot product of two tensors over one axis of each.

    Args:
      axes: Axis, or a pair of axes.
      normalize: Whether to normalize the vectors to L2 norm 1 first, for cosine similarity.
      **kwargs: Arguments of `Layer`.

    Input shape:
      A list of two tensors, (batch, ...), with the same size at `axes`.

    Output shape:
      (batch, ...): the other axes of the first input, followed by those of the second; (batch, 1)
      if there are none.

    Example:
      >>> a, b = tf.constant([[1.0, 2.0]]), tf.constant([[3.0, 4.0]])
      >>> tf.keras.layers.Dot(axes=1)([a, b]).numpy().tolist()
      [[11.0]]
    """

    def __init__(
        self,
        axes: int | Sequence[int],
        normalize: bool = False,
        **kwargs: Unpack[RegularizedArguments],
    ) -> None:
        super().__init__(**kwargs)
        if not isinstance(axes, int):
            if not isinstance(axes, (list, tuple)):
                raise TypeError(
                    f"Invalid type for argument `axes`: expected int or list, got {axes!r}."
                )
            if len(axes) != 2 or not all(isinstance(axis, int) for axis in axes):
                raise ValueError(
                    f"Invalid format for argument `axes`: expected two integers, got {axes}."
                )
        self.axes, self.normalize = axes, normalize

    def call(self, inputs: _Inputs) -> Tensor:
        """Compute the dot products."""
        if not isinstance(inputs, (list, tuple)) or len(inputs) != 2:
            raise ValueError(
                f"A `Dot` layer should be called on a list of 2 inputs. Received: {inputs}"
            )
        a, b = inputs
        pair = (self.axes, self.axes) if isinstance(self.axes, int) else tuple(self.axes)
        for axis, operand in zip(pair, (a, b), strict=True):
            rank = len(operand.shape)
            if not -rank <= axis < rank or axis % rank == 0:
                raise ValueError(
                    f"Dot(name={self.name!r}): axis {axis} is no axis after the batch of an input of shape {operand.shape}."
                )
        i, j = pair[0] % len(a.shape), pair[1] % len(b.shape)
        if a.shape[i] != b.shape[j] and None not in (a.shape[i], b.shape[j]):
            raise ValueError(
                f"Dot(name={self.name!r}): incompatible shapes: {a.shape} and {b.shape} differ in axes {pair}."
            )
        if self.normalize:
            a, b = math.l2_normalize(a, axis=i), math.l2_normalize(b, axis=j)
        letters = iter("abcdefghijklmnopqrstuvwxy")
        first = ["z"] + [next(letters) for _ in a.shape[1:]]
        second = ["z"] + [next(letters) for _ in b.shape[1:]]
        second[j] = first[i]
        out = [c for c in first if c != first[i]] + [c for c in second[1:] if c != first[i]]
        result = einsum(f"{''.join(first)},{''.join(second)}->{''.join(out)}", a, b)
        return array.expand_dims(result, -1) if len(result.shape) == 1 else result

    def compute_mask(self, inputs: _Inputs, mask: _Masks = None) -> None:
        """Return None."""
        return None

    def get_config(self) -> Config:
        """Return the configuration."""
        return {**super().get_config(), "axes": self.axes, "normalize": self.normalize}


def add(inputs: _Inputs, **kwargs: Any) -> Tensor:
    """Add tensors by an `Add` layer.

    Example:
      >>> tf.keras.layers.add([tf.constant([4.0, 6.0]), tf.constant([2.0, 8.0])]).numpy().tolist()
      [6.0, 14.0]
    """
    return Add(**kwargs)(inputs)


def subtract(inputs: _Inputs, **kwargs: Any) -> Tensor:
    """Subtract the second of two tensors from the first by a `Subtract` layer.

    Example:
      >>> tf.keras.layers.subtract([tf.constant([4.0, 6.0]), tf.constant([2.0, 8.0])]).numpy().tolist()
      [2.0, -2.0]
    """
    return Subtract(**kwargs)(inputs)


def multiply(inputs: _Inputs, **kwargs: Any) -> Tensor:
    """Multiply tensors by a `Multiply` layer.

    Example:
      >>> tf.keras.layers.multiply([tf.constant([4.0, 6.0]), tf.constant([2.0, 8.0])]).numpy().tolist()
      [8.0, 48.0]
    """
    return Multiply(**kwargs)(inputs)


def average(inputs: _Inputs, **kwargs: Any) -> Tensor:
    """Compute the mean of tensors by an `Average` layer.

    Example:
      >>> tf.keras.layers.average([tf.constant([4.0, 6.0]), tf.constant([2.0, 8.0])]).numpy().tolist()
      [3.0, 7.0]
    """
    return Average(**kwargs)(inputs)


def maximum(inputs: _Inputs, **kwargs: Any) -> Tensor:
    """Compute the elementwise maximum of tensors by a `Maximum` layer.

    Example:
      >>> tf.keras.layers.maximum([tf.constant([4.0, 6.0]), tf.constant([2.0, 8.0])]).numpy().tolist()
      [4.0, 8.0]
    """
    return Maximum(**kwargs)(inputs)


def minimum(inputs: _Inputs, **kwargs: Any) -> Tensor:
    """Compute the elementwise minimum of tensors by a `Minimum` layer.

    Example:
      >>> tf.keras.layers.minimum([tf.constant([4.0, 6.0]), tf.constant([2.0, 8.0])]).numpy().tolist()
      [2.0, 6.0]
    """
    return Minimum(**kwargs)(inputs)


def concatenate(inputs: _Inputs, axis: int = -1, **kwargs: Any) -> Tensor:
    """Concatenate tensors by a `Concatenate` layer.

    Example:
      >>> tf.keras.layers.concatenate([tf.constant([[1.0, 2.0]]), tf.constant([[3.0]])]).numpy().tolist()
      [[1.0, 2.0, 3.0]]
    """
    return Concatenate(axis=axis, **kwargs)(inputs)


def dot(inputs: _Inputs, axes: _Axes, normalize: bool = False, **kwargs: Any) -> Tensor:
    """Compute dot products of two tensors by a `Dot` layer.

    Example:
      >>> a, b = tf.constant([[3.0, 4.0]]), tf.constant([[6.0, 8.0]])
      >>> tf.keras.layers.dot([a, b], axes=1, normalize=True).numpy().round(3).tolist()
      [[1.0]]
    """
    return Dot(axes=axes, normalize=normalize, **kwargs)(inputs)
