"""`tf.keras.backend`: Keras' settings, and the functions that Keras 2 layers, losses and metrics are written in."""

from meshflow.core.dispatch.op_names import nameable
from meshflow.keras import settings as _settings
from meshflow.keras.backend import (
    ctc as _ctc,
)
from meshflow.keras.backend import (
    elementwise as _elementwise,
)
from meshflow.keras.backend import experimental
from meshflow.keras.backend import (
    loops as _loops,
)
from meshflow.keras.backend import (
    networks as _networks,
)
from meshflow.keras.backend import (
    phases as _phases,
)
from meshflow.keras.backend import (
    products as _products,
)
from meshflow.keras.backend import (
    randomness as _randomness,
)
from meshflow.keras.backend import (
    reductions as _reductions,
)
from meshflow.keras.backend import (
    shaping as _shaping,
)
from meshflow.keras.backend import (
    values as _values,
)
from meshflow.keras.backend.ctc import *
from meshflow.keras.backend.elementwise import *
from meshflow.keras.backend.loops import *
from meshflow.keras.backend.networks import *
from meshflow.keras.backend.phases import *
from meshflow.keras.backend.products import *
from meshflow.keras.backend.randomness import *
from meshflow.keras.backend.reductions import *
from meshflow.keras.backend.shaping import *
from meshflow.keras.backend.values import *
from meshflow.keras.settings import *
from meshflow.keras.settings import (
    chosen_learning_phase,
    see_name,
    standard_data_format,
    unique_name,
    unseen_name,
)

_MODULES = (
    _ctc,
    _elementwise,
    _loops,
    _networks,
    _phases,
    _products,
    _randomness,
    _reductions,
    _settings,
    _shaping,
    _values,
)
for _module in (_elementwise, _networks, _products, _randomness, _reductions, _shaping):
    for _name in _module.__all__:
        nameable(nameable(getattr(_module, _name)), f"keras.backend.{_name}")
__all__ = sorted({"experimental"} | {n for m in _MODULES for n in m.__all__})
