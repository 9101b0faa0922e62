"""Extension types and dispatch of public functions, with results of TensorFlow 2.21."""

import inspect
import pickle
from collections.abc import Mapping
from typing import Any, ClassVar, Optional, Union  # noqa: F401

import numpy as np
import pytest

import meshflow as tf

ExtensionType = tf.experimental.ExtensionType


class Masked(ExtensionType):
    values: tf.Tensor
    mask: tf.Tensor
    shape = property(lambda self: self.values.shape)

    def __validate__(self):
        self.values.shape.assert_is_compatible_with(self.mask.shape)

    class Spec:
        shape = property(lambda self: self.values.shape)


class Options(ExtensionType):
    a: int
    b: str = "x"
    c: Optional[tf.Tensor] = None  # noqa: UP045
    u: Union[int, str] = 1  # noqa: UP007


class Nested(ExtensionType):
    parts: tuple[tf.Tensor, ...]
    named: Mapping[str, tf.Tensor]
    rows: tf.RaggedTensor
    inner: Masked


class Base(ExtensionType):
    x: tf.Tensor


class Derived(Base):
    y: tf.Tensor

    def total(self):
        return self.x + self.y


class Counted(ExtensionType):
    x: tf.Tensor
    count: int

    def __init__(self, count):
        self.x, self.count = tf.range(count), count


class Batchable(tf.experimental.BatchableExtensionType):
    x: tf.Tensor
    name: str = "a"


M = Masked([1.0, 2.0], [True, False])
ROWS = tf.ragged.constant([[1.0], [2.0, 3.0]])
N = Nested([1.0, 2.0], {"k": [3.0]}, ROWS, M)


def make_class(members=None, **annotations):
    defaults = {
        k: annotations.pop("default_" + k)
        for k in list(annotations)
        if "default_" + k in annotations
    }
    return type(
        "Made",
        (ExtensionType,),
        {"__annotations__": annotations, "__module__": __name__, **defaults, **(members or {})},
    )


def change(value, name):
    setattr(value, name, 1)


@pytest.mark.parametrize(
    ("use", "error", "match"),
    [
        (lambda: change(M, "values"), AttributeError, "Cannot mutate attribute `values`"),
        (lambda: change(M, "other"), AttributeError, "Cannot mutate"),
        (lambda: delattr(M, "values"), AttributeError, "Cannot mutate"),
        (lambda: change(M._type_spec, "values"), AttributeError, "Cannot mutate"),
        (lambda: Masked([1.0], [True, False]), ValueError, "incompatible"),
        (lambda: Masked([1.0]), TypeError, "missing a required argument: 'mask'"),
        (lambda: Masked([1.0], [True], 3), TypeError, "too many positional"),
        (lambda: Options("3"), TypeError, "a: expected"),
        (lambda: Options(3.0), TypeError, "a: expected"),
        (lambda: Options(3, b=4), TypeError, "b: expected"),
        (lambda: Options(3, u=1.5), TypeError, "u: expected"),
        (lambda: Nested(1.0, {}, ROWS, M), TypeError, "parts: expected tuple"),
        (lambda: Nested([1.0], {1: 1.0}, ROWS, M), TypeError, "named"),
        (lambda: Nested([1.0], {}, [[1.0]], M), TypeError, "rows: expected"),
        (lambda: hash(M), TypeError, "unhashable"),
        (lambda: ExtensionType(), AssertionError, "abstract base class"),
        (lambda: make_class(x=list), TypeError, "Unsupported type annotation"),
        (lambda: make_class(x=list[int]), TypeError, "Unsupported type annotation"),
        (lambda: make_class(x=Any), TypeError, "Unsupported type annotation"),
        (lambda: make_class(x=tf.TypeSpec), TypeError, "Unsupported type annotation"),
        (lambda: make_class(x=Mapping[tf.Tensor, int]), TypeError, "Mapping had a key"),
        (lambda: make_class(x="Undefined")(1), TypeError, "'Undefined', is not defined"),
        (lambda: make_class(Spec=int), ValueError, "reserved"),
        (lambda: make_class(_to_components=int), ValueError, "reserved"),
        (lambda: make_class(_split=int), ValueError, "reserved"),
        (lambda: make_class(x=int, members={"y": 3}), ValueError, "missing a type annotation"),
        (lambda: make_class(x=int, members={"Spec": 3}), ValueError, "must be a nested class"),
        (lambda: make_class(x=int, members={"Spec": type("Spec", (), {"x": 3})}), ValueError, "a reserved name or a field"),
        (lambda: make_class(x=int, members={"__batch_encoder__": 3}), ValueError, "BatchableExtensionType"),
        (lambda: Options.Spec(3), TypeError, "missing a required argument: 'b'"),
        (lambda: Nested.Spec((), {}, tf.TensorSpec([1]), M._type_spec), TypeError, "rows: expected a TypeSpec"),
        (lambda: tf.experimental.dispatch_for_api(tf.rank, {"input": 3})(lambda input, name=None: 0), ValueError, "not supported by dispatch"),
        (lambda: make_class(x=int, default_x="a"), TypeError, "default value for x"),
        (lambda: tf.convert_to_tensor(M), ValueError, "unsupported type"),
        (lambda: tf.math.sin(Base(1.0)), ValueError, "unsupported type"),
        (lambda: tf.experimental.dispatch_for_api(len, {"x": Masked}), ValueError, "does not support"),
        (lambda: tf.experimental.dispatch_for_api(tf.rank, {"foo": Masked})(len), ValueError, "annotation for unknown parameter 'foo'"),
        (lambda: tf.experimental.dispatch_for_api(tf.rank)(lambda x: x), ValueError, r"signature \(x\) does not match API's signature \(input, name=None\)"),
        (lambda: tf.experimental.dispatch_for_api(tf.rank, [Masked])(len), TypeError, "must be dictionaries"),
        (lambda: tf.experimental.dispatch_for_api(tf.rank, {0: Masked})("len"), TypeError, "to be callable"),
        (lambda: tf.experimental.dispatch_for_api(tf.rank)(lambda input, name=None: 0), ValueError, "at least one signature"),
        (lambda: tf.experimental.unregister_dispatch_for(len), ValueError, "not registered"),
    ],
)  # fmt: skip
def test_errors(use, error, match):
    with pytest.raises(error, match=match):
        use()


def test_missing_fields():
    class Incomplete(ExtensionType):
        x: int

        def __init__(self):
            pass

    with pytest.raises(ValueError, match="Missing required fields"):
        Incomplete()


def test_values_and_specs():
    assert repr(Options(3)) == "Options(a=3, b='x', c=None, u=1)"
    assert repr(Options(True, c=[1.0])).startswith("Options(a=True, b='x', c=<tf.Tensor")
    assert Derived(1, 2).total().numpy() == 3 and Counted(3).x.numpy().tolist() == [0, 1, 2]
    assert bool(Masked([1.0, 2.0], [True, False]) == M) and bool(
        Masked([1.0, 3.0], [True, False]) != M
    )
    assert (Masked([1.0], [True]) == M) is False and (M == 1) is False
    spec = Masked.Spec(tf.TensorSpec([None]), tf.TensorSpec([None], tf.bool))
    assert spec.is_compatible_with(M) and spec.shape.as_list() == [None]
    assert not Masked.Spec(tf.TensorSpec([3]), tf.TensorSpec([None], tf.bool)).is_compatible_with(M)
    assert repr(M._type_spec) == (
        "Masked.Spec(values=TensorSpec(shape=(2,), dtype=tf.float32, name=None), "
        "mask=TensorSpec(shape=(2,), dtype=tf.bool, name=None))"
    )
    assert M._type_spec == Masked([3.0, 4.0], [True, True])._type_spec
    assert hash(M._type_spec) == hash(Masked([3.0, 4.0], [True, True])._type_spec)
    merged = M._type_spec.most_specific_compatible_type(Masked([1.0], [True])._type_spec)
    assert merged == spec and M._type_spec.is_subtype_of(spec)
    assert pickle.loads(pickle.dumps(M._type_spec)) == M._type_spec
    assert tf.type_spec_from_value(M) == M._type_spec and not tf.is_tensor(M)
    assert [t.shape.as_list() for t in tf.nest.flatten(N, expand_composites=True)] == [
        *([], [], [1], [3], [3], [2], [2])
    ]
    batch = Batchable.__batch_encoder__.batch(Batchable([1.0])._type_spec, 4)
    assert batch == Batchable.Spec(x=tf.TensorSpec([4, 1]), name="a")
    assert Batchable.__batch_encoder__.unbatch(batch) == Batchable([1.0])._type_spec


class Tree(ExtensionType):
    value: tf.Tensor
    children: tuple["Tree", ...] = ()
    owner: Optional["Owner"] = None


class Owner(ExtensionType):
    tree: Tree


class Sized(ExtensionType):
    x: tf.Tensor
    u: Union[tf.Tensor, int] = 0  # noqa: UP007
    v: Union[int, tf.Tensor] = 0  # noqa: UP007
    counts: tuple[int, ...] = ()

    class Spec:
        def __init__(self, size):
            self.x = self.u = tf.TensorSpec([size])
            self.v, self.counts = 0, ()

        def __validate__(self):
            if self.x.shape == [9]:
                raise ValueError("9 is too large")


def test_forward_references():
    tree = Tree(1, [Tree(2), Tree(3, [Tree(4)])], Owner(Tree(5)))
    doubled = tf.function(
        lambda t: tf.nest.map_structure(lambda v: v * 2, t, expand_composites=True)
    )
    leaves = tf.nest.flatten(doubled(tree), expand_composites=True)
    assert [int(leaf) for leaf in leaves] == [2, 4, 6, 8, 10]
    assert int(doubled(tree).owner.tree.value) == 10


def test_annotations_as_strings():
    made = make_class({"count": 3}, x="tf.Tensor", count="ClassVar[int]", _depth="int")
    assert (made.count, made(1.0, 2)._depth) == (3, 2)
    assert [field.name for field in made(1.0, 2)._extension_fields] == ["x", "_depth"]


def test_conversions():
    # The options of a union are tried in order, and a variable is read.
    variable = tf.Variable(2.0)
    with tf.GradientTape() as tape:
        value = Sized(variable, 3, 3, range(2))
        loss = value.x**2
    variable.assign(5.0)
    assert tf.is_tensor(value.u) and value.v == 3 and value.counts == (0, 1)
    assert float(value.x) == 2 and float(tape.gradient(loss, variable)) == 4
    # Components have the order of sorted keys, and a mapping keeps its own order.
    named = Nested([1.0], {"z": 2.0, "b": 3.0}, ROWS, M)
    leaves = tf.nest.flatten(named, expand_composites=True)
    assert [leaf.numpy().tolist() for leaf in leaves[:3]] == [1, 3, 2]
    result = tf.function(lambda v: v)(named)
    assert {k: float(v) for k, v in result.named.items()} == {"z": 2, "b": 3}
    assert [*result.named] == ["z", "b"]
    assert Sized.Spec(4).x == tf.TensorSpec([4])
    assert pickle.loads(pickle.dumps(Sized.Spec(4))) == Sized.Spec(4)
    with pytest.raises(ValueError, match="too large"):
        Sized.Spec(9)
    with pytest.raises(AttributeError, match="Cannot mutate"):
        Sized.Spec(4).v = 3


def test_python_function():
    spec = tf.RaggedTensorSpec([None, None], tf.float32)
    double = lambda rows: tf.py_function(lambda r: r * 2, [rows], spec)
    for call in (double, tf.function(double)):
        with tf.GradientTape() as tape:
            tape.watch(ROWS)
            result = call(ROWS)
        assert result.to_list() == [[2], [4, 6]]
        assert tape.gradient(result, ROWS).to_list() == [[2], [2, 2]]
    negative, total = tf.py_function(
        lambda m, s: (Masked(-m.values, m.mask), tf.sparse.reduce_sum(s)),
        [M, tf.sparse.from_dense([0, 3])],
        [M._type_spec, tf.int32],
    )
    assert negative.values.numpy().tolist() == [-1, -2] and int(total) == 3
    assert tf.py_function(print, [tf.ragged.constant([["a"]])], []) == []
    for result in (spec, tf.float32):
        wrong = M if result is spec else ROWS
        with pytest.raises(tf.errors.InvalidArgumentError, match="Tout declares"):
            tf.py_function(lambda r, wrong=wrong: wrong, [ROWS], result)


def test_functions():
    traces = []

    @tf.function
    def double(value):
        traces.append(value)
        doubled = Masked(value.inner.values * 2, value.inner.mask)
        return Nested(value.parts, value.named, value.rows + 1, doubled), value.named[
            "k"
        ] * value.parts[1]

    for factor in (1.0, 2.0):
        changed = Nested([factor, 2.0], {"k": [3.0]}, ROWS * factor, M)
        result, product = double(changed)
        assert result.inner.values.numpy().tolist() == [2, 4] and product.numpy().tolist() == [6]
        assert result.rows.to_list() == [[factor + 1], [2 * factor + 1, 3 * factor + 1]]
    assert len(traces) == 1
    traced = tf.function(lambda o: o.a + 1)
    assert [int(traced(Options(a))) for a in (1, 2)] == [2, 3]
    spec = Masked.Spec(tf.TensorSpec([None]), tf.TensorSpec([None], tf.bool))
    general = tf.function(lambda m: tf.reduce_sum(m.values), input_signature=[spec])
    assert [float(general(Masked([1.0] * n, [True] * n))) for n in (1, 2, 3)] == [1, 2, 3]
    concrete = double.get_concrete_function(N)
    assert concrete(N)[1].numpy().tolist() == [6]
    assert concrete.structured_outputs[0] == N._type_spec


def test_control_flow():
    chosen = tf.function(lambda p: tf.cond(p, lambda: M, lambda: Masked([3.0, 4.0], [True, True])))
    assert [chosen(tf.constant(p)).values.numpy().tolist() for p in (True, False)] == [
        [1, 2],
        [3, 4],
    ]

    @tf.function
    def repeat(value):
        for _ in tf.range(3):
            value = Masked(value.values * 2, value.mask)
        return value

    assert repeat(M).values.numpy().tolist() == [8, 16]


def test_gradients():
    class Weighted(ExtensionType):
        x: tf.Tensor
        scale: float

        class __composite_gradient__:
            @staticmethod
            def get_gradient_components(value):
                return value.x

            @staticmethod
            def replace_gradient_components(value, component):
                return Weighted(component, value.scale)

    value = Weighted([1.0, 2.0], 3.0)
    with tf.GradientTape() as tape:
        tape.watch(value)
        loss = tf.reduce_sum(value.x**2) * value.scale
    gradient = tape.gradient(loss, value)
    assert gradient.x.numpy().tolist() == [6, 12] and gradient.scale == 3.0
    with tf.GradientTape() as tape:
        tape.watch(M.values)
        loss = tf.reduce_sum(M.values**2)
    assert tape.gradient(loss, M.values).numpy().tolist() == [2, 4]
    with tf.GradientTape() as tape:
        tape.watch(M)
        loss = tf.reduce_sum(M.values**2)
    with pytest.raises(ValueError, match="not supported as a gradient source"):
        tape.gradient(loss, M)


@pytest.fixture
def dispatchers():
    """Dispatchers for Masked that are removed after a test."""
    experimental, registered = tf.experimental, []

    def register(decorator):
        def decorate(function):
            registered.append(function)
            return decorator(function)

        return decorate

    @register(experimental.dispatch_for_unary_elementwise_apis(Masked))
    def call_unary(api_func, x):
        return Masked(api_func(x.values), x.mask)

    @register(experimental.dispatch_for_binary_elementwise_apis(Union[Masked, tf.Tensor], Masked))  # noqa: UP007
    def call_binary(api_func, x, y):
        return Masked(api_func(getattr(x, "values", x), y.values), y.mask)

    @register(experimental.dispatch_for_binary_elementwise_assert_apis(Masked, Masked))
    def call_assert(assert_func, x, y):
        return assert_func(x.values, y.values)

    @register(
        experimental.dispatch_for_api(
            tf.concat, {"values": list[Masked]}, {0: list[Masked], "axis": float}
        )
    )
    def concat(values, axis, name="concat"):
        return Masked(
            tf.concat([v.values for v in values], axis), tf.concat([v.mask for v in values], axis)
        )

    @register(experimental.dispatch_for_api(tf.shape))
    def shape(input: Masked, out_type=None):
        return tf.shape(input.values)

    @register(experimental.dispatch_for_api(tf.reverse, {"tensor": Masked}))
    def reverse(*args, **kwargs):
        return args, kwargs

    yield registered
    for function in registered:
        experimental.unregister_dispatch_for(function)


UNARY = [
    *(
        "abs",
        "sin",
        "nn.relu",
        "math.erf",
        "zeros_like",
        "ones_like",
        "identity",
        "nn.elu",
        "math.log1p",
    ),
    *(
        "stop_gradient",
        "math.round",
        "math.digamma",
        "math.softplus",
        "math.is_nan",
        "strings.as_string",
    ),
]
BINARY = [
    "add",
    "subtract",
    "maximum",
    "math.atan2",
    "equal",
    "pow",
    "math.floordiv",
    "less",
    "truediv",
    "math.xlogy",
]


def find(path):
    function = tf
    for name in path.split("."):
        function = getattr(function, name)
    return function


@pytest.mark.parametrize("name", UNARY)
def test_unary_dispatch(dispatchers, name):
    result = find(name)(M)
    np.testing.assert_array_equal(result.values.numpy(), find(name)(M.values).numpy())


@pytest.mark.parametrize("name", BINARY)
def test_binary_dispatch(dispatchers, name):
    for x in (M, M.values):
        result = find(name)(x, M)
        np.testing.assert_array_equal(result.values.numpy(), find(name)(M.values, M.values).numpy())


def test_repeated_registration(dispatchers):
    for decorator in (
        tf.experimental.dispatch_for_unary_elementwise_apis(Masked),
        tf.experimental.dispatch_for_binary_elementwise_assert_apis(Masked, Masked),
    ):
        with pytest.raises(ValueError, match="already been registered"):
            decorator(lambda api_func, *operands: operands[0])


def test_dispatch(dispatchers):
    joined = tf.concat([M, M], 0)
    assert joined.values.numpy().tolist() == [1, 2, 1, 2] and tf.shape(M).numpy().tolist() == [2]
    assert tf.cast(M, tf.int32).values.dtype is tf.int32 and tf.concat([[1], [2]], 0).shape == [2]
    assert tf.clip_by_value(M, 0.0, 1.0).values.numpy().tolist() == [1, 1]
    tf.debugging.assert_equal(M, M)
    assert tf.shape(M, name="size").numpy().tolist() == [2]
    assert tf.reverse(M, axis=[0], name="r") == ((M,), {"axis": [0], "name": "r"})
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.debugging.assert_greater(M, M)
    traced = tf.function(lambda m: tf.concat([tf.abs(m), tf.add(m, m)], 0))
    assert traced(M).values.numpy().tolist() == [1, 2, 2, 4]
    with pytest.raises(ValueError, match="unsupported type"):
        tf.matmul(M, M)


class Counter(tf.experimental.ExtensionType):
    count: tf.Variable
    step: tf.Tensor


def test_a_variable_in_a_field_is_updated_by_a_function():
    @tf.function
    def add(counter):
        counter.count.assign_add(counter.step)
        return counter

    counter = Counter(tf.Variable(2.0), 3.0)
    assert add(counter).count is counter.count and counter.count.numpy() == 5.0
    assert inspect.signature(Counter.__init__).return_annotation is Counter


def test_dispatch_of_optional_and_tensor_like_arguments():
    optional, operand = Masked | None, Masked | tf.types.experimental.TensorLike
    signature = {"condition": Masked, "x": optional, "y": optional}
    select = lambda condition, x=None, y=None, name=None: "where"
    tf.experimental.dispatch_for_api(tf.where, signature)(select)
    add = lambda x, y, name=None: "add"
    tf.experimental.dispatch_for_api(tf.add, {"x": operand, "y": operand})(add)
    try:
        assert tf.where(M) == tf.where(M, M, M) == "where"
        values = [[1.0], np.ones(1), tf.ones(1), tf.Variable([1.0]), 3, M]
        assert [tf.add(M, value) for value in values] == ["add"] * 6
    finally:
        for target in (select, add):
            tf.experimental.unregister_dispatch_for(target)


def test_variables_and_arrays_are_not_redirected():
    kinds = Masked | tf.Variable | np.ndarray

    @tf.experimental.dispatch_for_api(tf.add, {"x": kinds, "y": kinds})
    def add(x, y, name=None):
        return "add"

    try:
        assert tf.add(M, tf.Variable([1.0])) == "add"
        variable = tf.Variable([1.0, 2.0])
        assert tf.cast(variable, tf.int32).numpy().tolist() == [1, 2]
        assert tf.math.abs(np.array([-1.0])).numpy().tolist() == [1.0]
        with pytest.raises((TypeError, ValueError)):
            tf.abs(M)
    finally:
        tf.experimental.unregister_dispatch_for(add)


class Networks(tf.experimental.BatchableExtensionType):
    shape: tf.TensorShape
    work: tf.Tensor

    def __init__(self, work):
        self.work = tf.convert_to_tensor(work)
        self.shape = self.work.shape[:-1]


def test_fields_with_shapes_are_batched():
    networks = Networks([[5.0, 3.0], [3.0, 4.0], [1.0, 2.0]])
    rows = tf.data.Dataset.from_tensor_slices(networks)
    assert [row.shape.as_list() for row in rows] == [[], [], []]
    assert [batch.shape.as_list() for batch in rows.batch(2)] == [[2], [1]]
    doubled = tf.map_fn(lambda row: Networks(row.work * 2), networks)
    assert doubled.shape.as_list() == [3] and doubled.work.numpy()[1].tolist() == [6, 8]


def test_anonymous_types_and_reinterpret():
    from meshflow.experimental import extension_types as types

    anonymous = types.reinterpret(M, types.AnonymousExtensionType)
    assert isinstance(anonymous, types.AnonymousExtensionType)
    assert isinstance(types.reinterpret(anonymous, Masked), Masked)
    assert types.AnonymousExtensionType(x=(1, {"a": 2.0})).x[1]["a"] == 2.0
    with pytest.raises(ValueError, match="unsupported `value` argument"):
        types.AnonymousExtensionType(x=[1])
    with pytest.raises(ValueError, match=r"Missing required fields: \{'mask'\}"):
        types.reinterpret(types.AnonymousExtensionType(values=tf.zeros([2])), Masked)
    with pytest.raises(TypeError, match=r"`value` to be a tf\.ExtensionType"):
        types.reinterpret(tf.zeros([2]), Masked)


def test_specs_print_and_serialize_dictionaries():
    spec = Options.Spec(1, "x", None, 2)
    assert spec._serialize() == (("a", 1), ("b", "x"), ("c", None), ("u", 2))
    nested = tf.type_spec_from_value(Nested([1.0], {"k": 1.0}, ROWS, M))
    assert type(dict(nested._serialize())["named"]) is dict
    assert type(nested)._deserialize(nested._serialize()) == nested
    with pytest.raises(AttributeError, match="Cannot mutate attribute `parts`"):
        del nested.parts


def test_symbolic_tensors_have_no_numpy():
    found = []

    @tf.function
    def f(x):
        found.append(hasattr(x, "numpy"))
        return not x

    assert f(tf.constant([True, False])).numpy().tolist() == [False, True]
    assert found == [False] and hasattr(tf.constant(1), "numpy")


def test_values_of_different_shapes_are_not_equal():
    single = tf.TensorSpec([None], tf.int32), tf.TensorSpec([None], tf.bool)
    spec = Masked.Spec(*single)
    compare = tf.function(lambda a, b: a == b, input_signature=[spec, spec])
    make = lambda *values: Masked(list(values), [True] * len(values))
    for first, second, expected in (
        ((1, 2), (1, 2), True),
        ((1, 1), (1,), False),
        ((1,), (2,), False),
    ):
        assert bool(make(*first) == make(*second)) is expected
        assert bool(compare(make(*first), make(*second))) is expected


def test_inputs_of_restored_models_have_their_specs(tmp_path):
    class Features(tf.experimental.BatchableExtensionType):
        __name__ = "test_extension_types.Features"
        values: tf.Tensor
        shape = property(lambda self: self.values.shape)

        class Spec:
            def __init__(self, shape):
                self.values = tf.TensorSpec(shape)

            shape = property(lambda self: self.values.shape)

    ragged = tf.RaggedTensorSpec([None, None, None], ragged_rank=1)
    for spec in (Features.Spec([None, 3]), ragged, tf.TensorSpec(None)):
        inputs = tf.keras.Input(type_spec=spec)
        model = tf.keras.models.model_from_json(tf.keras.Model(inputs, inputs).to_json())
        assert model.inputs[0].type_spec.is_compatible_with(spec)
        assert getattr(model.inputs[0].type_spec, "ragged_rank", 1) == 1
        assert model.inputs[0].shape.rank == spec.shape.rank
    model.save(tmp_path / "model.keras")
    assert tf.keras.models.load_model(tmp_path / "model.keras").inputs[0].shape.rank is None


def test_constructors_of_specs_have_signatures():
    signature = inspect.signature(Masked.Spec.__init__)
    assert str(signature.replace(return_annotation=signature.empty)) == "(self, values, mask)"
    assert signature.return_annotation is Masked.Spec
