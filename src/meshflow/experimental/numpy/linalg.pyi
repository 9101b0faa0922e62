# Type checkers find the names of `meshflow.numpy.linalg` by this path, too; there is no such file at run time.
from meshflow.numpy.linalg import *
