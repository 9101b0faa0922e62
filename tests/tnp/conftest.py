import pytest

from meshflow.core.dispatch.operands import NumpyRules
from meshflow.core.values.tensor import Tensor
from meshflow.numpy import behavior, promotion
from meshflow.numpy.conversion import DefaultDtypes


@pytest.fixture
def numpy_behavior():
    """Enables NumPy's behaviour for one test; afterwards tensors are TensorFlow's again."""
    before = NumpyRules.promote, NumpyRules.indexing, DefaultDtypes.floating
    own = {name: vars(Tensor).get(name) for name in [*behavior._METHODS, *behavior._PROPERTIES]}
    behavior.experimental_enable_numpy_behavior()
    yield behavior.experimental_enable_numpy_behavior
    promotion.set_mode("legacy")
    NumpyRules.promote, NumpyRules.indexing, DefaultDtypes.floating = before
    NumpyRules.has_lattice = False
    for name, value in own.items():
        if value is None:
            delattr(Tensor, name)
        else:
            setattr(Tensor, name, value)
