"""Served models by TensorFlow Serving's REST protocol, in this process."""

import asyncio
import base64
import gzip
import json
import shutil

import numpy as np
import pytest

import meshflow as tf

pytest.importorskip("starlette", reason="needs the extra serving")

from meshflow.serving import Settings, application, rest, versions

TEXTS = tf.TensorSpec([None], tf.string, name="inputs")
NUMBERS = tf.TensorSpec([None, 2], name="x")


class Examples(tf.Module):
    """Parse examples of x [2], and k, whose default is 1."""

    def __init__(self):
        self.weights = tf.Variable([[1.0, 0.0, 2.0], [0.0, 1.0, 3.0]])

    def scores(self, texts):
        features = {
            "x": tf.io.FixedLenFeature([2], tf.float32),
            "k": tf.io.FixedLenFeature([], tf.int64, default_value=1),
        }
        found = tf.io.parse_example(texts, features)
        return tf.matmul(found["x"], self.weights) * tf.cast(found["k"], tf.float32)[:, None]

    @tf.function(input_signature=[TEXTS])
    def classify(self, inputs):
        return {"scores": self.scores(inputs)}

    @tf.function(input_signature=[TEXTS])
    def regress(self, inputs):
        return {"outputs": tf.reduce_sum(self.scores(inputs), -1)}

    @tf.function(input_signature=[TEXTS])
    def named(self, inputs):
        return {"classes": tf.strings.lower(tf.expand_dims(inputs, -1))}

    @tf.function(input_signature=[NUMBERS])
    def plain(self, x):
        return {"y": 2.0 * x, "caption_bytes": tf.strings.as_string(x[:, 0])}

    @tf.function(input_signature=[NUMBERS])
    def centered(self, x):
        return {"y": x - tf.reduce_mean(x, 0)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32, name="i"), tf.TensorSpec([None], tf.bool, name="b")])  # fmt: skip
    def typed(self, i, b):
        return {"y": tf.where(b, i, -i)}


def save(folder):
    module = Examples()
    names = ("classify", "regress", "named", "plain", "centered", "typed")
    tf.saved_model.save(module, str(folder), {n: getattr(module, n) for n in names})


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "1"
    save(folder)
    return folder


class Client:
    """Asks an ASGI application without a network."""

    def __init__(self, app):
        self._app = app

    async def ask(self, method, path, body=b"", chunks=None, encoding="", accept=""):
        """The status and the parsed body of an answer."""
        parts = list(chunks) if chunks is not None else [body]
        answer = {"body": b""}

        async def receive():
            if not parts:
                await asyncio.sleep(60)
            part = parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(parts) or chunks is not None}  # fmt: skip

        async def send(message):
            answer["status"] = message.get("status", answer.get("status"))
            answer["headers"] = dict(message.get("headers", answer.get("headers", ())))
            answer["body"] += message.get("body", b"")

        headers = {b"content-encoding": encoding, b"accept-encoding": accept}
        scope = {
            "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": [(k, v.encode()) for k, v in headers.items() if v], "http_version": "1.1", "scheme": "http", "server": ("127.0.0.1", 80), "root_path": "",
        }  # fmt: skip
        await self._app(scope, receive, send)
        self.headers = answer["headers"]
        packed = answer["headers"].get(b"content-encoding") == b"gzip"
        self.sent = len(answer["body"]) if packed else 0
        text = (gzip.decompress(answer["body"]) if packed else answer["body"]).decode()
        return answer["status"], json.loads(text) if text[:1] == "{" else text

    async def post(self, path, content, **more):
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        return await self.ask("POST", "/v1/models/" + path, body, **more)

    async def get(self, path):
        return await self.ask("GET", path if path[0] == "/" else "/v1/models/" + path)


def talk(conversation, *args, **kwargs):
    """Run a conversation with an application of these arguments."""

    async def run():
        app = application(*args, **kwargs)
        async with app.router.lifespan_context(app):
            return await conversation(Client(app))

    return asyncio.run(run())


def test_examples_are_classified_and_regressed(saved):
    rows = [{"x": [1.0, 2.0]}, {"x": [0.5, 0.25], "k": 2}]

    async def conversation(client):
        classify = await client.post("m:classify", {"signature_name": "classify", "examples": rows})
        regress = await client.post(
            "m/versions/1:regress", {"signature_name": "regress", "examples": rows}
        )
        context = {"signature_name": "regress", "examples": [{"x": [1.0, 1.0]}, {"x": [0.0, 1.0]}], "context": {"k": 3}}  # fmt: skip
        shared = await client.post("m:regress", context)
        # Only labels; the inputs here are the examples themselves.
        named = await client.post("m:classify", {"signature_name": "named", "examples": [{"A": ["B", {"b64": "Qw=="}]}]})  # fmt: skip
        return classify, regress, shared, named

    classify, regress, shared, named = talk(conversation, "m", saved)
    scores = [[1.0, 2.0, 8.0], [1.0, 0.5, 3.5]]
    assert classify == (200, {"results": [[["", s] for s in row] for row in scores]})
    assert regress == (200, {"results": [11.0, 5.0]})
    assert shared == (200, {"results": [21.0, 12.0]})
    ((label, score),) = named[1]["results"][0]
    assert score == 0.0 and "b\x12" not in label and "a" in label and "b" in label and "c" in label


@pytest.mark.parametrize(
    ("method", "body", "status", "said"),
    [
        ("classify", {"examples": []}, 400, "'examples'"),
        ("classify", {"instances": [1]}, 400, "'examples'"),
        ("classify", {"examples": [[1]]}, 400, "must be JSON object"),
        ("classify", {"examples": [{"x": [1.0, 2]}]}, 400, "expecting type: float"),
        ("classify", {"examples": [{"x": None}]}, 400, "unexpected JSON type"),
        ("classify", {"examples": [{"x": [[1.0]]}]}, 400, "unexpected JSON type"),
        ("classify", {"examples": [{"x": {"a": 1}}]}, 400, "unexpected JSON type"),
        ("classify", {"examples": [{"x": {"b64": "?"}}]}, 400, "base64"),
        ("classify", {"examples": [{"x": 1e39}]}, 400, "float32"),
        ("classify", {"examples": [{"k": 1 << 63}]}, 400, "int64"),
        ("classify", {"examples": [{"k": 1}]}, 400, "x"),
        ("classify", {"examples": [{"x": [1.0]}]}, 400, "x"),
        ("classify", {"examples": [{"x": [1, 2]}]}, 400, "float"),
        ("classify", {"context": [], "examples": [{"x": 1.0}]}, 400, "must be JSON object"),
        ("classify", {"signature_name": "plain", "examples": [{}]}, 412, "named 'inputs'"),
        ("classify", {"signature_name": "regress", "examples": [{}]}, 412, "classification outputs"),
        ("regress", {"signature_name": "typed", "examples": [{}]}, 400, "Expected one input"),
        ("regress", {"signature_name": "classify", "examples": [{}]}, 412, "regression outputs"),
        ("regress", {"signature_name": "none", "examples": [{}]}, 400, '"none" not found'),
        ("predict", {"signature_name": 3, "instances": [1]}, 400, "must be a string"),
    ],
)  # fmt: skip
def test_examples_that_do_not_fit_are_refused(method, body, status, said, saved):
    body = {"signature_name": "classify", **body}
    found, content = talk(lambda c: c.post(f"m:{method}", body), "m", saved, Settings(warm_up=False))  # fmt: skip
    assert found == status and said in content["error"], content


def test_malformed_requests_are_errors_of_the_request(saved, monkeypatch):
    monkeypatch.setattr(rest, "_BODY_TIMEOUT_SECONDS", 0.05)
    plain = lambda rows: {"signature_name": "plain", "instances": rows}
    typed = lambda i, b: {"signature_name": "typed", "inputs": {"i": i, "b": b}}

    async def conversation(client):
        for body, said in (
            (b"", "JSON Parse error"),
            (b"[]", "must be an object"),
            (b'{"instances": [[1, 2]', "JSON Parse error"),
            (b'{"instances": "\xff\xfe"}', "JSON Parse error"),
            # Python 3.11 does not parse it; later versions do, and the default signature is missing.
            (b'{"inputs":' + b"[" * 1500 + b"]" * 1500 + b"}", ""),
            (b'{"signature_name": "plain", "inputs":' + b"[" * 900 + b"]" * 900 + b"}", "input 'x'"),
            (b'{"signature_name": "named", "inputs":' + b"[" * 900 + b"]" * 900 + b"}", "input 'inputs'"),
            (plain([[1, 2, 3]]), "shape [1, 3], expected [None, 2]"),
            (plain([["1", "2"]]), "not numbers"),
            (plain([[True, False]]), "not of type float32"),
            (plain([[None, 1]]), "not numbers"),
            (plain([[10**400, 1]]), "input 'x'"),
            (typed([1 << 31], [True]), "outside of int32"),
            (typed([1.0], [True]), "not integers"),
            (typed([float("nan")], [True]), "not integers"),
            (typed([1], [1]), "not of type bool"),
            (typed([1, 2], [True]), "same name must be equal"),
            (plain([[1, 2], [3]]), "rows differ"),
            ({"signature_name": "named", "inputs": ["\ud800"]}, "input 'inputs'"),
            ({"signature_name": "named", "inputs": [["a"], "b"]}, "rows differ"),
            ({"signature_name": "named", "inputs": [["a"], ["b", "c"]]}, "rows differ"),
        ):  # fmt: skip
            status, content = await client.post("m:predict", body)
            assert status == 400 and said in content["error"], (str(body)[:60], content)
        # Values that are no numbers are floats; names that are not taken are passed over.
        odd = {"signature_name": "plain", "inputs": {"x": [[float("nan"), float("-inf")]], "other": 1}}  # fmt: skip
        status, content = await client.post("m:predict", odd)
        assert status == 200
        assert repr(content["outputs"]["y"]) == "[[nan, -inf]]"
        assert base64.b64decode(content["outputs"]["caption_bytes"][0]["b64"]) == b"nan"
        assert (await client.post("m:predict", plain([[0.1, 1e-8]])))[1]["predictions"][0]["y"] == [0.2, 2e-8]  # fmt: skip
        large = json.dumps(plain([[0.0, 0.0]] * 1000)).encode()
        status, content = await client.post("m:predict", large)
        assert status == 413 and "larger than 4096 bytes" in content["error"]
        status, content = await client.post("m:predict", b"", chunks=[b'{"in'])
        assert status == 504 and "was not received" in content["error"]
        for method, path, code, said in (
            ("PUT", "/v1/models/m", 400, "Malformed request: PUT /v1/models/m"),
            ("GET", "/v1/models/m:predict", 400, "Malformed"),
            ("POST", "/v1/models/m:train", 400, "Malformed"),
            ("GET", "/v2/models/m", 404, "Malformed"),
            ("GET", "/v1/models/other", 404, "any versions of model other"),
            ("GET", "/v1/models/m/versions/2", 404, "version 2 of model m"),
            ("GET", "/v1/models/m/versions/" + "9" * 30, 400, "numeric"),
            ("POST", "/v1/models/other:predict", 404, "Latest(other)"),
        ):
            status, content = await client.ask(method, path, b'{"inputs": 1}')
            assert status == code and said in content["error"], (method, path, status, content)
        status, text = await client.get("/monitoring/prometheus/metrics")
        assert status == 200 and "other" not in text
        assert 'request_count{model_name="m",status="OK"} 2' in text
        assert 'request_count{model_name="m",status="DEADLINE_EXCEEDED"} 1' in text
        assert 'request_seconds_count{model_name="m"} 25' in text

    talk(conversation, "m", saved, Settings(most_bytes=4096))


def test_a_request_without_memory_is_retried_later(saved, monkeypatch):
    async def conversation(client):
        body = {"signature_name": "plain", "instances": [[1, 2]]}
        assert (await client.post("m:predict", body))[0] == 200
        monkeypatch.setattr(versions, "convert_to_tensor", lambda array: bytearray(1 << 62))
        status, content = await client.post("m:predict", body)
        assert status == 503 and "memory" in content["error"]
        assert client.headers[b"retry-after"] == b"1"

    talk(conversation, "m", saved, Settings(warm_up=False))


def test_bodies_may_be_compressed(saved):
    body = json.dumps({"signature_name": "plain", "instances": [[1.0, 2.0]]}).encode()
    packed, bomb = gzip.compress(body), gzip.compress(bytes(1 << 20))

    async def conversation(client):
        status, content = await client.post("m:predict", packed, encoding="gzip")
        assert status == 200 and content["predictions"][0]["y"] == [2.0, 4.0]
        assert (await client.post("m:predict", body, encoding="identity"))[0] == 200
        for data, encoding, code, said in (
            (bomb, "gzip", 413, "larger than 4096 bytes"),
            (body, "gzip", 400, "not valid gzip data"),
            (packed[:-9], "gzip", 400, "is truncated"),
            (packed, "br", 415, "expected gzip"),
            (packed, "", 400, "JSON Parse error"),
        ):
            status, content = await client.post("m:predict", data, encoding=encoding)
            assert status == code and said in content["error"], (encoding, status, content)
        # Answers are, for clients that accept it, unless they are short.
        assert (await client.post("m:predict", body, accept="gzip"))[0] == 200 and not client.sent
        many = gzip.compress(json.dumps({"signature_name": "plain", "instances": [[1, 2]] * 200}).encode())  # fmt: skip
        plain = await client.post("m:predict", many, encoding="gzip")
        assert plain[0] == 200 and not client.sent
        assert await client.post("m:predict", many, encoding="gzip", accept="br, gzip") == plain
        assert 0 < client.sent < 1000

    talk(conversation, "m", saved, Settings(most_bytes=4096, warm_up=False))


def test_each_request_gets_separate_rows_and_errors(saved):
    async def conversation(client):
        rng = np.random.default_rng(0)
        feeds = [rng.normal(size=(n % 5 + 1, 2)).astype(np.float32) for n in range(40)]
        feeds.append(rng.normal(size=(11, 2)).astype(np.float32))
        ask = lambda name, rows: client.post("m:predict", {"signature_name": name, "inputs": rows})
        plain = await asyncio.gather(*(ask("plain", f.tolist()) for f in feeds))
        centered = await asyncio.gather(*(ask("centered", f.tolist()) for f in feeds))
        examples = [{"x": [float(i), 0.0]} if i % 3 else {"k": 1} for i in range(30)]
        regress = await asyncio.gather(
            *(client.post("m:regress", {"signature_name": "regress", "examples": [e]}) for e in examples)
        )  # fmt: skip
        text = (await client.get("/monitoring/prometheus/metrics"))[1]
        return feeds, plain, centered, regress, text

    feeds, plain, centered, regress, text = talk(conversation, "m", saved, Settings(most_rows=4))
    for feed, one, other in zip(feeds, plain, centered, strict=True):
        np.testing.assert_allclose(one[1]["outputs"]["y"], 2 * feed, rtol=1e-6)
        # A row that depends on the others is not asked with those of somebody else.
        np.testing.assert_allclose(other[1]["outputs"], feed - feed.mean(0), atol=1e-6)
    for i, (status, content) in enumerate(regress):
        assert (status, content.get("results")) == ((200, [3.0 * i]) if i % 3 else (400, None))
    rows = sum(map(len, feeds)) + 20
    counted = int(text.split('meshflow_serving_batched_rows{model_name="m"} ')[1].split()[0])
    # Examples of calls that failed are asked again.
    assert rows <= counted <= rows + 60


CONFIG = """
model_config_list {{
  config {{ name: 'one' base_path: '{0}/one' model_platform: 'tensorflow' }}
  config {{
    name: 'two' base_path: '{0}/two'
    model_version_policy {{ specific {{ versions: 1 versions: 3 }} }}
    version_labels {{ key: 'stable' value: 1 }}
  }}
}}
"""


def test_a_file_lists_models(saved, tmp_path):
    for name in ("one/1", "one/2", "two/1", "two/2", "two/3"):
        shutil.copytree(saved, tmp_path / name)
    file = tmp_path / "models.config"
    file.write_text(CONFIG.format(tmp_path))
    body = {"signature_name": "regress", "examples": [{"x": [1.0, 0.0]}]}

    async def states(client, name):
        _, content = await client.get(name)
        entries = content.get("model_version_status", [])
        return [int(e["version"]) for e in entries if e["state"] == "AVAILABLE"]

    async def until(what):
        for _ in range(600):
            if await what():
                return True
            await asyncio.sleep(0.02)
        return False

    async def conversation(client):
        assert await states(client, "one") == [2] and await states(client, "two") == [3, 1]
        for path in ("one", "two", "two/labels/stable", "two/versions/1"):
            assert (await client.post(f"{path}:regress", body))[0] == 200
        assert (await client.post("two/versions/2:regress", body))[0] == 404
        # An unreadable file changes nothing.
        file.write_text("model_config_list { config {")
        await asyncio.sleep(0.1)
        assert await states(client, "one") == [2]
        file.write_text(f"model_config_list {{ config {{ name: 'two' base_path: '{tmp_path}/one' }} }}")  # fmt: skip
        assert await until(lambda: moved(client))
        assert (await client.get("one"))[0] == 404

    async def moved(client):
        return await states(client, "two") == [2]

    talk(conversation, config_file=file, settings=Settings(poll=0.02, warm_up=False))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nonsense {", "cannot be read"),
        ("", "lists no model"),
        ("model_config_list { config { name: 'a' } }", "without a name or base_path"),
        ("model_config_list { config { name: 'a' base_path: 'b' model_platform: 'onnx' } }", "onnx"),
        ("model_config_list { config { name: 'a' base_path: 'b' } config { name: 'a' base_path: 'c' } }", "twice"),
    ],
)  # fmt: skip
def test_a_file_that_lists_no_models_is_refused(text, said, tmp_path):
    file = tmp_path / "models.config"
    file.write_text(text)
    with pytest.raises(tf.errors.InvalidArgumentError, match=said):
        application(config_file=file)
    with pytest.raises(ValueError, match="either a folder or a file"):
        application("m", tmp_path, config_file=file)


def test_versions_that_cannot_be_loaded_do_not_count(saved, tmp_path):
    """Test that the newest working version is served, also next to a labelled one, and the previous
    version after its removal."""
    for number in (1, 2):
        shutil.copytree(saved, tmp_path / str(number))
    shutil.copytree(saved, tmp_path / "3")
    for file in (tmp_path / "3").rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    body = {"signature_name": "regress", "examples": [{"x": [1.0, 0.0]}]}

    async def conversation(client):
        async def states():
            _, content = await client.get("m")
            return {int(e["version"]): (e["state"], e["status"]["error_code"]) for e in content["model_version_status"]}  # fmt: skip

        good = "AVAILABLE", "OK"
        assert await states() == {3: ("END", "UNKNOWN"), 2: good, 1: good}
        assert (await client.post("m:regress", body))[0] == 200
        shutil.rmtree(tmp_path / "2")
        for _ in range(500):
            if (await states())[2] == ("END", "OK"):
                break
            await asyncio.sleep(0.02)
        assert await states() == {3: ("END", "UNKNOWN"), 2: ("END", "OK"), 1: good}
        assert (await client.post("m:regress", body))[0] == 200

    settings = Settings(poll=0.02, warm_up=False, labels={"stable": 1})
    talk(conversation, "m", tmp_path, settings)


class Composites(tf.Module):
    @tf.function(input_signature=[tf.RaggedTensorSpec([None, None])])
    def rows(self, x):
        return {"sums": tf.reduce_sum(x, 1), "doubled": 2.0 * x}

    @tf.function(input_signature=[tf.SparseTensorSpec([None, 3])])
    def sparse(self, x):
        return {"sums": tf.sparse.reduce_sum(x, 1), "squares": tf.sparse.map_values(tf.square, x)}


def test_composite_tensors_are_sent_as_components(tmp_path):
    module = Composites()
    signatures = {"serving_default": module.rows, "sparse": module.sparse}
    tf.saved_model.save(module, tmp_path / "1", signatures)

    async def conversation(client):
        content = {"inputs": {"x": [1.0, 2.0, 3.0], "x_1": [0, 2, 3]}}
        # The values and the splits have as many elements, and must not be batched.
        rows = await asyncio.gather(*[client.post("m:predict", content) for _ in range(3)])
        inputs = {"x": [[0, 1], [1, 2]], "x_1": [5.0, 6.0], "x_2": [2, 3]}
        sparse = await client.post("m:predict", {"signature_name": "sparse", "inputs": inputs})
        return rows, sparse, await client.get("m/metadata")

    rows, sparse, metadata = talk(conversation, "m", tmp_path / "1", Settings(warm_up=False))
    expected = {"sums": [3.0, 3.0], "doubled": [2.0, 4.0, 6.0], "doubled_1": [0, 2, 3]}
    assert rows == [(200, {"outputs": expected})] * 3
    squares = {"squares": [[0, 1], [1, 2]], "squares_1": [25.0, 36.0], "squares_2": [2, 3]}
    assert sparse == (200, {"outputs": {"sums": [5.0, 6.0], **squares}})
    described = metadata[1]["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert sorted(described["outputs"]) == ["doubled", "doubled_1", "sums"]
