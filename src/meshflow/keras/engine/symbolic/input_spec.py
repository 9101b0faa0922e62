"""`InputSpec`: requirements of a layer on its inputs, which are checked before every call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshflow.core.values import nest
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.environment.types import Config, PyTree


class InputSpec:
    """Rank, dtype, shape and axis sizes that a layer requires of one input.

    Args:
      dtype: Required dtype, or None.
      shape: Required shape, with None for any size, or None.
      ndim: Required rank.
      max_ndim: Maximum rank.
      min_ndim: Minimum rank.
      axes: Required sizes by axis; None for any size.
      allow_last_axis_squeeze: Whether to accept an input of rank ndim - 1 if the last size is 1.
      name: Required key if inputs are passed as a dictionary.

    Example:
      >>> tf.keras.layers.InputSpec(ndim=2, axes={-1: 4})
      InputSpec(ndim=2, axes={-1: 4})
    """

    def __init__(
        self,
        dtype: DTypeLike | None = None,
        shape: ShapeLike = None,
        ndim: int | None = None,
        max_ndim: int | None = None,
        min_ndim: int | None = None,
        axes: Mapping[int, int | None] | None = None,
        allow_last_axis_squeeze: bool = False,
        name: str | None = None,
    ) -> None:
        self.dtype = dtype
        self.shape = None if shape is None else tuple(TensorShape(shape).as_list())
        self.ndim = len(self.shape) if self.shape is not None else ndim
        self.max_ndim = max_ndim
        self.min_ndim = min_ndim
        self.name = name
        self.allow_last_axis_squeeze = allow_last_axis_squeeze
        self.axes = {int(k): axes[k] for k in axes} if axes else {}
        rank = self.ndim if self.ndim is not None else self.max_ndim
        if rank is not None and self.axes and max(self.axes) > rank - 1:
            raise ValueError(
                f"Axis {max(self.axes)} is greater than the maximum allowed value: {rank - 1}"
            )

    def __repr__(self) -> str:
        parts = [
            f"{key}={value!r}"
            for key, value in self.get_config().items()
            if value not in (None, {})
        ]
        return f"InputSpec({', '.join(parts)})"

    def get_config(self) -> Config:
        """Return the configuration."""
        keys = ("dtype", "shape", "ndim", "max_ndim", "min_ndim", "axes")
        return {key: getattr(self, key) for key in keys}

    @classmethod
    def from_config(cls, config: Config) -> InputSpec:
        """Create the spec from its configuration."""
        return cls(**config)


def assert_input_compatibility(input_spec: PyTree, inputs: PyTree, layer_name: str) -> None:
    """Check inputs against the specs of a layer.

    Args:
      input_spec: `InputSpec` or structure of `InputSpec`s.
      inputs: Tensors in a matching structure.
      layer_name: Name for the error message.

    Raises:
      ValueError: If an input does not match its spec.
    """
    if not input_spec:
        return
    specs = nest.flatten(input_spec)
    if isinstance(inputs, dict) and all(getattr(s, "name", None) for s in specs):
        missing = [s.name for s in specs if s.name not in inputs]
        if missing:
            raise ValueError(
                f'Missing data for input "{missing[0]}". You passed a data dictionary with keys {list(inputs)}. Expected the following keys: {[s.name for s in specs]}'
            )
        tensors = [inputs[s.name] for s in specs]
    else:
        tensors = nest.flatten(inputs)
    if len(tensors) != len(specs):
        raise ValueError(
            f'Layer "{layer_name}" expects {len(specs)} input(s), but it received {len(tensors)} '
            f"input tensors. Inputs received: {tensors}"
        )
    for index, (tensor, spec) in enumerate(zip(tensors, specs, strict=True)):
        if spec is not None:
            _check_input(spec, tensor, index, layer_name)


def _check_input(spec: InputSpec, tensor: Any, index: int, layer_name: str) -> None:
    if not hasattr(tensor, "shape"):
        raise TypeError(
            f"Inputs to a layer should be tensors. Got: {tensor} (of type {type(tensor)})"
        )
    shape = TensorShape(tensor.shape)
    rank = shape.rank
    if rank is None:
        return
    start = f'Input {index} of layer "{layer_name}" is incompatible with the layer: '
    if spec.ndim is not None and not spec.allow_last_axis_squeeze and rank != spec.ndim:
        raise ValueError(
            f"{start}expected ndim={spec.ndim}, found ndim={rank}. Full shape received: {tuple(shape)}"
        )
    if spec.max_ndim is not None and rank > spec.max_ndim:
        raise ValueError(f"{start}expected max_ndim={spec.max_ndim}, found ndim={rank}")
    if spec.min_ndim is not None and rank < spec.min_ndim:
        raise ValueError(
            f"{start}expected min_ndim={spec.min_ndim}, found ndim={rank}. "
            f"Full shape received: {tuple(shape)}"
        )
    if spec.dtype is not None and tensor.dtype != spec.dtype:
        raise ValueError(f"{start}expected dtype={spec.dtype}, found dtype={tensor.dtype.name}")
    sizes = shape.as_list()
    for axis, size in spec.axes.items():
        if size is not None and sizes[axis] not in (size, None):
            raise ValueError(
                f"{start}expected axis {axis} of input shape to have value {size}, but received input "
                f"with shape {tuple(shape)}"
            )
    if spec.shape is not None:
        expected = list(spec.shape)
        if spec.allow_last_axis_squeeze:
            agree = are_sizes_compatible(expected, sizes)
        else:
            agree = TensorShape(expected).is_compatible_with(shape)
        if not agree:
            raise ValueError(f"{start}expected shape={spec.shape}, found shape={tuple(shape)}")


def are_sizes_compatible(expected: Sequence[int | None], sizes: Sequence[int | None]) -> bool:
    """Check whether no known sizes differ, as in Keras: for any ranks, without last sizes of 1."""
    trimmed = [s[:-1] if s and s[-1] == 1 else s for s in (expected, sizes)]
    return all(e is None or s is None or e == s for e, s in zip(*trimmed, strict=False))


def to_input_spec(shape: PyTree) -> PyTree:
    """Return the specs for an input shape or structure of shapes, with any batch size."""
    if isinstance(shape, dict):
        return {key: to_input_spec(value) for key, value in shape.items()}
    if isinstance(shape, list) and shape and isinstance(shape[0], (tuple, list, TensorShape)):
        return [to_input_spec(value) for value in shape]
    sizes = TensorShape(shape).as_list()
    return InputSpec(shape=[None, *sizes[1:]]) if sizes else InputSpec(shape=sizes)
