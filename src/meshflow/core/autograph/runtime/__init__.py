"""Runtime library of converted code, which refers to it as `ag__`.

Every function here chooses between plain Python and staging: if the controlling value is a symbolic
tensor, `core.staging` does the work; otherwise the function behaves like Python. In statements,
`get` reads the state of the block, `set_` replaces it, and `template` describes its parts.
"""

from meshflow.core.autograph.runtime.calls import convert_callee
from meshflow.core.autograph.runtime.if_statements import if_exp, if_stmt
from meshflow.core.autograph.runtime.logical_operators import (
    and_,
    assert_,
    compare_chain,
    not_,
    or_,
)
from meshflow.core.autograph.runtime.loop_statements import for_stmt, while_stmt
from meshflow.core.autograph.runtime.structure_template import (
    StructureTemplate,
    copy_items,
    read_part,
    restore_items,
)
from meshflow.core.staging.structure import undefined
