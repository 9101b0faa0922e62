"""`tf.keras.backend`: Keras' settings, and the functions that Keras 2 layers, losses and metrics are written in."""

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
    ctc as _ctc,
)
from meshflow.legacy.backend import (
    elementwise as _elementwise,
)
from meshflow.legacy.backend import experimental
from meshflow.legacy.backend import (
    loops as _loops,
)
from meshflow.legacy.backend import (
    networks as _networks,
)
from meshflow.legacy.backend import (
    phases as _phases,
)
from meshflow.legacy.backend import (
    products as _products,
)
from meshflow.legacy.backend import (
    randomness as _randomness,
)
from meshflow.legacy.backend import (
    reductions as _reductions,
)
from meshflow.legacy.backend import (
    shaping as _shaping,
)
from meshflow.legacy.backend import (
    values as _values,
)
from meshflow.legacy.backend.ctc import *
from meshflow.legacy.backend.elementwise import *
from meshflow.legacy.backend.loops import *
from meshflow.legacy.backend.networks import *
from meshflow.legacy.backend.phases import *
from meshflow.legacy.backend.products import *
from meshflow.legacy.backend.randomness import *
from meshflow.legacy.backend.reductions import *
from meshflow.legacy.backend.shaping import *
from meshflow.legacy.backend.values import *

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
        _function, _home = getattr(_module, _name), _module.__name__.rpartition(".")[2]
        # Files name them by either.
        nameable(_function, f"keras.backend.{_home}.{_name}")
        nameable(_function, f"keras.backend.{_name}")
__all__ = sorted({"experimental"} | {n for m in _MODULES for n in m.__all__})
