# Type checkers find the names of `meshflow.numpy.fft` by this path, too; there is no such file at run time.
from meshflow.numpy.fft import *
