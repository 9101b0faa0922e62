"""Polynomials that describe values of the size of the scores of attention.

Such values, and their sums over keys, are polynomials of the exponentials, their sums, the gradient of
the weights and the masks of dropout. The order of the operations therefore does not matter, nor which
terms the derivative of a softmax shares with it.
"""

from __future__ import annotations

from typing import NamedTuple

from jax import Array

from meshflow.environment.types import Var

# Axis of a value along which it is constant.
CONSTANT = -1


class NotAttentionError(Exception):
    """The equations are not attention that can be tiled."""


def require(condition: object) -> None:
    """Raise `NotAttentionError` unless a condition is true."""
    if not condition:
        raise NotAttentionError


class Term(NamedTuple):
    """A product of powers.

    Attributes:
      exponential: Power of the exponentials of the scores.
      total: Power of their sums over the keys.
      change: Which gradient of weights is a factor; 0 without one.
      retained: Power of the mask of dropout, 0 or 1.
      visible: Power of the mask of the scores, 0 or 1.
      sums: Sums of terms over the keys.
    """

    exponential: int = 0
    total: int = 0
    change: int = 0
    retained: int = 0
    visible: int = 0
    sums: tuple[Term, ...] = ()

    def times(self, other: Term) -> Term:
        """Return the product."""
        require(not (self.change and other.change))
        return Term(
            self.exponential + other.exponential,
            self.total + other.total,
            self.change + other.change,
            max(self.retained, other.retained),
            max(self.visible, other.visible),
            tuple(sorted(self.sums + other.sums)),
        )


# Coefficients by term.
Polynomial = dict[Term, float]
ONE = Term()
EXPONENTIAL, RETAINED, VISIBLE = Term(exponential=1), Term(retained=1), Term(visible=1)


class ScoreValue(NamedTuple):
    """A value of the size of the scores, or of their sums.

    Attributes:
      axes: For each axis, the corresponding axis of the scores, or `CONSTANT`.
      polynomial: What it is.
    """

    axes: tuple[int, ...]
    polynomial: Polynomial


class Matrix(NamedTuple):
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


class Product(NamedTuple):
    """A product of an array of the size of the scores and a matrix.

    Attributes:
      eqn_index: Index of its equation.
      kind: "values", or the operand of the gradient: "query", "key" or "value".
      order: For each axis of the result, its axis in [batch axes, rows, features], or `CONSTANT`.
    """

    eqn_index: int
    kind: str
    order: tuple[int, ...]


def multiply_polynomials(a: Polynomial, b: Polynomial) -> Polynomial:
    """Return the product of two polynomials."""
    result: Polynomial = {}
    for s, x in a.items():
        for t, y in b.items():
            term = s.times(t)
            result[term] = result.get(term, 0) + x * y
    return result


def add_polynomials(a: Polynomial, b: Polynomial, sign: float = 1) -> Polynomial:
    """Return `a + sign * b` without the terms that cancel."""
    result = dict(a)
    for term, x in b.items():
        result[term] = result.get(term, 0) + sign * x
    return {t: x for t, x in result.items() if x}


def sum_over_keys(polynomial: Polynomial) -> Polynomial:
    """Return the sum over the keys, with the factors that do not depend on them outside."""
    result: Polynomial = {}
    for term, x in polynomial.items():
        inner = Term(term.exponential, 0, term.change, term.retained, term.visible)
        outer = Term(total=term.total, sums=term.sums)
        require(inner != ONE)
        total = Term(total=1) if inner == EXPONENTIAL else Term(sums=(inner,))
        result = add_polynomials(result, {outer.times(total): x})
    return result


def raise_to_power(polynomial: Polynomial, power: int) -> Polynomial:
    """Return a power of a polynomial that contains only sums of exponentials.

    Raises:
      MismatchError: If it contains more.
    """
    require(len(polynomial) == 1)
    ((term, x),) = polynomial.items()
    require(term == Term(total=term.total))
    return {Term(total=term.total * power): x**power}
