"""`tf.keras.backend`: Keras' settings, and functions of tensors in Keras 2's conventions."""

from meshflow.core.dispatch.op_names import nameable
from meshflow.keras import settings as _settings
from meshflow.keras.settings import *
from meshflow.keras.settings import (
    chosen_learning_phase,
    see_name,
    standard_data_format,
    unique_name,
    unseen_name,
)
from meshflow.legacy.backend import (
    ctc,
    elementwise,
    experimental,
    networks,
    phases,
    products,
    randomness,
    reductions,
    shaping,
    values,
)
from meshflow.legacy.backend.ctc import *
from meshflow.legacy.backend.elementwise import *
from meshflow.legacy.backend.networks import *
from meshflow.legacy.backend.phases import *
from meshflow.legacy.backend.products import *
from meshflow.legacy.backend.randomness import *
from meshflow.legacy.backend.reductions import *
from meshflow.legacy.backend.shaping import *
from meshflow.legacy.backend.values import *

# Files may refer to a function with or without the name of its module.
for _module in (elementwise, networks, products, randomness, reductions, shaping):
    for _name in _module.__all__:
        _function = getattr(_module, _name)
        nameable(_function, f"keras.backend.{_module.__name__.rpartition('.')[2]}.{_name}")
        nameable(_function, f"keras.backend.{_name}")
_MODULES = (
    ctc,
    elementwise,
    networks,
    phases,
    products,
    randomness,
    reductions,
    _settings,
    shaping,
    values,
)
__all__ = sorted({"experimental"} | {name for module in _MODULES for name in module.__all__})
