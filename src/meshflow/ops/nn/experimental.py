"""`tf.nn.experimental`: dropout with masks that the caller determines."""

from meshflow.ops.nn.activation import general_dropout, stateless_dropout

__all__ = ["general_dropout", "stateless_dropout"]
