"""Results of TensorFlow 2.15 for unusual arguments of ops."""

import numpy as np
import pytest

import meshflow as tf

ROW = tf.reshape(tf.range(8.0), [1, 8, 1])
BOXES = np.array([[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.9]])
SCORES = np.array([0.9, 0.8], np.float32)


def test_pooling_without_strides_has_strides_of_1():
    assert tf.nn.max_pool1d(ROW, 2, None, "VALID").shape == [1, 7, 1]
    assert tf.nn.avg_pool(tf.ones([1, 4, 4, 1]), 2, None, "VALID").shape == [1, 3, 3, 1]


def test_lists_of_tables_are_parts_of_one_table():
    rows = tf.nn.embedding_lookup([[1.0, 2.0], [3.0, 4.0]], [0, 3])
    assert rows.numpy().tolist() == [1.0, 4.0]


@pytest.mark.parametrize("compute", [tf.linalg.eigvalsh, lambda m: tf.linalg.eigh(m)[0]])
def test_eigenvalues_of_complex_matrices_are_complex(compute):
    values = compute(np.array([[1, 1j], [-1j, 1]], np.complex64))
    assert values.dtype == tf.complex64
    np.testing.assert_allclose(values, [0, 2], atol=1e-6)


def test_norm_of_complex_vectors_is_complex():
    values = np.array([3 + 4j], np.complex64)
    assert [tf.norm(values, ord=o).dtype for o in (2, 1)] == [tf.complex64, tf.float32]


def test_complex_square_roots_of_real_matrices_are_not_a_number():
    roots = tf.linalg.sqrtm(np.stack([-np.eye(2), 4 * np.eye(2)]))
    assert np.isnan(roots[0]).all()
    np.testing.assert_allclose(roots[1], 2 * np.eye(2))


def test_cholesky_solve_broadcasts_batches():
    factors = np.array([2 * np.eye(2), np.eye(2)])[:, None]
    sides = np.arange(12.0).reshape(3, 2, 2)
    solved = tf.linalg.cholesky_solve(factors, sides)
    np.testing.assert_allclose(solved, np.stack([sides / 4, sides]))


def test_not_a_number_is_unique():
    values, indices = tf.unique(np.array([np.nan, 1.0, np.nan]))
    np.testing.assert_array_equal(values, [np.nan, 1.0, np.nan])
    assert indices.numpy().tolist() == [0, 1, 2]


def test_substrings_of_negative_length_end_with_the_string():
    assert tf.strings.substr(["abc", "def"], [1, -2], [-1, -7]).numpy().tolist() == [b"bc", b"ef"]


@pytest.mark.parametrize(
    "select",
    [
        tf.image.non_max_suppression,
        lambda *a: tf.image.non_max_suppression_padded(*a)[0],
        lambda *a: tf.image.non_max_suppression_with_scores(*a)[0],
    ],
)
def test_boxes_and_scores_of_different_dtypes(select):
    assert select(BOXES, SCORES, 2).numpy().tolist() == [0]
    assert select(BOXES, tf.constant(SCORES), 0).numpy().tolist() == []


def test_patches_of_no_images():
    patches = tf.image.extract_patches(
        tf.zeros([0, 5, 6, 3]), [1, 2, 2, 1], [1, 1, 1, 1], [1, 1, 1, 1], "VALID"
    )
    assert patches.shape == [0, 4, 5, 12]


def test_moments_of_all_axes():
    assert [
        m.numpy().item() for m in tf.nn.moments(tf.constant([[1.0, 2.0], [3.0, 4.0]]), None)
    ] == [
        2.5,
        1.25,
    ]


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_standardized_images_are_float32(dtype):
    assert tf.image.per_image_standardization(tf.ones([2, 2, 1], dtype)).dtype == tf.float32
