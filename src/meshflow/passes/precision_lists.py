"""Precision of JAX's primitives, as four lists of names.

The lists follow those of TensorFlow's graph rewrite, translated to JAX's primitives. A primitive on
no list is computed in float32.
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

_ALLOW = "conv_general_dilated dot_general ragged_dot ragged_dot_general"
_INFER = """
    add add_any cos div erf erf_inv erfc logistic max_windows max_windows_gradient mul one_minus_square
    reduce_window_max reduce_window_min reduce_window_sum select_n select_and_gather_add
    select_and_scatter_add sin sqrt sub tanh
"""
_DENY = """
    acos acosh asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt cosh cross_entropy
    cross_entropy_gradient cross_entropy_tangent cumlogsumexp cumprod cumsum digamma exp exp2
    expm1 igamma igammac integer_pow lgamma log log1p log2 polygamma pow psum psum_invariant
    reduce_prod reduce_sum rsqrt scatter scatter-add scatter-max scatter-min scatter-mul
    scatter-sub sinh square tan zeta
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
    """Names of primitives by the precision in which they run; sets that may be changed in place.

    Attributes:
      allow: Always in low precision: products and convolutions, which benefit most.
      infer: In low precision between two `allow` primitives, unless computed from a denied value.
      deny: Always in float32, because of a large range of values or sums of many.
      clear: Moves or selects values without computing; in the precision of its neighbors.

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
        """Return the list of a primitive: 'allow', 'infer', 'deny', 'clear', or 'other'.

        For a name on several lists, the most conservative of them is returned.

        Args:
          primitive: Name of the primitive, as printed in a jaxpr.
        """
        for name in ("deny", "infer", "clear", "allow"):
            if primitive in getattr(self, name):
                return name
        return "other"

    def replace(self, **lists: Iterable[str]) -> PrecisionLists:
        """Return a copy with some of the lists replaced; the others are copied.

        Args:
          **lists: `allow`, `infer`, `deny` or `clear`, each an iterable of names.

        Raises:
          TypeError: If any other name is passed.
        """
        old: dict[str, Any] = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        unknown = sorted(lists.keys() - old.keys())
        if unknown:
            raise TypeError(f"PrecisionLists has the lists {sorted(old)}, not {unknown}.")
        return PrecisionLists(**{name: set(lists.get(name, old[name])) for name in old})


def default_lists() -> PrecisionLists:
    """Return a new copy of the built-in lists, changed according to environment variables.

    TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_ALLOWLIST_ADD and _REMOVE (and INFERLIST, DENYLIST,
    CLEARLIST) hold names of primitives, separated by commas, to add and to remove.
    """
    result = PrecisionLists()
    for field in dataclasses.fields(result):
        prefix = f"TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_{field.name.upper()}LIST_"
        names = getattr(result, field.name)
        names |= _split_names(os.environ.get(f"{prefix}ADD", ""))
        names -= _split_names(os.environ.get(f"{prefix}REMOVE", ""))
    return result


def _split_names(text: str) -> set[str]:
    return set(text.replace(",", " ").split())


# The lists of this process: the default of every `lists` argument.
lists = default_lists()


def check_lists(explicit_lists: PrecisionLists | None) -> PrecisionLists:
    """Return the lists to use: the explicit ones, or those of this process.

    Unknown names cause a warning, because the list then has no effect. They may be a user's
    primitives.

    Args:
      explicit_lists: Lists, or None.

    Raises:
      TypeError: If they are not a `PrecisionLists`.
    """
    chosen = lists if explicit_lists is None else explicit_lists
    if not isinstance(chosen, PrecisionLists):
        raise TypeError(
            f"lists must be a PrecisionLists, such as passes.default_lists(), got {chosen!r}."
        )
    known = _find_known_primitives()
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
def _find_known_primitives() -> frozenset[str]:
    modules = (jex_primitives, jax.lax)
    found = {v.name for m in modules for k, v in vars(m).items() if k.endswith("_p")}
    defaults = PrecisionLists()
    return frozenset(found | defaults.allow | defaults.infer | defaults.deny | defaults.clear)
