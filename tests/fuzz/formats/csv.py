"""CSV files and lines."""

import functools

import meshflow as tf
from fuzz.formats.files import written
from fuzz.formats.protos import tried


@functools.cache
def seeds():
    plain = b'a,b,c\n1,2.5,"x, y"\n-3,1e3,z\n4,,"with ""quotes"" \n and lines"\n'
    return [plain, plain.replace(b"\n", b"\r\n"), b"1,2.0,\xc3\xa9\n" * 20]


def parse(data):
    kinds = [tf.int32, tf.float32, tf.string]
    path = written(data)
    defaults = [[0], [0.0], [""]]
    tried(
        lambda: list(tf.data.experimental.CsvDataset(path, kinds, header=True)),
        lambda: list(tf.data.experimental.CsvDataset(path, defaults).ignore_errors()),
        lambda: tf.io.decode_csv(data.split(b"\n")[0], defaults),
    )
