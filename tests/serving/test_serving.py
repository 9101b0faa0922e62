"""A saved model served by a process of its own, over HTTP."""

import json
import os
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import numpy as np
import pytest

import meshflow as tf

pytest.importorskip("starlette", reason="needs the extra serving")
pytest.importorskip("uvicorn", reason="needs the extra serving")


class Scaled(tf.Module):
    def __init__(self, factor):
        self.factor = tf.Variable(factor)

    @tf.function(input_signature=[tf.TensorSpec([None, 2], name="x")])
    def scaled(self, x):
        return {"y": x * self.factor}

    @tf.function(input_signature=[tf.TensorSpec([], tf.float32, name="a"), tf.TensorSpec([3], name="b")])  # fmt: skip
    def total(self, a, b):
        return {"sum": a + tf.reduce_sum(b)}


def _save(folder, factor):
    module = Scaled(factor)
    tf.saved_model.save(module, str(folder), {"serving_default": module.scaled, "total": module.total})  # fmt: skip


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "versions"
    _save(folder / "1", 2.0)
    command = [sys.executable, "-m", "meshflow", "serve", str(folder), "--name", "scaled", "--port", "0"]  # fmt: skip
    options = ["--max-batch", "4", "--poll", "0.1", "--label", "stable=1"]
    process = subprocess.Popen(
        command + options, stdout=subprocess.PIPE, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"}
    )  # fmt: skip
    try:
        line = process.stdout.readline()
        assert line.startswith("Serving scaled at http://127.0.0.1:"), line
        yield line.split(" at ")[1].strip(), folder
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def _ask(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=60) as answer:
            text = answer.read().decode()
            return answer.status, text if "metrics" in url else json.loads(text)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_requests_and_errors(served):
    url, _ = served
    assert _ask(url + ":predict", {"instances": [[1, 2], [3, 4]]}) == (
        200,
        {"predictions": [[2.0, 4.0], [6.0, 8.0]]},
    )
    assert _ask(url + "/versions/1:predict", {"inputs": {"x": [[1, 2]]}}) == (
        200,
        {"outputs": [[2.0, 4.0]]},
    )
    assert _ask(url + "/labels/stable:predict", {"instances": [[1, 1]]})[0] == 200
    named = {"signature_name": "total", "inputs": {"a": 1, "b": [1, 2, 3]}}
    assert _ask(url + ":predict", named) == (200, {"outputs": 7.0})
    status, content = _ask(url)
    assert status == 200
    assert content["model_version_status"] == [
        {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    ]
    status, content = _ask(url + "/metadata")
    signature = content["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert content["model_spec"] == {"name": "scaled", "signature_name": "", "version": "1"}
    assert signature["inputs"]["x"]["tensor_shape"]["dim"][0]["size"] == "-1"
    assert signature["outputs"]["y"]["dtype"] == "DT_FLOAT"
    for address, body, code, message in (
        (url + ":predict", {"instances": [[1, 2, 3]]}, 400, "expected [None, 2]"),
        (url + ":predict", {"rows": []}, 400, "Missing 'inputs' or 'instances' key"),
        (url + ":predict", {"signature_name": "no", "instances": [1]}, 400, 'key "no" not found'),
        (url + "/versions/7:predict", {"instances": [[1, 2]]}, 404, "Specific(scaled, 7)"),
        (url + "/labels/new:predict", {"instances": [[1, 2]]}, 404, "version label: new"),
        (url + "/versions/7", None, 404, "version 7"),
        (url.replace("scaled", "other") + ":predict", {"instances": []}, 404, "Latest(other)"),
        (url + "/nothing", None, 400, "Malformed request"),
    ):
        status, content = _ask(address, body)
        assert status == code and message in content["error"], (address, status, content)
    root = url.split("/v1/")[0]
    text = _ask(root + "/monitoring/prometheus/metrics")[1]
    assert ':tensorflow:serving:request_count{model_name="scaled",status="NOT_FOUND"} 2' in text
    assert "meshflow_serving_batched_rows" in text


def test_a_new_version_takes_over_without_a_lost_request(served):
    url, folder = served
    found, done = [], threading.Event()

    def client():
        while not done.is_set():
            found.append(_ask(url + ":predict", {"instances": [[1, 1]]}))

    threads = [threading.Thread(target=client) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        _save(folder.parent / "2", 5.0)
        # A folder that is there before its files are: it is tried again.
        (folder / "2").mkdir()
        for file in (folder.parent / "2").rglob("*"):
            if file.is_file():
                target = folder / "2" / file.relative_to(folder.parent / "2")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, target)
        while found[-1:] != [(200, {"predictions": [[5.0, 5.0]]})]:
            assert all(thread.is_alive() for thread in threads)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert {status for status, _ in found} == {200}
    values = np.array([content["predictions"][0][0] for _, content in found])
    assert set(values) == {2.0, 5.0}
    # The label holds the old version.
    assert _ask(url + "/versions/1:predict", {"instances": [[1, 1]]})[0] == 200
