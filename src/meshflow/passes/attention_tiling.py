"""Tiling of attention that a program computes by products of matrices and a softmax.

A program is rewritten before compilation, when all derivatives are taken, so that forms written by
hand use `kernels.attention`: a product of queries and keys, a scale, biases and masks, a softmax,
dropout and a product with the values, with their gradients if there are any. The scores remain if
another equation reads them.

Values of the size of the scores, and their sums over keys, are represented as polynomials of the
exponentials, their sums, the gradient of the weights and the masks of dropout. The order of the
operations therefore does not matter, nor which terms the derivative of a softmax shares with it.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from meshflow.environment.inner_jaxprs import to_open_jaxpr
from meshflow.environment.jax_internals import dce_jaxpr
from meshflow.environment.types import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from meshflow.kernels import attention
from meshflow.kernels.attention import AttentionOperands, ScoreOptions
from meshflow.kernels.library import Aval
from meshflow.passes.jaxprs import get_aval, map_consumers, map_producers, rewrite_equations
from meshflow.passes.sub_jaxprs import CALLS, find_call_body

__all__ = ["tile_attention"]

# Name of the call that draws the random numbers of dropout.
_RANDOM = "philox_uniform"
# Axis of a value along which it is constant.
_CONSTANT = -1


def tile_attention(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Replace attention to long sequences; return the same object if there is none."""
    if jax.default_backend() != "cpu":
        return closed
    return rewrite_equations(closed, _tile_in_jaxpr, ("exp",))


def _tile_in_jaxpr(jaxpr: Jaxpr, eqns: list[JaxprEqn]) -> list[JaxprEqn]:
    shapes = {shape for eqn in eqns for shape in _find_long_softmaxes(eqn)}
    if not shapes:
        return eqns
    inlined = jaxpr.replace(eqns=list(_inline_calls(eqns, {}, shapes)))
    simplified = list(dce_jaxpr(inlined, [True] * len(inlined.outvars), instantiate=True)[0].eqns)
    found = False
    for exponential in [e for e in simplified if e.primitive.name == "exp"]:
        try:
            simplified = _AttentionMatch(jaxpr, simplified, exponential).rewrite()
            found = True
        except _MismatchError:
            pass
    return simplified if found else eqns


def _find_long_softmaxes(eqn: JaxprEqn) -> list[tuple[int, ...]]:
    """Return the shapes of exponentials that may be those of scores of long sequences."""
    if eqn.primitive.name == "exp":
        shape = get_aval(eqn.outvars[0]).shape
        return [shape] if _is_long(shape) else []
    inner = find_call_body(eqn) if eqn.primitive.name in CALLS else None
    eqns = [] if inner is None else to_open_jaxpr(inner).eqns
    return [shape for e in eqns for shape in _find_long_softmaxes(e)]


def _is_long(shape: tuple[Any, ...]) -> bool:
    is_static = len(shape) in (2, 3, 4) and all(isinstance(n, int) for n in shape)
    return is_static and attention.are_long(*shape[-2:])


def _inline_calls(
    eqns: Iterable[JaxprEqn], names: dict[Var, Atom], shapes: set[tuple[int, ...]]
) -> Iterator[JaxprEqn]:
    """Yield equations with calls inlined that compute arrays of some shapes.

    Args:
      eqns: The equations.
      names: Replacements of variables, which is changed.
      shapes: The shapes.
    """

    def read(atom: Atom) -> Atom:
        return atom if isinstance(atom, Literal) else names.get(atom, atom)

    for eqn in eqns:
        eqn = eqn.replace(invars=[read(a) for a in eqn.invars])
        body = find_call_body(eqn) if eqn.primitive.name in CALLS else None
        is_large = any(get_aval(v).shape in shapes for v in eqn.outvars)
        # Dropout is recognized by the call of its random numbers.
        is_inlined = body is not None and is_large and eqn.params.get("name") != _RANDOM
        opened = to_open_jaxpr(body) if is_inlined else None  # type: ignore[arg-type]
        if opened is None or opened.constvars or len(opened.invars) != len(eqn.invars):
            yield eqn
            continue
        # A program may be called several times, so its variables are replaced by new ones.
        inner: dict[Var, Atom] = dict(zip(opened.invars, eqn.invars, strict=True))
        for inner_eqn in opened.eqns:
            inner |= {v: Var(v.aval) for v in inner_eqn.outvars}
        copies = [
            e.replace(outvars=[inner[v] for v in e.outvars])  # type: ignore[misc]
            for e in opened.eqns
        ]
        yield from _inline_calls(copies, inner, shapes)
        for outer, result in zip(eqn.outvars, opened.outvars, strict=True):
            names[outer] = result if isinstance(result, Literal) else inner[result]


class _MismatchError(Exception):
    """The equations are not attention that can be tiled."""


def _require(condition: object) -> None:
    if not condition:
        raise _MismatchError


class _Term(NamedTuple):
    """A product of powers.

    Attributes:
      exponential: Power of the exponentials of the scores.
      total: Power of their sums over the keys.
      change: Which gradient of weights is a factor; 0 without one.
      kept: Power of the mask of dropout, 0 or 1.
      visible: Power of the mask of the scores, 0 or 1.
      sums: Sums of terms over the keys.
    """

    exponential: int = 0
    total: int = 0
    change: int = 0
    kept: int = 0
    visible: int = 0
    sums: tuple[_Term, ...] = ()

    def times(self, other: _Term) -> _Term:
        """Return the product."""
        _require(not (self.change and other.change))
        return _Term(
            self.exponential + other.exponential,
            self.total + other.total,
            self.change + other.change,
            max(self.kept, other.kept),
            max(self.visible, other.visible),
            tuple(sorted(self.sums + other.sums)),
        )


# Coefficients by term.
_Polynomial = dict[_Term, float]
_ONE = _Term()
_EXPONENTIAL, _KEPT, _VISIBLE = _Term(exponential=1), _Term(kept=1), _Term(visible=1)


class _Value(NamedTuple):
    """A value of the size of the scores, or of their sums.

    Attributes:
      axes: For each axis, the corresponding axis of the scores, or `_CONSTANT`.
      polynomial: What it is.
    """

    axes: tuple[int, ...]
    polynomial: _Polynomial


class _Matrix(NamedTuple):
    """An operand of a product: a variable and the order of its axes.

    Attributes:
      root: The variable, before transpositions.
      order: Its axes: batch axes of more than one element in the order of the scores, rows,
        features. Axes with one element have no identity.
    """

    root: Var
    order: tuple[int, ...]

    def read(self, array: Array, batch: tuple[int, ...]) -> Array:
        """Return [b, t, n, h], given the sizes of the batch axes."""
        rest = [i for i in range(array.ndim) if i not in self.order]
        array = array.transpose(*rest, *self.order)
        b, n = (*batch, 1, 1)[:2]
        return array.reshape(b, n, *array.shape[-2:]).swapaxes(1, 2)


class _Product(NamedTuple):
    """A product of an array of the size of the scores and a matrix.

    Attributes:
      eqn_index: Index of its equation.
      kind: "values", or the operand of the gradient: "query", "key" or "value".
      order: For each axis of the result, its axis in [batch axes, rows, features], or `_CONSTANT`.
    """

    eqn_index: int
    kind: str
    order: tuple[int, ...]


def _multiply(a: _Polynomial, b: _Polynomial) -> _Polynomial:
    result: _Polynomial = {}
    for s, x in a.items():
        for t, y in b.items():
            term = s.times(t)
            result[term] = result.get(term, 0) + x * y
    return result


def _add(a: _Polynomial, b: _Polynomial, sign: float = 1) -> _Polynomial:
    result = dict(a)
    for term, x in b.items():
        result[term] = result.get(term, 0) + sign * x
    return {t: x for t, x in result.items() if x}


def _sum_over_keys(polynomial: _Polynomial) -> _Polynomial:
    result: _Polynomial = {}
    for term, x in polynomial.items():
        inner = _Term(term.exponential, 0, term.change, term.kept, term.visible)
        outer = _Term(total=term.total, sums=term.sums)
        _require(inner != _ONE)
        total = _Term(total=1) if inner == _EXPONENTIAL else _Term(sums=(inner,))
        result = _add(result, {outer.times(total): x})
    return result


def _is_scalar(atom: Atom) -> bool:
    return isinstance(atom, Literal) and np.ndim(atom.val) == 0


# Equations with a result that equals their operand, except for rounding.
_PASSED = frozenset(["convert_element_type", "stop_gradient", "copy", "optimization_barrier"])


class _AttentionMatch:
    """The equations of one attention and its gradient.

    Args:
      jaxpr: The jaxpr; its outputs count as reads.
      eqns: Its equations without calls.
      exponential: The equation of the exponentials of the scores.
    """

    def __init__(self, jaxpr: Jaxpr, eqns: list[JaxprEqn], exponential: JaxprEqn) -> None:
        self._eqns = eqns
        self._producers, self._consumers = map_producers(eqns), map_consumers(jaxpr, eqns)
        self._indices = {id(eqn): i for i, eqn in enumerate(eqns)}
        self._exponential = exponential
        shape = get_aval(exponential.outvars[0]).shape
        _require(_is_long(shape))
        self._rank = len(shape)
        self._shape = shape
        # Axes of the scores; those with one element have no identity.
        self._axes = tuple(_CONSTANT if n == 1 else i for i, n in enumerate(shape))
        self._batch_axes = [a for a in self._axes[:-2] if a != _CONSTANT]
        # Indices of the equations that the primitives replace.
        self._replaced: set[int] = set()
        self._values: dict[Var, _Value] = {}
        self._products: list[_Product] = []
        self._scale, self._fill = 1.0, 0.0
        # Biases and masks, with their axes; of a mask also whether it is True for hidden scores.
        self._biases: list[tuple[Var, tuple[int, ...]]] = []
        self._masks: list[tuple[Var, tuple[int, ...], bool]] = []
        self._noise: tuple[Atom, float, str] | None = None
        self._matrices: dict[str, _Matrix] = {}
        # Gradients of values that are multiplied by the values, maybe those of another attention.
        self._gradients: list[_Matrix] = []

    def rewrite(self) -> list[JaxprEqn]:
        """Return the equations with the primitives.

        Raises:
          _MismatchError: If they are not attention, or other equations read the scores.
        """
        self._match_scores()
        start = self._indices[id(self._exponential)]
        self._values[self._exponential.outvars[0]] = _Value(self._axes, {_EXPONENTIAL: 1.0})
        for i in range(start + 1, len(self._eqns)):
            try:
                self._interpret(i)
            except _MismatchError:
                # The equation is not replaced. If it reads the scores, these are still needed.
                continue
        _require(any(p.kind == "values" for p in self._products))
        self._check_readers()
        return self._replace()

    def _produce(self, atom: Atom) -> JaxprEqn:
        eqn = None if isinstance(atom, Literal) else self._producers.get(atom)
        if eqn is None:
            raise _MismatchError
        return eqn

    def _match_scores(self) -> None:
        """Match the equations from the product of queries and keys to the exponentials."""
        shifted = self._skip(self._exponential.invars[0])
        difference = self._produce(shifted)
        _require(difference.primitive.name == "sub")
        self._mark(difference)
        scores, shift = difference.invars
        while (eqn := self._produce(shift)).primitive.name != "reduce_max":
            self._mark(eqn)
            passed = {"reshape", "broadcast_in_dim", "squeeze", "expand_dims", *_PASSED}
            is_maximum = eqn.primitive.name == "max"
            _require(eqn.primitive.name in passed or is_maximum)
            variables = [a for a in eqn.invars if not isinstance(a, Literal)]
            _require(len(variables) == 1)
            shift = variables[0]
        self._mark(eqn)
        _require(eqn.params["axes"] == (self._rank - 1,))
        _require(self._skip(eqn.invars[0]) is self._skip(scores))
        self._match_chain(scores)

    def _mark(self, eqn: JaxprEqn) -> None:
        self._replaced.add(self._indices[id(eqn)])

    def _skip(self, atom: Atom) -> Atom:
        """Skip equations that only round a value."""
        while not isinstance(atom, Literal) and atom in self._producers:
            eqn = self._producers[atom]
            if eqn.primitive.name not in _PASSED or len(eqn.invars) != 1:
                break
            if np.dtype(get_aval(eqn.invars[0]).dtype).kind in "biu":
                break
            if len(get_aval(atom).shape) >= 2:
                self._mark(eqn)
            atom = eqn.invars[0]
        return atom

    def _match_chain(self, scores: Atom) -> None:
        """Match scales, biases and masks backwards, from the softmax to the product."""
        axes = self._axes
        while True:
            scores = self._skip(scores)
            eqn = self._produce(scores)
            self._mark(eqn)
            name, operands = eqn.primitive.name, eqn.invars
            if name == "transpose":
                axes = self._undo_transpose(axes, eqn.params["permutation"])
                scores = operands[0]
            elif name in ("squeeze", "reshape", "broadcast_in_dim"):
                (scores,) = operands
                axes = self._move_axes(axes, get_aval(eqn.outvars[0]), get_aval(scores))
            elif name in ("mul", "div") and any(map(_is_scalar, operands)):
                scalar = next(a for a in operands if _is_scalar(a))
                _require(name == "mul" or scalar is operands[1])
                factor = float(scalar.val)  # type: ignore[union-attr]
                _require(factor)
                self._scale *= factor if name == "mul" else 1 / factor
                scores = operands[0] if scalar is operands[1] else operands[1]
            elif name in ("add", "select_n"):
                _require(self._scale == 1)
                scores = (self._match_bias if name == "add" else self._match_mask)(eqn, axes)
            else:
                _require(name == "dot_general")
                self._match_score_product(eqn, axes)
                return

    @staticmethod
    def _undo_transpose(axes: tuple[int, ...], permutation: Sequence[int]) -> tuple[int, ...]:
        """Return the axes of the operand of a transposition, given those of its result."""
        return tuple(axes[list(permutation).index(i)] for i in range(len(axes)))

    @staticmethod
    def _move_axes(axes: tuple[int, ...], old: Aval, new: Aval) -> tuple[int, ...]:
        """Return the axes after axes of one element were inserted or removed."""
        kept = iter([a for a, n in zip(axes, old.shape, strict=True) if n != 1])
        _require([n for n in old.shape if n != 1] == [n for n in new.shape if n != 1])
        return tuple(_CONSTANT if n == 1 else next(kept) for n in new.shape)

    def _depends_on_product(self, atom: Atom) -> bool:
        """Check whether a value is computed from a product by elementwise equations of one size."""
        while not isinstance(atom, Literal) and atom in self._producers:
            eqn = self._producers[atom]
            if eqn.primitive.name == "dot_general":
                return True
            same = [
                a
                for a in eqn.invars
                if not isinstance(a, Literal)
                and get_aval(a).size == get_aval(atom).size
                and np.dtype(get_aval(a).dtype).kind == np.dtype(get_aval(atom).dtype).kind
            ]
            if not same or len(eqn.outvars) != 1:
                return False
            if len(same) > 1:
                return any(map(self._depends_on_product, same))
            (atom,) = same
        return False

    def _match_bias(self, eqn: JaxprEqn, axes: tuple[int, ...]) -> Atom:
        size = get_aval(eqn.outvars[0]).size
        full = [a for a in eqn.invars if get_aval(a).size == size and self._depends_on_product(a)]
        _require(len(full) == 1)
        (bias,) = [a for a in eqn.invars if a is not full[0]]
        _require(not isinstance(bias, Literal))
        self._biases.append(self._find_source(bias, axes))  # type: ignore[arg-type]
        return full[0]

    def _match_mask(self, eqn: JaxprEqn, axes: tuple[int, ...]) -> Atom:
        _require(not self._biases and len(eqn.invars) == 3)
        predicate, if_false, if_true = eqn.invars
        for fill, kept, hides in ((if_false, if_true, False), (if_true, if_false, True)):
            value = self._read_constant(fill)
            if value is None or self._read_constant(kept) is not None:
                continue
            _require(not self._masks or value == self._fill)
            self._fill = value
            _require(not isinstance(predicate, Literal))
            self._masks.append((*self._find_source(predicate, axes), hides))  # type: ignore[arg-type]
            return kept
        raise _MismatchError

    def _read_constant(self, atom: Atom) -> float | None:
        """Return the number of which an array consists, or None."""
        while not isinstance(atom, Literal):
            eqn = self._producers.get(atom)
            if eqn is None or eqn.primitive.name not in (
                "broadcast_in_dim",
                "convert_element_type",
            ):
                return None
            atom = eqn.invars[0]
        return float(atom.val) if np.ndim(atom.val) == 0 else None

    def _find_source(self, atom: Var, axes: tuple[int, ...]) -> tuple[Var, tuple[int, ...]]:
        """Return the variable that an operand broadcasts, and its axes."""
        shape = get_aval(atom).shape
        _require(len(shape) == len(axes))
        axes = tuple(_CONSTANT if n == 1 else a for n, a in zip(shape, axes, strict=True))
        eqn = self._producers.get(atom)
        if eqn is not None and eqn.primitive.name == "broadcast_in_dim":
            source = eqn.invars[0]
            if not isinstance(source, Literal):
                pairs = zip(eqn.params["broadcast_dimensions"], get_aval(source).shape, strict=True)
                return source, tuple(_CONSTANT if n == 1 else axes[int(i)] for i, n in pairs)
        return atom, axes

    def _match_score_product(self, eqn: JaxprEqn, axes: tuple[int, ...]) -> None:
        self._scale = float(np.float32(self._scale))
        contract, batch = eqn.params["dimension_numbers"]
        _require(len(axes) == len(batch[0]) + 2)
        for i, row in enumerate(axes[-2:]):
            matrix = self._find_matrix(eqn.invars[i], axes[:-2], batch[i], contract[i])
            self._matrices["query" if row == self._rank - 2 else "key"] = matrix
        _require(set(self._matrices) == {"query", "key"})

    def _find_matrix(
        self,
        atom: Atom,
        batch_axes: Sequence[int],
        batch: Sequence[int],
        contracted: Sequence[int],
        sums_rows: bool = False,
    ) -> _Matrix:
        """Describe an operand of a product.

        Args:
          atom: The operand.
          batch_axes: For each batch axis of the product, its axis of the scores.
          batch: These axes of the operand.
          contracted: Its axes that are summed.
          sums_rows: Whether these are rows instead of features.
        """
        _require(sorted(a for a in batch_axes if a != _CONSTANT) == self._batch_axes)
        _require(len(contracted) == 1 and not isinstance(atom, Literal))
        free = set(range(get_aval(atom).ndim)) - {*batch, *contracted}
        _require(len(free) == 1)
        pair = (*contracted, *free) if sums_rows else (*free, *contracted)
        positions = dict(zip(batch_axes, batch, strict=True))
        order = [*(positions[a] for a in self._batch_axes), *pair]
        while (producer := self._producers.get(atom)) is not None:
            if producer.primitive.name != "transpose":
                break
            order = [producer.params["permutation"][i] for i in order]
            (atom,) = producer.invars
        return _Matrix(atom, tuple(int(i) for i in order))  # type: ignore[arg-type]

    def _interpret(self, index: int) -> None:
        """Interpret an equation after the exponentials, if it reads one of the values."""
        eqn = self._eqns[index]
        is_read = any(not isinstance(a, Literal) and a in self._values for a in eqn.invars)
        name = eqn.primitive.name
        if name == "dot_general":
            if is_read:
                self._match_product(index, eqn)
            else:
                self._match_weight_gradient(eqn)
            return
        if name == "ge" and not is_read:
            self._match_dropout(eqn)
            return
        if not is_read or len(eqn.outvars) != 1:
            return
        value = self._compute(eqn)
        if value is not None:
            self._values[eqn.outvars[0]] = value

    def _read(self, atom: Atom) -> _Value | None:
        if isinstance(atom, Literal):
            if np.ndim(atom.val):
                return None
            return _Value((), {_ONE: float(atom.val)} if atom.val else {})
        value = self._values.get(atom)
        if value is None:
            constant = self._read_constant(atom)
            if constant is not None:
                axes = (_CONSTANT,) * len(get_aval(atom).shape)
                value = _Value(axes, {_ONE: constant} if constant else {})
        return value

    @staticmethod
    def _merge_axes(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
        if not a or not b:
            return a or b
        _require(len(a) == len(b))
        merged = tuple(y if x == _CONSTANT else x for x, y in zip(a, b, strict=True))
        pairs = zip(a, b, merged, strict=True)
        _require(all(x in (_CONSTANT, m) and y in (_CONSTANT, m) for x, y, m in pairs))
        return merged

    def _compute(self, eqn: JaxprEqn) -> _Value | None:
        """Return the result of an elementwise equation, sum or broadcast, or None if unknown."""
        name, params = eqn.primitive.name, eqn.params
        if name == "select_n":
            return self._select(eqn)
        operands = [self._read(a) for a in eqn.invars]
        if any(v is None for v in operands):
            return None
        values: list[_Value] = operands  # type: ignore[assignment]
        axes, polynomial = values[0]
        if name in ("mul", "div", "add", "add_any", "sub"):
            axes = self._merge_axes(axes, values[1].axes)
            other = values[1].polynomial
            if name == "mul":
                return _Value(axes, _multiply(polynomial, other))
            if name == "div":
                return _Value(axes, _multiply(polynomial, self._raise(other, -1)))
            return _Value(axes, _add(polynomial, other, -1 if name == "sub" else 1))
        if name == "neg":
            return _Value(axes, {t: -x for t, x in polynomial.items()})
        if name == "integer_pow":
            return _Value(axes, self._raise(polynomial, params["y"]))
        if name in _PASSED:
            _require(jnp.issubdtype(get_aval(eqn.outvars[0]).dtype, np.floating))
            return values[0]
        if name == "transpose":
            return _Value(tuple(axes[i] for i in params["permutation"]), polynomial)
        if name == "broadcast_in_dim":
            result = [_CONSTANT] * len(params["shape"])
            for axis, i in zip(axes, params["broadcast_dimensions"], strict=True):
                result[int(i)] = axis
            return _Value(tuple(result), polynomial)
        if name in ("reshape", "squeeze", "expand_dims"):
            avals = get_aval(eqn.invars[0]), get_aval(eqn.outvars[0])
            return _Value(self._move_axes(axes, *avals), polynomial)
        if name == "reduce_sum":
            for i in params["axes"]:
                if axes[i] == self._rank - 1:
                    polynomial = _sum_over_keys(polynomial)
                else:
                    _require(get_aval(eqn.invars[0]).shape[i] == 1)
            kept_axes = [a for i, a in enumerate(axes) if i not in params["axes"]]
            return _Value(tuple(kept_axes), polynomial)
        return None

    @staticmethod
    def _raise(polynomial: _Polynomial, power: int) -> _Polynomial:
        _require(len(polynomial) == 1)
        ((term, x),) = polynomial.items()
        _require(term == _Term(total=term.total))
        return {_Term(total=term.total * power): x**power}

    def _select(self, eqn: JaxprEqn) -> _Value:
        """Multiply by a mask of dropout or of the scores."""
        _require(len(eqn.invars) == 3)
        predicate, if_false, if_true = eqn.invars
        mask = None if isinstance(predicate, Literal) else self._values.get(predicate)
        if mask is not None:
            _require(mask.polynomial == {_KEPT: 1.0} and self._read_constant(if_false) == 0)
            value = self._read(if_true)
            _require(value is not None and value.axes == mask.axes)
            gate = _KEPT
        else:
            known = {id(m): hides for m, _, hides in self._masks}
            source = predicate
            if id(source) not in known and not isinstance(source, Literal):
                source = self._find_source(source, self._axes)[0]
            _require(id(source) in known)
            zero, kept = (if_true, if_false) if known[id(source)] else (if_false, if_true)
            _require(self._read_constant(zero) == 0)
            value = self._read(kept)
            gate = _VISIBLE
        if value is None:
            raise _MismatchError
        return _Value(value.axes, _multiply(value.polynomial, {gate: 1.0}))

    def _match_dropout(self, eqn: JaxprEqn) -> None:
        """Match the comparison of random numbers with a rate."""
        uniform, rate = eqn.invars
        producer = None if isinstance(uniform, Literal) else self._producers.get(uniform)
        if producer is None or str(producer.params.get("name")) != _RANDOM or not _is_scalar(rate):
            return
        aval = get_aval(uniform)
        consumers = self._consumers.get(eqn.outvars[0], [])
        reads = [self._eqns[i] for i in consumers if i < len(self._eqns)]
        if aval.shape != self._shape or not any(self._is_related(e) for e in reads):
            return
        limit = float(rate.val)  # type: ignore[union-attr]
        _require(self._noise is None and limit < 1)
        self._noise = producer.invars[0], limit, aval.dtype.name
        self._mark(producer)
        self._values[eqn.outvars[0]] = _Value(self._axes, {_KEPT: 1.0})

    def _is_related(self, eqn: JaxprEqn) -> bool:
        """Check whether an equation reads a value, or a function of one that follows."""
        return any(
            not isinstance(a, Literal)
            and (a in self._values or self._reads_values(self._producers.get(a)))
            for a in eqn.invars
        )

    def _reads_values(self, eqn: JaxprEqn | None) -> bool:
        return eqn is not None and any(
            not isinstance(a, Literal) and a in self._values for a in eqn.invars
        )

    def _match_weight_gradient(self, eqn: JaxprEqn) -> None:
        """Match the product of a gradient of the values with the values."""
        if "value" not in self._matrices or get_aval(eqn.outvars[0]).size != math.prod(self._shape):
            return
        contract, batch = eqn.params["dimension_numbers"]
        sizes = [get_aval(eqn.invars[0]).shape[i] for i in batch[0]]
        for i, permuted in itertools.product(range(2), itertools.permutations(self._batch_axes)):
            rest = iter(permuted)
            batch_axes = [_CONSTANT if n == 1 else next(rest, _CONSTANT) for n in sizes]
            try:
                found, gradient = (
                    self._find_matrix(eqn.invars[k], batch_axes, batch[k], contract[k])
                    for k in (i, 1 - i)
                )
            except _MismatchError:
                continue
            if found != self._matrices["value"]:
                continue
            self._gradients.append(gradient)
            change = _Term(change=len(self._gradients))
            rows = [self._rank - 1, self._rank - 2] if i == 0 else [self._rank - 2, self._rank - 1]
            self._values[eqn.outvars[0]] = _Value((*batch_axes, *rows), {change: 1.0})
            return

    def _match_product(self, index: int, eqn: JaxprEqn) -> None:
        """Match a product of weights or of gradients of scores with a matrix."""
        (side,) = _select_one(
            i for i, a in enumerate(eqn.invars) if not isinstance(a, Literal) and a in self._values
        )
        value = self._values[eqn.invars[side]]
        contract, batch = eqn.params["dimension_numbers"]
        _require(len(contract[side]) == 1)
        summed = value.axes[contract[side][0]]
        batch_axes = [value.axes[i] for i in batch[side]]
        over_keys = summed == self._rank - 1
        _require(over_keys or summed == self._rank - 2)
        other = 1 - side
        matrix = self._find_matrix(
            eqn.invars[other], batch_axes, batch[other], contract[other], sums_rows=True
        )
        kind = self._classify(value.polynomial, over_keys)
        expected = {"values": "value", "value": "gradient", "query": "key", "key": "query"}[kind]
        if kind in ("values", "value"):
            self._matrices.setdefault(expected, matrix)
        _require(self._matrices[expected] == matrix)
        _require(all(p.kind != kind for p in self._products))
        rows, features = self._rank - 2, self._rank - 1
        free = [rows, features] if side == 0 else [features, rows]
        self._products.append(_Product(index, kind, (*batch_axes, *free)))

    def _classify(self, polynomial: _Polynomial, over_keys: bool) -> str:
        """Return the kind of a product with a polynomial."""
        _, rate, noise = self._noise or (None, 0.0, "float32")
        kept, factor = int(self._noise is not None), 1 / (1 - rate)
        # A factor in bfloat16 is rounded.
        is_close = lambda a, b: math.isclose(a, b, rel_tol=1e-5 if noise == "float32" else 1e-2)
        weights = _Term(exponential=1, total=-1, kept=kept)
        if set(polynomial) == {weights}:
            _require(is_close(polynomial[weights], factor))
            return "values" if over_keys else "value"
        visible, terms = int(bool(self._masks)), set(polynomial)
        _require(terms)
        (change, source) = max((t.change, t) for t in terms)
        inner = _Term(exponential=1, change=change, kept=kept)
        slope = _Term(exponential=1, total=-2, visible=visible, sums=(inner,))
        _require(change and source == _Term(1, -1, change, kept, visible))
        _require(terms == {source, slope})
        gradient = self._gradients[change - 1]
        _require(self._matrices.setdefault("gradient", gradient) == gradient)
        expected = self._scale * factor
        _require(is_close(polynomial[source], expected) and is_close(polynomial[slope], -expected))
        return "query" if over_keys else "key"

    def _check_readers(self) -> None:
        """Check that no other equation reads the values that are no longer computed."""
        products = {p.eqn_index for p in self._products}
        stack = [a for i in products for a in self._eqns[i].invars]
        while stack:
            atom = stack.pop()
            if not isinstance(atom, Literal) and atom in self._values:
                eqn = self._producers[atom]
                if self._indices[id(eqn)] not in self._replaced:
                    self._mark(eqn)
                    stack += eqn.invars
        matched = set(self._replaced)
        self._replaced |= products
        for i in matched:
            for v in self._eqns[i].outvars:
                _require(set(self._consumers.get(v, [])) <= self._replaced)

    def _replace(self) -> list[JaxprEqn]:
        names = ("query", "key", "value")
        matrices, batch = self._matrices, self._shape[:-2]
        dtypes = {get_aval(matrices[n].root).dtype.name for n in names}
        _require(len(dtypes) == 1 and dtypes <= {"float32", "bfloat16"})
        key, rate, noise = self._noise or (None, 0.0, "float32")
        masking = "replace" if self._masks else "add"
        options = ScoreOptions(self._scale, False, masking, self._fill, rate, noise)
        gradients = [p for p in self._products if p.kind != "values"]
        forward = next(p for p in self._products if p.kind == "values")
        _require(not gradients or "gradient" in matrices)
        sources = [matrices[n].root for n in names]
        extras = [b[0] for b in self._biases] + [m[0] for m in self._masks]
        noise_keys = [] if key is None else [key]
        atoms: list[Any] = [*sources, *extras, *noise_keys]

        def make_operands(arrays: Sequence[Array]) -> AttentionOperands:
            q, k, v = (matrices[n].read(a, batch) for n, a in zip(names, arrays, strict=False))
            rest = list(arrays[3:])
            biases = [self._align(rest.pop(0), axes) for _, axes in self._biases]
            masks = [
                ~self._align(rest.pop(0), axes) if hides else self._align(rest.pop(0), axes)
                for _, axes, hides in self._masks
            ]
            return attention.broadcast_masks(
                AttentionOperands(
                    *(q, k, v),
                    functools.reduce(jnp.add, biases) if biases else None,
                    functools.reduce(jnp.logical_and, masks) if masks else None,
                    None,
                    rest[0] if rest else None,
                )
            )

        def restore(result: Array, product: _Product) -> Array:
            """Return [b, t, n, h] in the layout of the product that it replaces."""
            aval = get_aval(self._eqns[product.eqn_index].outvars[0])
            array = result.swapaxes(1, 2)
            array = array.reshape(*batch, *array.shape[2:])
            present = [i for i in product.order if i != _CONSTANT]
            rest = [i for i in range(self._rank) if i not in present]
            return array.transpose(*rest, *present).reshape(aval.shape).astype(aval.dtype)

        def attend(*arrays: Array) -> list[Array]:
            results = attention.compute_with_residuals(options, make_operands(arrays))
            return [restore(results[0], forward), *results]

        def differentiate(*arrays: Array) -> list[Array]:
            *operands, out, high, total, gradient = arrays
            changes = attention.differentiate(
                options,
                make_operands(operands),
                (out, high, total),
                matrices["gradient"].read(gradient, batch).astype(out.dtype),
            )
            return [restore(changes[names.index(p.kind)], p) for p in gradients]

        inserted: dict[int, list[JaxprEqn]] = {}
        results = _trace(attend, atoms)
        inserted[forward.eqn_index] = _splice(
            results, atoms, [self._eqns[forward.eqn_index].outvars[0]]
        )
        if gradients:
            residuals = list(results.jaxpr.outvars[1:])
            operands = [*atoms, *residuals, matrices["gradient"].root]
            outputs = [self._eqns[p.eqn_index].outvars[0] for p in gradients]
            first = min(p.eqn_index for p in gradients)
            inserted[first] = _splice(_trace(differentiate, operands), operands, outputs)
        eqns: list[JaxprEqn] = []
        for i, eqn in enumerate(self._eqns):
            eqns += inserted.get(i, [])
            if i not in self._replaced:
                eqns.append(eqn)
        return eqns

    def _align(self, array: Array, axes: tuple[int, ...]) -> Array:
        """Return a bias or mask as [b or 1, n or 1, t or 1, s or 1]."""
        kept = [i for i, a in enumerate(axes) if a != _CONSTANT]
        array = array.reshape([array.shape[i] for i in kept])
        present = [axes[i] for i in kept]
        array = array.transpose(np.argsort(present))
        sizes = iter(array.shape)
        shape = [next(sizes) if i in present else 1 for i in range(self._rank)]
        full = [1] * (3 - self._rank) + shape if self._rank < 4 else shape
        return array.reshape([full[0], 1, *full[1:]] if self._rank < 4 else full)


def _select_one(items: Iterable[Any]) -> list[Any]:
    found = list(items)
    _require(len(found) == 1)
    return found


def _trace(function: Callable[..., Any], atoms: Sequence[Atom]) -> ClosedJaxpr:
    specs = [jax.ShapeDtypeStruct(get_aval(a).shape, get_aval(a).dtype) for a in atoms]
    return jax.make_jaxpr(function)(*specs)


def _splice(program: ClosedJaxpr, atoms: Sequence[Atom], outputs: Sequence[Var]) -> list[JaxprEqn]:
    """Return the equations of a program for these operands; its first results are `outputs`."""
    jaxpr = program.jaxpr
    names: dict[Any, Any] = dict(zip(jaxpr.invars, atoms, strict=True))
    _require(not jaxpr.constvars)
    names |= zip(jaxpr.outvars, outputs, strict=False)
    read = lambda a: a if isinstance(a, Literal) else names.get(a, a)
    return [
        eqn.replace(invars=list(map(read, eqn.invars)), outvars=list(map(read, eqn.outvars)))
        for eqn in jaxpr.eqns
    ]
