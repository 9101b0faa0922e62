"""AutoGraph: plain Python control flow on tensors, inside `tf.function`.

`convert(fn)` rewrites a function so that every `if`, `while`, `for`, `and`, `or`, `not`, `assert`
and conditional expression first looks at the value that controls it. A symbolic tensor makes it
XLA control flow (`core.staging`); anything else behaves exactly as in Python, because blocks become
inner functions that share the function's own variables.

A function passes through these modules:

    source -> control_flow_lowering -> liveness -> transformer (expressions, state) -> compiler -> runtime

* `source` finds the syntax tree of a function;
* `control_flow_lowering` turns `break`, `continue` and early `return` into flags;
* `names` and `liveness` find the variables that each block changes and that are used afterwards;
* `transformer`, with `expressions` and `state`, writes blocks as functions and calls to `runtime`;
* `compiler` makes a function of the new tree, with the original file name and line numbers;
* `policy` says what is converted (the user's code, not libraries), `conversion` does it, once
  per code object, and functions are converted when converted code calls them;
* `status` holds the switches.

Why not the library `diastatic-malt` (TensorFlow's AutoGraph, kept for PennyLane)? Tried at 2.15.3:
tracebacks show lines of a generated temporary file; converting a ten-line function takes 35 ms
against 2 ms here; `import malt` alone fails at first use (`importlib.util` is not imported);
13,000 lines, none of which we could change.

Known limits: generators, coroutines, functions that call `locals()` or `eval()`, and functions
with a jump out of `finally` run as plain Python. Operands of `and` and `or` after a symbolic one
are always computed. A list may not grow in a staged loop.
"""

from __future__ import annotations

from meshflow.core.autograph import conversion, runtime
from meshflow.core.autograph.conversion import (
    convert,
    convert_if_enabled,
    resolve,
    to_code,
    to_graph,
)
from meshflow.core.autograph.status import (
    Feature,
    do_not_convert,
    is_enabled,
    set_loop_options,
    set_verbosity,
    switched,
)

__all__ = [
    "Feature",
    "convert",
    "convert_if_enabled",
    "do_not_convert",
    "is_enabled",
    "resolve",
    "set_loop_options",
    "set_verbosity",
    "switched",
    "to_code",
    "to_graph",
]


# What converted code calls stands above what converts it.
conversion.use_runtime(runtime)
