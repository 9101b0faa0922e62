import numpy as np
import pytest

import meshflow as tf
from meshflow.ops import regular_expressions


@pytest.mark.parametrize(
    "text, pattern, rewrite, wanted",
    [  # as TensorFlow 2.21: no empty match is found at the end of the previous match
        ("hello", ".*", "1", b"1"),
        ("", ".*", "1", b"1"),
        ("abc", "x*", "-", b"-a-b-c-"),
        ("axxb", "x*", "-", b"-a-b-"),
        ("a b  c", " *", "_", b"_a_b_c_"),
    ],
)
def test_replaced_matches_may_be_empty(text, pattern, rewrite, wanted):
    assert tf.strings.regex_replace(text, pattern, rewrite).numpy() == wanted


@pytest.mark.parametrize(
    "text, pattern, rewrite, expected",
    [  # values of TensorFlow 2.21
        (b"a\xffb", ".", " ", b" \xff "),
        (b"a\xff\xc3\xa9b", "x*", "-", b"-a-\xff-\xc3\xa9-b-"),
        (b"a\xe2\x82b", "x*", "-", b"-a-\xe2-\x82-b-"),
        ("é€b", "x*", "-", "-é-€-b-".encode()),
        ("xay", "(a)|(b)", r"[\1\2]", b"x[a]y"),
        ("ab", "a", r"\\\0", b"\\ab"),
        ("a\nb", "a.b", "-", b"a\nb"),
        ("aab", "a*?", "-", b"-a-a-b-"),
        ("a\xa0b", r"\s", "_", "a\xa0b".encode()),
        ("abc", r"\Bb\B", "-", b"a-c"),
        ("é", r"\C", "-", b"--"),
        ("ab", r"\z", "-", b"ab-"),
        ("xabc", "|b", "-", b"-x-a-b-c-"),
    ],
)
def test_expressions_match_utf8_as_re2_does(text, pattern, rewrite, expected):
    assert tf.strings.regex_replace(text, pattern, rewrite).numpy() == expected


@pytest.mark.parametrize(
    "pattern, rewrite, all_matches, first_match",
    [  # values of TensorFlow 2.15
        (",", r" \0 \1", b"a,b,c", b"a,b,c"),
        ("(,)", r"<\1\2>", b"a,b,c", b"a,b,c"),
        (",", r"-\q", b"a-b-c", b"a,b,c"),
        (",", "\\", b"abc", b"a,b,c"),
        ("(,)", r"\10", b"a,0b,0c", b"a,0b,c"),
    ],
)
def test_invalid_rewrites(pattern, rewrite, all_matches, first_match):
    replaced = [tf.strings.regex_replace("a,b,c", pattern, rewrite, g) for g in (True, False)]
    assert [t.numpy() for t in replaced] == [all_matches, first_match]


@pytest.mark.parametrize(
    "pattern, rewrite, message",
    [
        ("(?=a)", "", "invalid perl operator"),
        (r"\Z", "", "invalid escape sequence"),
        ("a{1001}", "", "invalid repetition size"),
        ("[[:foo:]]", "", "invalid character class range"),
        ("*a", "", "no argument for repetition operator"),
        (b"\xff", "", "invalid UTF-8"),
        ("(((((a{30}){30}){30}){30}){30})", "", "invalid repetition size"),
    ],
)
def test_invalid_expressions_are_errors(pattern, rewrite, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        tf.strings.regex_replace("ab", pattern, rewrite)


def test_expressions_match_in_linear_time():
    # A backtracking engine would need 2**100000 steps.
    text = "a" * 100_000 + "!"
    assert not tf.strings.regex_full_match(text, "(a+)+$")
    assert tf.strings.regex_replace(text, "(a|aa)+$", "").numpy() == text.encode()


def test_scripts_of_code_points():
    # As TensorFlow 2.15: letters of four scripts, signs, and numbers that are no characters.
    points = [
        [0x41, 0x3B1, 0x44F, 0x5D0],
        [0x4E00, 0xAC00, 0x1F600, 0xE01],
        [0, -5, 0x110000, 0x10FFFF],
    ]
    wanted = [[25, 14, 8, 19], [17, 18, 0, 38], [0, -1, -1, 103]]
    assert tf.strings.unicode_script(points).numpy().tolist() == wanted
    rows = tf.strings.unicode_decode(["a", "bb ", "я"], "UTF-8")
    assert tf.strings.unicode_script(rows).to_list() == [[25], [25, 25, 0], [8]]


def test_invalid_bytes_keep_the_offsets_of_later_characters():
    words = [b"\xfe", b"==\xff=", "h\u00e9y".encode()]
    points, starts = tf.strings.unicode_decode_with_offsets(words, "UTF-8")
    assert points.to_list() == [[0xFFFD], [61, 61, 0xFFFD, 61], [104, 233, 121]]
    assert starts.to_list() == [[0], [0, 1, 2, 3], [0, 1, 3]]
    points, starts = tf.strings.unicode_decode_with_offsets(words, "UTF-8", errors="ignore")
    assert (points.to_list()[1], starts.to_list()[1]) == ([61] * 3, [0, 1, 3])
    assert tf.strings.unicode_transcode(b"a\xff", "UTF-8", "UTF-8", replacement_char=66) == b"aB"
    # Python's bytes of U+FFFD in the input are a character, not an error.
    assert tf.strings.unicode_decode("\ufffd".encode(), "UTF-8", replacement_char=66) == [0xFFFD]
    # Reserved code points are invalid.
    assert tf.strings.unicode_encode([0x1FFFF, 0xFDD0], "UTF-8", "replace", 65) == b"AA"
    for function in (tf.strings.unicode_decode, tf.strings.unicode_split):
        with pytest.raises(tf.errors.InvalidArgumentError, match="out of unicode codepoint range"):
            function("x", "UTF-8", replacement_char=0x110000)


def test_many_invalid_bytes_are_decoded_in_linear_time():
    # Quadratic time would be minutes.
    assert tf.strings.unicode_decode(b"\xff" * 1_000_000, "UTF-8").shape == [1_000_000]


def test_strings_are_joined_along_axes_of_any_integer_type():
    words = [["a", "b"], ["c", "d"]]
    for axis in (1, np.int64(1), tf.constant(1), np.array([1])):
        assert tf.strings.reduce_join(words, axis).numpy().tolist() == [b"ab", b"cd"]
    assert tf.strings.reduce_join(words, tf.constant([0, 1])) == b"acbd"


def test_separators_may_be_bytes():
    assert tf.strings.join(["a", "b"], b"-") == b"a-b"
    assert tf.strings.reduce_join(["a", "b"], separator=b"-") == b"a-b"
    assert tf.strings.ngrams(["a", "b"], 2, b"-").numpy().tolist() == [b"a-b"]
    with pytest.raises(tf.errors.InvalidArgumentError, match="Invalid reduction dimension 1"):
        tf.strings.reduce_join(["a"], axis=1)
    empty = tf.zeros([0, 2], tf.string)
    assert tf.strings.reduce_join(empty, axis=0).numpy().tolist() == [b"", b""]
    joined = tf.strings.unsorted_segment_join(
        [["a", "p"], ["b", "q"], ["c", "r"]], [0, -1, 0], 2, ":"
    )
    assert joined.numpy().tolist() == [[b"a:c", b"p:r"], [b"", b""]]


def test_splits_of_version_1():
    v1 = tf.compat.v1
    split = v1.string_split(["a|b c", "#"], "| ")
    assert (split.values.numpy().tolist(), split.dense_shape.numpy().tolist()) == (
        [b"a", b"b", b"c", b"#"],
        [2, 3],
    )
    assert v1.string_split(["#a"], "#", skip_empty=False).values.numpy().tolist() == [b"", b"a"]
    assert v1.string_split(["ab"], "", result_type="RaggedTensor").to_list() == [[b"a", b"b"]]
    assert v1.strings.split(["a b", "c"]).values.numpy().tolist() == [b"a", b"b", b"c"]
    with pytest.raises(ValueError, match="result_type must be"):
        v1.strings.split(["a"], result_type="Tensor")
    with pytest.raises(ValueError, match="string scalar"):
        v1.string_split(["a"], ["|", ""])


@pytest.mark.parametrize(
    "pattern",
    [
        "w",
        "<br />",
        "[aw]",
        r"[!-/:-@\[-`{-~]",
        "[a-c^]",
        r"[a\]\-]",
        "[^a]",
        "é",
        "[é]",
        r"[\d]",
        "[ab]+",
        "a|b",
    ],
)
def test_replacements_by_bytes_are_those_of_the_pattern(pattern, monkeypatch):
    texts = ["", "a", "wwbw", "<br /><br />", "c]-^a1é.", "[a]w\n`!"]
    texts = [text.encode() for text in texts] + [b"\xffa\x00]"]
    replace = lambda rewrite, every: tf.strings.regex_replace(texts, pattern, rewrite, every)
    cases = [
        (rewrite, every) for rewrite in ("", "-", "xy", r"\0.", r"\\") for every in (True, False)
    ]
    found = [replace(*case).numpy().tolist() for case in cases]
    monkeypatch.setattr(regular_expressions, "_make_byte_replacer", lambda *_: None)
    assert found == [replace(*case).numpy().tolist() for case in cases]


def test_numbers_in_hexadecimal_digits():
    assert tf.strings.to_number(["0xF", " -0x1a "]).numpy().tolist() == [15.0, -26.0]
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="could not correctly convert string: 0xg"
    ):
        tf.strings.to_number("0xg")
