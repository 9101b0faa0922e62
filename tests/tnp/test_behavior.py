"""Test tensors with NumPy's behaviour: supported operations, unchanged ones, and errors."""

import numpy as np
import pytest

import meshflow as tf
import meshflow.experimental.numpy as tnp


def test_tensors_are_returned_unless_numpy_behavior_is_enabled():
    x = tf.constant([1, 2])
    with pytest.raises(AttributeError, match="experimental_enable_numpy_behavior"):
        x.T
    with pytest.raises(tf.errors.InvalidArgumentError):
        x + tf.constant([1.0, 2.0])
    with pytest.raises(tf.errors.InvalidArgumentError, match="only 1 dim"):
        x[[0, 1]]
    # The functions are NumPy's all the same.
    assert tnp.add(x, tf.constant([1.0, 2.0])).dtype == tf.float64
    assert tnp.ndarray is tf.Tensor
    assert isinstance(tnp.ones(2), tnp.ndarray)


@pytest.mark.usefixtures("numpy_behavior")
class TestEnabled:
    def test_gradients_of_functions_methods_and_indices(self):
        x = tnp.asarray([[1.0, 2.0], [3.0, 4.0]])
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            product = tnp.sum(x.T @ x)
            picked = x[(0, 1), [1, 0]].sum() + x[x > 2].max() + tnp.compress([1, 0], x, 0).sum()
        np.testing.assert_allclose(tape.gradient(product, x), [[6, 6], [14, 14]])
        np.testing.assert_allclose(tape.gradient(picked, x), [[1, 2], [1, 1]])

    def test_jacobians(self):
        x = tnp.asarray([1.0, 2.0])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x**2 + x.sum()
        np.testing.assert_allclose(tape.jacobian(y, x), [[3, 1], [1, 5]])

    def test_in_functions_and_vectorized_maps(self):
        @tf.function
        def scaled(x):
            return (x.T.reshape(-1) * 2 + 0.5)[::2]

        np.testing.assert_allclose(scaled(tnp.arange(4).reshape(2, 2)), [0.5, 2.5])
        rows = tf.vectorized_map(lambda r: tnp.dot(r, r) + r.mean(), tnp.ones([3, 4]))
        np.testing.assert_allclose(rows, [5, 5, 5])

    def test_in_pipelines(self):
        squares = tf.data.Dataset.range(3).map(lambda z: tnp.square(z) + 1)
        assert list(squares.as_numpy_iterator()) == [1, 2, 5]
        numbers = tf.data.Dataset.from_tensor_slices(tnp.linspace(-2, 2, 5))
        clipped = numbers.map(lambda z: z.clip(-1, 1)).batch(5)
        np.testing.assert_allclose(next(iter(clipped)), [-1, -1, 0, 1, 1])

    def test_in_keras_models(self):
        inputs = tf.keras.Input([4])
        outputs = tf.keras.layers.Lambda(lambda x: tnp.tanh(x).sum(axis=1))(inputs)
        model = tf.keras.Model(inputs, [outputs, tnp.exp(inputs)])
        total, exponent = model(tf.ones([2, 4]))
        np.testing.assert_allclose(total, 4 * np.tanh([1, 1]), rtol=1e-6)
        np.testing.assert_allclose(exponent, np.exp(np.ones([2, 4])), rtol=1e-6)

    def test_in_replicas(self):
        strategy = tf.distribute.MirroredStrategy(["CPU:0"])
        assert float(strategy.run(lambda: tnp.sum(tnp.ones([3])))) == 3.0

    def test_numpy_functions_return_arrays(self):
        x = tnp.ones([2, 2])
        assert type(np.sum(x)) is np.float64
        assert type(np.concatenate([x, np.zeros([1, 2])])) is np.ndarray
        assert isinstance(np.ones(2) + tnp.ones(2), tf.Tensor)

    def test_tf_functions_remain_strict(self):
        with pytest.raises(tf.errors.InvalidArgumentError):
            tf.add(tf.constant(1), tf.constant(1.0))
        assert tf.constant(1.0).dtype == tf.float32
        with pytest.raises(AttributeError):
            tf.Variable([1.0]).T

    def test_variables_as_operands(self):
        assert (tf.Variable([1.0, 2.0]) + tf.constant([1, 2])).dtype == tf.float64

    @pytest.mark.parametrize(
        ("index", "error", "words"),
        [
            (5, tf.errors.InvalidArgumentError, "out of bounds"),
            ([0, 5], tf.errors.InvalidArgumentError, "index 5 is out of bounds for dimension 0"),
            ((0, [-4]), tf.errors.InvalidArgumentError, "dimension 1 with size 3"),
            (1.5, IndexError, "only integers"),
            (np.ones([3], bool), tf.errors.InvalidArgumentError, "incompatible"),
            ((slice(None), np.ones([2], bool)), tf.errors.InvalidArgumentError, "did not match"),
        ],
    )
    def test_wrong_indices(self, index, error, words):
        with pytest.raises(error, match=words):
            tnp.ones([2, 3])[index]

    def test_mask_of_unknown_values_is_an_error(self):
        @tf.function(jit_compile=True)
        def positive(x):
            return x[x > 0]

        with pytest.raises(tf.errors.OperatorNotAllowedInGraphError, match=r"tf\.where"):
            positive(tnp.ones([3]))

    def test_no_assignment(self):
        with pytest.raises(TypeError, match="immutable"):
            tnp.ones([2])[0] = 1


def test_modes(numpy_behavior):
    narrow, wide = tf.constant(1, tf.int32), tf.constant(1.0, tf.float32)
    assert (narrow + wide).dtype == tf.float64
    numpy_behavior(dtype_conversion_mode="all")
    assert (narrow + wide).dtype == tf.float32
    assert (tf.constant(1, tf.float16) + tf.constant(1, tf.bfloat16)).dtype == tf.float32
    numpy_behavior(dtype_conversion_mode="safe")
    for allowed in ([tf.int8, tf.float16], [tf.uint8, tf.int16], [tf.int32, tf.float64]):
        one, other = [tf.constant(1, dtype) for dtype in allowed]
        assert (one + other).dtype == allowed[1]
    lossy = [[tf.int32, tf.float32], [tf.uint8, tf.int8], [tf.float16, tf.bfloat16]]
    for refused in [*lossy, [tf.float64, tf.complex64]]:
        one, other = [tf.constant(1, dtype) for dtype in refused]
        with pytest.raises(TypeError, match="'safe'"):
            one + other
    with pytest.raises(TypeError, match="int32 and float"):
        narrow + 1.5
    numpy_behavior(dtype_conversion_mode="off")
    with pytest.raises(tf.errors.InvalidArgumentError):
        narrow + wide
    with pytest.raises(ValueError, match="legacy"):
        numpy_behavior(dtype_conversion_mode="mixed")


def test_prefer_float32(numpy_behavior):
    numpy_behavior(prefer_float32=True)
    assert tnp.asarray(1.0).dtype == tf.float32
    assert tnp.add(1.0, [2.0]).dtype == tnp.sqrt(2).dtype == tf.float32
    assert tnp.arange(2.0).dtype == tnp.linspace(0, 1, 3).dtype == tf.float32
    assert tnp.ones(2).dtype == tf.float64
    assert tnp.asarray(np.float64(1)).dtype == tf.float64


def test_dtypes_without_a_common_type():
    with pytest.raises(TypeError):
        tnp.add(tf.constant(1, tf.bfloat16), tf.constant(1, tf.int32))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: tnp.sum([1], out=1), "`out` is not supported"),
        (lambda: tnp.array([[1, 2], [3]]), "non-rectangular"),
        (lambda: tnp.asarray({1: 2}), "dict"),
        (lambda: tnp.where([True], 1), "either both"),
        (lambda: tnp.sort([1], order="f"), "records"),
        (lambda: tnp.argsort([1], kind="odd"), "kind"),
        (lambda: tnp.reshape([1, 2], (3,)), "reshape"),
        (lambda: tnp.take([1, 2], [2], mode="raise"), "out of bounds"),
        (lambda: tnp.arange(0, 1, 0), "zero"),
        (lambda: tnp.add([1, 2], [1, 2, 3]), "add"),
        (lambda: tnp.random.randint(3, 3), "no integers"),
        (lambda: tnp.random.choice(2, 3, replace=False), "without replacement"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_random_numbers_follow_the_global_seed():
    def drawn():
        tnp.random.seed(3)
        return [
            tnp.random.randn(2, 3),
            tnp.random.rand(2),
            tnp.random.standard_normal(2),
            tnp.random.normal(5.0, [0.0, 1.0]),
            tnp.random.random([2]),
            tnp.random.uniform(2.0, 3.0, size=2),
            tnp.random.randint(2, 9, size=[2, 2], dtype=tnp.int32),
            tnp.random.poisson(3.0, size=2),
            tnp.random.exponential(2.0, size=2),
            tnp.random.permutation(5),
            tnp.random.choice([1.5, 2.5], size=4),
        ]

    first, again = drawn(), drawn()
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)
    assert [x.dtype.name for x in first[:7]] == ["float64"] * 6 + ["int32"]
    assert [x.shape.as_list() for x in first[:4]] == [[2, 3], [2], [2], [2]]
    assert first[3][0] == 5.0
    assert all(2 <= x < 3 for x in first[5].numpy())
    assert set(first[6].numpy().ravel()) <= set(range(2, 9))
    assert sorted(first[9].numpy()) == [0, 1, 2, 3, 4]
    assert set(first[10].numpy()) <= {1.5, 2.5}
    assert tnp.random.randint(3).shape == ()
    assert sorted(tnp.random.choice(4, [2, 2], replace=False).numpy().ravel()) == [0, 1, 2, 3]


def test_randomness_moves_on_in_functions():
    @tf.function
    def drawn():
        return tnp.random.uniform(size=2)

    assert (drawn().numpy() != drawn().numpy()).all()


def test_types_are_numpys():
    assert tnp.bool_ is np.bool_
    assert [tnp.int8, tnp.int16, tnp.int32, tnp.int64] == [np.int8, np.int16, np.int32, np.int64]
    assert [tnp.uint8, tnp.uint16, tnp.uint32, tnp.uint64] == [*map(np.dtype, "BHIL")]
    assert [tnp.float16, tnp.float32, tnp.float64] == [np.float16, np.float32, np.float64]
    assert [tnp.complex64, tnp.complex128] == [np.complex64, np.complex128]
    assert [tnp.int_, tnp.float_, tnp.complex_] == [np.int64, np.float64, np.complex128]
    assert [tnp.string_, tnp.unicode_, tnp.object_] == [np.bytes_, np.str_, np.object_]
    assert tnp.issubdtype(tnp.float16, tnp.floating) and tnp.issubdtype(tf.bfloat16, tnp.inexact)
    assert tnp.issubdtype(tnp.uint8, tnp.integer) and tnp.issubdtype(tnp.int8, tnp.number)
    assert tnp.dtype("f4") == np.float32
    assert tnp.finfo(tf.bfloat16).bits == 16


def test_functions_of_datasets_receive_arrays():
    dataset = tf.data.Dataset.from_tensor_slices(tnp.asarray([-3.0, 0.0, 4.0]))
    clipped = dataset.map(lambda z: z.clip(-1, 1)).batch(3).map(lambda z: z.reshape(1, 3).T)
    assert next(iter(clipped)).numpy().tolist() == [[-1], [0], [1]]
    assert [x.numpy() for x in dataset.filter(lambda z: z.sum() > 0)] == [4]


@pytest.mark.parametrize("mode", ["all", "safe", "legacy"])
def test_functions_of_tensorflow_promote_by_the_lattice(numpy_behavior, mode):
    numpy_behavior(dtype_conversion_mode=mode)
    half, byte = tf.constant(2, tf.float16), tf.constant(3, tf.int8)
    if mode == "legacy":
        with pytest.raises(tf.errors.InvalidArgumentError):
            tf.add(half, byte)
        return
    assert tf.multiply(half, tf.constant(1.5)).dtype == tf.float32
    assert tf.add(byte, tf.constant(2)).dtype == tf.int32
    assert tf.add(half, 1).dtype == tf.float16
    # Results of TensorFlow 2.15.
    assert [(tf.constant(True) + n).dtype.name for n in (1, 1.5, 1j)] == ["int32", "float32", "complex128"]  # fmt: skip
    assert tf.add(byte, 1j).dtype == tf.complex128
    if mode == "safe":
        with pytest.raises(TypeError):
            tf.add(tf.constant(1), half)
        with pytest.raises(TypeError):
            half + 1j
        return
    assert tf.function(tf.add)(byte, half).numpy() == 5.0
    assert tf.matmul(tf.ones([1, 2], tf.int32), tf.ones([2, 1])).numpy().tolist() == [[2.0]]


def test_sizes_have_a_dtype():
    assert tnp.size(tnp.ones([2, 3])).dtype == np.int64
    count = tf.function(lambda x: tnp.size(x), input_signature=[tf.TensorSpec([None, 3])])
    assert count(tf.ones([4, 3])).numpy() == 12


def test_objects_that_convert_themselves_are_read_in_traces():
    class Holder:
        def __init__(self):
            self.variable = tf.Variable([1.0, 2.0])

        def __tf_tensor__(self, dtype=None, name=None):
            return tf.convert_to_tensor(self.variable, dtype)

        def __array__(self, dtype=None, copy=None):
            raise AssertionError("A trace has no array.")

    holder = Holder()
    double = tf.function(lambda: tnp.add(holder, holder))
    assert double().numpy().tolist() == [2, 4]
    holder.variable.assign([3.0, 4.0])
    assert double().numpy().tolist() == [6, 8]
