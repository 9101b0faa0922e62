"""`tf.version`: the version of TensorFlow whose behaviour is followed, for programs that ask."""

from meshflow._version import __version__ as COMPILER_VERSION

__all__ = ["COMPILER_VERSION", "GIT_VERSION", "VERSION"]

VERSION = "2.9.0"
GIT_VERSION = f"meshflow-{COMPILER_VERSION}"
