"""The surface of earlier years: `tf.compat`, `tf.keras.preprocessing`, `tf.keras.wrappers`.

Nothing in the centre imports it; it is loaded when one of these names is first used, under the paths that TensorFlow has for them.
"""
