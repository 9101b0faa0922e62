"""What a layer returns, found by tracing its `call` on stand-ins for symbolic tensors.

A result's size that depends on values is unknown too: the two traces make up different values.
Unknown sizes get a concrete stand-in. When there are any, the call is traced twice with different
stand-ins; output sizes that change are unknown in the result. The stand-ins divide well, so that
reshapes and strides inside the layer go through.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from meshflow.core.dispatch.shape_probing import Probe, probing
from meshflow.core.tracing.trace import trace_shapes
from meshflow.core.values import nest
from meshflow.core.values.dtypes import string
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor

_STAND_INS = (720, 5040)
# For calls that fail with large ones, as where positions up to a longest length are cut to the input's.
_SMALL_STAND_INS = (6, 12)
# How many ways of choosing sizes that occur are tried.
_MOST_CHOICES = 64


def infer(
    call: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    declared: Callable[[], Any] | None = None,
) -> Any:
    """The result structure of `call`, with a `KerasTensor` for each tensor.

    Args:
      call: what is traced.
      args: its positional arguments, with `KerasTensor`s.
      kwargs: its named arguments.
      declared: gives the result when `call` fails with values that were made up.
    """
    probes = Probe(0), Probe(1)
    try:
        return _infer(call, args, kwargs, probes)
    except Exception:
        if declared is None or not any(probe.used for probe in probes):
            raise
        return declared()


def infer_op(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result structure of one op, in which an unknown size may have to be one that is known.

    `[None, 3]` and `[2, None]` are added as `[2, 3]`.

    Args:
      call: the op.
      args: its positional arguments, with `KerasTensor`s.
      kwargs: its named arguments.
    """
    try:
        return infer(call, args, kwargs)
    except Exception as error:
        for given, named in _with_sizes_that_occur(args, kwargs):
            try:
                return infer(call, given, named)
            except Exception:
                continue
        raise error from None


def _with_sizes_that_occur(args: Any, kwargs: Any) -> Iterator[tuple[Any, Any]]:
    """The arguments with sizes that others have in place of unknown ones, of as few as possible first."""
    leaves = nest.flatten((args, kwargs))
    symbolic = [v for v in leaves if _may_meet(v)]
    unknown = sum(size is None for t in symbolic for size in t.shape)
    sizes = {v for v in leaves if type(v) is int}
    if len(symbolic) > 1:
        sizes |= {size for t in symbolic for size in t.shape if size is not None}
    occur = sorted(s for s in sizes if s > 1)
    if not unknown or (1 + len(occur)) ** unknown > _MOST_CHOICES:
        return
    choices = itertools.product((None, *occur), repeat=unknown)
    for choice in sorted(choices, key=lambda c: len(c) - c.count(None))[1:]:
        chosen = iter(choice)

        def filled(value: Any, chosen: Any = chosen) -> Any:
            if not _may_meet(value):
                return value
            shape = [next(chosen) if size is None else size for size in value.shape]
            return KerasTensor(TensorSpec(shape, value.dtype))

        yield nest.map_structure(filled, (args, kwargs))


def _may_meet(value: Any) -> bool:
    return isinstance(value, KerasTensor) and value.shape.rank is not None and not value._known


def _infer(call: Callable[..., Any], args: Any, kwargs: Any, probes: tuple[Probe, Probe]) -> Any:
    symbolic = [v for v in nest.flatten((args, kwargs)) if isinstance(v, KerasTensor)]
    if all(t.shape.is_fully_defined() and not t._known for t in symbolic):
        first, _, masks = _specs(call, args, kwargs, _STAND_INS[0], probes[0])
        if probes[0].used:
            return _with_unknown(call, args, kwargs, _STAND_INS, probes)
        return _masked(nest.map_structure(_as_keras_tensor, first), masks)
    try:
        return _with_unknown(call, args, kwargs, _STAND_INS, probes)
    except Exception as error:
        if any(t._known for t in symbolic):
            # Their values are known for the large stand-ins only.
            raise
        try:
            return _with_unknown(call, args, kwargs, _SMALL_STAND_INS, probes)
        except Exception:
            raise error from None


def _with_unknown(
    call: Callable[..., Any],
    args: Any,
    kwargs: Any,
    sizes: tuple[int, int],
    probes: tuple[Probe, Probe],
) -> Any:
    """The result structure of `call`, with the sizes unknown that differ between two stand-ins."""
    first, known, masks = _specs(call, args, kwargs, sizes[0], probes[0])
    second, also_known, also_masks = _specs(call, args, kwargs, sizes[1], probes[1])
    result = nest.map_structure(lambda a, b: _as_keras_tensor(_common(a, b)), first, second)
    masks = {i: _common(m, also_masks[i]) for i, m in masks.items() if i in also_masks}
    for index, tensor in enumerate(nest.flatten(_masked(result, masks))):
        if index in known and index in also_known:
            tensor._known = dict(zip(sizes, (known[index], also_known[index]), strict=True))
    return result


def _specs(
    call: Callable[..., Any], args: Any, kwargs: Any, size: int, probe: Probe
) -> tuple[Any, dict[int, np.ndarray], dict[int, TensorSpec]]:
    """Specs of the results for one stand-in, the values of those that are known, and specs of masks.

    Known values are how `tf.shape(x)[0]` can be part of a shape although the batch size is not known.
    """
    known: dict[int, np.ndarray] = {}
    masks: dict[int, TensorSpec] = {}
    given = {
        str(i): _filled(v._keras_mask, size)
        for i, v in enumerate(nest.flatten((args, kwargs)))
        if isinstance(v, KerasTensor) and v._keras_mask is not None
    }

    def run(given: dict[str, Any], args: Any, kwargs: Any) -> Any:
        leaves = nest.flatten((args, kwargs))
        for place, mask in given.items():
            leaves[int(place)]._keras_mask = mask
        args, kwargs = nest.map_structure(
            lambda v: Tensor(v.value) if isinstance(v, _Known) else v, (args, kwargs)
        )
        outputs = call(*args, **kwargs)
        for index, leaf in enumerate(nest.flatten(outputs)):
            mask = getattr(leaf, "_keras_mask", None)
            if mask is not None:
                masks[index] = TensorSpec(mask.shape, mask.dtype)
            if (
                isinstance(leaf, Tensor)
                and type(leaf._value) is np.ndarray
                and leaf.dtype.is_integer
            ):
                known[index] = leaf._value
        return outputs

    filled_args, filled_kwargs = nest.map_structure(lambda v: _filled(v, size), (args, kwargs))
    with probing(probe):
        return trace_shapes(run, (given, filled_args, filled_kwargs), {}), known, masks


def _masked(result: Any, masks: dict[int, TensorSpec]) -> Any:
    """The symbolic results with their masks, of which later layers are told."""
    leaves = nest.flatten(result)
    for index, spec in masks.items():
        if isinstance(leaves[index], KerasTensor):
            leaves[index]._keras_mask = KerasTensor(spec)
    return result


class _Known:
    """A value that is known for a stand-in size."""

    def __init__(self, value: np.ndarray) -> None:
        self.value = value


def _filled(value: Any, size: int) -> Any:
    if not isinstance(value, KerasTensor):
        return value
    if size in value._known:
        return _Known(value._known[size])
    if value.dtype is string:
        # Programs have no strings: these are known while tracing.
        blank: np.ndarray = np.empty([size if d is None else d for d in value.shape], object)
        blank.fill(b"")
        return Tensor(blank)
    return TensorSpec([size if d is None else d for d in value.shape], value.dtype)


def _common(a: Any, b: Any) -> Any:
    if isinstance(a, Tensor):
        a, b = (TensorSpec(t.shape, t.dtype) for t in (a, b))
    if not isinstance(a, TensorSpec):
        return a
    return TensorSpec(a.shape.most_specific_compatible_shape(b.shape), a.dtype)


def _as_keras_tensor(value: Any) -> Any:
    if isinstance(value, Tensor):
        value = TensorSpec(value.shape, value.dtype)
    return KerasTensor(value) if isinstance(value, TensorSpec) else value


def output_shape(call: Callable[..., Any], input_shape: Any, dtype: Any) -> Any:
    """Shape that `call` gives for an input of a (nested) shape."""
    inputs = map_shapes(lambda s: KerasTensor(TensorSpec(s, dtype)), input_shape)
    outputs = infer(call, (inputs,), {})
    return nest.map_structure(lambda t: t.shape, outputs)


def map_shapes(function: Callable[[TensorShape], Any], shapes: Any) -> Any:
    """Applies a function to each shape of a structure in which tuples of sizes are shapes."""
    if isinstance(shapes, TensorShape):
        return function(shapes)
    if isinstance(shapes, dict):
        return {key: map_shapes(function, value) for key, value in shapes.items()}
    if isinstance(shapes, (list, tuple)) and not all(
        d is None or isinstance(d, int) for d in shapes
    ):
        return type(shapes)(map_shapes(function, value) for value in shapes)
    return function(TensorShape(shapes))
