"""Random programs: converted code against plain Python, staged code against both.

The programs mix `if`, `while`, `for`, `break`, `continue`, `return`, `try`/`finally`, loop `else`,
boolean operators, chained comparisons and conditional expressions.
"""

from __future__ import annotations

import linecache
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshflow as tf
from helpers import rounds
from meshflow.core.autograph import convert

VARIABLES = ("x", "y", "z")


class Writer:
    """Write one random function of three integers.

    Loops are bounded, arithmetic stays small, and every variable is set at the start, so the
    function is valid for plain integers and for tensors. `R` is `range` or `tf.range`.
    """

    def __init__(self, seed: int, floats: bool = False) -> None:
        self.suffix = ".0" if floats else ""
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.counters = 0
        self.budget = 24

    def function(self) -> str:
        self.lines = ["def program(x, y, z):", "    w = t = 0"]
        self.block(1, 0, False)
        self.emit(1, f"return {self.number()}")
        return "\n".join(self.lines) + "\n"

    def emit(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def atom(self) -> str:
        return self.random.choice(
            [*VARIABLES, *VARIABLES, f"{self.random.randint(-3, 6)}{self.suffix}"]
        )

    def number(self) -> str:
        kind = self.random.random()
        if kind < 0.3:
            return self.atom()
        if kind < 0.4:
            return f"({self.atom()} if {self.test()} else {self.atom()})"
        operator = self.random.choice("+-*")
        return f"({self.atom()} {operator} {self.atom()}) % 11"

    def test(self) -> str:
        kind = self.random.random()
        a, b, c = self.atom(), self.atom(), self.atom()
        if kind < 0.5:
            return f"{a} {self.random.choice(['<', '>', '<=', '==', '!='])} {b}"
        if kind < 0.65:
            return f"({a} < {b} and {b} > {c})"
        if kind < 0.8:
            return f"({a} < {b} or not {b} < {c})"
        if kind < 0.9:
            return f"{a} < {b} <= {c}"
        return f"not ({a} > {b})"

    def block(self, depth: int, loops: int, in_loop: bool) -> None:
        for _ in range(self.random.randint(1, 3)):
            self.statement(depth, loops, in_loop)

    def statement(self, depth: int, loops: int, in_loop: bool) -> None:
        self.budget -= 1
        kind = self.random.random()
        if self.budget <= 0 or depth > 5 or kind < 0.3:
            self.emit(depth, f"{self.random.choice(VARIABLES)} = {self.number()}")
        elif kind < 0.35:
            self.emit(depth, f"{self.random.choice(VARIABLES)} += {self.atom()}")
        elif kind < 0.62:
            self.emit(depth, f"if {self.test()}:")
            self.block(depth + 1, loops, in_loop)
            if self.random.random() < 0.3:
                self.emit(depth, f"elif {self.test()}:")
                self.block(depth + 1, loops, in_loop)
            if self.random.random() < 0.5:
                self.emit(depth, "else:")
                self.block(depth + 1, loops, in_loop)
        elif kind < 0.7:
            self.emit(depth, f"if {self.test()}:")
            choices = ["return " + self.number()]
            if in_loop:
                choices += ["break", "continue", "break", "continue"]
            self.emit(depth + 1, self.random.choice(choices))
        elif kind < 0.8 and loops < 2:
            self.counters += 1
            counter = f"k{self.counters}"
            self.emit(depth, f"{counter} = 0")
            self.emit(depth, f"while {counter} < 4 and {self.test()}:")
            self.emit(depth + 1, f"{counter} += 1")
            self.block(depth + 1, loops + 1, True)
            self._else(depth, loops, in_loop)
        elif kind < 0.95 and loops < 2:
            self.emit(depth, f"for t in R({self.random.randint(0, 4)}):")
            self.emit(depth + 1, f"{self.random.choice(VARIABLES)} = (t + {self.atom()}) % 7")
            self.block(depth + 1, loops + 1, True)
            self._else(depth, loops, in_loop)
        else:
            self.emit(depth, "try:")
            self.block(depth + 1, loops, in_loop)
            self.emit(depth, "finally:")
            self.emit(depth + 1, "w = w + 1")

    def _else(self, depth: int, loops: int, in_loop: bool) -> None:
        if self.random.random() < 0.25:
            self.emit(depth, "else:")
            self.block(depth + 1, loops, in_loop)


def build(source: str, name: str, **module: Any) -> Callable[..., Any]:
    """Defines `program` from source text that the interpreter and AutoGraph can find."""
    filename = f"<program {name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    scope = {"__name__": f"program_{name}", **module}
    exec(compile(source, filename, "exec"), scope)
    return scope["program"]


INTEGERS = [(0, 0, 0), (1, 2, 3), (5, -1, 2), (-2, 4, 6), (3, 3, -3), (6, 1, 0)]
FLOATS = [(0.1, 0.2, 0.3), (1.3, 2.7, 3.2), (5.1, -1.4, 2.3)]


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_converted_programs_equal_python(first):
    for seed in range(first, first + 20):
        source = Writer(seed).function()
        program = build(source, f"plain {seed}", R=range)
        converted = convert(program)
        for case in INTEGERS:
            assert converted(*case) == program(*case), f"{source}\nwith {case}"


@pytest.mark.parametrize("seed", range(1000, rounds(1010, 1030)))
def test_staged_programs_equal_python(seed):
    source = Writer(seed).function()
    program = build(source, f"plain {seed}", R=range)
    staged = tf.function(build(source, f"staged {seed}", R=tf.range))
    for case in INTEGERS:
        got = staged(*(tf.constant(value) for value in case))
        assert int(got) == program(*case), f"{source}\nwith {case}"


@pytest.mark.parametrize("seed", range(2000, rounds(2003, 2008)))
def test_gradients_of_staged_programs_are_those_of_the_eager_tape(seed):
    source = Writer(seed, floats=True).function()
    program = build(source, f"floats {seed}", R=lambda n: tf.range(0, n, dtype=tf.float32))
    for case in FLOATS:
        eager, staged = gradients(program, case), gradients(tf.function(program), case)
        np.testing.assert_allclose(
            staged, eager, rtol=1e-3, atol=1e-4, err_msg=f"{source}\nwith {case}"
        )


def gradients(program: Callable[..., Any], case: tuple[float, ...]) -> list[float]:
    """The value of a program and its derivatives by the three arguments."""
    arguments = [tf.constant(value) for value in case]
    with tf.GradientTape() as tape:
        tape.watch(arguments)
        result = program(*arguments)
    if not isinstance(result, tf.Tensor) or result.dtype != tf.float32:
        return [float(result), 0.0, 0.0, 0.0]
    found = tape.gradient(result, arguments, unconnected_gradients="zero")
    return [float(result), *map(float, found)]
