"""`tf.version`: the version of TensorFlow whose behaviour is followed, for programs that ask.

The last TensorFlow whose Keras is Keras 2, with Meshflow's own version behind it:

    >>> import meshflow as tf
    >>> tf.version.VERSION == tf.__version__, tf.__version__.split("+")[0], tf.keras.__version__
    (True, '2.15.1', '2.15.0')
"""

from importlib.metadata import version as _version

from meshflow._version import __version__ as _own

__all__ = [
    "COMPILER_VERSION",
    "GIT_VERSION",
    "GRAPH_DEF_VERSION",
    "GRAPH_DEF_VERSION_MIN_CONSUMER",
    "GRAPH_DEF_VERSION_MIN_PRODUCER",
    "VERSION",
]

KERAS_VERSION = "2.15.0"
VERSION = f"2.15.1+meshflow.{_own}"
GIT_VERSION = f"v2.15.1-meshflow-{_own}"
# XLA compiles everything.
COMPILER_VERSION = f"XLA (jaxlib {_version('jaxlib')})"
# The layout of graphs in that TensorFlow, and the oldest programs it reads and is read by.
GRAPH_DEF_VERSION = 1645
GRAPH_DEF_VERSION_MIN_CONSUMER = 0
GRAPH_DEF_VERSION_MIN_PRODUCER = 0
