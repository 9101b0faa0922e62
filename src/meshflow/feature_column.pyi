# Type checkers find the names of `meshflow.legacy.feature_column` by this path, too; there is no such file at run time.
from meshflow.legacy.feature_column import *
