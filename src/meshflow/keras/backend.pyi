# Type checkers find the names of `meshflow.legacy.backend` by this path, too; there is no such file at run time.
from meshflow.legacy.backend import *
