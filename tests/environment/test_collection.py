"""Test that Python's garbage collector pauses while programs are traced, and always resumes."""

import gc
import threading
import weakref

import pytest

import forked
import meshflow as tf
from meshflow.environment.garbage_collection import (
    collect_garbage,
    freeze_imports,
    suspend_collector,
)


@pytest.fixture(autouse=True)
def _as_before():
    assert gc.isenabled()
    yield
    gc.enable()


def test_collection_is_paused_during_a_trace():
    seen = []

    @tf.function
    def doubled(x):
        seen.append(gc.isenabled())
        return 2.0 * x

    assert float(doubled(tf.constant(3.0))) == 6.0
    assert seen == [False] and gc.isenabled()


def test_collection_resumes_after_an_error():
    @tf.function
    def wrong(x):
        raise ValueError("of the function")

    with pytest.raises(ValueError, match="of the function"):
        wrong(tf.constant(1.0))
    assert gc.isenabled()


def test_last_exit_resumes_collection():
    with suspend_collector:
        with suspend_collector:
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_disabled_collection_remains_disabled():
    gc.disable()
    with suspend_collector:
        pass
    assert not gc.isenabled()


def test_imported_objects_are_frozen_until_a_device_is_used():
    program = """
import gc
import meshflow as tf
first = gc.get_freeze_count()
tf.keras
second = gc.get_freeze_count()
tf.constant(1.0)
tf.saved_model
print(0 < first < second == gc.get_freeze_count(), gc.isenabled())
"""
    assert forked.run(program, after="import jax") == [0, "True True\n"]


def test_models_are_collected():
    tf.constant(1.0)
    before = gc.get_freeze_count()
    freeze_imports()
    assert gc.get_freeze_count() == before


def test_collections_do_not_depend_on_those_of_other_threads():
    in_collection, is_over = threading.Event(), threading.Event()

    class Slow:
        def __init__(self):
            self.cycle = self

        def __del__(self):
            in_collection.set()
            is_over.wait(10)

    def collect():
        Slow()
        gc.collect()

    other = threading.Thread(target=collect)
    other.start()
    assert in_collection.wait(10)
    value = Value()
    value.cycle = value
    ended = weakref.ref(value)
    del value
    gc.collect()
    assert ended() is not None
    threading.Timer(0.05, is_over.set).start()
    collect_garbage()
    assert ended() is None
    other.join()


class Value:
    pass
