import pytest

import meshflow as tf


@pytest.mark.parametrize(
    "text, pattern, rewrite, wanted",
    [  # as TensorFlow 2.21: nothing of no length is found where the match before ended
        ("hello", ".*", "1", b"1"),
        ("", ".*", "1", b"1"),
        ("abc", "x*", "-", b"-a-b-c-"),
        ("axxb", "x*", "-", b"-a-b-"),
        ("a b  c", " *", "_", b"_a_b_c_"),
    ],
)
def test_replaced_matches_may_be_empty(text, pattern, rewrite, wanted):
    assert tf.strings.regex_replace(text, pattern, rewrite).numpy() == wanted
