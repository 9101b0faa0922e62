# Type checkers find the names of `meshflow.legacy.compat.v1` by this path, too; there is no such file at run time.
from meshflow.legacy.compat.v1 import *
