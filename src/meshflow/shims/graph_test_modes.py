"""Decorators of TensorFlow's own tests that run a test in a graph of version 1, or in both modes."""

from __future__ import annotations

import functools
import inspect
import unittest
from collections.abc import Callable
from typing import Any

from meshflow.core.runtime.context import context
from meshflow.core.runtime.import_paths import get_public_package
from meshflow.environment.types import PyTree

tf: Any = get_public_package()

_Test = Callable[..., Any]


def run_in_graph_mode(test: _Test) -> _Test:
    """Run a test in a graph of its own, unless it already runs in a graph."""

    @functools.wraps(test)
    def run(self: Any, *args: PyTree, **kwargs: PyTree) -> Any:
        if context.graph is not None:
            return test(self, *args, **kwargs)
        try:
            with tf.Graph().as_default():
                return test(self, *args, **kwargs)
        finally:
            self.__dict__.pop("_cached_graph_session", None)

    return run


def run_in_both_modes(test: _Test) -> _Test:
    """Run a test in a graph, and then eagerly."""

    @functools.wraps(test)
    def run(self: Any, *args: PyTree, **kwargs: PyTree) -> None:
        try:
            with tf.Graph().as_default(), self.test_session():
                test(self, *args, **kwargs)
        except unittest.SkipTest:
            pass
        finally:
            self.__dict__.pop("_cached_graph_session", None)
        self.tearDown()
        # The test starts again with an empty directory for its files.
        self.__dict__.pop("_temp_directory", None)
        self.setUp()
        test(self, *args, **kwargs)

    return run


def _skip_test(test: _Test) -> _Test:
    @functools.wraps(test)
    def run(self: Any, *args: PyTree, **kwargs: PyTree) -> None:
        self.skipTest("The test is only for version 1 of TensorFlow's API.")

    return run


def _make_decorator(decorate: Callable[[_Test], _Test]) -> Callable[..., Any]:
    """Return a decorator of tests, and of classes with tests, that may be called with options."""

    def decorator(*args: PyTree, **options: PyTree) -> Any:
        if len(args) != 1 or not callable(args[0]):
            return decorator
        target = args[0]
        if not inspect.isclass(target):
            return decorate(target)
        for name, member in [*vars(target).items()]:
            is_test = name.startswith(unittest.TestLoader.testMethodPrefix)
            if is_test and name != "test_session" and inspect.isfunction(member):
                setattr(target, name, decorate(member))
        return target

    return decorator


deprecated_graph_mode_only = run_deprecated_v1 = _make_decorator(run_in_graph_mode)
run_all_in_deprecated_graph_mode_only = deprecated_graph_mode_only
run_in_graph_and_eager_modes = run_all_in_graph_and_eager_modes = _make_decorator(run_in_both_modes)
run_v1_only = _make_decorator(_skip_test)
