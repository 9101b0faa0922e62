"""`tf.raw_ops`: TensorFlow's ops by their names, with keyword arguments.

`arguments.txt`, recorded from TensorFlow 2.15, has the arguments of each op, its inputs and its outputs. An op is
computed by a function of this package, by a public function (`public_functions`), or by the op that Meshflow has for
TensorFlow's graphs (`graph_ops`).
"""

from meshflow.raw_ops import operations as _operations


def __getattr__(name: str) -> object:
    if name == "__all__":
        return __dir__()
    return _operations.find_op(name)


def __dir__() -> list[str]:
    return sorted(_operations.list_ops())
