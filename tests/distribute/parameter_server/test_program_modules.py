"""Test programs of several modules, one of which has the strategy."""

import sys
import types

import pytest

import meshflow as tf
from meshflow.distribute.parameter_server.closures.program_modules import find_unimportable_modules


def module(name, **contents):
    made = types.ModuleType(name)
    made.__file__ = f"/somewhere/{name}.py"
    vars(made).update(contents)
    return made


def test_modules_that_refer_to_the_strategy(monkeypatch):
    strategy = object()
    model = types.SimpleNamespace()
    common = module("common", strategy=strategy, model=model, tf=tf, limit=3)

    def helper():
        """Of a module that has the model only."""

    helper.__module__ = "steps"
    made = [
        common,
        module("steps", model=model, helper=helper),
        module("loops", helper=helper),
        module("whole", common=common),
        module("apart", tf=tf, limit=3),
        module("coordinating", coordinator=tf.distribute.coordinator.RemoteValue()),
    ]
    for one in made:
        monkeypatch.setitem(sys.modules, one.__name__, one)
    named = {m.__name__ for m in find_unimportable_modules(strategy)}
    assert named == {"common", "steps", "loops", "whole", "coordinating"}


@pytest.mark.soak
def test_closures_of_such_a_module_run_in_other_processes():
    from distribute.parameter_server.scripts import steps_of_a_module as program

    for _ in range(3):
        program.coordinator.schedule(program.step)
    program.coordinator.join()
    assert program.coordinator.schedule(program.Counting().read).fetch() == -6.0
    # A worker does not start a cluster.
    program.coordinator.schedule(lambda: tf.distribute.ParameterServerStrategy(engine="processes"))
    with pytest.raises(tf.errors.FailedPreconditionError, match="a cluster of its own"):
        program.coordinator.join()
    program.strategy.cluster.stop()
