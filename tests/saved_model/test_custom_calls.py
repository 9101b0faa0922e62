"""Native code that programs of files may call: sizes, dtypes and attributes are checked before it runs."""

import functools
import json
import random
import re
import types
import zlib

import jax
import jax.export
import jax.lax.linalg as ll
import numpy as np
import pytest
from jaxlib.cpu import _lapack, _sparse

import meshflow as tf
from fuzz.mutations import changed
from helpers import read_manifest, rounds
from meshflow.environment import module_rewriting
from meshflow.environment.jax_internals import mlir, mlir_ir, read_portable_artifact
from meshflow.kernels import library
from meshflow.saved_model.graph.ops import xla_call_module
from meshflow.saved_model.programs import custom_calls, foreign_modules, stablehlo
from meshflow.saved_model.saving import function_saver

F32, I32, C64 = "float32", "int32", "complex64"
MATRIX, TALL, VECTOR = (2, 5, 5), (2, 5, 3), (2, 5)


def spec(shape, dtype=F32):
    return jax.ShapeDtypeStruct(shape, dtype)


# Every function of JAX that may be saved and calls native code, with the shapes of its arguments.
FUNCTIONS = {
    "cholesky": (ll.cholesky, [MATRIX]),
    "left": (lambda a, b: ll.triangular_solve(a, b, left_side=True), [MATRIX, TALL]),
    "right": (lambda a, b: ll.triangular_solve(a, b, transpose_a=True), [MATRIX, (2, 4, 5)]),
    "lu": (ll.lu, [TALL]),
    "qr": (lambda a: ll.qr(a, full_matrices=False), [TALL]),
    "householder": (ll.householder_product, [TALL, (2, 3)]),
    "eig": (ll.eig, [MATRIX]),
    "right_eig": (lambda a: ll.eig(a, compute_left_eigenvectors=False), [MATRIX]),
    "eigh": (ll.eigh, [MATRIX]),
    "svd": (lambda a: ll.svd(a, full_matrices=False), [TALL]),
    "wide_svd": (lambda a: ll.svd(a, full_matrices=True), [(2, 3, 5)]),
    "singular_values": (lambda a: ll.svd(a, compute_uv=False), [TALL]),
    "schur": (ll.schur, [MATRIX]),
    "schur_form": (lambda a: ll.schur(a, compute_schur_vectors=False), [MATRIX]),
    "hessenberg": (ll.hessenberg, [MATRIX]),
    "tridiagonal": (ll.tridiagonal, [MATRIX]),
    "tridiagonal_solve": (ll.tridiagonal_solve, [VECTOR, VECTOR, VECTOR, TALL]),
}


def export(function, shapes, dtype, any_size=False):
    """Export a function, for any number of rows of a batch if requested."""
    scope = jax.export.SymbolicScope()
    if any_size:
        texts = [f"b, {', '.join(map(str, s[1:]))}" for s in shapes]
        shapes = [jax.export.symbolic_shape(text, scope=scope) for text in texts]
    return stablehlo.export_for_platforms(function, [spec(s, dtype) for s in shapes])


def parse(text):
    return mlir_ir.Module.parse(text)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_programs_of_jax_match_the_table(name):
    function, shapes = FUNCTIONS[name]
    for dtype, any_size in [("complex128", False), (F32, True), (F32, False)][: rounds(2, 3)]:
        exported = export(function, shapes, dtype, any_size)
        with mlir.make_ir_context():
            module = read_portable_artifact(exported.mlir_module_serialized)
            assert custom_calls.has_native_calls(module)
            custom_calls.check_module(module, is_static=not any_size)
            if not any_size:
                custom_calls.secure_calls(module)
                assert module.operation.verify()
                custom_calls.check_module(module, is_static=True)


@pytest.mark.parametrize("name", ["lu", "svd", "eigh", "cholesky", "qr"])
def test_programs_for_any_size_compute_the_same_after_the_check(name):
    function, shapes = FUNCTIONS[name]
    exported = export(function, shapes, F32, any_size=True)
    loaded = stablehlo.deserialize_program(stablehlo.serialize_program(exported))
    values = np.random.default_rng(0).normal(size=(4, *shapes[0][1:])).astype(F32)
    if name in ("eigh", "cholesky"):
        values = values @ values.swapaxes(1, 2) + 5 * np.eye(5, dtype=F32)
    for rows in (1, 4):
        expected = jax.tree.leaves(jax.jit(function)(values[:rows]))
        found = jax.tree.leaves(jax.jit(loaded.call)(values[:rows]))
        for left, right in zip(expected, found, strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-5)


class Solver(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None, 3, 3], name="x")])
    def singular_values(self, x):
        return tf.linalg.svd(x, compute_uv=True)[0], tf.linalg.cholesky(x)


def test_programs_of_any_size_are_saved_again_and_have_gradients(tmp_path):
    tf.saved_model.save(Solver(), str(tmp_path / "1"))
    first = tf.saved_model.load(str(tmp_path / "1"))
    tf.saved_model.save(first, str(tmp_path / "2"))
    second = tf.saved_model.load(str(tmp_path / "2"))
    x = np.random.default_rng(0).normal(size=(2, 3, 3)).astype(F32)
    x = tf.Variable(x @ x.swapaxes(1, 2) + 5 * np.eye(3, dtype=F32))
    found = []
    for module in (Solver(), first, second):
        with tf.GradientTape() as tape:
            values, factor = module.singular_values(x)
            loss = tf.reduce_sum(values**2) + tf.reduce_sum(factor)
        found.append((values, factor, tape.gradient(loss, x)))
    for other in found[1:]:
        for expected, value in zip(found[0], other, strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-4)


def replace_program(folder, old, new):
    """Replace a program in a folder, with a valid checksum."""
    manifest = read_manifest(folder)
    for key, entry in manifest["arrays"].items():
        path = folder / f"{key}.npy"
        if path.exists() and np.load(path, allow_pickle=False).tobytes() == old:
            array = np.frombuffer(new, np.uint8)
            np.save(path, array)
            entry |= {"shape": [len(new)], "crc32": zlib.crc32(array)}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_saved_models_with_a_hostile_program(tmp_path, monkeypatch):
    """The author of a folder can compute its checksums."""

    class Module(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([300, 300])])
        def __call__(self, x):
            return x + 1, tf.zeros([1], tf.int32), tf.constant(0)

    programs = []
    serialize = stablehlo.serialize_program
    monkeypatch.setattr(
        function_saver, "serialize_program", lambda p: programs.append(serialize(p)) or programs[-1]
    )
    tf.saved_model.save(Module(), str(tmp_path))
    results, operands, attributes = ATTACKS["lapack_sgetrf_ffi"]
    run = jax.jit(call_native("lapack_sgetrf_ffi", results, **attributes))
    attack = jax.export.export(run, platforms=("cpu",))(*operands)
    hostile = bytes(attack.serialize())
    for program in programs:
        replace_program(tmp_path, program, hostile)
    loaded = tf.saved_model.load(str(tmp_path))
    with pytest.raises(tf.errors.InvalidArgumentError, match="lapack_sgetrf_ffi"):
        loaded(tf.eye(300))
    replace_program(tmp_path, hostile, hostile[:-900])
    loaded = tf.saved_model.load(str(tmp_path))
    with pytest.raises(tf.errors.DataLossError, match=str(tmp_path)):
        loaded(tf.eye(300))


def _read_lines():
    return [line for line in custom_calls._TABLE.splitlines() if line]


SIZES = {"m": 4, "n": 4, "k": 2, "r": 2, "p": 5}
ELEMENTS = {"s": "f32", "d": "f64", "c": "complex<f32>", "z": "complex<f64>"}
REALS = {"s": "f32", "d": "f64", "c": "f32", "z": "f64"}


class Call:
    """A call that matches a line of the table, as MLIR text."""

    def __init__(self, line):
        head, signature = line.split(" : ")
        name, *conditions = head.split()
        self.name = name.replace("?", "s").replace("(cu|hip)", "cu")
        letter = re.search(r"\[(\w)\w*\]", self.name)
        self.name = re.sub(r"\[(\w)\w*\]", r"\1", self.name)
        self.letter = letter[1] if letter else "s"
        self.attributes = dict(c.split("=") for c in conditions if "<=" not in c)
        sides = [side.split() for side in signature.split(" -> ")]
        self.operands, self.results = ([self._make_type(t) for t in side] for side in sides)

    def _make_type(self, text):
        element, sizes = re.match(r"(\w+)[\[(](.*?)[\])](?:[!~]|@\w+)?$", text).groups()
        element = {
            **{"T": ELEMENTS[self.letter], "R": REALS[self.letter], "X": "f32"},
            "C": f"complex<{REALS[self.letter]}>",
        }.get(element, element)
        values = [
            int(eval(part, {"min": min, **SIZES}))
            for part in re.findall(r"min\(\w+,\w+\)|[^,]+", sizes)
        ]
        return [*([3] if "[" in text.split("min")[0] else []), *values], element

    def _format_attribute(self, name, text):
        if name in ("low", "high"):
            return f"{name} = {int(text) if text.isdigit() else SIZES.get(text, 7)} : i32"
        if text[0] in "01" and name != "algorithm":
            return f"{name} = {'true' if text[-1] == '1' else 'false'}"
        return f"{name} = {text[0] if text[0].isdigit() else ord(text[0])} : ui8"

    def format(self, attributes=None):
        attributes = self.attributes if attributes is None else attributes
        values = [f"%a{i}" for i in range(len(self.operands))]
        types = ["tensor<" + "x".join(map(str, [*s, e])) + ">" for s, e in self.operands]
        results = ["tensor<" + "x".join(map(str, [*s, e])) + ">" for s, e in self.results]
        arguments = ", ".join(f"{v}: {t}" for v, t in zip(values, types, strict=True))
        config = ", ".join(self._format_attribute(*item) for item in attributes.items())
        return f"""
        func.func public @main({arguments}) {{
          %0:{len(results)} = stablehlo.custom_call @{self.name}({", ".join(values)}) {{mhlo.backend_config = {{{config}}}}} :
            ({", ".join(types)}) -> ({", ".join(results)})
          return
        }}"""


def _is_refused(text):
    try:
        custom_calls.check_module(parse(text), is_static=True)
    except tf.errors.InvalidArgumentError:
        return True
    return False


@pytest.mark.parametrize("line", _read_lines(), ids=lambda line: line.split(" : ")[0])
def test_each_size_dtype_and_attribute_is_checked(line):
    """A call with one changed size, dtype, rank or attribute is refused, for every line of the table."""
    # Sizes of results that the operands do not determine.
    has_free_sizes = "permutation" in line or "topk" in line
    types = len(Call(line).operands), len(Call(line).results)
    with mlir.make_ir_context(), mlir_ir.Location.unknown():
        assert not _is_refused(Call(line).format()), Call(line).format()
        for side, index in [(side, i) for side in (0, 1) for i in range(types[side])]:

            def change(function, side=side, index=index):
                call = Call(line)
                values = (call.operands, call.results)[side]
                function(values, index)
                return _is_refused(call.format())

            shape, _ = (Call(line).operands, Call(line).results)[side][index]
            for axis, size in enumerate(shape):
                for other in {1, size - 1, size + 1, 300} - {size}:

                    def resize(values, i, axis=axis, other=other):
                        values[i][0][axis] = other

                    # An operand may have another free size, as the number of columns of a system.
                    assert change(resize) or side == 0 or has_free_sizes
            assert change(lambda values, i: values.append(values[i]))
            assert change(lambda values, i: values.__setitem__(i, (values[i][0], "i8")))
            assert change(lambda values, i: values[i][0].insert(0, 3))
        attributes = Call(line).attributes
        for name, text in attributes.items():
            without = {k: v for k, v in attributes.items() if k != name}
            assert _is_refused(Call(line).format(without))
            if name in ("low", "high", "algorithm") or not text[0].isdigit():
                other = {"low": "2", "algorithm": "7"}.get(name, "X")
                assert _is_refused(Call(line).format({**attributes, name: other}))
        if Call(line).name.endswith("_ffi"):
            assert _is_refused(Call(line).format({**attributes, "other": "1"}))


def call_native(name, results, **attributes):
    return lambda *x: jax.ffi.ffi_call(name, results)(*x, **attributes)


def letters(**attributes):
    return {name: np.uint8(ord(value)) for name, value in attributes.items()}


BIG = spec((300, 300))
ONE = spec((1,))
SMALL = spec((1, 1))
INFO = spec((), I32)
# Programs that crashed the process, or returned its memory, before the check: results or operands
# that are smaller than the matrix demands.
ATTACKS = {
    "lapack_sgetrf_ffi": ([BIG, spec((1,), I32), INFO], [BIG], {}),
    "lapack_sgeqrf_ffi": ([BIG, ONE], [BIG], {}),
    "lapack_strsm_ffi": (
        spec((2000, 3)),
        [spec((3, 3)), spec((2000, 3))],
        letters(diag="N", side="L", trans_x="N", uplo="L"),
    ),
    "lapack_sgesdd_ffi": ([BIG, ONE, SMALL, SMALL, INFO], [BIG], letters(mode="A")),
    "lapack_sgeev_ffi": (
        [ONE, ONE, spec((1, 1), C64), spec((1, 1), C64), INFO],
        [BIG],
        letters(compute_left="V", compute_right="V"),
    ),
    "lapack_sgees_ffi": (
        [BIG, SMALL, ONE, ONE, INFO, INFO],
        [BIG],
        letters(mode="V", sort="N"),
    ),
    "lapack_ssytrd_ffi": ([BIG, ONE, ONE, ONE, INFO], [BIG], letters(uplo="L")),
    "lapack_ssyevd_ffi": ([BIG, ONE, INFO], [BIG], letters(mode="V", uplo="L")),
    "lapack_sgehrd_ffi": ([BIG, ONE, INFO], [BIG], {"low": np.int32(1), "high": np.int32(300)}),
    "lapack_sgtsv_ffi": ([ONE] * 3 + [spec((300, 4)), INFO], [ONE] * 3 + [spec((300, 4))], {}),
    "lapack_spotrf_ffi": ([SMALL, INFO], [BIG], letters(uplo="L")),
    "lapack_sgeqp3_ffi": ([BIG, spec((1,), I32), ONE], [BIG, spec((1,), I32)], {}),
    "meshflow_gather_rows": ([SMALL], [BIG, spec((9,), I32)], {}),
    "tridiagonal_solve_perturbed_ffi": ([BIG], [ONE, ONE, ONE, BIG], {}),
    "cpu_csr_sparse_dense_ffi": ([BIG], [ONE, ONE, ONE, BIG], {}),
    "xla_python_cpu_callback": ([BIG], [BIG], {}),
}


def export_attack(name):
    results, operands, attributes = ATTACKS[name]
    allowed = [jax.export.DisabledSafetyCheck.custom_call(name)]
    run = jax.jit(call_native(name, results, **attributes))
    return jax.export.export(run, platforms=("cpu",), disabled_checks=allowed)(*operands)


@pytest.mark.parametrize("name", ATTACKS)
def test_programs_that_would_corrupt_memory_are_refused(name):
    exported = export_attack(name)
    operands = ATTACKS[name][1]
    loaded = stablehlo.deserialize_program(stablehlo.serialize_program(exported))
    with pytest.raises(tf.errors.InvalidArgumentError, match=name):
        jax.jit(loaded.call).lower(*operands)
    node = types.SimpleNamespace(name="attack", cache={})
    fields = {
        **{"version": 9, "dim_args_spec": (), "function_list": (), "has_token_input_output": False},
        **{"module": bytes(exported.mlir_module_serialized), "Tout": (), "platforms": (b"CPU",)},
        xla_call_module.CHECKSUM_ATTRIBUTE: None,
    }
    foreign_modules.remember_own_program(fields["module"])
    graph_node = type("Node", (), {**vars(node), "__getitem__": lambda self, key: fields[key]})()
    with pytest.raises(tf.errors.InvalidArgumentError, match=name):
        xla_call_module._call_module(graph_node, *[np.zeros(s.shape, s.dtype) for s in operands])


def test_sizes_known_only_for_arguments_are_checked():
    """A program for any size computes the size of a result, so only its specialization shows it."""
    text = """
    func.func public @main(%a: tensor<?x?xf32>) -> (tensor<?x?xf32>, tensor<?xi32>) {
      %two = stablehlo.constant dense<2> : tensor<2xi32>
      %one = stablehlo.constant dense<1> : tensor<1xi32>
      %n = stablehlo.get_dimension_size %a, dim = 0 : (tensor<?x?xf32>) -> tensor<i32>
      %v = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
      %s = stablehlo.concatenate %v, %v, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
      %e = stablehlo.constant dense<0> : tensor<0xi32>
      %0:3 = stablehlo.custom_call @lapack_sgetrf_ffi(%a, %s, SIZE, %e) {
        mhlo.backend_config = {}, indices_of_shape_operands = dense<[1, 2, 3]> : tensor<3xi64>} :
        (tensor<?x?xf32>, tensor<2xi32>, tensor<1xi32>, tensor<0xi32>)
        -> (tensor<?x?xf32>, tensor<?xi32>, tensor<i32>)
      return %0#0, %0#1 : tensor<?x?xf32>, tensor<?xi32>
    }"""
    n = jax.export.symbolic_shape("n, n")
    base = jax.export.export(jax.jit(lambda a: (a, a[0].astype(I32))), platforms=("cpu",))(spec(n))
    matrix = np.eye(4, dtype=F32)
    for size, is_valid in (("%v", True), ("%one", False)):
        with mlir.make_ir_context(), mlir_ir.Location.unknown():
            module = parse(text.replace("SIZE", size))
            content = stablehlo.write_portable_artifact(module)
        program = stablehlo._wrap_verified(base, [content], "attack")
        if is_valid:
            assert jax.jit(program.call)(matrix)[1].tolist() == [1, 2, 3, 4]
        else:
            with pytest.raises(tf.errors.InvalidArgumentError, match="lapack_sgetrf_ffi"):
                jax.jit(program.call)(matrix)


def _load(text, function, *specs):
    base = jax.export.export(jax.jit(function), platforms=("cpu",))(*specs)
    with mlir.make_ir_context(), mlir_ir.Location.unknown():
        content = stablehlo.write_portable_artifact(parse(text))
    return stablehlo._wrap_verified(base, [content], "attack")


def test_reserved_memory_is_zero():
    text = """
    func.func public @main(%a: tensor<f32>) -> (tensor<4096xf32>, tensor<8xcomplex<f32>>, tensor<8xi1>) {
      %0 = stablehlo.custom_call @AllocateBuffer() : () -> tensor<4096xf32>
      %1 = stablehlo.custom_call @AllocateBuffer() : () -> tensor<8xcomplex<f32>>
      %2 = stablehlo.custom_call @AllocateBuffer() : () -> tensor<8xi1>
      return %0, %1, %2 : tensor<4096xf32>, tensor<8xcomplex<f32>>, tensor<8xi1>
    }"""
    zeros = [np.zeros(4096, F32), np.zeros(8, C64), np.zeros(8, bool)]
    program = _load(text, lambda a: [z + a.astype(z.dtype) for z in zeros], spec(()))
    for expected, found in zip(zeros, jax.jit(program.call)(np.float32(0)), strict=True):
        np.testing.assert_array_equal(expected, found)


def test_results_of_a_failed_factorization_are_zeros():
    """LAPACK returns early for NaN and leaves its results as they are in memory."""
    results = [spec((40, 40)), spec((40,)), spec((40, 40)), spec((40, 40)), INFO]
    run = jax.jit(call_native("lapack_sgesdd_ffi", results, **letters(mode="A")))
    exported = jax.export.export(run, platforms=("cpu",))(spec((40, 40)))
    loaded = stablehlo.deserialize_program(stablehlo.serialize_program(exported))
    _, *found, info = jax.jit(loaded.call)(np.full((40, 40), np.nan, F32))
    assert info != 0
    assert not any(np.any(f) for f in found)


def test_operations_that_exchange_data_with_the_host_are_refused():
    text = """
    func.func public @main(%a: tensor<f32>) -> tensor<f32> {
      %t = stablehlo.create_token : !stablehlo.token
      %0 = "stablehlo.outfeed"(%a, %t) {outfeed_config = ""} : (tensor<f32>, !stablehlo.token) -> !stablehlo.token
      return %a : tensor<f32>
    }"""
    refused = pytest.raises(tf.errors.InvalidArgumentError, match="outfeed")
    with mlir.make_ir_context(), mlir_ir.Location.unknown(), refused:
        custom_calls.check_module(parse(text))


def make_function(name, *callees):
    calls = "".join(
        f"%x{i + 1} = func.call @{callee}(%x{i}) : (tensor<f32>) -> tensor<f32>\n"
        for i, callee in enumerate(callees)
    )
    return (
        f"func.func private @{name}(%x0: tensor<f32>) -> tensor<f32> {{\n{calls}"
        f"return %x{len(callees)} : tensor<f32> }}\n"
    )


def make_chain(count, num_calls=1):
    """Return functions that each call the next one; the last one calls none."""
    names = [f"f{i}" for i in range(count)]
    calls = zip(names, [*[[n] * num_calls for n in names[1:]], []], strict=True)
    return "".join(make_function(name, *callees) for name, callees in calls)


CUSTOM_CALL = """func.func private @f0(%x: tensor<f32>) -> tensor<f32> {
  %0 = stablehlo.custom_call @CALL(%x) {called_computations = [@NAME]} : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32> }"""
ALIAS = "#stablehlo.output_operand_alias<output_tuple_indices = [0], operand_index = 0, operand_tuple_indices = []>"
GETRF = """func.func private @f0(%x: tensor<4x4xf32>) {
  %0:3 = stablehlo.custom_call @lapack_sgetrf_ffi(%x) {mhlo.backend_config = {}, KEY = VALUE}
    : (tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4xi32>, tensor<i32>)
  return }"""
REGIONS = 250
# Modules that overflow XLA's stack, or that XLA inlines for hours.
MODULES = {
    "itself": (make_function("f0", "f0"), "calls itself"),
    "each other": (make_function("f0", "f1") + make_function("f1", "f0"), "calls itself"),
    "later": (
        make_function("f1") + make_function("f0", "f1", "f2") + make_function("f2", "f0"),
        "calls itself",
    ),
    "deep": (make_chain(66), "nested calls"),
    "deep backwards": (
        "".join(f"{f}}}\n" for f in reversed(make_chain(66).split("}\n")) if f),
        "nested calls",
    ),
    "doubled": (make_chain(22, 2), "operations"),
    "missing": (
        CUSTOM_CALL.replace("CALL", "Sharding").replace("NAME", "nothing"),
        "calls functions",
    ),
    "missing comparator": (
        CUSTOM_CALL.replace("CALL", "stablehlo.dynamic_approx_top_k").replace("NAME", "nothing"),
        "missing function",
    ),
    "bounded sizes": (
        "func.func private @f0(%x: tensor<?xf32, #stablehlo.bounds<5>>) { return }",
        "size with a bound",
    ),
    "changed sizes": (
        "func.func private @f0(%x: tensor<5xf32>, %n: tensor<i32>) { %0 = stablehlo.set_dimension_size %x, %n, dim = 0 : "
        "(tensor<5xf32>, tensor<i32>) -> tensor<?xf32, #stablehlo.bounds<5>> return }",
        "set_dimension_size",
    ),
    "tuples": ("func.func private @f0(%x: tuple<tensor<f32>>) { return }", "tuple"),
    # XLA inlines a null pointer.
    "no body": (
        "func.func private @f0(%x: tensor<f32>) -> tensor<f32>" + make_function("f1", "f0"),
        "without a body",
    ),
    "nested module": (
        make_function("f1") + "module @inner { " + make_function("f0", "f0") + "}",
        "builtin.module",
    ),
    # JAX parses the text, and uses a null pointer if that fails.
    "shardings as text": (
        'module attributes {mhlo.frontend_attributes = {xla.sdy.meshes = "garbage(("}} {'
        + f"{make_function('f0')} }}",
        r"xla\.sdy\.meshes",
    ),
    "another kind of attribute": (
        GETRF.replace("KEY = VALUE", 'indices_of_shape_operands = "x"'),
        "another kind",
    ),
    "results in one place": (
        GETRF.replace("KEY = VALUE", f"output_operand_aliases = [{ALIAS}, {ALIAS}]"),
        "shares the memory",
    ),
    "regions": (
        "func.func private @f0(%i: tensor<i32>) {\n"
        + '"stablehlo.case"(%i) ({\n' * REGIONS
        + "stablehlo.return\n}) : (tensor<i32>) -> ()\n" * REGIONS
        + "return }",
        "levels",
    ),
}


@pytest.mark.parametrize("check", [custom_calls.check_module, custom_calls.has_native_calls])
def test_names_that_are_not_utf_8_are_refused(check):
    text = r'func.func @main() { stablehlo.custom_call @"\94"() : () -> () return }'
    refused = pytest.raises(tf.errors.InvalidArgumentError, match="names or attributes")
    with mlir.make_ir_context(), mlir_ir.Location.unknown(), refused:
        check(parse(text))


@pytest.mark.parametrize("name", MODULES)
def test_modules_that_xla_cannot_inline_are_refused(name):
    text, message = MODULES[name]
    refused = pytest.raises(tf.errors.InvalidArgumentError, match=message)
    with mlir.make_ir_context(), mlir_ir.Location.unknown(), refused:
        custom_calls.check_module(parse(text))


IDENTITY = "func.func public @main(%a: TYPE) -> TYPE { return %a : TYPE }"


@pytest.mark.parametrize(
    "text",
    [
        IDENTITY.replace("@main", "@other").replace("TYPE", "tensor<f32>"),
        IDENTITY.replace("TYPE", "tensor<3xf32>"),
        IDENTITY.replace("TYPE", "tensor<i32>"),
        "func.func public @main() { return }",
        "sdy.mesh @main = <[]>",
    ],
)
def test_programs_with_an_undeclared_signature_are_damaged(text):
    with pytest.raises(tf.errors.DataLossError, match="attack"):
        jax.jit(_load(text, lambda x: x, spec(())).call).lower(np.float32(3))


def test_nested_calls_within_the_limit_run():
    base = jax.export.export(jax.jit(lambda x: x), platforms=("cpu",))(spec(()))
    main = make_function("main", "f0").replace("private", "public")
    with mlir.make_ir_context(), mlir_ir.Location.unknown():
        content = stablehlo.write_portable_artifact(parse(main + make_chain(64)))
    assert jax.jit(stablehlo._wrap_verified(base, [content], "f").call)(np.float32(3)) == 3


@pytest.fixture(scope="module")
def program():
    exported = stablehlo.export_for_platforms(lambda x: x @ x.T + 1, [spec((2, 3))])
    return stablehlo.serialize_program(exported)


def test_damaged_programs_raise_one_error_that_names_the_file(program, monkeypatch):
    """Test that damage of the table around the module is detected here, damage of the module by a
    child process."""
    read = functools.partial(
        module_rewriting._read_modules, max_derivatives=stablehlo.MAX_DERIVATIVES
    )
    monkeypatch.setattr(stablehlo, "rewrite_programs", lambda items: [*map(read, items)])
    failures = 0
    for seed in range(rounds(220, 2000)):
        try:
            stablehlo.deserialize_program(changed(program, random.Random(seed)), "f/program")
        except tf.errors.DataLossError as error:
            assert str(error).startswith("f/program is damaged")
            failures += 1
        except tf.errors.InvalidArgumentError as error:
            assert "effects" in str(error)
    assert failures > 20


def test_only_foreign_programs_are_read_by_a_child_process(program, monkeypatch):
    runs = []
    run = foreign_modules._run_child
    monkeypatch.setattr(foreign_modules, "_run_child", lambda m: runs.append(len(m)) or run(m))
    monkeypatch.setattr(foreign_modules, "_read_entry", lambda key: None)
    monkeypatch.setattr(foreign_modules, "_rewritten", {})
    x = np.ones((2, 3), F32)
    stablehlo.deserialize_program(program)
    assert not runs
    monkeypatch.setattr(foreign_modules, "_own_digests", set())
    stablehlo.verify_foreign_programs([program])
    found = stablehlo.deserialize_program(program).call(x)
    np.testing.assert_array_equal(found, x @ x.T + 1)
    assert runs == [1]
    module = jax.export.deserialize(bytearray(program)).mlir_module_serialized
    damaged = bytearray(program)
    offset = damaged.index(module)
    damaged[offset + 4 : offset + len(module)] = bytes(len(module) - 4)
    with pytest.raises(tf.errors.DataLossError, match="f/program is damaged"):
        stablehlo.deserialize_program(bytes(damaged), "f/program")


def test_reading_a_program_ends(monkeypatch):
    """Test shapes whose text contains numbers of a billion digits, which JAX would evaluate."""
    symbols = jax.export.symbolic_shape("a123456789")
    data = bytearray(
        stablehlo._serialize(jax.export.export(jax.jit(lambda x: x))(spec(symbols)), (0,))
    )
    assert b"a123456789" in data
    monkeypatch.setattr(foreign_modules, "_TIMEOUT_SECONDS", 4)
    with pytest.raises(tf.errors.DataLossError, match="took more than 4 seconds"):
        stablehlo.deserialize_program(bytes(data.replace(b"a123456789", b"7^99999999")))


def test_each_handler_of_jaxlib_and_meshflow_is_in_the_table_or_refused():
    handlers = [*_lapack.registrations(), *_sparse.registrations(), *library.HANDLERS]
    refused = {
        h for h in handlers if not any(s.name.fullmatch(h) for s in custom_calls._SIGNATURES)
    }
    kinds = ("geqp3", "gesvd", "ormqr", "unmqr")
    lapack = {f"lapack_{letter}{kind}_ffi" for letter in "sdcz" for kind in kinds}
    others = {"tridiagonal_solve_perturbed_ffi", "cpu_csr_sparse_dense_ffi", *library.HANDLERS}
    assert refused == (lapack | others) & set(handlers)


def test_trusted_folders_need_no_child_process(tmp_path, monkeypatch):
    class Doubler(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([3])])
        def __call__(self, x):
            return x + x

    tf.saved_model.save(Doubler(), str(tmp_path))
    monkeypatch.setattr(foreign_modules, "_own_digests", set())
    monkeypatch.setattr(foreign_modules, "_rewritten", {})
    monkeypatch.setattr(foreign_modules, "_read_entry", lambda key: None)
    monkeypatch.setattr(foreign_modules, "_run_child", None)
    loaded = tf.saved_model.load(str(tmp_path), trusted=True)
    assert loaded(tf.ones([3])).numpy().tolist() == [2, 2, 2]


def test_damaged_modules_of_graphs_name_the_file(tmp_path):
    class Doubler(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([3])])
        def __call__(self, x):
            return x + x

    tf.saved_model.save(Doubler(), str(tmp_path))
    (tmp_path / "manifest.json").unlink()
    path = tmp_path / "saved_model.pb"
    content = path.read_bytes()
    prefix = foreign_modules.BYTECODE_PREFIX
    assert prefix in content
    path.write_bytes(content.replace(prefix, b"ML\xefX"))
    loaded = tf.saved_model.load(str(tmp_path))
    with pytest.raises(tf.errors.DataLossError, match=r"saved_model\.pb: node .*checksum"):
        loaded(tf.ones([3]))
