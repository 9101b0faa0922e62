"""`tf.version`: the version of TensorFlow that Meshflow follows, for programs that check it.

It is the last TensorFlow with Keras 2, followed by Meshflow's own version:

    >>> tf.version.VERSION == tf.__version__, tf.__version__.split("+")[0], tf.keras.__version__
    (True, '2.15.1', '2.15.0')
"""

from importlib.metadata import version as _version

from meshflow._version import __version__ as _meshflow_version

__all__ = [
    "COMPILER_VERSION",
    "GIT_VERSION",
    "GRAPH_DEF_VERSION",
    "GRAPH_DEF_VERSION_MIN_CONSUMER",
    "GRAPH_DEF_VERSION_MIN_PRODUCER",
    "VERSION",
]

KERAS_VERSION = "2.15.0"
VERSION = f"2.15.1+meshflow.{_meshflow_version}"
GIT_VERSION = f"v2.15.1-meshflow-{_meshflow_version}"
# XLA compiles all programs.
COMPILER_VERSION = f"XLA (jaxlib {_version('jaxlib')})"
# Version of GraphDef in this TensorFlow, and the oldest compatible consumers and producers.
GRAPH_DEF_VERSION = 1645
GRAPH_DEF_VERSION_MIN_CONSUMER = 0
GRAPH_DEF_VERSION_MIN_PRODUCER = 0
