"""Functions of `tensorflow.python.eager.backprop` that differentiate Python functions, for code written before `tf.GradientTape`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshflow.core.runtime.import_paths import get_public_package
from meshflow.core.values import nest
from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import PyTree

tf: Any = get_public_package()


def gradients_function(
    f: Callable[..., PyTree], params: Sequence[int | str] | None = None
) -> Callable[..., Any]:
    """Return a function of the arguments of `f`, and of `dy`, that returns the gradients of its result.

    Args:
      f: Function of tensors.
      params: Indices or names of the arguments to differentiate with respect to. None means all.
    """
    differentiate = val_and_grad_function(f, params)
    return lambda *args, **kwds: differentiate(*args, **kwds)[1]


def val_and_grad_function(
    f: Callable[..., PyTree], params: Sequence[int | str] | None = None
) -> Callable[..., tuple[PyTree, Any]]:
    """Return a function of the arguments of `f`, and of `dy`, that returns its result and its gradients.

    Args:
      f: Function of tensors.
      params: Indices or names of the arguments to differentiate with respect to. None means all.
    """

    def differentiate(*args: Any, dy: Any = None, **kwds: Any) -> tuple[PyTree, Any]:
        result, vjp = make_vjp(f, params)(*args, **kwds)
        return result, vjp(dy=dy)

    return differentiate


def make_vjp(
    f: Callable[..., PyTree], params: Sequence[int | str] | None = None, persistent: bool = True
) -> Callable[..., tuple[PyTree, Callable[..., Any]]]:
    """Return a function of the arguments of `f` that returns its result and its vector-Jacobian product.

    Args:
      f: Function of tensors.
      params: Indices or names of the arguments to differentiate with respect to. None means all.
      persistent: Whether the product can be called repeatedly.
    """

    def run(*args: Any, **kwds: Any) -> tuple[PyTree, Callable[..., Any]]:
        if kwds:
            raise ValueError("Functions to be differentiated cannot receive keyword arguments.")
        indices = _find_indices(f, params, len(args))
        values = [_read(a) if i in indices else a for i, a in enumerate(args)]
        sources = [values[i] for i in indices]
        with tf.GradientTape(persistent=persistent) as tape:
            tape.watch(sources)
            result = _check_result(f(*values), f)

        def vjp(dy: Any = None) -> Any:
            dy = None if dy is None else tf.nest.map_structure(tf.convert_to_tensor, dy)
            return tape.gradient(result, sources, output_gradients=dy)

        return result, vjp

    return run


def implicit_val_and_grad(f: Callable[..., PyTree]) -> Callable[..., Any]:
    """Return a function that returns the result of `f` and pairs of a gradient and a trainable variable that `f` reads."""

    def differentiate(*args: Any, **kwds: Any) -> tuple[PyTree, list[tuple[Any, Any]]]:
        with tf.GradientTape() as tape:
            result = _check_result(f(*args, **kwds), f)
        variables = tape.watched_variables()
        if not variables:
            raise ValueError(
                "No trainable variables were accessed while the function was being computed."
            )
        return result, list(zip(tape.gradient(result, variables), variables, strict=True))

    return differentiate


def implicit_grad(f: Callable[..., PyTree]) -> Callable[..., Any]:
    """Return a function that returns pairs of a gradient and a trainable variable that `f` reads."""
    differentiate = implicit_val_and_grad(f)
    return lambda *args, **kwds: differentiate(*args, **kwds)[1]


def _read(value: Any) -> Tensor:
    """Return a new tensor for each argument, so that an object in two arguments has two gradients."""
    return tf.identity(tf.convert_to_tensor(value))


def _find_indices(
    f: Callable[..., PyTree], params: Sequence[int | str] | None, count: int
) -> list[int]:
    """Return the indices of arguments that are named by indices or names."""
    if params is None:
        return list(range(count))
    if not params:
        raise ValueError("params must be None or name at least one argument.")
    names = tf.__internal__.decorator.unwrap(f)[1].__code__.co_varnames
    indices = [names.index(p) if isinstance(p, str) else p for p in params]
    if len({type(p) for p in params}) > 1:
        raise ValueError("params must be all strings or all integers.")
    return indices


def _check_result(result: PyTree, f: Callable[..., PyTree]) -> PyTree:
    """Return the result of a function, or raise an error if it is None."""
    if result is None:
        raise ValueError(
            "Cannot differentiate a function that returns None; did you forget to return a value from "
            f"{getattr(f, '__name__', f)}?"
        )
    return nest.map_structure(tf.convert_to_tensor, result)
