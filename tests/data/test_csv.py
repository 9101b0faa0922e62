"""CSV datasets against TensorFlow's."""

import gzip
import json
import zlib
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf
from meshflow.ops import tables
from reference.csv_cases import CASES, FILES, run

FOUND = json.loads((Path(__file__).parents[1] / "reference" / "csv.json").read_text())
E = tf.data.experimental


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("text", CASES)
def test_case(text, folder):
    own, wanted = run(tf, text), FOUND[text]
    assert own["elements"] == wanted["elements"]
    if "error" in wanted:
        assert set(own["error"]) & set(wanted["error"])
    else:
        assert own["spec"] == wanted["spec"]


def test_errors_name_file_and_line(folder):
    rows = iter(E.CsvDataset("bad.csv", [tf.int32, tf.int32], header=True))
    assert [int(x) for x in next(rows)] == [1, 2]
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"Field 0 .*bad\.csv, line 3 is not a valid int32: three",
    ):
        next(rows)
    with pytest.raises(ValueError, match="bool"):
        E.CsvDataset("bare.csv", [tf.int32, tf.bool])
    with pytest.raises(tf.errors.InvalidArgumentError, match="exclude_cols"):
        E.CsvDataset("bare.csv", [tf.int32], select_cols=[0], exclude_cols=[1])
    with pytest.raises(ValueError, match="one character"):
        list(E.CsvDataset("bare.csv", [0, 0], field_delim=",,"))


@pytest.mark.parametrize("kind", ["GZIP", "ZLIB"])
def test_compressed(folder, kind):
    squeeze = gzip.compress if kind == "GZIP" else zlib.compress
    Path("c.csv").write_bytes(squeeze(FILES["plain.csv"].encode()))
    rows = E.make_csv_dataset(
        "c.csv", 5, label_name="x", num_epochs=1, shuffle=False, compression_type=kind
    )
    features, label = next(iter(rows))
    assert label.numpy().tolist() == [1, 2, 3, 4, 5]
    assert features["name"].numpy().tolist() == [b"one", b"two", b"", b"four", b"five"]


def test_shuffled_rows_are_the_same_rows(folder):
    def names(seed):
        rows = E.make_csv_dataset(
            ["plain.csv", "more.csv"], 7, num_epochs=1, shuffle_seed=seed, num_parallel_reads=-1
        )
        return [n for batch in rows for n in batch["name"].numpy().tolist()]

    assert sorted(names(1)) == sorted([b"one", b"two", b"", b"four", b"five", b"nine", b"eight"])
    assert names(1) == names(1)
    assert len({tuple(names(seed)) for seed in range(5)}) > 1


def test_fit_on_a_table(folder):
    rows = "".join(f"{i / 10},{i % 3},{2 * i / 10 + i % 3}\n" for i in range(40))
    Path("fit.csv").write_text("a,b,y\n" + rows)
    data = E.make_csv_dataset("fit.csv", 10, label_name="y", num_epochs=1, shuffle=False).map(
        lambda f, y: (tf.stack([tf.cast(v, tf.float32) for v in f.values()], -1), y)
    )
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile(tf.keras.optimizers.Adam(0.1), "mse")
    history = model.fit(data, epochs=30, verbose=0).history["loss"]
    assert history[-1] < history[0] / 10


def test_invalid_text_is_reported(tmp_path):
    path = str(tmp_path / "bad.csv")
    tf.io.write_file(path, b"x,name\n1,one\n2,tw\xff\n" + b"3,three\n" * 2000)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"bad.csv, line 3: byte 0xff is not valid"
    ):
        tf.data.experimental.make_csv_dataset(path, 2, num_epochs=1)


@pytest.mark.parametrize("quote", ["", '"'])
def test_fields_may_be_long(tmp_path, quote):
    text = "x" * 300_000
    path = tmp_path / "long.csv"
    path.write_text(f"a,b\n{quote}{text}{quote},1\n")
    ((word, number),) = tf.data.experimental.CsvDataset(str(path), [tf.string, 0], header=True)
    assert word.numpy().decode() == text and number.numpy() == 1
    (batch,) = E.make_csv_dataset(str(path), 1, num_epochs=1, shuffle=False)
    assert batch["a"].numpy()[0].decode() == text
    word, number = tf.io.decode_csv(f"{quote}{text}{quote},1", [[""], [0]])
    assert word.numpy().decode() == text


@pytest.mark.parametrize(
    "bad",
    ["", "x,1,1", "1,2", "1,,2", "5000000000,1,1", "1_0,1,1", "3,2.5,a", "7,NA,"],
)
@pytest.mark.parametrize("select", [None, [0, 2]])
def test_columns_of_many_rows_equal_single_rows(tmp_path, bad, select):
    lines = [f"{i},{i / 7},\u00e9{i}" if i % 5 else f" {i} ,NA," for i in range(300)]
    lines[270] = bad
    defaults = [tf.int32, np.float32(-1), np.array(b"d\0", object)]
    defaults = defaults if select is None else [defaults[i] for i in select]
    columns = tables.make_columns(defaults)
    expected, errors = [], []
    for index, line in enumerate(lines):
        try:
            fields = line.split(",") if line else []
            expected.append(tables.parse_row(fields, columns, select, "NA", ""))
        except tf.errors.InvalidArgumentError:
            errors.append(index)
    path = tmp_path / "a.csv"
    path.write_text("\n".join(lines) + "\n", "utf-8")
    data = E.CsvDataset(str(path), defaults, na_value="NA", select_cols=select)
    rows = list(data.ignore_errors().as_numpy_iterator())
    assert rows == [tuple(row) for row in expected]
    assert [type(value) for value in rows[0]] == [type(value) for value in expected[0]]
    if errors:
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"record 270: .*a.csv, line 271"):
            list(data)
    decoded = tf.io.decode_csv(lines[:9], defaults, na_value="NA", select_cols=select)
    assert list(zip(*(v.numpy().tolist() for v in decoded), strict=True)) == rows[:9]
