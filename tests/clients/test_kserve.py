"""KServe's client, `kserve.InferenceRESTClient`, against the server."""

import asyncio

import httpx
import numpy as np
import pytest
from kserve import InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig
from kserve.protocol.infer_type import RequestedOutput

from serving import samples

TOLERANCE = 1e-4


def run(use):
    """Runs `use(client)` with a client of its own."""

    async def whole():
        async with InferenceRESTClient(RESTConfig(protocol="v2", retries=0)) as client:
            return await use(client)

    return asyncio.run(whole())


def tensor(sample, binary: bool) -> InferInput:
    """A sample's one input."""
    (given,) = sample.request["inputs"]
    made = InferInput(name=given["name"], shape=given["shape"], datatype=given["datatype"])
    kind = {"FP32": np.float32, "INT64": np.int64, "BYTES": np.object_}[given["datatype"]]
    data = [element.encode() for element in given["data"]] if given["datatype"] == "BYTES" else given["data"]
    made.set_data_from_numpy(np.array(data, dtype=kind).reshape(given["shape"]), binary_data=binary)
    return made


def check(response, sample) -> None:
    assert {output.name for output in response.outputs} == set(sample.outputs)
    for output in response.outputs:
        expected = sample.outputs[output.name]
        assert (output.shape, output.datatype) == (expected["shape"], expected["datatype"])
        if output.datatype == "BYTES":
            found = [element.decode() if isinstance(element, bytes) else element for element in output.as_numpy().ravel()]
            assert found == expected["data"]
        else:
            np.testing.assert_allclose(output.as_numpy().ravel(), expected["data"], atol=TOLERANCE)


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
@pytest.mark.parametrize("model", ["digits", "dates", "listops"])
def test_examples_answer_as_pytorch_did(server, model, binary_in, binary_out):
    async def use(client):
        for sample in samples(model):
            outputs = [RequestedOutput(name, parameters={"binary_data": binary_out}) for name in sample.outputs]
            request = InferRequest(
                model_name=model, infer_inputs=[tensor(sample, binary_in)], request_id=sample.request["id"], request_outputs=outputs
            )
            response = await client.infer(server.url, request, model_name=model)
            # The client keeps no version of a response in JSON.
            assert (response.id, response.model_name) == (sample.request["id"], model)
            check(response, sample)

    run(use)


def test_a_plain_dictionary_is_a_request_too(server):
    async def use(client):
        for sample in samples("dates")[:3]:
            check(await client.infer(server.url, sample.request, model_name="dates"), sample)

    run(use)


def test_all_outputs_as_binary(server):
    async def use(client):
        sample = samples("digits")[0]
        request = InferRequest(model_name="digits", infer_inputs=[tensor(sample, True)], parameters={"binary_data_output": True})
        headers = {}
        check(await client.infer(server.url, request, model_name="digits", response_headers=headers), sample)
        assert headers["content-type"] == "application/octet-stream" and int(headers["inference-header-content-length"]) > 0

    run(use)


def test_requests_at_once(server):
    async def use(client):
        examples = samples("listops")
        calls = [
            client.infer(server.url, InferRequest(model_name="listops", infer_inputs=[tensor(sample, n % 2 == 0)]), model_name="listops")
            for n, sample in enumerate(examples)
        ]
        for response, sample in zip(await asyncio.gather(*calls), examples, strict=True):
            check(response, sample)

    run(use)


def test_health(server):
    async def use(client):
        assert await client.is_server_live(server.url) is True
        assert await client.is_server_ready(server.url) is True
        assert await client.is_model_ready(server.url, "digits") is True
        assert await client.is_model_ready(server.url, "nobody") is False

    run(use)


@pytest.mark.parametrize(
    ("model", "request_", "status", "words"),
    [
        ("nobody", {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}, 404, ["nobody"]),
        ("digits", {"inputs": []}, 400, ["inputs"]),
        ("digits", {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 8], "data": [1, 2]}]}, 400, ["image", "2"]),
        ("digits", {"inputs": [{"name": "image", "datatype": "FP16", "shape": [1, 8], "data": [0] * 8}]}, 400, ["image", "FP16"]),
        ("digits", {"inputs": [{"name": "image", "datatype": "FLOAT", "shape": [1, 8], "data": [0] * 8}]}, 400, ["FLOAT"]),
    ],
)
def test_errors_are_a_status_and_a_sentence(server, model, request_, status, words):
    async def use(client):
        with pytest.raises(httpx.HTTPStatusError) as caught:
            await client.infer(server.url, {"id": "the-bad-one", **request_}, model_name=model)
        assert caught.value.response.status_code == status
        sentence = caught.value.response.json()["error"]
        assert all(word in sentence for word in (*words, model)), sentence
        assert sentence in str(caught.value)

    run(use)
