"""Compatibility APIs: `tf.compat`, `tf.feature_column`, and the Keras 2 utilities.

No other package imports this one. Each part is imported when its public name is first used.
"""
