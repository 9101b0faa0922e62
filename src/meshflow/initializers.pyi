# Type checkers find the names of `meshflow.keras.initializers` by this path, too; there is no such file at run time.
from meshflow.keras.initializers import *
