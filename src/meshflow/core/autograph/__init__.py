"""AutoGraph: Python control flow that depends on tensors, inside `tf.function`.

`convert(fn)` rewrites a function so that every `if`, `while`, `for`, `and`, `or`, `not`, `assert`
and conditional expression first checks the value that controls it. A symbolic tensor turns it into
XLA control flow (`core.staging`). Any other value behaves exactly as in Python, because blocks
become inner functions that share the variables of the function.

A function passes through these modules:

    source_lookup -> control_flow_lowering -> liveness -> transformer (expressions, block_state) ->
    compiler -> runtime

* `source_lookup` finds the syntax tree of a function;
* `control_flow_lowering` turns `break`, `continue` and early `return` into flags;
* `name_usage` and `liveness` find the variables that each block changes and that are used later;
* `transformer`, with `expressions` and `block_state`, rewrites blocks as functions and `runtime` calls;
* `compiler` compiles the new tree, with the original file name and line numbers;
* `policy` selects the functions to convert (user code, not libraries), and `conversion` converts
  each code object once, when converted code first calls it;
* `status` holds the switches.

The library `diastatic-malt` (TensorFlow's AutoGraph, maintained for PennyLane) is not used. In
version 2.15.3, tracebacks show lines of a generated temporary file, the conversion of a ten-line
function takes 35 ms against 2 ms here, and `import malt` fails at first use because it does not
import `importlib.util`. We also could not change its 13,000 lines.

Known limits: generators, coroutines, functions that call `locals()` or `eval()`, and functions with
a jump out of `finally` run as plain Python. After a symbolic operand, all later operands of `and`
and `or` are computed. A list cannot grow in a staged loop.
"""

from __future__ import annotations

from meshflow.core.autograph import conversion, runtime
from meshflow.core.autograph.conversion import (
    convert,
    convert_callable,
    convert_if_enabled,
    to_code,
    to_graph,
)
from meshflow.core.autograph.status import (
    Feature,
    do_not_convert,
    is_enabled,
    override_status,
    set_loop_options,
    set_verbosity,
    trace,
)

# This package imports the conversion and the runtime; the conversion cannot import the runtime.
conversion.set_runtime(runtime)
