"""Functions that begin with ops on strings and tables of words: what these do is noted, as steps that files can hold."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp

from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import UnimplementedError
from meshflow.core.tracing.trace import trace_shapes
from meshflow.core.values import nest
from meshflow.core.values.dtypes import string
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.ops.deferred_host_values import Pending, Recording, Unrecordable
from meshflow.saved_model.text import TEXT_FUNCTIONS, Steps, TextCall, as_text

__all__ = ["recorded"]

# Sizes that stand for unknown ones while the steps are found: of the batch, and others.
_BATCH, _OTHER = 7, 5


class _Steps(Recording):
    """Notes what is done to strings, and gives what comes of it.

    Args:
      give: from the spec of a result that a program can take, and the steps to it, to the result.
    """

    def __init__(self, give: Callable[[TensorSpec, int, Steps], Tensor]) -> None:
        super().__init__()
        self._give = give

    def text(self, function: Any, text: Any, args: Any, kwargs: Any, dtype: Any) -> Any:
        """A function of strings that gives something for each."""
        name = function.__name__
        if name not in TEXT_FUNCTIONS:
            raise Unrecordable(f"strings in tf.strings.{name}")
        return self._after(text, TEXT_FUNCTIONS[name].step(name, args, kwargs), dtype)

    def looked_up(self, table: Any, text: Pending) -> Any:
        """What a table has for strings."""
        keys, values = table._content
        kind = table.value_dtype
        if kind is string:
            raise Unrecordable("strings in a table")
        found = ["look", [as_text(k) for k in keys.tolist()], values.tolist()]
        return self._after(text, [*found, table._default.numpy().item(), kind.name], kind)

    def call(self, function: Any, args: Any, kwargs: Any, spec: Any = None) -> Any:
        """Anything else."""
        raise Unrecordable(f"strings in {getattr(function, '__name__', function)}")

    def key(self, seed: int | None) -> Tensor:
        """Random numbers are not of strings."""
        raise Unrecordable("random numbers in a function of strings")

    def _after(self, text: Any, step: list[Any], dtype: Any) -> Any:
        if not isinstance(text, Pending):
            raise Unrecordable("a string")
        place, steps = text.source
        steps, spec = [*steps, step], TensorSpec(text.spec.shape, dtype)
        if dtype is string:
            return Pending(self, spec, (place, steps))
        return self._give(spec, place, steps)


@contextlib.contextmanager
def _recording(what: _Steps) -> Iterator[None]:
    saved, context.recording = context.recording, what
    try:
        yield
    finally:
        context.recording = saved


def recorded(name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> TextCall:
    """A function of strings, as steps and the rest.

    Args:
      name: of the function, for errors.
      function: the function.
      args: its arguments, with `TensorSpec`s for tensors.
      kwargs: its keyword arguments, likewise.

    Raises:
      UnimplementedError: when something else is done with strings, naming it.
    """
    specs = [s for s in nest.flatten((args, kwargs)) if isinstance(s, TensorSpec)]
    found: list[tuple[int, Steps]] = []
    cuts: list[TensorSpec] = []

    def stand_in(spec: TensorSpec, place: int, steps: Steps) -> Tensor:
        found.append((place, steps))
        cuts.append(spec)
        return Tensor(jnp.zeros(_sized(spec).shape.as_list(), spec.dtype.dtype))

    def whole(recording: _Steps, given: Sequence[Any]) -> Any:
        numbers = iter(given)
        flat, place = [], 0
        for leaf in nest.flatten((args, kwargs)):
            if isinstance(leaf, TensorSpec):
                text = leaf.dtype is string
                flat.append(Pending(recording, leaf, (place, [])) if text else next(numbers))
                place += 1
            else:
                flat.append(leaf)
        positional, named = nest.pack_sequence_as((args, kwargs), flat)
        with _recording(recording):
            results = function(*positional, **named)
        if any(isinstance(r, Pending) for r in nest.flatten(results)):
            raise Unrecordable("strings as a result")
        return results

    def rest(results: Any, *more: Any, **named: Any) -> Any:
        made = iter(results)
        numbers = [t for t in nest.flatten((more, named)) if isinstance(t, Tensor)]
        return whole(_Steps(lambda *_: next(made)), numbers)

    try:
        sizes = [_sized(s) for s in specs if s.dtype is not string]
        trace_shapes(lambda *given: whole(_Steps(stand_in), given), tuple(sizes), {})
    except Unrecordable as error:
        raise UnimplementedError(
            f"{name} has {error}, which is not among what can be saved: {', '.join(sorted(TEXT_FUNCTIONS))}, and "
            "lookups in StaticHashTables of words."
        ) from error
    return TextCall(found, cuts, rest, function)


def _sized(spec: TensorSpec) -> TensorSpec:
    if spec.shape.rank is None:
        raise Unrecordable("strings of unknown rank")
    sizes = [
        n if n is not None else _OTHER if place else _BATCH for place, n in enumerate(spec.shape)
    ]
    return TensorSpec(sizes, spec.dtype)
