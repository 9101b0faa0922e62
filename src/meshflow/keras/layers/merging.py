"""Layers of several inputs: sums, products, concatenation."""

from __future__ import annotations

import functools
from typing import Any

from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import Tensor
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.ops import array, math
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


class Merge(Layer):
    """Combines several tensors element by element; sizes of 1 and missing dimensions broadcast."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

    def build(self, input_shape: Any) -> None:
        """Checks the number of inputs."""
        if (
            not isinstance(input_shape, (list, tuple))
            or isinstance(input_shape, TensorShape)
            or len(input_shape) < 1
        ):
            raise ValueError(
                f"A merge layer should be called on a list of at least 1 input. Received: input_shape={input_shape} (layer {self.name})."
            )
        self.built = True

    def call(self, inputs: Any) -> Any:
        """The combination."""
        rank = max(len(x.shape) for x in inputs)
        # Missing dimensions belong after the batch.
        full = []
        for x in inputs:
            while len(x.shape) < rank:
                x = array.expand_dims(x, 1)
            full.append(x)
        return self.merge(full)

    def merge(self, inputs: list[Any]) -> Any:
        """Combines tensors of one rank."""
        raise NotImplementedError

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """True where all masks are."""
        if mask is None or all(m is None for m in mask):
            return None
        masks = [math.cast(m, "bool") for m in mask if m is not None]
        return functools.reduce(math.logical_and, masks)


class Add(Merge):
    """Sum of the inputs.

    Input shape:
      A list of tensors of one shape, or of shapes that are broadcast.

    Output shape:
      The broadcast shape.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.Add()([tf.constant([1.0, 2.0]), tf.constant([10.0, 20.0])]).numpy().tolist()
      [11.0, 22.0]
    """

    def merge(self, inputs: list[Any]) -> Any:
        """The sum."""
        total = inputs[0]
        for x in inputs[1:]:
            total = total + x
        return total


class Subtract(Merge):
    """First input minus the second.

    Input shape:
      A list of two tensors of one shape, or of shapes that are broadcast.

    Output shape:
      The broadcast shape.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.Subtract()([tf.constant([5.0, 7.0]), tf.constant([1.0, 9.0])]).numpy().tolist()
      [4.0, -2.0]
    """

    def build(self, input_shape: Any) -> None:
        """Checks that there are two inputs."""
        super().build(input_shape)
        if len(input_shape) != 2:
            raise ValueError(
                f"A `Subtract` layer should be called on exactly 2 inputs. Received: input_shape={input_shape}"
            )

    def merge(self, inputs: list[Any]) -> Any:
        """The difference."""
        return inputs[0] - inputs[1]


class Multiply(Merge):
    """Product of the inputs.

    Input shape:
      A list of tensors of one shape, or of shapes that are broadcast.

    Output shape:
      The broadcast shape.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.Multiply()([tf.constant([5.0, 7.0]), tf.constant([2.0, 3.0])]).numpy().tolist()
      [10.0, 21.0]
    """

    def merge(self, inputs: list[Any]) -> Any:
        """The product."""
        total = inputs[0]
        for x in inputs[1:]:
            total = total * x
        return total


class Average(Add):
    """Mean of the inputs.

    Input shape:
      A list of tensors of one shape, or of shapes that are broadcast.

    Output shape:
      The broadcast shape.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.Average()([tf.constant([1.0, 2.0]), tf.constant([3.0, 8.0])]).numpy().tolist()
      [2.0, 5.0]
    """

    def merge(self, inputs: list[Any]) -> Any:
        """The mean."""
        return super().merge(inputs) / len(inputs)


class Maximum(Merge):
    """Largest of the inputs.

    Input shape:
      A list of tensors of one shape, or of shapes that are broadcast.

    Output shape:
      The broadcast shape.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.Maximum()([tf.constant([5.0, 7.0]), tf.constant([1.0, 9.0])]).numpy().tolist()
      [5.0, 9.0]
    """

    def merge(self, inputs: list[Any]) -> Any:
        """The maximum."""
        total = inputs[0]
        for x in inputs[1:]:
            total = math.maximum(total, x)
        return total


class Minimum(Merge):
    """Smallest of the inputs.

    Input shape:
      A list of tensors of one shape, or of shapes that are broadcast.

    Output shape:
      The broadcast shape.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.Minimum()([tf.constant([5.0, 7.0]), tf.constant([1.0, 9.0])]).numpy().tolist()
      [1.0, 7.0]
    """

    def merge(self, inputs: list[Any]) -> Any:
        """The minimum."""
        total = inputs[0]
        for x in inputs[1:]:
            total = math.minimum(total, x)
        return total


class Concatenate(Merge):
    """Joins the inputs.

    Args:
      axis: the dimension.
      **kwargs: arguments of `Layer`.

    Input shape:
      A list of tensors of which only the sizes at `axis` differ.

    Output shape:
      The same, with the sum of the sizes at `axis`.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.Concatenate(axis=1)([tf.ones([2, 3]), tf.ones([2, 1])]).shape
      TensorShape([2, 4])
    """

    def __init__(self, axis: int = -1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.axis = axis

    def build(self, input_shape: Any) -> None:
        """Checks that the other sizes agree."""
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

    def call(self, inputs: Any) -> Any:
        """The joined tensor."""
        return array.concat(list(inputs), self.axis)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Masks joined, or combined when features are joined."""
        if mask is None or all(m is None for m in mask):
            return None
        rank = len(inputs[0].shape)
        if self.axis % rank >= len(next(m for m in mask if m is not None).shape):
            return super().compute_mask(inputs, mask)
        like = next(m for m in mask if m is not None)
        full = [
            array.ones(x.shape[: len(like.shape)], "bool") if m is None else math.cast(m, "bool")
            for x, m in zip(inputs, mask, strict=True)
        ]
        return array.concat(full, self.axis % rank)

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {**super().get_config(), "axis": self.axis}


class Dot(Merge):
    """Products of two tensors, summed over a dimension of each.

    Args:
      axes: dimension, or a pair of dimensions.
      normalize: whether vectors are scaled to norm 1 first (cosine).
      **kwargs: arguments of `Layer`.

    Input shape:
      A list of two tensors, (batch, ...), with one size at `axes`.

    Output shape:
      (batch, ...): the first's dimensions without its axis, then the second's; (batch, 1) where none is left.

    Example:
      >>> import meshflow as tf
      >>> a, b = tf.constant([[1.0, 2.0]]), tf.constant([[3.0, 4.0]])
      >>> tf.keras.layers.Dot(axes=1)([a, b]).numpy().tolist()
      [[11.0]]
    """

    def __init__(self, axes: Any, normalize: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.axes, self.normalize = axes, normalize

    def call(self, inputs: Any) -> Any:
        """The products."""
        if not isinstance(inputs, (list, tuple)) or len(inputs) != 2:
            raise ValueError(
                f"A `Dot` layer should be called on a list of 2 inputs. Received: {inputs}"
            )
        a, b = inputs
        pair = (self.axes, self.axes) if isinstance(self.axes, int) else tuple(self.axes)
        i, j = pair[0] % len(a.shape), pair[1] % len(b.shape)
        if self.normalize:
            a, b = math.l2_normalize(a, axis=i), math.l2_normalize(b, axis=j)
        letters = iter("abcdefghijklmnopqrstuvwxy")
        first = ["z"] + [next(letters) for _ in a.shape[1:]]
        second = ["z"] + [next(letters) for _ in b.shape[1:]]
        second[j] = first[i]
        out = [c for c in first if c != first[i]] + [c for c in second[1:] if c != first[i]]
        result = einsum(f"{''.join(first)},{''.join(second)}->{''.join(out)}", a, b)
        return array.expand_dims(result, -1) if len(result.shape) == 1 else result

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """None."""
        return None

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {**super().get_config(), "axes": self.axes, "normalize": self.normalize}


def add(inputs: Any, **kwargs: Any) -> Tensor:
    """Sum of tensors, through an `Add` layer.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.add([tf.constant([4.0, 6.0]), tf.constant([2.0, 8.0])]).numpy().tolist()
      [6.0, 14.0]
    """
    return Add(**kwargs)(inputs)


def subtract(inputs: Any, **kwargs: Any) -> Tensor:
    """Difference of two tensors, through a `Subtract` layer.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.subtract([tf.constant([4.0, 6.0]), tf.constant([2.0, 8.0])]).numpy().tolist()
      [2.0, -2.0]
    """
    return Subtract(**kwargs)(inputs)


def multiply(inputs: Any, **kwargs: Any) -> Tensor:
    """Product of tensors, through a `Multiply` layer.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.multiply([tf.constant([4.0, 6.0]), tf.constant([2.0, 8.0])]).numpy().tolist()
      [8.0, 48.0]
    """
    return Multiply(**kwargs)(inputs)


def average(inputs: Any, **kwargs: Any) -> Tensor:
    """Mean of tensors, through an `Average` layer.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.average([tf.constant([4.0, 6.0]), tf.constant([2.0, 8.0])]).numpy().tolist()
      [3.0, 7.0]
    """
    return Average(**kwargs)(inputs)


def maximum(inputs: Any, **kwargs: Any) -> Tensor:
    """Largest of tensors, through a `Maximum` layer.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.maximum([tf.constant([4.0, 6.0]), tf.constant([2.0, 8.0])]).numpy().tolist()
      [4.0, 8.0]
    """
    return Maximum(**kwargs)(inputs)


def minimum(inputs: Any, **kwargs: Any) -> Tensor:
    """Smallest of tensors, through a `Minimum` layer.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.minimum([tf.constant([4.0, 6.0]), tf.constant([2.0, 8.0])]).numpy().tolist()
      [2.0, 6.0]
    """
    return Minimum(**kwargs)(inputs)


def concatenate(inputs: Any, axis: int = -1, **kwargs: Any) -> Tensor:
    """Joined tensors, through a `Concatenate` layer.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.concatenate([tf.constant([[1.0, 2.0]]), tf.constant([[3.0]])]).numpy().tolist()
      [[1.0, 2.0, 3.0]]
    """
    return Concatenate(axis=axis, **kwargs)(inputs)


def dot(inputs: Any, axes: Any, normalize: bool = False, **kwargs: Any) -> Tensor:
    """Products of two tensors, through a `Dot` layer.

    Example:
      >>> import meshflow as tf
      >>> a, b = tf.constant([[3.0, 4.0]]), tf.constant([[6.0, 8.0]])
      >>> tf.keras.layers.dot([a, b], axes=1, normalize=True).numpy().round(3).tolist()
      [[1.0]]
    """
    return Dot(axes=axes, normalize=normalize, **kwargs)(inputs)
