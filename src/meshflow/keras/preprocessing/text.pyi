# Type checkers find the names of `meshflow.legacy.preprocessing.text` by this path, too; there is no such file at run time.
from meshflow.legacy.preprocessing.text import *
