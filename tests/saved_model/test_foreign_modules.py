"""Test StableHLO programs of other writers: inputs that crash MLIR do not end our process."""

import pathlib
import random

import jax
import pytest

import meshflow as tf
from fuzz.mutations import changed
from helpers import rounds
from meshflow.saved_model.programs import foreign_modules
from meshflow.saved_model.programs.foreign_modules import rewrite_module

# The program of an MLP with some changed bits, from which MLIR creates an array larger than any
# memory, and aborts.
DAMAGED = pathlib.Path(__file__).parent.parent / "reference" / "damaged_module.bin"


def module():
    spec = jax.ShapeDtypeStruct((2, 3), "float32")
    return bytes(jax.export.export(jax.jit(lambda x: x @ x.T + 1))(spec).mlir_module_serialized)


def test_a_program_is_written_again():
    assert rewrite_module(module()).startswith(b"ML\xefR")


def test_modules_in_the_current_folder_do_not_run(monkeypatch, tmp_path):
    (tmp_path / "resource.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(foreign_modules, "_rewritten", {})
    monkeypatch.setattr(foreign_modules, "_read_entry", lambda key: None)
    assert rewrite_module(module()).startswith(b"ML\xefR")
    assert not (tmp_path / "ran").exists()


def test_module_that_crashes_the_reader_is_an_error():
    with pytest.raises(tf.errors.DataLossError, match=r"damaged|SmallVector|Failed|signal"):
        rewrite_module(DAMAGED.read_bytes())


def test_non_programs_are_rejected_immediately():
    with pytest.raises(tf.errors.DataLossError, match="does not begin"):
        rewrite_module(b"func.func @main() { return }")


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_damaged_programs_are_errors_or_read():
    whole, counts = module(), [0, 0]
    for number in range(rounds(20, 500)):
        try:
            read = rewrite_module(changed(whole, random.Random(number)))
            assert read.startswith(b"ML\xefR")
            counts[1] += 1
        except tf.errors.DataLossError as error:
            assert str(error)
            counts[0] += 1
    assert counts[0] > counts[1]
