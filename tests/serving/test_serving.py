"""Serve a saved model in a separate process, over HTTP."""

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
pytest.importorskip("grpc", reason="needs the extra serving")


class Scaled(tf.Module):
    def __init__(self, factor):
        self.factor = tf.Variable(factor)

    @tf.function(input_signature=[tf.TensorSpec([None, 2], name="x")])
    def scaled(self, x):
        return {"y": x * self.factor}

    @tf.function(input_signature=[tf.TensorSpec([], tf.float32, name="a"), tf.TensorSpec([3], name="b")])  # fmt: skip
    def total(self, a, b):
        return {"sum": a + tf.reduce_sum(b)}

    def of_examples(self, texts):
        feature = tf.io.FixedLenFeature([], tf.float32)
        return tf.io.parse_example(texts, {"x": feature})["x"] * self.factor

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="inputs")])
    def regress(self, inputs):
        return {"outputs": self.of_examples(inputs)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="inputs")])
    def classify(self, inputs):
        x = self.of_examples(inputs)
        return {"scores": tf.stack([x, -x], -1)}

    @tf.function(input_signature=[tf.TensorSpec([None], name="x"), tf.TensorSpec([None], tf.int32, name="counts")])  # fmt: skip
    def repeat(self, x, counts):
        """Return sizes that depend on values, and a ragged tensor padded by its longest row."""
        rows = tf.RaggedTensor.from_row_lengths(tf.repeat(x, counts), counts)
        results = {"repeated": rows.flat_values * self.factor, "padded": rows.to_tensor()}
        return {**results, "distinct": tf.unique(counts)[0], "large": tf.boolean_mask(x, x > 1.0)}


def _save(folder, factor):
    module = Scaled(factor)
    signatures = {n: getattr(module, n) for n in ("total", "regress", "classify", "repeat")}
    tf.saved_model.save(module, str(folder), {"serving_default": module.scaled, **signatures})


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "versions"
    _save(folder / "1", 2.0)
    command = [sys.executable, "-m", "meshflow", "serve", str(folder), "--name", "scaled", "--port", "0"]  # fmt: skip
    options = ["--max-batch", "4", "--poll", "0.1", "--label", "stable=1", "--grpc-port", "0"]
    process = subprocess.Popen(
        command + options, stdout=subprocess.PIPE, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"}
    )  # fmt: skip
    try:
        target = process.stdout.readline()
        assert target.startswith("Serving scaled by gRPC at 127.0.0.1:"), target
        line = process.stdout.readline()
        assert line.startswith("Serving scaled at http://127.0.0.1:"), line
        yield line.split(" at ")[1].strip(), folder, target.split(" at ")[1].strip()
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


@pytest.fixture(scope="module")
def served(places):
    return places[:2]


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
        (url + ":predict", {"signature_name": "no", "instances": [1]}, 400, 'name: "no" not found'),
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


def test_requests_with_results_of_unknown_sizes(served):
    url, _ = served

    def ask(x, counts):
        inputs = {"x": x, "counts": counts}
        return _ask(url + ":predict", {"signature_name": "repeat", "inputs": inputs})

    requests = [([1.0, 2.0], [2, 0]), ([3.0], [3]), ([4.0, 5.0], [0, 2]), ([6.0], [1])] * 3
    answers = [None] * len(requests)
    threads = [
        threading.Thread(target=lambda i=i: answers.__setitem__(i, ask(*requests[i])))
        for i in range(len(requests))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for (x, counts), (status, content) in zip(requests, answers, strict=True):
        assert status == 200, content
        repeated = np.repeat(x, counts)
        rows = np.split(repeated, np.cumsum(counts)[:-1])
        widths = [[*row, *[0.0] * (max(counts) - len(row))] for row in rows]
        assert content["outputs"] == {
            "repeated": (2.0 * repeated).tolist(),
            "padded": widths,
            "distinct": list(dict.fromkeys(counts)),
            "large": [v for v in x if v > 1.0],
        }
    status, content = ask([1.0, 2.0], [1, 1, 1])
    assert status == 400 and "broadcast" in content["error"], content
    assert ask([1.0], [2])[0] == 200


def _messages():
    """TensorFlow Serving's messages in the package that they have there."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    text = """
      name: "serving_test.proto" package: "serving_test" syntax: "proto3"
      message_type { name: "Dim" field { name: "size" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL } }
      message_type { name: "Shape" field { name: "dim" number: 2 type: TYPE_MESSAGE type_name: "Dim" label: LABEL_REPEATED } }
      message_type { name: "Tensor"
        field { name: "dtype" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL }
        field { name: "tensor_shape" number: 2 type: TYPE_MESSAGE type_name: "Shape" label: LABEL_OPTIONAL }
        field { name: "tensor_content" number: 4 type: TYPE_BYTES label: LABEL_OPTIONAL }
        field { name: "float_val" number: 5 type: TYPE_FLOAT label: LABEL_REPEATED } }
      message_type { name: "Number" field { name: "value" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL } }
      message_type { name: "Spec"
        field { name: "name" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
        field { name: "version" number: 2 type: TYPE_MESSAGE type_name: "Number" label: LABEL_OPTIONAL }
        field { name: "signature_name" number: 3 type: TYPE_STRING label: LABEL_OPTIONAL }
        field { name: "version_label" number: 4 type: TYPE_STRING label: LABEL_OPTIONAL } }
      message_type { name: "Entry"
        field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
        field { name: "value" number: 2 type: TYPE_MESSAGE type_name: "Tensor" label: LABEL_OPTIONAL } }
      message_type { name: "Request"
        field { name: "model_spec" number: 1 type: TYPE_MESSAGE type_name: "Spec" label: LABEL_OPTIONAL }
        field { name: "inputs" number: 2 type: TYPE_MESSAGE type_name: "Entry" label: LABEL_REPEATED }
        field { name: "filter" number: 3 type: TYPE_STRING label: LABEL_REPEATED } }
      message_type { name: "Answer"
        field { name: "outputs" number: 1 type: TYPE_MESSAGE type_name: "Entry" label: LABEL_REPEATED }
        field { name: "model_spec" number: 2 type: TYPE_MESSAGE type_name: "Spec" label: LABEL_OPTIONAL } }
    """
    from google.protobuf import text_format

    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(text, descriptor_pb2.FileDescriptorProto()))
    named = lambda n: message_factory.GetMessageClass(
        pool.FindMessageTypeByName(f"serving_test.{n}")
    )
    return named("Request"), named("Answer")


def _request(kind, values, name="scaled", **spec):
    """A request for input x, as TensorFlow's clients write it."""
    request = kind()
    request.model_spec.name = name
    for key, value in spec.items():
        if key == "version":
            request.model_spec.version.value = value
        else:
            setattr(request.model_spec, key, value)
    tensor = request.inputs.add(key="x").value
    tensor.dtype = 1
    for size in np.shape(values):
        tensor.tensor_shape.dim.add(size=size)
    tensor.tensor_content = np.asarray(values, np.float32).tobytes()
    return request


def test_predictions_by_grpc(places):
    import grpc

    request, answer = _messages()
    with grpc.insecure_channel(places[2]) as channel:
        predict = channel.unary_unary(
            "/tensorflow.serving.PredictionService/Predict",
            lambda m: m if isinstance(m, bytes) else m.SerializeToString(),
            answer.FromString,
        )
        for spec in ({}, {"version": 1}, {"version_label": "stable"}, {"signature_name": "serving_default"}):  # fmt: skip
            found = predict(_request(request, [[1, 2], [3, 4]], **spec), timeout=60)
            (entry,) = found.outputs
            assert entry.key == "y" and entry.value.dtype == 1
            assert [d.size for d in entry.value.tensor_shape.dim] == [2, 2]
            values = np.frombuffer(entry.value.tensor_content, np.float32)
            assert values.tolist() == [2, 4, 6, 8]
            assert (found.model_spec.name, found.model_spec.version.value) == ("scaled", 1)
        # Nested lists of numbers are also accepted; the last represents the remaining ones.
        repeated = _request(request, [[1, 2], [3, 4]])
        repeated.inputs[0].value.tensor_content = b""
        repeated.inputs[0].value.float_val.append(5)
        values = predict(repeated, timeout=60).outputs[0].value.tensor_content
        assert np.frombuffer(values, np.float32).tolist() == [10] * 4
        cut, wrong = _request(request, [[1, 2]]), _request(request, [[1, 2]])
        cut.inputs[0].value.tensor_content = b"123"
        wrong.inputs[0].value.dtype = 3
        other = _request(request, [[1, 2]])
        other.filter.append("z")
        for bad, code, message in (
            (_request(request, [[1, 2]], "other"), "NOT_FOUND", r"Latest\(other\)"),
            (_request(request, [[1, 2]], version=9), "NOT_FOUND", r"Specific\(scaled, 9\)"),
            (_request(request, [[1, 2]], version_label="no"), "NOT_FOUND", "label: no"),
            (
                _request(request, [[1, 2]], signature_name="no"),
                "FAILED_PRECONDITION",
                '"no" not found',
            ),
            (_request(request, [[1, 2, 3]]), "INVALID_ARGUMENT", r"shape \[1, 3\], expected"),
            (cut, "INVALID_ARGUMENT", "Failed to process the values of input 'x'"),
            (wrong, "INVALID_ARGUMENT", "dtype code 3"),
            (other, "INVALID_ARGUMENT", "output_filter"),
            (request(), "INVALID_ARGUMENT", "Missing ModelSpec"),
            (b"\xff\xff", "INVALID_ARGUMENT", "not a valid PredictRequest"),
        ):
            with pytest.raises(grpc.RpcError, match=message) as told:
                predict(bad, timeout=60)
            assert told.value.code().name == code


def test_examples_by_grpc(places):
    import grpc

    from meshflow.serving import messages

    def example(**features):
        made = tf.train.Example()
        for name, value in features.items():
            made.features.feature[name].float_list.value.append(value)
        return made.SerializeToString()

    def request(kind, signature="", rows=(), context=None, name="scaled"):
        made = kind()
        if hasattr(made, "model_spec"):
            made.model_spec.name, made.model_spec.signature_name = name, signature
        held = made.input.example_list if context is None else made.input.example_list_with_context
        for row in rows:
            held.examples.add().ParseFromString(row)
        if context is not None:
            held.context.ParseFromString(context)
        return made

    with grpc.insecure_channel(places[2]) as channel:

        def ask(method, made, answer):
            service = f"/tensorflow.serving.PredictionService/{method}"
            call = channel.unary_unary(service, lambda m: m.SerializeToString(), answer.FromString)
            return call(made, timeout=60)

        rows = [example(x=1.5), example(x=-2.0)]
        made = request(messages.RegressionRequest, "regress", rows)
        found = ask("Regress", made, messages.RegressionResponse)
        assert [r.value for r in found.result.regressions] == [3.0, -4.0]
        assert (found.model_spec.name, found.model_spec.signature_name) == ("scaled", "regress")
        made = request(messages.ClassificationRequest, "classify", [example(), example(x=2.0)], example(x=1.0))  # fmt: skip
        found = ask("Classify", made, messages.ClassificationResponse).result.classifications
        scores = [[(c.label, c.score) for c in one.classes] for one in found]
        assert scores == [[("", 2.0), ("", -2.0)], [("", 4.0), ("", -4.0)]]
        several = request(messages.MultiInferenceRequest, rows=rows)
        for name in ("regress", "classify"):
            task = several.tasks.add(method_name=f"tensorflow/serving/{name}")
            task.model_spec.name, task.model_spec.signature_name = "scaled", name
        first, second = ask("MultiInference", several, messages.MultiInferenceResponse).results
        assert [r.value for r in first.regression_result.regressions] == [3.0, -4.0]
        assert second.classification_result.classifications[1].classes[1].score == 4.0
        assert second.model_spec.version.value == 1
        twice, foreign, train = (messages.MultiInferenceRequest() for _ in range(3))
        for one in (twice, foreign, train):
            one.CopyFrom(several)
        twice.tasks[1].CopyFrom(twice.tasks[0])
        foreign.tasks[1].model_spec.name = "other"
        train.tasks[0].method_name = "train"
        for bad, method, code, message in (
            (request(messages.RegressionRequest, "regress"), "Regress", "INVALID_ARGUMENT", "Input is empty"),
            (request(messages.RegressionRequest, "regress", [example(y=1.0)]), "Regress", "INVALID_ARGUMENT", "Feature: x"),
            (request(messages.RegressionRequest, "", rows), "Regress", "FAILED_PRECONDITION", "named 'inputs'"),
            (request(messages.ClassificationRequest, "no", rows), "Classify", "INVALID_ARGUMENT", "not found"),
            (request(messages.ClassificationRequest, "no", rows, name="other"), "Classify", "NOT_FOUND", "other"),
            (messages.MultiInferenceRequest(), "MultiInference", "INVALID_ARGUMENT", "no tasks"),
            (twice, "MultiInference", "INVALID_ARGUMENT", "Duplicate"),
            (foreign, "MultiInference", "INVALID_ARGUMENT", "same model name"),
            (train, "MultiInference", "UNIMPLEMENTED", "train"),
        ):  # fmt: skip
            with pytest.raises(grpc.RpcError, match=message) as told:
                ask(method, bad, messages.RegressionResponse)
            assert told.value.code().name == code, told.value


def test_metadata_and_status_by_grpc(places):
    import grpc

    from meshflow.serving.messages import (
        GetModelMetadataRequest,
        GetModelMetadataResponse,
        GetModelStatusRequest,
        GetModelStatusResponse,
        SignatureDefMap,
    )

    pack = lambda m: m.SerializeToString()
    with grpc.insecure_channel(places[2]) as channel:
        service = "/tensorflow.serving.PredictionService/GetModelMetadata"
        ask = channel.unary_unary(service, pack, GetModelMetadataResponse.FromString)
        request = GetModelMetadataRequest(metadata_field=["signature_def"])
        request.model_spec.name = "scaled"
        found = ask(request, timeout=60).metadata["signature_def"]
        assert found.type_url.endswith("/tensorflow.serving.SignatureDefMap")
        signatures = SignatureDefMap.FromString(found.value).signature_def
        assert set(signatures) == {"serving_default", "total", "regress", "classify", "repeat"}
        about = signatures["serving_default"].inputs["x"]
        assert about.dtype == 1 and [d.size for d in about.tensor_shape.dim] == [-1, 2]
        request.metadata_field[:] = ["other"]
        with pytest.raises(grpc.RpcError, match="metadata_field must be 'signature_def'"):
            ask(request, timeout=60)
        service = "/tensorflow.serving.ModelService/GetModelStatus"
        ask = channel.unary_unary(service, pack, GetModelStatusResponse.FromString)
        request = GetModelStatusRequest()
        request.model_spec.name = "scaled"
        (state,) = ask(request, timeout=60).model_version_status
        assert (state.version, state.state, state.status.error_code) == (1, 30, 0)
        request.model_spec.version.value = 7
        with pytest.raises(grpc.RpcError, match="Could not find version 7"):
            ask(request, timeout=60)


def test_new_version_loses_no_request(served):
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
    # The label refers to the old version.
    assert _ask(url + "/versions/1:predict", {"instances": [[1, 1]]})[0] == 200
