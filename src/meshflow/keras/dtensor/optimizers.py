"""`tf.keras.dtensor.experimental.optimizers`: optimizers with distributed slots.

Each slot of an optimizer has the layout of its variable.
"""

from meshflow.keras.optimizers.adam import Adam, AdamW
from meshflow.keras.optimizers.adaptive import Adadelta, Adagrad, RMSprop
from meshflow.keras.optimizers.sgd import SGD

__all__ = ["SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "RMSprop"]
