"""Beam search next to results of TensorFlow 2.15.1."""

import numpy as np
import pytest

import meshflow as tf


@pytest.mark.parametrize(
    "seed, paths, scores",
    [
        (68, [[1, 0], [2, 1, 0]], [-2.4051, -2.6742]),
        (95, [[2, 0, 1, 2], [2, 1, 2]], [-1.8144, -1.9804]),
    ],
)
def test_sequences_that_left_a_narrow_beam_are_not_extended(seed, paths, scores):
    logits = np.random.RandomState(seed).randn(6, 1, 4).astype("float32") * 2
    decoded, logs = tf.nn.ctc_beam_search_decoder(logits, [6], beam_width=3, top_paths=2)
    assert [path.values.numpy().tolist() for path in decoded] == paths
    np.testing.assert_allclose(logs, [scores], atol=1e-4)
