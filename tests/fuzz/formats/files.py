"""Define formats that are read by name."""

import os
import tempfile


def written(data, name="case"):
    """A file of the data, in one folder of the process."""
    path = os.path.join(tempfile.gettempdir(), f"{os.getpid()}-{name}")
    with open(path, "wb") as file:
        file.write(data)
    return path


def content(path):
    with open(path, "rb") as file:
        return file.read()
