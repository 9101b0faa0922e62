"""Graph mode of TensorFlow 1: graphs of recorded calls, and sessions that run them.

In the block of a `tf.Graph`, the dispatcher passes each call of a public function to the graph (`graph.py`). The graph
infers the shapes of the results, as the Functional API of Keras does, and stores the call as an `Operation`
(`operations.py`). A session (`sessions.py`) runs the operations that its fetches need, in the order of their creation
(`execution.py`). They are ordinary calls, so eager execution, tapes and `tf.function` serve graphs, too.
"""
