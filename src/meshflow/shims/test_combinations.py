"""Tests with combinations of arguments: names of TensorFlow's modules `combinations` and `strategy_combinations`."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import re
import unittest
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from meshflow.core.runtime.import_paths import get_public_package
from meshflow.environment.optional_packages import import_extra
from meshflow.shims.framework_tests import set_logical_devices_to_at_least

_tf: Any = get_public_package()

Combination = OrderedDict[str, Any]


class NamedObject:
    """Object with a name, which is part of the names of tests.

    Args:
      name: The name.
      obj: The object.
    """

    def __init__(self, name: str, obj: Any) -> None:
        self._name, self._obj = name, obj

    def __getattr__(self, name: str) -> Any:
        return getattr(self._obj, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the object."""
        return self._obj(*args, **kwargs)

    def __repr__(self) -> str:
        return self._name


class NamedDistribution:
    """Strategy with a name, and the devices that it needs.

    Args:
      name: Name of the strategy.
      distribution_fn: Function that creates it.
      required_gpus: Number of GPUs.
      required_tpu: Whether it needs a TPU.
      **kwargs: Ignored.
    """

    def __init__(
        self,
        name: str,
        distribution_fn: Callable[[], Any],
        required_gpus: int | None = None,
        required_tpu: bool = False,
        **kwargs: object,
    ) -> None:
        self._name, self._create = name, distribution_fn
        self.required_gpus, self.required_tpu = required_gpus, required_tpu

    @property
    def strategy(self) -> Any:
        """Return a new strategy."""
        return self._create()

    def find_obstacle(self) -> str:
        """Return why tests of the strategy are skipped; an empty string if they can run."""
        if self.required_tpu:
            return "Test requires a TPU, but it's not available."
        count = len(_tf.config.list_physical_devices("GPU"))
        return f"Only {count} GPUs are available." if count < (self.required_gpus or 0) else ""

    def __repr__(self) -> str:
        return self._name


def combine(**kwargs: object) -> list[Combination]:
    """Return all combinations of values, which are lists or single ones, in the order of the sorted names."""
    names = sorted(kwargs)
    values = [v if isinstance(v := kwargs[n], list) else [v] for n in names]
    return [OrderedDict(zip(names, v, strict=True)) for v in itertools.product(*values)]


def generate_combinations_with_testcase_name(**kwargs: object) -> list[Combination]:
    """Return all combinations of values, with the name of the test as `testcase_name`."""
    return [OrderedDict(c, testcase_name=_make_name(c)) for c in combine(**kwargs)]


def times(*combined: Iterable[Combination]) -> list[Combination]:
    """Return all unions of one combination of each argument, with the names in the order of the arguments.

    Raises:
      ValueError: If two arguments have combinations of the same name.
    """
    unions = []
    for parts in itertools.product(*combined):
        items = [item for part in parts for item in part.items()]
        union = OrderedDict(items)
        if len(union) < len(items):
            raise ValueError(f"times: names need to not overlap, got {[list(p) for p in parts]}.")
        unions.append(union)
    return unions


class ParameterModifier:
    """Change of the arguments of a test. Of equal modifiers, only one is used.

    Args:
      parameter_name: Parameter that is changed, or None for a modifier that is equal to all of its class.
    """

    DO_NOT_PASS_TO_THE_TEST = object()

    def __init__(self, parameter_name: str | None = None) -> None:
        self._parameter_name = parameter_name

    def modified_arguments(
        self, kwargs: dict[str, Any], requested_parameters: Iterable[str]
    ) -> dict[str, Any]:
        """Return values that replace arguments; `DO_NOT_PASS_TO_THE_TEST` removes one.

        Args:
          kwargs: Arguments of the combination.
          requested_parameters: Names of the parameters of the test.
        """
        return {}

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._parameter_name == other._parameter_name

    def __hash__(self) -> int:
        return hash((type(self), self._parameter_name))


class OptionalParameter(ParameterModifier):
    """A parameter that a test need not declare, because a `TestCombination` uses it."""

    def modified_arguments(
        self, kwargs: dict[str, Any], requested_parameters: Iterable[str]
    ) -> dict[str, Any]:
        """Return a change that removes the argument if the test does not declare it."""
        if self._parameter_name is None or self._parameter_name in requested_parameters:
            return {}
        return {self._parameter_name: self.DO_NOT_PASS_TO_THE_TEST}


class TestCombination:
    """Conditions, contexts and changes of arguments of the tests that `generate` creates."""

    def should_execute_combination(self, kwargs: dict[str, Any]) -> tuple[bool, str | None]:
        """Return whether the test of a combination runs, and why not."""
        return True, None

    def parameter_modifiers(self) -> list[ParameterModifier]:
        """Return the changes of arguments."""
        return []

    def context_managers(self, kwargs: dict[str, Any]) -> list[AbstractContextManager[Any]]:
        """Return the contexts in which the test of a combination runs."""
        return []


def generate(
    combinations: Iterable[Combination], test_combinations: Sequence[TestCombination] = ()
) -> Callable[[Any], Any]:
    """Return a decorator of a test, or of a class of tests, that runs it once for each combination.

    Args:
      combinations: Arguments of each run; those that the test does not declare are not passed to it.
      test_combinations: Conditions, contexts and changes of arguments of the runs.
    """
    named = [OrderedDict([*c.items(), ("testcase_name", _make_name(c))]) for c in combinations]

    def decorate(target: Any) -> Any:
        if not isinstance(target, type):
            parameterized = import_extra(
                "absl.testing.parameterized", None, "absl-py is required by combinations"
            )
            return parameterized.named_parameters(*named)(_adapt(target, test_combinations))
        tests = {n: f for n, f in vars(target).items() if n.startswith("test") and callable(f)}
        for name, function in tests.items():
            delattr(target, name)
            for arguments in named:
                rest = {k: v for k, v in arguments.items() if k != "testcase_name"}
                test = functools.partialmethod(_adapt(function, test_combinations), **rest)
                setattr(target, name + arguments["testcase_name"], test)
        return target

    return decorate


def _make_name(combination: Combination) -> str:
    text = "_test"
    for index, (key, value) in enumerate(combination.items()):
        # Addresses differ between runs.
        value_text = re.sub("0[xX][0-9a-fA-F]+", str(index), str(value))
        text += "".join(f"_{''.join(filter(str.isalnum, part))}" for part in (key, value_text))
    return text


def _adapt(
    test: Callable[..., None], test_combinations: Sequence[TestCombination]
) -> Callable[..., None]:
    """Return a test that creates strategies, and skips combinations that cannot run."""

    def run(self: unittest.TestCase, **kwargs: Any) -> None:
        strategies = [v for v in kwargs.values() if isinstance(v, NamedDistribution)]
        for obstacle in filter(None, (s.find_obstacle() for s in strategies)):
            self.skipTest(obstacle)
        if kwargs.get("tf_api_version") == 1:
            self.skipTest("Skipping a TF1.x test when TF2 is enabled.")
        for combination in test_combinations:
            can_run, reason = combination.should_execute_combination(dict(kwargs))
            if not can_run:
                self.skipTest(reason or "A TestCombination excludes these arguments.")
        names, arguments = inspect.signature(test).parameters, dict(kwargs)
        modifiers = (m for c in test_combinations for m in c.parameter_modifiers())
        for modifier in dict.fromkeys(modifiers):
            arguments |= modifier.modified_arguments(dict(kwargs), names)
        removed = ParameterModifier.DO_NOT_PASS_TO_THE_TEST
        with contextlib.ExitStack() as stack:
            if kwargs.get("mode") == "graph":
                stack.enter_context(_tf.Graph().as_default())
            for combination in test_combinations:
                for manager in combination.context_managers(dict(kwargs)):
                    stack.enter_context(manager)
            test(
                self,
                **{
                    k: v.strategy if isinstance(v, NamedDistribution) else v
                    for k, v in arguments.items()
                    if k in names and v is not removed
                },
            )

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def _mirror(*devices: str) -> Callable[[], Any]:
    def create() -> Any:
        cpus = [int(d.rpartition(":")[2]) for d in devices if d.startswith("/cpu:")]
        if max(cpus, default=0) > 0:
            set_logical_devices_to_at_least("CPU", max(cpus) + 1)
        return _tf.distribute.MirroredStrategy(list(devices))

    return create


def _create_tpu_strategy() -> Any:
    return _tf.distribute.TPUStrategy()


default_strategy = NamedDistribution("Default", _tf.distribute.get_strategy)
one_device_strategy = NamedDistribution(
    "OneDeviceCPU", lambda: _tf.distribute.OneDeviceStrategy("/cpu:0")
)
one_device_strategy_gpu = NamedDistribution(
    "OneDeviceGPU", lambda: _tf.distribute.OneDeviceStrategy("/gpu:0"), required_gpus=1
)
tpu_strategy = NamedDistribution("TPU", _create_tpu_strategy, required_tpu=True)
cloud_tpu_strategy = NamedDistribution("CloudTPU", _create_tpu_strategy, required_tpu=True)
mirrored_strategy_with_one_cpu = NamedDistribution("Mirrored1CPU", _mirror("/cpu:0"))
mirrored_strategy_with_one_gpu = NamedDistribution("Mirrored1GPU", _mirror("/gpu:0"), 1)
mirrored_strategy_with_gpu_and_cpu = NamedDistribution(
    "MirroredCPUAndGPU", _mirror("/gpu:0", "/cpu:0"), 1
)
mirrored_strategy_with_two_gpus = NamedDistribution("Mirrored2GPUs", _mirror("/gpu:0", "/gpu:1"), 2)
mirrored_strategy_with_two_gpus_no_merge_call = NamedDistribution(
    "Mirrored2GPUsNoMergeCall", _mirror("/gpu:0", "/gpu:1"), 2
)
mirrored_strategy_with_two_cpus = NamedDistribution("Mirrored2CPUs", _mirror("/cpu:0", "/cpu:1"))
mirrored_strategy_with_cpu_1_and_2 = NamedDistribution("Mirrored2CPU", _mirror("/cpu:1", "/cpu:2"))
strategies_minus_tpu = [
    *(default_strategy, one_device_strategy, one_device_strategy_gpu),
    *(mirrored_strategy_with_gpu_and_cpu, mirrored_strategy_with_two_gpus),
]
all_strategies = [*strategies_minus_tpu, tpu_strategy, cloud_tpu_strategy]
