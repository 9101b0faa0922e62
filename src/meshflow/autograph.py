"""`tf.autograph`: Python control flow on tensors."""

from __future__ import annotations

from meshflow.core.autograph import set_verbosity, to_code, to_graph
from meshflow.core.autograph.status import Feature, do_not_convert, set_loop_options

__all__ = ["experimental", "set_verbosity", "to_code", "to_graph"]


class experimental:
    """`tf.autograph.experimental`."""

    Feature = Feature
    do_not_convert = staticmethod(do_not_convert)
    set_loop_options = staticmethod(set_loop_options)
