# Type checkers find the names of `meshflow.keras.optimizers.legacy` by this path, too; there is no such file at run time.
from meshflow.keras.optimizers.legacy import *
