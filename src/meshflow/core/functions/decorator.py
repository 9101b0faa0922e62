"""The decorator `tf.function`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from meshflow.core.functions.function import Function
from meshflow.core.functions.function_types import Parameters, Polymorphic, Result
from meshflow.core.values import nest
from meshflow.core.values.specs import TypeSpec


@overload
def function(
    func: Callable[Parameters, Result],
    input_signature: Sequence[Any] | None = None,
    autograph: bool = True,
    jit_compile: bool | None = None,
    reduce_retracing: bool = False,
    experimental_implements: object = None,
    experimental_autograph_options: object = None,
    experimental_attributes: Mapping[str, Any] | None = None,
    experimental_relax_shapes: bool | None = None,
    experimental_compile: bool | None = None,
    experimental_follow_type_hints: bool | None = None,
) -> Polymorphic[Parameters, Result]: ...
@overload
def function(
    func: None = None,
    input_signature: Sequence[Any] | None = None,
    autograph: bool = True,
    jit_compile: bool | None = None,
    reduce_retracing: bool = False,
    experimental_implements: object = None,
    experimental_autograph_options: object = None,
    experimental_attributes: Mapping[str, Any] | None = None,
    experimental_relax_shapes: bool | None = None,
    experimental_compile: bool | None = None,
    experimental_follow_type_hints: bool | None = None,
) -> Callable[[Callable[Parameters, Result]], Polymorphic[Parameters, Result]]: ...
def function(
    func: Callable[..., Any] | None = None,
    input_signature: Sequence[Any] | None = None,
    autograph: bool = True,
    jit_compile: bool | None = None,
    reduce_retracing: bool = False,
    experimental_implements: object = None,
    experimental_autograph_options: object = None,
    experimental_attributes: Mapping[str, Any] | None = None,
    experimental_relax_shapes: bool | None = None,
    experimental_compile: bool | None = None,
    experimental_follow_type_hints: bool | None = None,
) -> Any:
    """Compile a Python function of tensors.

    The function is traced when it is called with a new signature: the shapes and dtypes of its
    tensor arguments and the values of all others. Later calls run the traced program: op by op until
    compiling it with XLA pays off, then compiled. A function caches its 512 most recently used
    traces; an older one is traced again when it is called. With None sizes in the `input_signature`, the
    function is traced once, for any size; `x.shape` then has unknown sizes. With ragged or other composite arguments, or
    with `reduce_retracing`, the second size is traced for any size. A program with sizes that depend on values (`tf.boolean_mask`, `tf.where` with one argument, slices
    up to a computed end) always runs op by op, unless `jit_compile` is True.

    Args:
      func: The function; None to use `tf.function(...)` as a decorator with arguments.
      input_signature: A sequence of `TensorSpec`s (or structures of them) for arguments.
      autograph: Whether Python `if`, `while`, `for` on tensors become XLA control flow.
      jit_compile: Whether to compile the function at its first call, and raise an error if XLA cannot. XLA may then also simplify
        arithmetic as if numbers were real: `log(exp(x))` to `x`. By default, results are those of
        separate operations.
      reduce_retracing: Whether to trace the function for any size at its second size, and to disable the warning about frequent
        retracing.
      experimental_implements: Ignored.
      experimental_autograph_options: Ignored.
      experimental_attributes: Ignored.
      experimental_relax_shapes: The old name of `reduce_retracing`.
      experimental_compile: The old name of `jit_compile`.
      experimental_follow_type_hints: Ignored.

    Returns:
      A `Function`, or a decorator.

    Raises:
      TypeError: If `func` is not callable or the signature is not a sequence.

    Example:
      >>> @tf.function
      ... def square_if_positive(x):
      ...     if x > 0:
      ...         return x * x
      ...     else:
      ...         return x
      >>> float(square_if_positive(tf.constant(3.0)))
      9.0
    """
    if input_signature is not None and not isinstance(input_signature, (list, tuple)):
        raise TypeError(
            f"input_signature must be either a tuple or a list, got {type(input_signature)}."
        )
    for spec in nest.flatten(input_signature or ()):
        if not isinstance(spec, TypeSpec):
            raise TypeError(
                "input_signature must be a possibly nested sequence of TensorSpec objects, got "
                f"{spec!r} of type {type(spec).__name__}."
            )

    must_compile = bool(jit_compile or experimental_compile)
    reduce = reduce_retracing if experimental_relax_shapes is None else experimental_relax_shapes
    attributes = dict(experimental_attributes or {})
    if experimental_implements is not None:
        attributes["api_implements"] = experimental_implements

    def decorate(target: Callable[..., Any]) -> Function:
        if not callable(target):
            raise TypeError(f"tf.function: {target!r} is not a callable object.")
        return Function(
            target,
            input_signature,
            autograph,
            reduce,
            jit_compile=must_compile,
            attributes=attributes,
            autograph_options=experimental_autograph_options,
        )

    return decorate if func is None else decorate(func)
