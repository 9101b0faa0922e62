"""`InputSpec`: what a layer expects of its inputs, checked before every call."""

from __future__ import annotations

from typing import Any

from meshflow.core.values import nest
from meshflow.core.values.shapes import TensorShape


class InputSpec:
    """Rank, dtype, shape and axis sizes that a layer requires of one input.

    Args:
      dtype: expected dtype or None.
      shape: expected shape, None for any size, or None.
      ndim: expected rank.
      max_ndim: largest rank.
      min_ndim: smallest rank.
      axes: dictionary from axis to required size (None for any).
      allow_last_axis_squeeze: whether an input of rank ndim - 1 is taken when the last size is 1.
      name: expected key when inputs come as a dictionary.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.InputSpec(ndim=2, axes={-1: 4})
      InputSpec(ndim=2, axes={-1: 4})
    """

    def __init__(
        self,
        dtype: Any = None,
        shape: Any = None,
        ndim: int | None = None,
        max_ndim: int | None = None,
        min_ndim: int | None = None,
        axes: dict[int, int | None] | None = None,
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

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        keys = ("dtype", "shape", "ndim", "max_ndim", "min_ndim", "axes")
        return {key: getattr(self, key) for key in keys}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> InputSpec:
        """The spec with a configuration."""
        return cls(**config)


def assert_input_compatibility(input_spec: Any, inputs: Any, layer_name: str) -> None:
    """Checks inputs against a layer's specs.

    Args:
      input_spec: an `InputSpec`, or a structure of them.
      inputs: tensors in a matching structure.
      layer_name: named in the error.

    Raises:
      ValueError: naming the layer, the input, what was expected and what was found.
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
            _check(spec, tensor, index, layer_name)


def _check(spec: InputSpec, tensor: Any, index: int, layer_name: str) -> None:
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
            agree = sizes_agree(expected, sizes)
        else:
            agree = TensorShape(expected).is_compatible_with(shape)
        if not agree:
            raise ValueError(f"{start}expected shape={spec.shape}, found shape={tuple(shape)}")


def sizes_agree(expected: list[int | None], found: list[int | None]) -> bool:
    """Whether no known size differs, a last one of 1 left out: as Keras, for any number of dimensions.

    Args:
      expected: sizes; None fits any.
      found: sizes.
    """
    kept = [sizes[:-1] if sizes and sizes[-1] == 1 else sizes for sizes in (expected, found)]
    return all(e is None or f is None or e == f for e, f in zip(*kept, strict=False))


def to_input_spec(shape: Any) -> Any:
    """Specs with any batch size from a (nested) input shape."""
    if isinstance(shape, dict):
        return {key: to_input_spec(value) for key, value in shape.items()}
    if isinstance(shape, list) and shape and isinstance(shape[0], (tuple, list, TensorShape)):
        return [to_input_spec(value) for value in shape]
    sizes = TensorShape(shape).as_list()
    return InputSpec(shape=[None, *sizes[1:]]) if sizes else InputSpec(shape=sizes)
