"""Programs are lowered in contexts that they share with their neighbours."""

import threading

import jax
import numpy as np

from meshflow.core.runtime import lowering_contexts


def context_of(size):
    """The context that a new program was lowered in."""
    lowered = jax.jit(lambda x: x + 1.0).lower(np.ones(size, np.float32))
    return lowered.compiler_ir().context


def test_contexts_are_shared_by_the_configured_number_of_programs():
    made = []

    def make():
        made.append(object())
        return made[-1]

    context = lowering_contexts.make_shared_factory(make, programs=3)
    assert [made.index(context()) for _ in range(7)] == [0, 0, 0, 1, 1, 1, 2]


def test_jax_lowers_in_shared_contexts():
    contexts = [context_of(size) for size in range(2, lowering_contexts.PROGRAMS_PER_CONTEXT + 2)]
    assert 1 <= len({id(context) for context in contexts}) <= 2


def test_threads_have_separate_contexts():
    found = []
    for _ in range(2):
        thread = threading.Thread(target=lambda: found.append(context_of(5)))
        thread.start()
        thread.join()
    assert len({id(context) for context in [*found, context_of(6)]}) == 3


def test_a_module_outlives_the_context_being_the_latest():
    lowered = jax.jit(lambda x: x * 3.0).lower(np.ones(4, np.float32))
    for size in range(lowering_contexts.PROGRAMS_PER_CONTEXT):
        context_of(size)
    assert lowered.compile()(np.ones(4, np.float32)).tolist() == [3.0] * 4
