"""Tensors and variables on a mesh, and functions that move, split and join them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.tensor import Tensor, TensorLike, register_mesh_formatter
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import PyTree
from meshflow.ops.printing import format_value
from meshflow.placement.layout import (
    MATCH,
    Layout,
    apply_layout,
    apply_layout_like,
    find_array_layout,
    find_layout,
)
from meshflow.placement.mesh import find_jax_device

__all__ = [
    "DVariable",
    "call_with_layout",
    "check_layout",
    "copy_to_mesh",
    "fetch_layout",
    "is_dtensor",
    "pack",
    "relayout",
    "relayout_like",
    "unpack",
]


def relayout(tensor: TensorLike, layout: Layout, name: str | None = None) -> Tensor:
    """Change the layout of a tensor.

    Args:
      tensor: Tensor to move.
      layout: New layout; a `MATCH` axis keeps its sharding.
      name: Ignored.

    Returns:
      A tensor of the same value. Its gradient has the layout of the input.

    Raises:
      InvalidArgumentError: If the shape does not fit the layout.

    Example:
      >>> mesh = tf.experimental.dtensor.create_mesh([("x", 2)], devices=["CPU:0", "CPU:1"])
      >>> split = tf.experimental.dtensor.Layout(["x"], mesh)
      >>> replicated = tf.experimental.dtensor.Layout.replicated(mesh, rank=1)
      >>> parts = tf.experimental.dtensor.pack([tf.constant([1, 2]), tf.constant([3, 4])], split)
      >>> gathered = tf.experimental.dtensor.relayout(parts, replicated)
      >>> [part.numpy().tolist() for part in tf.experimental.dtensor.unpack(gathered)]
      [[1, 2, 3, 4], [1, 2, 3, 4]]
    """
    if not isinstance(layout, Layout):
        raise InvalidValueError(f"relayout: expected a dtensor.Layout, got {layout!r}.")
    tensor = convert_to_tensor(tensor)
    if MATCH in layout.sharding_specs and context.trace is None:
        if layout.rank != len(tensor.shape):
            layout.check_shape(tensor.shape.as_list())
        current = find_layout(tensor) or Layout.replicated(layout.mesh, len(tensor.shape))
        pairs = zip(layout.sharding_specs, current.sharding_specs, strict=True)
        layout = Layout([p if s == MATCH else s for s, p in pairs], layout.mesh)
    return apply_layout(tensor, layout)


def relayout_like(
    tensor: TensorLike, layout_tensor: Tensor | Variable, name: str | None = None
) -> Tensor:
    """Change the layout of a tensor to that of another tensor.

    Example:
      >>> mesh = tf.experimental.dtensor.create_mesh([("x", 2)], devices=["CPU:0", "CPU:1"])
      >>> split = tf.experimental.dtensor.Layout(["x"], mesh)
      >>> parts = tf.experimental.dtensor.pack([tf.constant([1, 2]), tf.constant([3, 4])], split)
      >>> replicated = tf.experimental.dtensor.Layout.replicated(mesh, rank=1)
      >>> model = tf.experimental.dtensor.copy_to_mesh(tf.zeros([4]), replicated)
      >>> moved = tf.experimental.dtensor.relayout_like(parts, model)
      >>> tf.experimental.dtensor.fetch_layout(moved) == replicated
      True
    """
    if context.trace is not None and getattr(layout_tensor, "layout", None) is None:
        return apply_layout_like(convert_to_tensor(tensor), convert_to_tensor(layout_tensor))
    layout = fetch_layout(layout_tensor)
    if layout is None:
        raise TypeError(f"relayout_like: {layout_tensor!r} is neither a tensor nor a variable.")
    return relayout(tensor, layout)


def copy_to_mesh(tensor: TensorLike, layout: Layout, source_layout: Layout | None = None) -> Tensor:
    """Copy a tensor to a mesh.

    Args:
      tensor: Value that can be converted to a tensor.
      layout: Layout of the result.
      source_layout: Ignored.

    Raises:
      InvalidArgumentError: If the shape does not fit the layout.

    Example:
      >>> dtensor = tf.experimental.dtensor
      >>> mesh = dtensor.create_mesh([("x", 1)], devices=["CPU:0"])
      >>> x = dtensor.copy_to_mesh(tf.ones([4, 2]), dtensor.Layout.batch_sharded(mesh, "x", 2))
      >>> dtensor.fetch_layout(x).sharding_specs
      ['x', 'unsharded']
    """
    del source_layout
    return relayout(tensor, layout)


def pack(tensors: Sequence[TensorLike], layout: Layout) -> Tensor:
    """Create a tensor from the shards on this process's devices.

    Args:
      tensors: One shard per local device, in the order of the mesh.
      layout: Layout of the result.

    Raises:
      RuntimeError: If a function is being traced.
      InvalidArgumentError: If the number, shape or rank of the shards does not fit the layout.

    Example:
      >>> mesh = tf.experimental.dtensor.create_mesh([("x", 2)], devices=["CPU:0", "CPU:1"])
      >>> layout = tf.experimental.dtensor.Layout(["x"], mesh)
      >>> tf.experimental.dtensor.pack([tf.constant([1, 2]), tf.constant([3, 4])], layout).numpy().tolist()
      [1, 2, 3, 4]
    """
    if context.trace is not None:
        raise RuntimeError("`pack` must be called eagerly. It was called inside a tf.function.")
    if any(isinstance(t, Variable) for t in tensors):
        raise InvalidArgumentError("pack: Variable input is not supported. Pass its parts' values.")
    parts = [convert_to_tensor(t) for t in tensors]
    if len(parts) != layout.mesh.num_local_devices():
        raise InvalidArgumentError(
            f"pack: got {len(parts)} tensors, expected one for each of the "
            f"{layout.mesh.num_local_devices()} local devices of the mesh."
        )
    shape = parts[0].shape.as_list()
    if len(shape) != layout.rank and not layout.is_single_device():
        raise InvalidArgumentError(
            f"Packed layout should have the same rank as the components: they have shape {tuple(shape)}, the layout "
            f"{layout.sharding_specs} has rank {layout.rank}."
        )
    for i, part in enumerate(parts):
        if part.shape.as_list() != shape:
            raise InvalidArgumentError(
                f"pack: component {i} has shape {part.shape}, component 0 {tuple(shape)}."
            )
        if part.dtype is not parts[0].dtype:
            raise InvalidArgumentError(
                f"pack: component {i} has dtype {part.dtype.name}, component 0 {parts[0].dtype.name}."
            )
    devices = [find_jax_device(d) for d in layout.mesh.local_devices()]
    arrays = [jax.device_put(p.array, d) for p, d in zip(parts, devices, strict=True)]
    global_shape = layout.global_shape_from_local_shape(shape)
    return Tensor(
        jax.make_array_from_single_device_arrays(global_shape, layout.to_sharding(), arrays)
    )


def unpack(tensor: Tensor) -> list[Tensor]:
    """Return the shards of a tensor on this process's devices, in the order of the mesh.

    Raises:
      RuntimeError: If a function is being traced.
      TypeError: If the argument is not a tensor.
      InvalidArgumentError: If the tensor is not on a mesh.

    Example:
      >>> mesh = tf.experimental.dtensor.create_mesh([("x", 2)], devices=["CPU:0", "CPU:1"])
      >>> layout = tf.experimental.dtensor.Layout(["x"], mesh)
      >>> ones = tf.experimental.dtensor.call_with_layout(tf.ones, layout, shape=[4])
      >>> [part.numpy().tolist() for part in tf.experimental.dtensor.unpack(ones)]
      [[1.0, 1.0], [1.0, 1.0]]
    """
    if context.trace is not None:
        raise RuntimeError("`unpack` must be called eagerly. It was called inside a tf.function.")
    if not isinstance(tensor, Tensor):
        raise TypeError(
            f"Expecting a Tensor to unpack, got {type(tensor).__name__}. Read a variable with read_value()."
        )
    layout = find_layout(tensor)
    if layout is None:
        raise InvalidArgumentError(
            "DTensorUnpack expects a tensor placed on the DTensor device: put it on a mesh with copy_to_mesh or pack."
        )
    array: Any = tensor.array
    by_device = {s.device: s.data for s in array.addressable_shards}
    return [Tensor(by_device[find_jax_device(d)]) for d in layout.mesh.local_devices()]


def fetch_layout(tensor: object) -> Layout:
    """Return the layout of a tensor or variable on a mesh.

    Returns:
      The `Layout`, or None if the argument is neither a tensor nor a variable.

    Raises:
      RuntimeError: If a function is being traced.
      InvalidArgumentError: If the tensor is not on a mesh.

    Example:
      >>> mesh = tf.experimental.dtensor.create_mesh([("x", 2)], devices=["CPU:0", "CPU:1"])
      >>> layout = tf.experimental.dtensor.Layout(["x"], mesh)
      >>> ones = tf.experimental.dtensor.call_with_layout(tf.ones, layout, shape=[4])
      >>> tf.experimental.dtensor.fetch_layout(ones).sharding_specs
      ['x']
    """
    variable_layout = getattr(tensor, "layout", None)
    if isinstance(variable_layout, Layout):
        return variable_layout
    if context.trace is not None:
        raise RuntimeError(
            "`fetch_layout` must be called eagerly. It was called inside a tf.function."
        )
    if not isinstance(tensor, (Tensor, Variable)):
        return None  # type: ignore[return-value]
    if isinstance(tensor._value, jax.core.Tracer):
        raise TypeError(
            f"{tensor} is out of scope and cannot be used here: it belongs to a function that is being traced."
        )
    layout = find_layout(tensor)
    if layout is None:
        raise InvalidArgumentError(
            "FetchLayout expects a tensor placed on the layout device: put it on a mesh with copy_to_mesh or pack."
        )
    return layout


def is_dtensor(tensor: object) -> bool:
    """Check whether a value is a tensor or variable on a mesh.

    Raises:
      RuntimeError: If a function is being traced.

    Example:
      >>> mesh = tf.experimental.dtensor.create_mesh([("x", 2)], devices=["CPU:0", "CPU:1"])
      >>> layout = tf.experimental.dtensor.Layout(["x"], mesh)
      >>> ones = tf.experimental.dtensor.call_with_layout(tf.ones, layout, shape=[4])
      >>> tf.experimental.dtensor.is_dtensor(ones), tf.experimental.dtensor.is_dtensor(tf.ones([4]))
      (True, False)
    """
    if context.trace is not None:
        raise RuntimeError(
            "`is_dtensor` must be called eagerly. It was called inside a tf.function."
        )
    return isinstance(tensor, (Tensor, Variable)) and find_layout(tensor) is not None


def check_layout(tensor: Tensor | Variable, layout: Layout) -> None:
    """Check that a tensor has a layout.

    Raises:
      ValueError: If the tensor has another layout.

    Example:
      >>> mesh = tf.experimental.dtensor.create_mesh([("x", 2)], devices=["CPU:0", "CPU:1"])
      >>> layout = tf.experimental.dtensor.Layout(["x"], mesh)
      >>> copies = tf.experimental.dtensor.copy_to_mesh(tf.ones([4]), layout.replicated(mesh, 1))
      >>> tf.experimental.dtensor.check_layout(tf.experimental.dtensor.relayout(copies, layout), layout)
    """
    actual = fetch_layout(tensor)
    if actual != layout:
        raise InvalidValueError(
            f"Layout of tensor: {actual}, did not match expected layout: {layout}."
        )


def call_with_layout(
    fn: Callable[..., PyTree], layout: Layout | None, *args: Any, **kwargs: Any
) -> PyTree:
    """Call a function and change the layout of its results.

    Args:
      fn: Function that returns tensors.
      layout: Layout of the results; None leaves the results unchanged.
      *args: Arguments of the function.
      **kwargs: Keyword arguments of the function.

    Example:
      >>> mesh = tf.experimental.dtensor.create_mesh([("x", 2)], devices=["CPU:0", "CPU:1"])
      >>> layout = tf.experimental.dtensor.Layout(["x"], mesh)
      >>> ones = tf.experimental.dtensor.call_with_layout(tf.ones, layout, shape=[4])
      >>> [part.shape for part in tf.experimental.dtensor.unpack(ones)]
      [TensorShape([2]), TensorShape([2])]
    """
    result = fn(*args, **kwargs)
    if layout is None:
        return result
    return nest.map_structure(lambda t: relayout(t, layout), result)


def _format_on_mesh(array: Any) -> str | None:
    """Format an array and its layout as TensorFlow does: by device, unless it is replicated."""
    layout = find_array_layout(array)
    if layout is None or not layout.mesh.is_printed:
        return None
    if layout.is_fully_replicated():
        value = format_value(array.addressable_data(0))
    else:
        parts = {s.device: s.data for s in array.addressable_shards}
        names = [(find_jax_device(n), n.split("device:")[1]) for n in layout.mesh.local_devices()]
        value = ", ".join(f'"{name}": {format_value(parts[d])}' for d, name in names)
        value = f"{{{value}}}"
    return f'{value}, layout="{layout.to_string()}"'


register_mesh_formatter(_format_on_mesh)


class _DVariableType(type(Variable)):  # type: ignore[misc]
    """Metaclass that makes every variable with a layout an instance of `DVariable`."""

    def __instancecheck__(cls, instance: object) -> bool:
        if cls is not DVariable:
            return super().__instancecheck__(instance)
        return isinstance(instance, Variable) and instance.layout is not None


class DVariable(Variable, metaclass=_DVariableType):
    """Variable on a mesh, with a constant layout.

    Args:
      initial_value: Tensor on a mesh, any value if `layout` is passed, or a function that returns
        one of them.
      *args: Further arguments of `tf.Variable`.
      dtype: Dtype of the variable.
      layout: Layout of the variable; default that of the initial value.
      **kwargs: Further keyword arguments of `tf.Variable`.

    Attributes:
      save_as_bf16: Whether checkpoints store a float32 value as bfloat16.

    Raises:
      InvalidArgumentError: If neither the value nor `layout` specifies a layout, or if both do and
        differ.

    Example:
      >>> dtensor = tf.experimental.dtensor
      >>> mesh = dtensor.create_mesh([("x", 1)], devices=["CPU:0"])
      >>> v = dtensor.DVariable(tf.zeros([4]), layout=dtensor.Layout(["x"], mesh))
      >>> v.layout.sharding_specs
      ['x']
    """

    def __init__(
        self,
        initial_value: TensorLike | Callable[[], TensorLike],
        *args: Any,
        dtype: DTypeLike | None = None,
        layout: Layout | None = None,
        **kwargs: Any,
    ) -> None:
        if callable(initial_value) and not isinstance(initial_value, Tensor):
            initial_value = initial_value()
        value_layout = (
            find_layout(initial_value) if isinstance(initial_value, (Tensor, Variable)) else None
        )
        if layout is None and value_layout is None:
            raise InvalidArgumentError(
                "Neither layout nor DTensor initial value are provided. Pass layout= to DVariable, or put the value "
                "on a mesh with dtensor.copy_to_mesh or call_with_layout."
            )
        if layout is not None and value_layout is not None and value_layout != layout:
            raise InvalidArgumentError(
                f"Conflicting layout are provided for initial value layout ({value_layout.sharding_specs}) and variable "
                f"({layout.sharding_specs})."
            )
        # mypy reports that `args` might contain a dtype, too; Python raises an error in that case.
        super().__init__(initial_value, *args, dtype=dtype, **kwargs)  # type: ignore[misc]
        self.layout = layout or value_layout
        self.save_as_bf16 = False
