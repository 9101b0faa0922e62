# Type checkers find the names of `meshflow.legacy.wrappers.scikit_learn` by this path, too; there is no such file at run time.
from meshflow.legacy.wrappers.scikit_learn import *
