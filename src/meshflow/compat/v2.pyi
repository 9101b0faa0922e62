# Type checkers find the names of `meshflow` by this path, too; there is no such file at run time.
from meshflow._api import *
