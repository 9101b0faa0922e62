"""Maps in worker processes."""

import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import meshflow as tf
from meshflow.environment.garbage_collection import collect_garbage

pytest.importorskip("cloudpickle")
D, E = tf.data.Dataset, tf.data.experimental


def workers(fn, count=2, **kwargs):
    return E.map_with_workers(fn, count, **kwargs)


def running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition):
    for _ in range(200):
        if condition():
            return True
        time.sleep(0.05)
    return False


def test_order_and_structure():
    offset = 10

    def fn(x, words):
        # Later elements are done first.
        time.sleep(0.02 * (3 - x % 4))
        assert isinstance(words["w"], bytes)
        return {"n": x + offset, "both": (np.full(2, x, np.float32), words["w"] + b"!")}

    names = [b"w%d" % i for i in range(12)]
    data = D.zip((D.range(12), D.from_tensor_slices({"w": names}))).apply(workers(fn, 3))
    for _ in range(2):
        found = list(data)
        assert [int(e["n"]) for e in found] == list(range(10, 22))
        assert [e["both"][1].numpy() for e in found] == [n + b"!" for n in names]
    assert data.element_spec["both"][0].dtype == tf.float32
    assert len(data) == 12
    batch = next(iter(data.batch(4)))
    np.testing.assert_array_equal(batch["both"][0], [[i, i] for i in range(4)])


def test_work_is_shared_and_prints_do_not_disturb(capfd):
    def fn(x):
        print("working", flush=True)
        time.sleep(0.1)
        return os.getpid()

    pids = {int(p) for p in D.range(6).apply(workers(fn, 2))}
    assert len(pids) == 2 and os.getpid() not in pids
    assert "working" in capfd.readouterr().out
    assert wait_until(lambda: not any(map(running, pids)))


def test_random_numbers_depend_only_on_the_seed():
    def numbers(count):
        tf.random.set_seed(3)
        data = D.range(6).apply(workers(lambda _: (np.random.rand(), random.random()), count))
        return [[(float(a), float(b)) for a, b in data] for _ in range(2)]

    first, second = numbers(1)
    assert numbers(2) == [first, second]
    assert first != second and len(set(first)) == 6


def test_signature():
    spec = tf.TensorSpec([None], tf.float32)
    data = D.range(3).apply(workers(lambda n: np.zeros(n, np.float32), output_signature=spec))
    assert data.element_spec == spec and [x.shape[0] for x in data] == [0, 1, 2]
    for wrong in (lambda n: np.zeros(2), lambda n: np.float32(1), lambda n: (n, n)):
        with pytest.raises(TypeError, match="element 0"):
            list(D.range(3).apply(workers(wrong, output_signature=spec)))


def test_errors_name_the_element_and_traceback():
    def fn(x):
        if x == 3:
            raise ValueError("not three")
        return x

    iterator = iter(D.range(9).apply(workers(fn)))
    assert [int(next(iterator)) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="not three") as caught:
        next(iterator)
    assert "element 3" in caught.value.__notes__[0] and "in fn" in caught.value.__notes__[0]

    def strange(x):
        class Local(Exception):
            def __init__(self, one, two):
                super().__init__(one)

        raise Local("told in words", 2)

    with pytest.raises(Exception, match="told in words"):
        list(D.range(2).apply(workers(strange)))
    with pytest.raises(ValueError, match="num_workers"):
        workers(fn, 0)


def test_killed_worker():
    def fn(x):
        if x == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return x

    with pytest.raises(tf.errors.AbortedError, match=r"killed by SIGKILL.*memory.*element 2"):
        list(D.range(9).apply(workers(fn)))
    with pytest.raises(tf.errors.AbortedError, match="exited with status 7"):
        list(D.range(9).apply(workers(lambda x: os._exit(7))))


def test_broken_off_iteration_leaves_no_process():
    pids = []
    for pid in D.range(10**6).apply(workers(lambda x: os.getpid())):
        pids.append(int(pid))
        if len(set(pids)) == 2:
            break
    del pid
    collect_garbage()
    assert wait_until(lambda: not any(map(running, set(pids))))


def test_killed_parent_leaves_no_process(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        "import time, os\n"
        "import meshflow as tf\n"
        "def slow(x):\n"
        "    if x > 1:\n"
        "        time.sleep(1000)\n"
        "    return os.getpid()\n"
        "data = tf.data.Dataset.range(9).apply(tf.data.experimental.map_with_workers(slow, 2))\n"
        "for pid in data:\n"
        "    print(int(pid), flush=True)\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE) as parent:
        pids = [int(parent.stdout.readline()) for _ in range(2)]
        assert any(map(running, pids))
        parent.kill()
    assert wait_until(lambda: not any(map(running, pids)))


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(ImportError, match=r"meshflow-tf\[workers\]"):
        workers(len)


def test_parallel_calls_run_python_in_threads():
    import threading

    threads = set()

    def slow(x):
        threads.add(threading.get_ident())
        time.sleep(0.05)
        return np.int64(int(x) * 2)

    def fn(x):
        return tf.numpy_function(slow, [x], tf.int64) if tf.executing_eagerly() else x.numpy()

    data = D.range(9).map(fn, num_parallel_calls=4)
    assert "in 4 threads" in E.explain(data)
    assert [int(x) for x in data] == [2 * n for n in range(9)]
    assert len(threads) > 1
    threads.clear()
    assert [int(x) for x in D.range(9).map(fn)] == [2 * n for n in range(9)]
    assert len(threads) == 1


def test_random_ops_depend_on_the_element_index():
    def drawn(x):
        time.sleep(0.01 * (2 - x.numpy() % 3))
        return tf.random.uniform([]), tf.random.normal([], seed=3)

    def numbers(threads):
        tf.random.set_seed(1)
        data = D.range(8).map(drawn, num_parallel_calls=threads)
        return [[(float(a), float(b)) for a, b in data] for _ in range(2)]

    first, second = numbers(2)
    assert numbers(4) == numbers(tf.data.AUTOTUNE) == [first, second]
    assert first == second
    assert len({n for both in first for n in both}) == 16


def test_python_numbers_and_variables_run_per_element():
    def drawn(x):
        x.numpy()
        return np.random.rand(), random.random()

    def numbers(**kwargs):
        np.random.seed(1)
        random.seed(1)
        return [(float(a), float(b)) for a, b in D.range(8).map(drawn, **kwargs)]

    assert numbers(num_parallel_calls=4) == numbers()
    count = tf.Variable(0)

    def counted(x):
        x.numpy()
        return count.assign_add(1)

    found = [int(c) for c in D.range(50).map(counted, num_parallel_calls=4)]
    assert found == sorted(found)


def test_error_in_a_thread_is_raised_in_order():
    def fn(x):
        if x.numpy() == 5:
            raise ValueError("five")
        return x

    iterator = iter(D.range(9).map(fn, num_parallel_calls=3))
    assert [int(next(iterator)) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="five"):
        next(iterator)


def test_no_thread_works_ahead_when_the_interpreter_ends():
    program = """
import atexit, threading
atexit.register(lambda: print([t.name for t in threading.enumerate() if "tf.data" in t.name]))
import meshflow as tf
from meshflow.environment.garbage_collection import collect_garbage
elements = iter(tf.data.Dataset.range(10**9).map(lambda x: x, num_parallel_calls=2).prefetch(2))
next(elements)
print([t.name for t in threading.enumerate() if t.name == "tf.data prefetch"])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    before, after = done.stdout.splitlines()
    assert "tf.data prefetch" in before and after == "[]"
