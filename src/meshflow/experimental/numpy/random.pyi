# Type checkers find the names of `meshflow.numpy.random` by this path, too; there is no such file at run time.
from meshflow.numpy.random import *
