# Type checkers find the names of `meshflow.legacy.preprocessing.image` by this path, too; there is no such file at run time.
from meshflow.legacy.preprocessing.image import *
