"""Interpreter of jaxprs with NumPy and oneDNN, which needs no compilation.

`build_plan` turns a jaxpr into a `Plan`, which runs it op by op on host arrays, for any sizes of its
symbolic dimensions; `CostEstimate` estimates the times of a run and of a compilation. Results
agree with XLA's within rounding errors, including NaN, infinities, integer overflow and indices out
of range.

`table.RULES` has a rule for each primitive, a function that makes the NumPy function of an
equation. The rules are in modules by kind, from `elementwise` to `windows`; `rule` registers one. A
program with a primitive without a rule raises `UnsupportedPrimitive`, so that the caller compiles
it. `program` inlines calls and makes the closures of equations, and `memory` chooses the arrays that
results overwrite.
"""

from meshflow.interpreter import (
    control,
    convolutions,
    elementwise,
    indexing,
    linear_algebra,
    own,
    products,
    random_keys,
    reductions,
    shapes,
    special,
    windows,
)
from meshflow.interpreter.costs import CostEstimate, Costs
from meshflow.interpreter.elementwise import can_repeat_rows, repeat_rows, take_extremum
from meshflow.interpreter.indexing import update_rows
from meshflow.interpreter.plan import Plan, build_plan
from meshflow.interpreter.symbolic_sizes import SizeGuardError
from meshflow.interpreter.table import UnsupportedPrimitive
