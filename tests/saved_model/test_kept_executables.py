"""Test executables of saved functions in the user's cache: found by the file's bytes, and never
mixed up with another program's."""

import errno
import os

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import meshflow as tf
from meshflow.core.dispatch.tiers import TierSettings
from meshflow.core.functions import cached_calls, concrete_function, executable_cache
from meshflow.core.functions.concrete_function import ConcreteFunction
from meshflow.environment.jax_internals import export_lowering


class Counter(tf.Module):
    """A function that reads and writes variables, for any number of rows."""

    def __init__(self, factor=2.0):
        super().__init__()
        self.factor = tf.Variable(factor)
        self.calls = tf.Variable(0)

    @tf.function(input_signature=[tf.TensorSpec([None, 3])])
    def __call__(self, x):
        self.calls.assign_add(1)
        return {"y": x * self.factor + 1, "rows": tf.shape(x)[0]}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Create an empty cache; return a function for the names of our entries in it."""
    monkeypatch.setattr(TierSettings, "tier", "compile")
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "cache"))
    yield lambda: sorted((tmp_path / "cache").glob("*.executable"))
    jax.config.update("jax_compilation_cache_dir", before)


@pytest.fixture
def compiled(monkeypatch):
    """Programs that were lowered, as they are."""
    found = []
    lower = executable_cache.compile_and_store

    def counting(program, *rest):
        found.append(program)
        return lower(program, *rest)

    monkeypatch.setattr(executable_cache, "compile_and_store", counting)
    monkeypatch.setattr(cached_calls, "compile_and_store", counting)
    return found


def results(path, rows=2):
    loaded = tf.saved_model.load(path)
    for calls in (1, 2):
        out = loaded(tf.ones([rows, 3]))
        assert int(loaded.calls) == calls
    return [out["y"].numpy().tolist(), int(out["rows"])]


def test_second_load_lowers_nothing(tmp_path, cache, compiled):
    path = str(tmp_path / "saved")
    tf.saved_model.save(Counter(), path)
    first = results(path)
    assert first == [[[3.0] * 3] * 2, 2] and len(cache()) == len(compiled) == 1
    assert results(path) == first and len(compiled) == 1
    # Of other sizes it is another program.
    assert results(path, 4) == [[[3.0] * 3] * 4, 4] and len(cache()) == len(compiled) == 2

    # A damaged entry is compiled again; so is a valid one with other contents.
    entry, other = cache()
    for content in (b"", entry.read_bytes()[:-1], other.read_bytes()[:40] + b"x"):
        entry.write_bytes(content)
        other.write_bytes(content)
        del compiled[:]
        assert results(path) == first and len(compiled) == 1
    executable_cache.compilation_cache.write_entry(entry.stem, b"no pickle")
    executable_cache.compilation_cache.write_entry(other.stem, b"no pickle")
    del compiled[:]
    assert results(path) == first and len(compiled) == 1


def test_full_disk_stores_nothing(cache, monkeypatch):
    def full(source, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    put = executable_cache.compilation_cache.write_entry
    put("first", b"content")
    monkeypatch.setattr(os, "replace", full)
    put("second", b"content")
    (first,) = cache()
    assert [path.name for path in first.parent.iterdir()] == ["first.executable"]


@pytest.fixture
def traced(monkeypatch):
    """Functions that were traced, as they are."""
    found = []
    trace = ConcreteFunction.__init__

    def counting(self, *rest):
        found.append(rest[0].name)
        return trace(self, *rest)

    monkeypatch.setattr(ConcreteFunction, "__init__", counting)
    return found


def test_signatures_of_tensorflow_are_not_even_traced(stored, cache, compiled, traced):
    with np.load(stored / "cnn.npz", allow_pickle=True) as file:
        x, y = file["x"], file["y"]
    for known in (False, True, True):
        loaded = tf.saved_model.load(stored / "cnn_save")
        signature = loaded.signatures["serving_default"]
        (name,) = signature.structured_input_signature[1]
        (first,) = signature(**{name: tf.constant(x)}).values()
        (once_more,) = signature(**{name: x}).values()
        np.testing.assert_allclose(first, y, 1e-5, 1e-6)
        np.testing.assert_array_equal(once_more, first)
        assert bool(traced) is bool(compiled) is not known
        del compiled[:], traced[:]
    # Variables that it reads may be written, and its gradient equals that of the function.
    last = signature.captured_inputs[-1]
    last.assign_add(tf.range(4.0))
    (moved,) = signature(**{name: x}).values()
    assert np.abs(moved.numpy() - y).max() > 1e-3 and not traced
    with tf.GradientTape() as tape:
        (again,) = signature(**{name: tf.constant(x)}).values()
        one = again[:, 0]
    np.testing.assert_allclose(again, moved, 1e-5, 1e-6)
    assert np.isfinite(tape.gradient(one, last).numpy()).all() and traced
    # A damaged plan, or one without its executable, is created again.
    for entry in cache():
        whole = entry.read_bytes()
        for content in (None, whole[:-1]):
            entry.unlink()
            if content is not None:
                entry.write_bytes(content)
            fresh = tf.saved_model.load(stored / "cnn_save").signatures["serving_default"]
            np.testing.assert_array_equal(*fresh(**{name: x}).values(), first)


def test_gradients_devices_and_traces_use_the_program(tmp_path, cache):
    path = str(tmp_path / "saved")
    tf.saved_model.save(Counter(), path)
    loaded, x = tf.saved_model.load(path), tf.ones([2, 3])
    loaded(x)
    with tf.GradientTape() as tape:
        y = loaded(x)["y"]
    assert tape.gradient(y, loaded.factor).numpy() == 6.0
    assert tf.function(lambda x: loaded(x)["y"] + 1)(x).numpy().tolist() == [[4.0] * 3] * 2
    signature = loaded.signatures["serving_default"]
    (name,) = signature.structured_input_signature[1]
    assert signature(**{name: x})["y"].numpy().tolist() == [[3.0] * 3] * 2
    if len(jax.devices()) > 1:
        with tf.device("/CPU:1"):
            there = tf.ones([2, 3])
        np.testing.assert_array_equal(loaded(there)["y"], y)


def test_linear_algebra_is_not_cached(tmp_path, cache):
    module = tf.Module()
    module.solve = tf.function(tf.linalg.inv, input_signature=[tf.TensorSpec([3, 3], name="x")])
    path = str(tmp_path / "saved")
    tf.saved_model.save(module, path, {"serving_default": module.solve})
    for _ in range(2):
        loaded = tf.saved_model.load(path)
        inverse = loaded.solve(tf.eye(3) * 2).numpy()
        np.testing.assert_array_equal(inverse, np.eye(3) / 2)
        found = loaded.signatures["serving_default"](x=tf.eye(3) * 2)
        np.testing.assert_array_equal(*found.values(), inverse)
    assert not cache()


def test_scipy_is_for_linear_algebra(monkeypatch):
    # JAX's lowering rule is replaced; the closure of ours refers to the function that it calls.
    assert export_lowering._ensure_backends_initialized(("cpu",)) is None
    spec = jax.ShapeDtypeStruct((3, 3), "float32")
    for run in (jax.numpy.linalg.inv, jax.numpy.sin):
        program = jax.export.deserialize(jax.export.export(jax.jit(run))(spec).serialize())
        x = np.eye(3, dtype="float32") + 1
        np.testing.assert_allclose(jax.jit(program.call)(x), run(x), rtol=1e-6)


def test_executables_in_the_jax_cache_are_compiled_again(tmp_path, cache, monkeypatch):
    path = str(tmp_path / "saved")
    tf.saved_model.save(Counter(3.0), path)
    before = jax.config.jax_persistent_cache_min_compile_time_secs
    compilation_cache.reset_cache()
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(concrete_function, "cache_program", lambda program, *_: program)
            first = results(path)
        assert list((tmp_path / "cache").glob("*-cache")) and not cache()
        assert [results(path), results(path)] == [first, first] and len(cache()) == 1
    finally:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", before)
        compilation_cache.reset_cache()


def test_programs_of_many_shapes_do_not_fill_the_memory(tmp_path, monkeypatch):
    module = tf.Module()
    module.double = tf.function(lambda x: 2 * x, input_signature=[tf.TensorSpec([None], name="x")])
    tf.saved_model.save(module, str(tmp_path), module.double)
    signature = tf.saved_model.load(str(tmp_path)).signatures["serving_default"]
    monkeypatch.setattr(cached_calls, "MAX_TRACES", 3)
    for size in (*range(1, 9), 1):
        (result,) = signature(x=tf.ones([size])).values()
        assert result.numpy().tolist() == [2.0] * size
        assert len(signature._cached_calls._calls) <= 3
