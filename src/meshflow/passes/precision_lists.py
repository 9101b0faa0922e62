"""The four lists of automatic mixed precision: what each JAX primitive may be computed in.

They follow the lists of TensorFlow's graph rewrite, told in JAX's primitives. They are plain sets,
for users to read and to change.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

ALLOW = """
conv_general_dilated dot_general ragged_dot
"""

INFER = """
add add_any atan2 bias_add cbrt copy custom_lin div elu erf erf_inv erfc floor integer_pow log log1p
logistic mul neg real reciprocal rem round rsqrt sign sqrt square sub tanh
"""

DENY = """
cosh cumlogsumexp cumprod cumsum digamma exp exp2 expm1 lgamma logsumexp pow reduce_prod reduce_sum
reduce_window_sum sin sinh cos tan psum
"""

CLEAR = """
abs all_gather all_to_all argmax argmin broadcast_in_dim ceil clamp concatenate copy copy_p
dynamic_slice dynamic_update_slice eq expand_dims gather ge gt is_finite le lt max min ne
optimization_barrier pad ppermute reduce_max reduce_min reduce_window_max reduce_window_min reshape
rev select_and_gather_add select_n slice split squeeze stop_gradient transpose
"""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


@dataclass(frozen=True)
class PrecisionLists:
    """Names of primitives by what they may be computed in; what no list names stays in float32.

    Attributes:
      allow: always in the low precision: they gain most, and add up in float32 inside.
      infer: in the low precision between two of those, unless something denied comes before.
      deny: always in float32.
      clear: in the precision of what is around them.

    Example:
      >>> from meshflow import passes
      >>> lists = passes.default_lists().replace(allow={"dot_general"})
      >>> sorted(lists.allow)
      ['dot_general']
    """

    allow: frozenset[str] = field(default_factory=lambda: _words(ALLOW))
    infer: frozenset[str] = field(default_factory=lambda: _words(INFER))
    deny: frozenset[str] = field(default_factory=lambda: _words(DENY))
    clear: frozenset[str] = field(default_factory=lambda: _words(CLEAR))

    def replace(self, **lists: object) -> PrecisionLists:
        """A copy with other lists.

        Args:
          **lists: sets of names by list.
        """
        return replace(self, **{name: frozenset(names) for name, names in lists.items()})  # type: ignore[call-overload]

    def of(self, primitive: str) -> str:
        """The list that names a primitive: 'allow', 'infer', 'deny', 'clear', or 'other'.

        Args:
          primitive: its name.
        """
        for name in ("allow", "deny", "infer", "clear"):
            if primitive in getattr(self, name):
                return name
        return "other"


def default_lists() -> PrecisionLists:
    """The lists in force.

    The variables TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_ALLOWLIST_ADD and _REMOVE (and INFERLIST,
    DENYLIST, CLEARLIST) hold names of primitives, separated by commas, to add and to remove.
    """
    lists = PrecisionLists()
    changed = {}
    for name in ("allow", "infer", "deny", "clear"):
        prefix = f"TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_{name.upper()}LIST_"
        add = set(os.environ.get(f"{prefix}ADD", "").replace(",", " ").split())
        remove = set(os.environ.get(f"{prefix}REMOVE", "").replace(",", " ").split())
        changed[name] = (getattr(lists, name) | add) - remove
    return lists.replace(**changed)
