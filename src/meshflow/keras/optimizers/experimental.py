"""`tf.keras.optimizers.experimental`: another name of the optimizers since TensorFlow 2.11."""

from __future__ import annotations

from meshflow.keras.optimizers import base
from meshflow.keras.optimizers.adafactor import Adafactor
from meshflow.keras.optimizers.adam import Adam, Adamax, AdamW, Lion, Nadam
from meshflow.keras.optimizers.adaptive import Adadelta, Adagrad, RMSprop
from meshflow.keras.optimizers.ftrl import Ftrl
from meshflow.keras.optimizers.sgd import SGD

__all__ = [
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Ftrl",
    "Lion",
    "Nadam",
    "Optimizer",
    "RMSprop",
]


class _SinceKeras211(type):
    """Metaclass of a base class to which the optimizers of `legacy` do not belong."""

    def __instancecheck__(cls, instance: object) -> bool:
        return cls.__subclasscheck__(type(instance))

    def __subclasscheck__(cls, subclass: type) -> bool:
        if cls is not CurrentOptimizer:
            return super().__subclasscheck__(subclass)
        return issubclass(subclass, base.Optimizer) and subclass._since_2_11


class CurrentOptimizer(base.Optimizer, metaclass=_SinceKeras211):
    """`tf.keras.optimizers.Optimizer`, without the optimizers of `legacy` among its subclasses.

    Example:
      >>> base = tf.keras.optimizers.experimental.Optimizer
      >>> [isinstance(o.Adam(), base) for o in (tf.keras.optimizers, tf.keras.optimizers.legacy)]
      [True, False]
    """


Optimizer = CurrentOptimizer
