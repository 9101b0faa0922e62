"""Test `tf.image.sample_distorted_bounding_box`: boxes satisfy the requested conditions."""

import numpy as np
import pytest

import meshflow as tf

BOX = [[[0.1, 0.2, 0.5, 0.9]]]


def sample(seed, size=(40, 50, 3), boxes=BOX, **options):
    found = tf.image.stateless_sample_distorted_bounding_box(
        size, tf.constant(boxes, shape=[1, len(boxes[0]), 4]), seed=(seed, 7), **options
    )
    return [np.asarray(part) for part in found]


@pytest.mark.parametrize("covered", [0.1, 0.9])
def test_area_shape_and_object(covered):
    for seed in range(20):
        begin, size, box = sample(
            seed, min_object_covered=covered, aspect_ratio_range=(0.9, 1.1), area_range=(0.3, 0.6)
        )
        (top, left, first), (rows, columns, rest) = begin, size
        assert first == 0 and rest == -1
        assert 0 <= top <= top + rows <= 40 and 0 <= left <= left + columns <= 50
        assert 0.3 - 0.025 <= rows * columns / 2000 <= 0.6 + 0.025
        assert 0.85 < columns / rows < 1.15
        np.testing.assert_allclose(
            box[0, 0], [top / 40, left / 50, (top + rows) / 40, (left + columns) / 50], atol=1e-6
        )
        high = min(box[0, 0, 2], 0.5) - max(box[0, 0, 0], 0.1)
        wide = min(box[0, 0, 3], 0.9) - max(box[0, 0, 1], 0.2)
        assert max(high, 0) * max(wide, 0) >= covered * 0.28 - 1e-6


def test_impossible_boxes_are_the_whole_image():
    begin, size, box = sample(0, min_object_covered=0.99, area_range=(0.05, 0.06))
    assert begin.tolist() == [0, 0, 0] and size.tolist() == [40, 50, -1]
    assert box.tolist() == [[[0, 0, 1, 1]]]


def test_without_objects():
    with pytest.raises(tf.errors.InvalidArgumentError, match="use_image_if_no_bounding_boxes"):
        sample(0, boxes=[[]])
    _, size, _ = sample(0, boxes=[[]], use_image_if_no_bounding_boxes=True, area_range=(0.5, 0.6))
    assert 0.45 < size[0] * size[1] / 2000 < 0.65


def test_seeds():
    assert all((a == b).all() for a, b in zip(sample(3), sample(3), strict=True))
    assert any((sample(3)[1] != sample(s)[1]).any() for s in range(4, 9))
    tf.random.set_seed(1)
    first = tf.image.sample_distorted_bounding_box([40, 50, 3], tf.constant(BOX))
    second = tf.image.sample_distorted_bounding_box([40, 50, 3], tf.constant(BOX))
    assert (first.bboxes.numpy() != second.bboxes.numpy()).any()
    tf.random.set_seed(1)
    again = tf.image.sample_distorted_bounding_box([40, 50, 3], tf.constant(BOX))
    np.testing.assert_array_equal(first.bboxes, again.bboxes)


def test_in_a_pipeline():
    """As image classifiers are trained: sizes are known when an element is there."""

    def crop(image):
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.shape(image), tf.constant([[[0.0, 0.0, 1.0, 1.0]]]), area_range=(0.3, 1.0)
        )
        return tf.image.resize(tf.slice(image, begin, size), [8, 8])

    images = tf.data.Dataset.from_tensor_slices(np.ones([3, 20, 30, 3], "float32"))
    for image in images.map(crop):
        np.testing.assert_allclose(image, np.ones([8, 8, 3]), rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"size": (40, 50)}, "image_size"),
        ({"boxes": [[[0.1, 0.2, 1.5, 0.9]]]}, r"in \[0.0, 1.0\]"),
        ({"area_range": (0.5, 0.2)}, "area_range"),
        ({"aspect_ratio_range": (0, 1)}, "aspect_ratio_range"),
        ({"max_attempts": 0}, "max_attempts"),
    ],
)
def test_wrong_arguments(options, expected):
    with pytest.raises(tf.errors.InvalidArgumentError, match=expected):
        sample(0, **options)
