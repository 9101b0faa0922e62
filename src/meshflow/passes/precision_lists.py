"""Which primitives of JAX run in which precision: four lists, as data.

They follow the lists of TensorFlow's graph rewrite, told in JAX's primitives. A primitive on no
list stays in float32.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import os
import warnings
from collections.abc import Iterable
from typing import Any

import jax

from meshflow.environment.jax_internals import jex_primitives

__all__ = ["PrecisionLists", "checked", "default_lists", "lists"]

_ALLOW = "conv_general_dilated dot_general ragged_dot ragged_dot_general"
_INFER = """
    add add_any cos div erf erf_inv erfc logistic max_windows max_windows_gradient mul one_minus_square
    reduce_window_max reduce_window_min reduce_window_sum select_n select_and_gather_add
    select_and_scatter_add sin sqrt sub tanh
"""
_DENY = """
    acos acosh asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt cosh cross_entropy
    cross_entropy_gradient cross_entropy_tangent cumlogsumexp cumprod cumsum digamma exp exp2 expm1 igamma igammac integer_pow lgamma log log1p log2 polygamma pow psum
    psum_invariant reduce_prod reduce_sum rsqrt scatter scatter-add scatter-max scatter-min
    scatter-mul scatter-sub sinh square tan zeta
"""
_CLEAR = """
    abs all_gather all_to_all argmax argmin broadcast_in_dim ceil clamp concatenate
    convert_element_type copy copy_p cummax cummin dynamic_slice dynamic_update_slice eq floor gather
    ge gt is_finite le lt max min ne neg optimization_barrier pad ppermute pvary reduce_max reduce_min
    reshape rev round sharding_constraint sign slice sort split squeeze stack stop_gradient tile
    top_k transpose unstack
"""


@dataclasses.dataclass
class PrecisionLists:
    """Names of primitives by the precision they run in; sets that may be changed in place.

    Attributes:
      allow: always in the low precision: products and convolutions, which gain most.
      infer: in the low precision between two of those, unless computed from something denied.
      deny: always in float32: a large range of values, or sums of many.
      clear: moves or picks values without computing; in the precision of what is around it.

    Example:
      >>> from meshflow import passes
      >>> lists = passes.default_lists()
      >>> lists.of("dot_general"), lists.of("exp"), lists.of("fft")
      ('allow', 'deny', 'other')
      >>> lists.replace(deny=lists.deny - {"exp"}, infer=lists.infer | {"exp"}).of("exp")
      'infer'
    """

    allow: set[str] = dataclasses.field(default_factory=lambda: set(_ALLOW.split()))
    infer: set[str] = dataclasses.field(default_factory=lambda: set(_INFER.split()))
    deny: set[str] = dataclasses.field(default_factory=lambda: set(_DENY.split()))
    clear: set[str] = dataclasses.field(default_factory=lambda: set(_CLEAR.split()))

    def of(self, primitive: str) -> str:
        """The list that has a primitive: 'allow', 'infer', 'deny', 'clear', or 'other'.

        A name on several lists counts for the most careful of them.

        Args:
          primitive: the primitive's name, as a jaxpr shows it.
        """
        for name in ("deny", "infer", "clear", "allow"):
            if primitive in getattr(self, name):
                return name
        return "other"

    def replace(self, **lists: Iterable[str]) -> PrecisionLists:
        """A copy with some of the lists replaced; the others are copied.

        Args:
          **lists: `allow`, `infer`, `deny` or `clear`, each an iterable of names.

        Raises:
          TypeError: for any other name.
        """
        old: dict[str, Any] = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        unknown = sorted(lists.keys() - old.keys())
        if unknown:
            raise TypeError(f"PrecisionLists has the lists {sorted(old)}, not {unknown}.")
        return PrecisionLists(**{name: set(lists.get(name, old[name])) for name in old})


def default_lists() -> PrecisionLists:
    """A fresh copy of the built-in lists, with what the environment changes.

    The variables TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_ALLOWLIST_ADD and _REMOVE (and INFERLIST,
    DENYLIST, CLEARLIST) hold names of primitives, separated by commas, to add and to remove.
    """
    made = PrecisionLists()
    for field in dataclasses.fields(made):
        prefix = f"TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_{field.name.upper()}LIST_"
        names = getattr(made, field.name)
        names |= _words(os.environ.get(f"{prefix}ADD", ""))
        names -= _words(os.environ.get(f"{prefix}REMOVE", ""))
    return made


def _words(text: str) -> set[str]:
    return set(text.replace(",", " ").split())


# The lists of this process: used wherever no others are given.
lists = default_lists()


def checked(given: PrecisionLists | None) -> PrecisionLists:
    """The lists to go by: those given, or those of this process.

    Names that are no primitive of JAX are warned of, as the list then has no effect. They may be
    primitives of the user's own.

    Args:
      given: lists, or None.

    Raises:
      TypeError: when they are no `PrecisionLists`.
    """
    chosen = lists if given is None else given
    if not isinstance(chosen, PrecisionLists):
        raise TypeError(
            f"lists must be a PrecisionLists, such as passes.default_lists(), got {chosen!r}."
        )
    known = _known_primitives()
    for field in dataclasses.fields(chosen):
        for name in sorted(getattr(chosen, field.name) - known):
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            warnings.warn(
                f"The list {field.name!r} of PrecisionLists has {name!r}, which is no primitive of JAX.{hint} "
                "Names are those that jax.make_jaxpr shows.",
                stacklevel=3,
            )
    return chosen


@functools.cache
def _known_primitives() -> frozenset[str]:
    modules = (jex_primitives, jax.lax)
    found = {v.name for m in modules for k, v in vars(m).items() if k.endswith("_p")}
    ours = PrecisionLists()
    return frozenset(found | ours.allow | ours.infer | ours.deny | ours.clear)
