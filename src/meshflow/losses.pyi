# Type checkers find the names of `meshflow.keras.losses` by this path, too; there is no such file at run time.
from meshflow.keras.losses import *
