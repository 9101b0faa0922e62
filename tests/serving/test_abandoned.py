"""Test abandoned calls by gRPC and HTTP."""

import asyncio

import numpy as np
import pytest

import meshflow as tf

grpc = pytest.importorskip("grpc", reason="needs the extra serving")
pytest.importorskip("google.protobuf", reason="needs the extra serving")
requests = pytest.importorskip("starlette.requests", reason="needs the extra serving")

from meshflow.io.tensors import to_tensor_proto
from meshflow.serving import messages
from meshflow.serving.codec_pool import CodecPool
from meshflow.serving.limits import ByteBudget, Reservation
from meshflow.serving.metrics import Metrics
from meshflow.serving.rest import RestApi
from meshflow.serving.rpc import RpcServer
from meshflow.serving.versions import Settings

PREDICT = "/tensorflow.serving.PredictionService/Predict"


class _Held:
    """Define a model that never answers."""

    name, number = "serving_default", 1
    inputs = outputs = {"x": tf.TensorSpec([None, 2], name="x")}
    settings = Settings()

    def __init__(self):
        self.signatures = {"serving_default": self}
        self.begun, self.ended = asyncio.Event(), []

    def has_model(self, name):
        return name == "held"

    def find(self, name, number, label):
        return self

    def get_signature(self, name):
        return self

    async def answer(self, arrays):
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise


def _request():
    request = messages.PredictRequest()
    request.model_spec.name = "held"
    request.inputs["x"].ParseFromString(
        to_tensor_proto(np.ones((1, 2), np.float32)).SerializeToString()
    )
    return request


def _limits():
    return CodecPool(1, 60.0, 1 << 20), ByteBudget(1 << 20)


async def _counted(metrics, text):
    while text not in metrics.text({}):
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("status", ["CANCELLED", "DEADLINE_EXCEEDED"])
def test_a_call_that_nobody_waits_for_is_given_up_and_counted(status):
    async def talk():
        held, metrics = _Held(), Metrics()
        server = RpcServer(held, metrics, *_limits(), "127.0.0.1", 0)
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            predict = channel.unary_unary(PREDICT, lambda m: m.SerializeToString())
            call = predict(_request(), timeout=0.2 if status == "DEADLINE_EXCEEDED" else 60)
            if status == "CANCELLED":
                await held.begun.wait()
                call.cancel()
            assert (await call.code()).name == status
            await _counted(metrics, f'request_count{{model_name="held",status="{status}"}} 1')
        await server.stop()
        return held, metrics

    held, metrics = asyncio.run(asyncio.wait_for(talk(), 60))
    assert held.ended == (["cancelled"] if held.begun.is_set() else [])
    assert 'status="OK"' not in metrics.text({})


def test_request_of_a_disconnected_client_is_abandoned_and_counted():
    async def talk():
        held, metrics = _Held(), Metrics()
        body = b'{"instances": [[1, 2]]}'
        messages = [{"type": "http.request", "body": body}, {"type": "http.disconnect"}]

        async def receive():
            if len(messages) == 1:
                await held.begun.wait()
            return messages.pop(0)

        path = "/v1/models/held:predict"
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": [], "server": ("here", 80)}  # fmt: skip
        pool, budget = _limits()
        with Reservation(budget) as reservation:
            rest = RestApi(held, metrics, pool, budget)
            answer = await rest.answer(requests.Request(scope, receive), reservation)
        await _counted(metrics, 'request_count{model_name="held",status="CANCELLED"} 1')
        return held, answer

    held, answer = asyncio.run(asyncio.wait_for(talk(), 60))
    assert held.ended == ["cancelled"] and answer.status_code == 499
