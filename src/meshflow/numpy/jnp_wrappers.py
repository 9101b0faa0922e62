"""Functions of `jax.numpy` as functions of tensors, recorded by tapes and traced like every op.

Which parameters hold arrays is read from the annotations of JAX; what is JAX's own business (devices,
shardings, precision) is left out of the signature.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any

from meshflow.core.dispatch.dispatch import op
from meshflow.core.values import dtypes
from meshflow.numpy.conversion import as_array_dtype, asarray, promoted
from meshflow.ops.math import cast

_JAX_ONLY = frozenset(
    [
        *(
            "batch_size",
            "device",
            "out_sharding",
            "precision",
            "preferred_element_type",
            "promote_integers",
            "unroll",
        ),
        *("unique_indices", "indices_are_sorted", "total_repeat_length", "_dot_general", "size"),
        *("wrap_negative_indices", "symmetrize_input", "fill_value"),
    ]
)
# Operands that say where or which, so that their dtypes are their own affair.
_APART = frozenset(["condition", "condlist", "indices", "shift", "repeats", "where", "mask"])
# Parameters that JAX lets be arrays, while the sizes of results or the program depend on them.
_STATIC = frozenset(
    [
        *(
            "indices_or_sections",
            "k",
            "offset",
            "rtol",
            "atol",
            "repeats",
            "rcond",
            "axis",
            "axes",
            "num",
        ),
        *("pad_width", "prepend_size", "N", "M", "obj", "n", "bins", "range", "ddof"),
    ]
)
_REFUSED = ("out", "order", "casting", "subok", "like")


def wrap_jnp(
    function: Callable[..., Any],
    name: str | None = None,
    *,
    floating: bool = False,
    counting: bool = False,
    weak: bool = True,
    apart: Collection[str] = (),
    static: Collection[str] = (),
    operands: Collection[str] = (),
    differentiable: bool = True,
    in_files: str | None = None,
) -> Callable[..., Any]:
    """A function of `jax.numpy` as a public function of tensors.

    Args:
      function: the function; its parameters annotated as arrays become operands.
      name: the public name; default the function's.
      floating: whether integers become float64 first, as NumPy's functions of real numbers have it.
      counting: whether integers and booleans become 64-bit integers first, as in sums.
      weak: whether Python numbers take the dtype of what they meet; else they are arrays of 64 bits.
      apart: operands that do not take part in finding the common dtype, beside the usual ones.
      static: parameters that are no operands although they are annotated so.
      operands: parameters that are operands although they are not annotated so.
      differentiable: whether the function has a gradient.
      in_files: the name by which files of models know it; default the public one.

    Returns:
      A function with NumPy's signature.
    """
    name = name or function.__name__
    own = _signature(function)
    held = [
        p.name
        for p in own.parameters.values()
        if p.name in operands or (p.name not in _STATIC and p.name not in static and _is_array(p))
    ]
    lists = {
        p
        for p in held
        if _is_starred(own.parameters[p]) or (p not in operands and _is_list(own.parameters[p]))
    }
    apart = _APART | set(apart)
    together = [p for p in held if p not in apart]
    refused = [p for p in _REFUSED if p not in own.parameters]
    the_op = op(
        _array_function(function, own, held, lists, in_files or name),
        same=(),
        differentiable=differentiable,
    )

    @functools.wraps(function, assigned=())
    def public(*args: Any, **kwargs: Any) -> Any:
        for parameter in refused:
            if kwargs.pop(parameter, None) is not None:
                raise ValueError(
                    f"tnp.{name}: `{parameter}` is not supported, as tensors are not written to and have one "
                    "order of elements. Use the result."
                )
        given = own.bind(*args, **kwargs)
        values = given.arguments
        if values.get("dtype") is not None:
            values["dtype"] = as_array_dtype(values["dtype"])
        _convert(values, together, lists, floating, weak)
        if counting and values.get("dtype") is None:
            values[held[0]] = _as_counts(values[held[0]])
        for p in held:
            if p in apart and values.get(p) is not None:
                values[p] = [asarray(v) for v in values[p]] if p in lists else asarray(values[p])
        return the_op(**values)

    public.__name__ = public.__qualname__ = name
    public.__module__ = "meshflow.numpy"
    public.__doc__ = _documentation(name)
    public.__signature__ = own  # type: ignore[attr-defined]
    del public.__wrapped__
    return public


def _convert(
    values: dict[str, Any], together: list[str], lists: set[str], floating: bool, weak: bool
) -> None:
    """Puts tensors of one dtype in place of the operands that take part in promotion."""
    present = [p for p in together if values.get(p) is not None]
    flat: list[Any] = []
    for p in present:
        if p in lists:
            values[p] = _items(values[p])
            flat.extend(values[p])
        else:
            flat.append(values[p])
    supply = iter(promoted(flat if weak else [asarray(v) for v in flat], floating))
    for p in present:
        values[p] = [next(supply) for _ in values[p]] if p in lists else next(supply)


def _as_counts(tensor: Any) -> Any:
    """A tensor with 64 bits when it holds smaller integers or booleans."""
    dtype = tensor.dtype
    if not (dtype.is_integer or dtype.is_bool):
        return tensor
    return cast(tensor, dtypes.uint64 if dtype.is_unsigned else dtypes.int64)


def _items(value: Any) -> list[Any]:
    """What a list of arrays holds; the rows of an array."""
    return list(value) if isinstance(value, (list, tuple)) else list(asarray(value))


def _array_function(
    function: Callable[..., Any],
    own: inspect.Signature,
    held: list[str],
    lists: set[str],
    name: str,
) -> Callable[..., Any]:
    """`function` with the annotations by which `op` knows operands."""
    starred = next((p.name for p in own.parameters.values() if _is_starred(p)), None)
    by_position = _by_position(function, own)
    names: list[str] = []

    def call(*values: Any) -> Any:
        arguments = dict(zip(names, values, strict=True))
        first = [arguments.pop(n) for n in by_position]
        if starred is not None:
            first += arguments.pop(starred)
        # What was left out keeps JAX's own default.
        defaults = {n: own.parameters[n].default for n in arguments}
        found = function(*first, **{n: v for n, v in arguments.items() if v is not defaults[n]})
        # JAX 0.10 returns lists, as TensorFlow does, later versions tuples.
        return list(found) if starred is not None and isinstance(found, tuple) else found

    def annotation(parameter: str) -> str:
        if parameter in lists:
            return "Sequence[TensorLike]"
        return "TensorLike" if parameter in held else "Any"

    call.__name__ = name
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                p.name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=() if _is_starred(p) else p.default,
                annotation=annotation(p.name),
            )
            for p in sorted(own.parameters.values(), key=lambda p: p.default is not p.empty)
        ]
    )
    names[:] = list(call.__signature__.parameters)  # type: ignore[attr-defined]
    return call


def _by_position(function: Callable[..., Any], own: inspect.Signature) -> list[str]:
    """The public names of what JAX takes by position only."""
    if hasattr(function, "nin"):
        return list(own.parameters)
    theirs = inspect.signature(function).parameters.values()
    count = sum(p.kind is p.POSITIONAL_ONLY for p in theirs)
    return list(own.parameters)[:count]


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """NumPy's signature of a function of JAX."""
    either = inspect.Parameter.POSITIONAL_OR_KEYWORD
    if hasattr(function, "nin"):
        names = ["x"] if function.nin == 1 else ["x1", "x2"]
        return inspect.Signature(
            [inspect.Parameter(n, either, annotation="ArrayLike") for n in names]
        )
    kept = [
        p.replace(kind=either) if p.kind is p.POSITIONAL_ONLY else p
        for p in inspect.signature(function).parameters.values()
        if p.name not in _JAX_ONLY and p.name != "out"
    ]
    if _by_position(function, inspect.Signature(kept)) == ["x", "y"]:
        kept[:2] = [kept[0].replace(name="x1"), kept[1].replace(name="x2")]
    return inspect.Signature(kept)


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
        f"NumPy's `{name}` for tensors: takes what `asarray` takes, gives tensors.\n\n"
        f"See https://numpy.org/doc/stable/reference/generated/numpy.{name}.html. The dtype of the result is "
        "NumPy's;\nthe gradient is recorded.\n"
    )
