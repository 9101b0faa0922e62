"""Python's collector rests while programs are traced, and goes on whatever happens then."""

import gc

import pytest

import meshflow as tf
from meshflow.core.runtime.collection import resting


@pytest.fixture(autouse=True)
def _as_before():
    assert gc.isenabled()
    yield
    gc.enable()


def test_it_rests_while_a_function_is_traced():
    seen = []

    @tf.function
    def doubled(x):
        seen.append(gc.isenabled())
        return 2.0 * x

    assert float(doubled(tf.constant(3.0))) == 6.0
    assert seen == [False] and gc.isenabled()


def test_it_goes_on_after_an_error():
    @tf.function
    def wrong(x):
        raise ValueError("of the function")

    with pytest.raises(ValueError, match="of the function"):
        wrong(tf.constant(1.0))
    assert gc.isenabled()


def test_the_last_that_leaves_turns_it_on():
    with resting:
        with resting:
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_one_that_was_off_stays_off():
    gc.disable()
    with resting:
        pass
    assert not gc.isenabled()
