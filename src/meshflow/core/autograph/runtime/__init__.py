"""The runtime library of converted code, which calls it `ag__`.

Every function here decides between plain Python and staging: when the value that controls
something is a symbolic tensor, the work goes to `core.staging`; in all other cases it does
exactly what Python does.
"""

from meshflow.core.autograph.runtime.branches import if_exp, if_stmt
from meshflow.core.autograph.runtime.calls import fn
from meshflow.core.autograph.runtime.logical import and_, assert_, chain, not_, or_
from meshflow.core.autograph.runtime.loops import for_stmt, while_stmt
from meshflow.core.autograph.runtime.structure_template import (
    StructureTemplate,
    contents,
    get,
    refill,
)
from meshflow.core.staging.structure import undefined

__all__ = [
    "StructureTemplate",
    "and_",
    "assert_",
    "chain",
    "contents",
    "fn",
    "for_stmt",
    "get",
    "if_exp",
    "if_stmt",
    "not_",
    "or_",
    "refill",
    "undefined",
    "while_stmt",
]
