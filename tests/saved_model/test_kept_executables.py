"""Executables of saved functions in the user's cache: found by the file's bytes, and never another program's."""

import errno
import os

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import meshflow as tf
from meshflow.core.functions import concrete_function, kept_executables
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
def cache(tmp_path):
    """A cache that is empty; gives the names of our entries in it."""
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "cache"))
    yield lambda: sorted((tmp_path / "cache").glob("*.executable"))
    jax.config.update("jax_compilation_cache_dir", before)


@pytest.fixture
def compiled(monkeypatch):
    """Programs that were lowered, as they are."""
    found = []
    lower = kept_executables.KeptProgram._compiled

    def counting(self, operands):
        found.append(self)
        return lower(self, operands)

    monkeypatch.setattr(kept_executables.KeptProgram, "_compiled", counting)
    return found


def results(path, rows=2):
    loaded = tf.saved_model.load(path)
    for calls in (1, 2):
        out = loaded(tf.ones([rows, 3]))
        assert int(loaded.calls) == calls
    return [out["y"].numpy().tolist(), int(out["rows"])]


def test_the_second_time_nothing_is_lowered(tmp_path, cache, compiled):
    path = str(tmp_path / "saved")
    tf.saved_model.save(Counter(), path)
    first = results(path)
    assert first == [[[3.0] * 3] * 2, 2] and len(cache()) == len(compiled) == 1
    assert results(path) == first and len(compiled) == 1
    # Of other sizes it is another program.
    assert results(path, 4) == [[[3.0] * 3] * 4, 4] and len(cache()) == len(compiled) == 2

    # A damaged entry is compiled again; so is one that is whole and holds something else.
    entry, other = cache()
    for content in (b"", entry.read_bytes()[:-1], other.read_bytes()[:40] + b"x"):
        entry.write_bytes(content)
        other.write_bytes(content)
        del compiled[:]
        assert results(path) == first and len(compiled) == 1
    kept_executables.compiled_programs.put(entry.stem, b"no pickle")
    kept_executables.compiled_programs.put(other.stem, b"no pickle")
    del compiled[:]
    assert results(path) == first and len(compiled) == 1


def test_a_full_disk_keeps_nothing(cache, monkeypatch):
    def full(source, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    put = kept_executables.compiled_programs.put
    put("first", b"content")
    monkeypatch.setattr(os, "replace", full)
    put("second", b"content")
    (first,) = cache()
    assert [path.name for path in first.parent.iterdir()] == ["first.executable"]


def test_gradients_devices_and_traces_take_the_program_itself(tmp_path, cache):
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


def test_linear_algebra_is_not_kept(tmp_path, cache):
    module = tf.Module()
    module.solve = tf.function(tf.linalg.inv, input_signature=[tf.TensorSpec([3, 3])])
    path = str(tmp_path / "saved")
    tf.saved_model.save(module, path)
    for _ in range(2):
        inverse = tf.saved_model.load(path).solve(tf.eye(3) * 2).numpy()
        np.testing.assert_array_equal(inverse, np.eye(3) / 2)
    assert not cache()


def test_scipy_is_for_linear_algebra(monkeypatch):
    # What our lowering calls in JAX's place is kept in its closure; JAX's own does nothing.
    assert export_lowering._ensure_backends_initialized(("cpu",)) is None
    spec = jax.ShapeDtypeStruct((3, 3), "float32")
    for run in (jax.numpy.linalg.inv, jax.numpy.sin):
        program = jax.export.deserialize(jax.export.export(jax.jit(run))(spec).serialize())
        x = np.eye(3, dtype="float32") + 1
        np.testing.assert_allclose(jax.jit(program.call)(x), run(x), rtol=1e-6)


def test_what_jax_keeps_is_compiled_again(tmp_path, cache, monkeypatch):
    path = str(tmp_path / "saved")
    tf.saved_model.save(Counter(3.0), path)
    before = jax.config.jax_persistent_cache_min_compile_time_secs
    compilation_cache.reset_cache()
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(concrete_function, "kept_program", lambda program, *_: program)
            first = results(path)
        assert list((tmp_path / "cache").glob("*-cache")) and not cache()
        assert [results(path), results(path)] == [first, first] and len(cache()) == 1
    finally:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", before)
        compilation_cache.reset_cache()
