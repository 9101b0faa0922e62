"""What an op is: an array function, its compiled forms, and its gradient.

The gradient of an op is again an op (`Gradient`), whose array function is `jax.vjp` of the first:
so gradients of any order are recorded like everything else.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax

# Compiled forms that an op keeps of each kind; static arguments that never end must not fill memory.
FORMS = 1024


# Every op there is, for `forget_forms`; threads make some while others are listed.
_ops: weakref.WeakSet[Op] = weakref.WeakSet()
_listing = threading.RLock()


class Op:
    """An operation: a name, an array function, and the rules for its operands.

    Attributes:
      name: the name shown in errors, traces and profiles.
      differentiable: False when TensorFlow defines no gradient (its gradient is None).
      strings: what it does to strings: "moves" or "compares" them (on numbers that stand for
        them), "joins" two, or None.
      by_rows: the gradient of the first operand by rows: called with the operands, the static arguments and the
        gradient of the result, it gives `tf.IndexedSlices`, or None where the gradient is a tensor.
      whole: whether it is a function or a loop: its gradient is taken to depend on all of its operands.
      constant: whether known operands make a known result. Not so when it does more than compute
        one, when other replicas take part, or when it says where values lie.
    """

    def __init__(
        self,
        name: str,
        call: Callable[..., Any],
        *,
        differentiable: bool = True,
        heavy: bool = False,
        strings: str | None = None,
        constant: bool = True,
        whole: bool = False,
    ) -> None:
        self.name = name
        self.whole = whole
        self.call = call
        self.differentiable = differentiable
        self.strings = strings
        # Computes it by NumPy on host arrays; gives None where it does not.
        self.host: Callable[..., Any] | None = None
        self.by_rows: Callable[..., Any] | None = None
        # A heavy op keeps what its gradient needs instead of computing the op again.
        self.heavy = heavy
        self.constant = constant
        self._compiled: dict[Any, Callable[..., Any]] = {}
        self._gradients: dict[Any, Gradient] = {}
        self._residual: dict[Any, Callable[..., Any]] = {}
        self._donating: dict[Any, Callable[..., Any]] = {}
        self._forward: dict[Any, Op] = {}
        with _listing:
            _ops.add(self)

    def bound(self, static: tuple[Any, ...]) -> Callable[..., Any]:
        """The array function of the operands alone."""
        call = self.call

        def run(*operands: Any) -> Any:
            return call(operands, static)

        run.__name__ = run.__qualname__ = self.name
        return run

    def compiled(self, static: tuple[Any, ...]) -> Callable[..., Any]:
        """`bound(static)`, compiled once per static arguments."""
        function = self._compiled.get(static)
        if function is None:
            function = kept(self._compiled, static, jax.jit(self.bound(static)))
        return function

    def donating(self, static: tuple[Any, ...], operands: tuple[int, ...]) -> Callable[..., Any]:
        """`bound(static)`, compiled to write its results where these operands are, which end with the call."""
        key = static, operands
        if (found := self._donating.get(key)) is None:
            made = jax.jit(self.bound(static), donate_argnums=operands)
            found = kept(self._donating, key, made)
        return found

    def gradient(self, static: tuple[Any, ...], wanted: tuple[bool, ...]) -> Gradient:
        """The op that maps (operands, output gradients) to the gradients of the wanted operands."""
        key = static, wanted
        if (found := self._gradients.get(key)) is None:
            found = kept(self._gradients, key, Gradient(self, static, wanted))
        return found

    def forward(self, key: Any, make: Callable[[], Op]) -> Op:
        """The op of `make` that moves tangents forwards, made once for each key."""
        if (found := self._forward.get(key)) is None:
            found = kept(self._forward, key, make())
        return found

    def forget(self) -> None:
        """Lets go of all that was made for static arguments; what is needed again is made again."""
        for forms in (
            self._compiled,
            self._gradients,
            self._residual,
            self._donating,
            self._forward,
        ):
            forms.clear()

    def residual(self, static: tuple[Any, ...], wanted: tuple[bool, ...]) -> Callable[..., Any]:
        """A function of the operands giving the outputs and the pullback to the wanted operands."""
        key = static, wanted
        if (found := self._residual.get(key)) is None:
            forward = functools.partial(forward_of_wanted, self.bound(static), wanted)
            found = kept(self._residual, key, forward)
        return found

    def compiled_residual(
        self, static: tuple[Any, ...], wanted: tuple[bool, ...]
    ) -> Callable[..., Any]:
        """`residual`, compiled."""
        key = static, wanted, "compiled"
        if (found := self._residual.get(key)) is None:
            found = kept(self._residual, key, jax.jit(self.residual(static, wanted)))
        return found


def forget_forms() -> None:
    """Has all ops let go of what they keep for static arguments: compiled functions and gradients."""
    with _listing:
        ops = list(_ops)
    for op in ops:
        op.forget()


def kept(forms: dict[Any, Any], key: Any, made: Any) -> Any:
    """`made`, kept under `key`; the oldest is forgotten where there are too many."""
    if len(forms) >= FORMS:
        # A copy first: other threads keep forms too.
        forms.pop(next(iter(tuple(forms))), None)
    forms[key] = made
    return made


@functools.cache
def _inexact_dtype(dtype: Any) -> bool:
    return bool(jax.numpy.issubdtype(dtype, jax.numpy.inexact))


def is_inexact(value: Any) -> bool:
    """Whether an array has a floating or complex dtype."""
    if value.dtype == object:
        return False
    return _inexact_dtype(value.dtype)


def of_wanted(
    run: Callable[..., Any], wanted: tuple[bool, ...], operands: Any
) -> tuple[Callable[..., Any], list[Any]]:
    """`run` as a function of the wanted operands alone, and these.

    The function returns the inexact outputs, and as a second result what rebuilds all outputs:
    their leaves and a function of them.
    """
    leaves, tree = jax.tree.flatten(operands)

    def function(*differentiated: Any) -> Any:
        supply = iter(differentiated)
        full = [next(supply) if w else leaf for leaf, w in zip(leaves, wanted, strict=True)]
        outputs = run(*jax.tree.unflatten(tree, full))
        flat, out_tree = jax.tree.flatten(outputs)
        inexact = [o for o in flat if is_inexact(o)]
        return inexact, (flat, jax.tree_util.Partial(functools.partial(_rebuild, out_tree)))

    return function, [leaf for leaf, w in zip(leaves, wanted, strict=True) if w]


def forward_of_wanted(run: Callable[..., Any], wanted: tuple[bool, ...], *operands: Any) -> Any:
    """Outputs of `run` and the pullback from its inexact outputs to the wanted operands."""
    function, chosen = of_wanted(run, wanted, operands)
    _, pullback, (flat, rebuild) = jax.vjp(function, *chosen, has_aux=True)
    return rebuild(flat), pullback


def _rebuild(tree: Any, leaves: Any) -> Any:
    return jax.tree.unflatten(tree, leaves)


class Gradient(Op):
    """The gradient of `op` with fixed static arguments, itself an op.

    Its operands are (operands of `op`, one gradient or None per inexact output).
    """

    def __init__(self, op: Op, static: tuple[Any, ...], wanted: tuple[bool, ...]) -> None:
        run = op.bound(static)
        self.of = op
        # The op that the first of these gradients is of.
        self.root: Op = op.root if isinstance(op, Gradient) else op

        def call(operands: Any, _: Any) -> Any:
            inputs, cotangents = operands
            outputs, pullback = forward_of_wanted(run, wanted, *inputs)
            inexact = [o for o in jax.tree.leaves(outputs) if is_inexact(o)]
            return list(pull(pullback, inexact, cotangents))

        super().__init__(f"grad_{op.name}", call, constant=op.constant, whole=op.whole)


def pull(
    pullback: Callable[..., Any], outputs: Sequence[Any], cotangents: Sequence[Any]
) -> tuple[Any, ...]:
    """Applies a JAX pullback under TensorFlow's conventions.

    A missing output gradient counts as zeros, and complex gradients are conjugated: TensorFlow
    returns conj(f'(z)) * g where JAX returns f'(z) * g.
    """
    full = [
        jax.numpy.zeros(o.shape, o.dtype) if c is None else jax.numpy.conj(c)
        for o, c in zip(outputs, cotangents, strict=True)
    ]
    return tuple(jax.numpy.conj(g) for g in pullback(full))


# Another dtype, the first static argument, for the elements of a tensor.
CAST = Op("cast", lambda operands, static: jax.lax.convert_element_type(operands[0], static[0]))
