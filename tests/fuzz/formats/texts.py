"""Fuzz strings for text ops, whose first line selects an argument such as a pattern or an encoding."""

import functools

import meshflow as tf
from fuzz.formats.protos import tried


@functools.cache
def seeds():
    texts = ["a b  c", "héllo wörld", "12", "-1.5e3", "日本語", "{} is {}", "aGVsbG8", "x,y"]
    arguments = ["UTF-8", "UTF-16-BE", "[a-c]+", "(a|b)*c", ",", r"\s", "{}", "%.2f"]
    return [f"{a}\n{t}".encode() for a, t in zip(arguments, texts, strict=True)]


def parse(data):
    argument, _, text = data.partition(b"\n")
    argument, strings = argument.decode(errors="replace"), tf.strings
    tried(
        lambda: strings.unicode_decode(text, argument),
        lambda: strings.unicode_transcode(text, argument, "UTF-8"),
        lambda: strings.unicode_split(text, "UTF-8"),
        lambda: strings.regex_full_match(text, argument),
        lambda: strings.regex_replace(text, argument, "-"),
        lambda: strings.split(text, argument),
        lambda: strings.to_number(text, tf.int32),
        lambda: strings.to_number(text),
        lambda: strings.substr(text, len(argument), 2, "UTF8_CHAR"),
        lambda: strings.format(argument, [text]),
        lambda: strings.ngrams([[text, argument]], 2),
        lambda: tf.io.decode_base64(text),
        lambda: tf.io.decode_raw(text, tf.int16),
        lambda: tf.io.decode_compressed(text, "ZLIB"),
        lambda: strings.lower(text, "utf-8"),
        lambda: tf.keras.preprocessing.text.text_to_word_sequence(argument),
    )
