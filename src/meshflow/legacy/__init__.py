"""The surface of earlier years: `tf.compat`, `tf.feature_column`, `tf.keras.backend`, `.preprocessing`, `.wrappers`.

Nothing in the centre imports it; it is loaded when one of these names is first used, under the paths that TensorFlow has for them.
"""
