"""How datasets are divided between workers, against TensorFlow."""

import itertools
import json
import logging
from pathlib import Path

import pytest

import meshflow as tf
from meshflow.data.sharding import auto_shard
from reference.shard_cases import DATASETS, POLICIES, WORKERS, make_files, run

FOUND = json.loads((Path(__file__).parents[1] / "reference" / "shards.json").read_text())
D, E = tf.data.Dataset, tf.data.experimental
Policy = E.AutoShardPolicy
# TensorFlow refuses data that can be divided by elements, or shares a cache between shards.
OTHERS = {
    **{f"one 2 {p}": [["b'0a'"], []] for p in ("AUTO", "DATA")},
    **{f"one 3 {p}": [["b'0a'"], [], []] for p in ("AUTO", "DATA")},
    "joined 3 AUTO": "joined 3 DATA",
    **{f"mixed {n} AUTO": f"mixed {n} DATA" for n in WORKERS},
    **{f"cached {n} {p}": f"of_names {n} {p}" for n in WORKERS for p in ("AUTO", "FILE")},
}


@pytest.fixture
def names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return make_files()


@pytest.mark.parametrize("key", DATASETS)
def test_parts(key, names):
    for workers, policy in itertools.product(WORKERS, POLICIES):
        case = f"{key} {workers} {policy}"
        own, wanted = run(tf, auto_shard, DATASETS[key], names, workers, policy), FOUND[case]
        other = OTHERS.get(case, wanted)
        wanted = FOUND[other] if isinstance(other, str) else other
        if "error" in wanted:
            assert set(own["error"]) & set(wanted["error"]), case
        else:
            assert own == wanted, case


def test_too_few_files_for_sharding_warns(names, caplog):
    data = tf.data.TextLineDataset(names[:1])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"only has 1 file\(s\).*DATA"):
        auto_shard(data, 2, 0, Policy.FILE)
    with caplog.at_level(logging.WARNING, "meshflow"):
        auto_shard(data, 2, 0)
    assert "DATA instead of FILE" in caplog.text
    with pytest.raises(tf.errors.NotFoundError, match="reads no files"):
        auto_shard(D.range(3), 2, 0, Policy.FILE)
    with pytest.raises(tf.errors.InvalidArgumentError, match="index"):
        auto_shard(D.range(3), 2, 2)


def test_parts_of_shuffled_names_do_not_overlap(names):
    listed = D.list_files("*.txt").interleave(tf.data.TextLineDataset)
    parts = [sorted(x.numpy() for x in auto_shard(listed, 2, i, Policy.FILE)) for i in range(2)]
    assert parts == [[b"0a", b"2a", b"2b", b"2c"], [b"1a", b"1b", b"3a", b"3b", b"3c", b"3d"]]


def test_other_readers(names, tmp_path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for n in range(3):
        parquet.write_table(pa.table({"x": [n, n + 10]}), f"{n}.parquet")
        Path(f"{n}.csv").write_text(f"x\n{n}\n{n + 10}\n")
    sources = {
        "parquet": E.from_parquet("*.parquet").map(lambda r: r["x"]),
        "csv": E.CsvDataset(["0.csv", "1.csv", "2.csv"], [0], header=True).map(lambda x: x),
    }
    for data in sources.values():
        parts = [[int(x) for x in auto_shard(data, 2, i, Policy.FILE)] for i in range(2)]
        assert parts == [[0, 10, 2, 12], [1, 11]]
        assert len(list(data)) == 6
    table = E.make_csv_dataset("*.csv", 6, num_epochs=1, shuffle=True)
    part = next(iter(auto_shard(table, 2, 0, Policy.FILE)))["x"]
    assert sorted(part.numpy().tolist()) == [0, 2, 10, 12]


def test_caches_of_parts_are_apart(names, tmp_path):
    whole = tf.data.TextLineDataset(names).cache(str(tmp_path / "cache"))
    parts = [auto_shard(whole, 2, i, Policy.FILE) for i in range(2)]
    for _ in range(2):
        counts = [len(list(p)) for p in (*parts, whole)]
        assert counts == [4, 6, 10]


def test_hint_without_dataset_is_refused():
    with pytest.raises(tf.errors.FailedPreconditionError, match="HINT"):
        list(D.range(4).shard(E.SHARD_HINT, E.SHARD_HINT))
    with pytest.raises(tf.errors.InvalidArgumentError):
        D.range(4).shard(E.SHARD_HINT, 0)
