"""Decorators of Keras's own tests, which run a test once for each mode: names of its module `test_combinations`.

The names of the tests are those of Keras, such as `test_fit_functional_v2_eager`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from meshflow.core.runtime.import_paths import get_public_package
from meshflow.core.values import nest
from meshflow.environment.optional_packages import import_extra
from meshflow.environment.types import PyTree
from meshflow.shims import keras_test_helpers, test_combinations
from meshflow.shims.test_combinations import Combination, OptionalParameter, combine

_tf: Any = get_public_package()
parameterized: Any = import_extra(
    "absl.testing.parameterized", None, "absl-py is required by Keras's test decorators"
)

KERAS_MODEL_TYPES = ["functional", "subclass", "sequential"]
_SCOPES: dict[str, Callable[[], AbstractContextManager[None]]] = {
    **{t: functools.partial(keras_test_helpers.model_type_scope, t) for t in KERAS_MODEL_TYPES},
    "v2_function": lambda: keras_test_helpers.run_eagerly_scope(False),
    "v2_eager": lambda: keras_test_helpers.run_eagerly_scope(True),
    "h5": lambda: keras_test_helpers.saved_model_format_scope("h5"),
    "tf": lambda: keras_test_helpers.saved_model_format_scope("tf"),
    "tf_no_traces": lambda: keras_test_helpers.saved_model_format_scope("tf", save_traces=False),
}


class TestCase(_tf.test.TestCase, parameterized.TestCase):
    """Test with parameters that resets the state of Keras at its end."""

    def tearDown(self) -> None:
        """Reset the state of Keras."""
        _tf.keras.backend.clear_session()
        super().tearDown()


class PreprocessingLayerTest(_tf.test.TestCase):
    """Base class of the tests of preprocessing layers, from the module `preprocessing_test_utils`."""

    def assertAllCloseOrEqual(self, a: Any, b: Any, msg: str | None = None) -> None:
        """Check that the numbers in two structures are close, and that all other values are equal."""
        self.assertEqual(len(nest.flatten(a)), len(nest.flatten(b)), msg)
        for x, y in zip(nest.flatten(a), nest.flatten(b), strict=True):
            is_number = np.issubdtype(np.asarray(x).dtype, np.number)
            (self.assertAllClose if is_number else self.assertAllEqual)(x, y, msg=msg)


def _repeat(target: Any, modes: Sequence[str], excluded: PyTree = None) -> Any:
    """Return a test, or a class of tests, that runs once in the scope of each mode; a decorator for None."""
    modes = [mode for mode in modes if mode not in nest.flatten(excluded)]

    def wrap(test: Callable[..., None], mode: str) -> Callable[..., None]:
        @functools.wraps(test)
        def run(self: Any, *args: Any, **kwargs: Any) -> None:
            with _SCOPES[mode]():
                test(self, *args, **kwargs)

        return run

    def repeat(test: Callable[..., None]) -> Iterable[Callable[..., None]]:
        def run(self: Any, mode: str, *args: Any, **kwargs: Any) -> None:
            wrap(test, mode)(self, *args, **kwargs)

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        named = parameterized.named_parameters(*((f"_{mode}", mode) for mode in modes))
        tests: Iterable[Callable[..., None]] = named(run)
        return tests

    def decorate(obj: Any) -> Any:
        if isinstance(obj, type):
            for name, test in list(vars(obj).items()):
                if name.startswith("test") and callable(test):
                    delattr(obj, name)
                    for mode in modes:
                        setattr(obj, f"{name}_{mode}", wrap(test, mode))
            return obj
        if isinstance(obj, Iterable):
            # The tests of another decorator.
            return itertools.chain.from_iterable(map(repeat, obj))
        return repeat(obj)

    return decorate if target is None else decorate(target)


def run_all_keras_modes(
    test_or_class: Any = None,
    config: object = None,
    always_skip_v1: bool = False,
    always_skip_eager: bool = False,
) -> Any:
    """Run a test, or all tests of a class, with compiled steps, and with `run_eagerly`.

    Args:
      test_or_class: The test or the class; None to return a decorator.
      config: Ignored.
      always_skip_v1: Ignored: tests do not run with sessions.
      always_skip_eager: Whether to leave out `run_eagerly`.
    """
    return _repeat(test_or_class, ["v2_function", *["v2_eager"] * (not always_skip_eager)])


def run_with_all_model_types(test_or_class: Any = None, exclude_models: PyTree = None) -> Any:
    """Run a test, or all tests of a class, for each type of model that `get_model_type` names."""
    return _repeat(test_or_class, KERAS_MODEL_TYPES, exclude_models)


def run_with_all_saved_model_formats(
    test_or_class: Any = None, exclude_formats: PyTree = None
) -> Any:
    """Run a test, or all tests of a class, for each format that `get_save_format` returns."""
    return _repeat(test_or_class, ["h5", "tf", "tf_no_traces"], exclude_formats)


def run_with_all_weight_formats(test_or_class: Any = None, exclude_formats: PyTree = None) -> Any:
    """Run a test, or all tests of a class, for each format of weights."""
    return run_with_all_saved_model_formats(test_or_class, [exclude_formats, "tf_no_traces"])


def keras_mode_combinations(
    mode: Sequence[str] | None = None, run_eagerly: Sequence[bool] | None = None
) -> list[Combination]:
    """Return the combinations of modes and values of `run_eagerly`; eager modes by default."""
    result: list[Combination] = []
    for name in ["eager"] if mode is None else mode:
        values = [True, False] if run_eagerly is None else list(run_eagerly)
        result += combine(mode=[name], run_eagerly=values if name == "eager" else [False])
    return result


def keras_model_type_combinations() -> list[Combination]:
    """Return a combination for each type of model."""
    return combine(model_type=KERAS_MODEL_TYPES)


class KerasModeCombination(test_combinations.TestCombination):
    """Scope of `run_eagerly`, which a test need not declare."""

    _name = "run_eagerly"

    def context_managers(self, kwargs: dict[str, Any]) -> list[AbstractContextManager[Any]]:
        """Return the scope of the argument, if there is one."""
        value = kwargs.pop(self._name, None)
        return [contextlib.nullcontext() if value is None else self._make_scope(value)]

    def _make_scope(self, value: Any) -> AbstractContextManager[None]:
        return keras_test_helpers.run_eagerly_scope(value)

    def parameter_modifiers(self) -> list[test_combinations.ParameterModifier]:
        """Return a change that removes the argument from tests without it."""
        return [OptionalParameter(self._name)]


class KerasModelTypeCombination(KerasModeCombination):
    """Scope of `model_type`, which a test need not declare."""

    _name = "model_type"

    def _make_scope(self, value: Any) -> AbstractContextManager[None]:
        return keras_test_helpers.model_type_scope(value)


generate = functools.partial(
    test_combinations.generate,
    test_combinations=(KerasModeCombination(), KerasModelTypeCombination()),
)
