"""What is going on in this thread: the innermost trace, the active tapes, name scopes and devices.

Every public op looks here, so the state is one thread-local object with plain attributes.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshflow.core.tape import GradientTape
    from meshflow.core.trace import TraceContext


class Context(threading.local):
    """Thread-local state of the dispatcher.

    Attributes:
      trace: the innermost trace being recorded, or None in eager mode.
      tapes: gradient tapes that record at this trace level, outermost first.
      outer_tapes: True when a tape of an enclosing level must be able to see through this one.
      names: the stack of open name scopes.
      device: the device string of the innermost `tf.device`, or None.
      variable_creators: functions called in place of `tf.Variable`'s constructor, outermost first.
      falls_back: whether what is traced can as well run as plain Python, which ops may ask for by an error.
      on_host: whether ops on host arrays may be computed by NumPy, which gives host arrays.
      autocast: the dtype that Keras variables are read as inside a mixed-precision layer, or None.
    """

    def __init__(self) -> None:
        self.trace: TraceContext | None = None
        self.tapes: list[GradientTape] = []
        self.outer_tapes = False
        self.names: list[str] = []
        self.device: Any = None
        self.variable_creators: list[Any] = []
        self.falls_back = False
        self.on_host = False
        self.autocast: Any = None


context = Context()
