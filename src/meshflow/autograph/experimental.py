"""`tf.autograph.experimental`: conversion features, opting out of conversion, and loop options."""

from meshflow.core.autograph.status import Feature, do_not_convert, set_loop_options

__all__ = ["Feature", "do_not_convert", "set_loop_options"]
