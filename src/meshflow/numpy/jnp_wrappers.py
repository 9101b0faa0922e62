"""Wrappers that make functions of `jax.numpy` ops on tensors, with gradients and tracing.

JAX's annotations determine which parameters are operands. Parameters that only concern JAX
(devices, shardings,
precision) are not part of the public signature.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any

from meshflow.core.dispatch.dispatch import op
from meshflow.core.values import dtypes
from meshflow.core.values.tensor import Tensor
from meshflow.numpy.conversion import as_array_dtype, asarray, promoted
from meshflow.ops.math import cast

_JAX_ONLY = frozenset(
    [
        *("batch_size", "device", "out_sharding", "precision", "preferred_element_type"),
        *("promote_integers", "unroll", "unique_indices", "indices_are_sorted", "size"),
        *("total_repeat_length", "_dot_general", "wrap_negative_indices", "symmetrize_input"),
        "fill_value",
    ]
)
# Operands that are indices or masks, and thus excluded from the promotion to a common dtype.
_APART = frozenset(["condition", "condlist", "indices", "shift", "repeats", "where", "mask"])
# Parameters that are static here, although JAX also accepts arrays, because the shapes of results
# depend on them.
_STATIC = frozenset(
    [
        *("indices_or_sections", "k", "offset", "rtol", "atol", "repeats", "rcond", "axis", "axes"),
        *("num", "pad_width", "prepend_size", "N", "M", "obj", "n", "bins", "range", "ddof"),
    ]
)
_REFUSED = ("out", "order", "casting", "subok", "like")


def wrap_jnp(
    function: Callable[..., Any],
    name: str | None = None,
    *,
    floating: bool = False,
    widen: bool = False,
    weak: bool = True,
    excluded: Collection[str] = (),
    static: Collection[str] = (),
    operands: Collection[str] = (),
    differentiable: bool = True,
    stored_name: str | None = None,
) -> Callable[..., Any]:
    """Wrap a function of `jax.numpy` as a public function of tensors.

    Args:
      function: The function; parameters that are annotated as arrays become operands.
      name: Public name; default that of the function.
      floating: Whether to convert integers to float64 first, as NumPy's functions of real numbers
        do.
      widen: Whether to convert integers and Booleans to 64-bit integers first, as NumPy's sums do.
      weak: Whether Python numbers take the common dtype of the other operands; otherwise they have
        64 bits.
      excluded: Further operands that are excluded from the promotion to a common dtype.
      static: Parameters that are static although they are annotated as arrays.
      operands: Parameters that are operands although they are not annotated as arrays.
      differentiable: Whether the function has a gradient.
      stored_name: Name of the op in model files; default the public name.

    Returns:
      A function with NumPy's signature.
    """
    name = name or function.__name__
    signature = _signature(function)
    operand_names = [
        p.name
        for p in signature.parameters.values()
        if p.name in operands or (p.name not in _STATIC and p.name not in static and _is_array(p))
    ]
    lists = {
        p
        for p in operand_names
        if _is_starred(signature.parameters[p])
        or (p not in operands and _is_list(signature.parameters[p]))
    }
    unpromoted = _APART | set(excluded)
    promoted_names = [p for p in operand_names if p not in unpromoted]
    unsupported = [p for p in _REFUSED if p not in signature.parameters]
    the_op = op(
        _array_function(function, signature, operand_names, lists, stored_name or name),
        same=(),
        differentiable=differentiable,
    )

    @functools.wraps(function, assigned=())
    def public(*args: Any, **kwargs: Any) -> Any:
        for parameter in unsupported:
            if kwargs.pop(parameter, None) is not None:
                raise ValueError(
                    f"tnp.{name}: `{parameter}` is not supported, because tensors are immutable and have one order of "
                    "elements. Use the result."
                )
        values = signature.bind(*args, **kwargs).arguments
        if values.get("dtype") is not None:
            values["dtype"] = as_array_dtype(values["dtype"])
        _convert(values, promoted_names, lists, floating, weak)
        if widen and values.get("dtype") is None:
            first = operand_names[0]
            values[first] = _as_counts(values[first])
        for p in operand_names:
            if p in unpromoted and values.get(p) is not None:
                values[p] = [asarray(v) for v in values[p]] if p in lists else asarray(values[p])
        return the_op(**values)

    public.__name__ = public.__qualname__ = name
    public.__module__ = "meshflow.numpy"
    public.__doc__ = _documentation(name)
    public.__signature__ = signature  # type: ignore[attr-defined]
    del public.__wrapped__
    return public


def _convert(
    values: dict[str, Any], names: list[str], lists: set[str], floating: bool, weak: bool
) -> None:
    """Replace operands that take part in promotion by tensors of their common dtype."""
    present = [p for p in names if values.get(p) is not None]
    flat: list[Any] = []
    for p in present:
        if p in lists:
            values[p] = _items(values[p])
            flat.extend(values[p])
        else:
            flat.append(values[p])
    converted = iter(promoted(flat if weak else [asarray(v) for v in flat], floating))
    for p in present:
        values[p] = [next(converted) for _ in values[p]] if p in lists else next(converted)


def _as_counts(tensor: Tensor) -> Tensor:
    """Convert integers of fewer bits, and Booleans, to 64-bit integers."""
    dtype = tensor.dtype
    if not (dtype.is_integer or dtype.is_bool):
        return tensor
    return cast(tensor, dtypes.uint64 if dtype.is_unsigned else dtypes.int64)


def _items(value: Any) -> list[Any]:
    """Return the items of a list, or the rows of an array."""
    return list(value) if isinstance(value, (list, tuple)) else list(asarray(value))


def _array_function(
    function: Callable[..., Any],
    public_signature: inspect.Signature,
    operand_names: list[str],
    lists: set[str],
    name: str,
) -> Callable[..., Any]:
    """Return `function` with a signature by which `op` recognizes operands."""
    starred = next((p.name for p in public_signature.parameters.values() if _is_starred(p)), None)
    positional_names = _by_position(function, public_signature)
    names: list[str] = []

    def call(*values: Any) -> Any:
        arguments = dict(zip(names, values, strict=True))
        positional_arguments = [arguments.pop(n) for n in positional_names]
        if starred is not None:
            positional_arguments += arguments.pop(starred)
        # JAX treats some omitted arguments specially, so defaults are not passed on.
        defaults = {n: public_signature.parameters[n].default for n in arguments}
        result = function(
            *positional_arguments, **{n: v for n, v in arguments.items() if v is not defaults[n]}
        )
        # JAX 0.10 returns lists, as TensorFlow does; later versions return tuples.
        return list(result) if starred is not None and isinstance(result, tuple) else result

    def get_annotation(parameter: str) -> str:
        if parameter in lists:
            return "Sequence[TensorLike]"
        return "TensorLike" if parameter in operand_names else "Any"

    call.__name__ = name
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                p.name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=() if _is_starred(p) else p.default,
                annotation=get_annotation(p.name),
            )
            for p in sorted(
                public_signature.parameters.values(), key=lambda p: p.default is not p.empty
            )
        ]
    )
    names[:] = list(call.__signature__.parameters)  # type: ignore[attr-defined]
    return call


def _by_position(function: Callable[..., Any], public_signature: inspect.Signature) -> list[str]:
    """Return the public names of JAX's positional-only parameters."""
    if hasattr(function, "nin"):
        return list(public_signature.parameters)
    parameters = inspect.signature(function).parameters.values()
    count = sum(p.kind is p.POSITIONAL_ONLY for p in parameters)
    return list(public_signature.parameters)[:count]


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return NumPy's signature of a function of JAX."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    if hasattr(function, "nin"):
        names = ["x"] if function.nin == 1 else ["x1", "x2"]
        return inspect.Signature(
            [inspect.Parameter(n, kind, annotation="ArrayLike") for n in names]
        )
    parameters = [
        p.replace(kind=kind) if p.kind is p.POSITIONAL_ONLY else p
        for p in inspect.signature(function).parameters.values()
        if p.name not in _JAX_ONLY and p.name != "out"
    ]
    if _by_position(function, inspect.Signature(parameters)) == ["x", "y"]:
        parameters[:2] = [parameters[0].replace(name="x1"), parameters[1].replace(name="x2")]
    return inspect.Signature(parameters)


def _is_array(parameter: inspect.Parameter) -> bool:
    text = str(parameter.annotation)
    # The class is `jax.jaxlib._jax.Array` before JAX 0.11.
    return "ArrayLike" in text or "_jax.Array" in text or "jax.Array" in text


def _is_list(parameter: inspect.Parameter) -> bool:
    return "Sequence[" in str(parameter.annotation)


def _is_starred(parameter: inspect.Parameter) -> bool:
    return parameter.kind is parameter.VAR_POSITIONAL


def _documentation(name: str) -> str:
    return (
        f"NumPy's `{name}` for tensors.\n\nSee https://numpy.org/doc/stable/reference/generated/numpy.{name}.html. "
        "The operands are values that\n`asarray` accepts. The result has NumPy's dtype, and a gradient.\n"
    )
