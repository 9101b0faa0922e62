# Type checkers find the names of `meshflow.keras.optimizers.schedules` by this path, too; there is no such file at run time.
from meshflow.keras.optimizers.schedules import *
