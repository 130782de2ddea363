"""NVIDIA's client, `tritonclient.http`, against the server: everything of it that has a meaning here."""

import asyncio
import itertools
import time

import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from serving import command, samples

TOLERANCE = 1e-4
FORMS = (True, False)


@pytest.fixture
def client(server):
    with triton.InferenceServerClient(server.authority, concurrency=16) as client:
        yield client


def given(name: str, array: np.ndarray, binary: bool) -> triton.InferInput:
    tensor = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


def image(sample) -> np.ndarray:
    return np.array(sample.request["inputs"][0]["data"], dtype=np.float32).reshape(sample.request["inputs"][0]["shape"])


def text(sample) -> np.ndarray:
    return np.array([sample.request["inputs"][0]["data"][0].encode()], dtype=np.object_)


def check(result, sample) -> None:
    for name, expected in sample.outputs.items():
        found = result.as_numpy(name)
        assert list(found.shape) == expected["shape"]
        if expected["datatype"] == "BYTES":
            assert [as_text(element) for element in found.ravel()] == expected["data"]
        else:
            np.testing.assert_allclose(found.ravel(), expected["data"], atol=TOLERANCE)


def as_text(element) -> str:
    return element.decode() if isinstance(element, bytes) else element


# ---- inference ----


@pytest.mark.parametrize("binary_in", FORMS)
@pytest.mark.parametrize("binary_out", FORMS)
@pytest.mark.parametrize(
    ("model", "tensor", "read"), [("digits", "image", image), ("dates", "text", text), ("listops", "expression", text)]
)
def test_examples_answer_as_pytorch_did(client, model, tensor, read, binary_in, binary_out):
    for sample in samples(model):
        outputs = [triton.InferRequestedOutput(name, binary_data=binary_out) for name in sample.outputs]
        result = client.infer(model, [given(tensor, read(sample), binary_in)], outputs=outputs, request_id=sample.request["id"])
        answer = result.get_response()
        assert (answer["id"], answer["model_name"], answer["model_version"]) == (sample.request["id"], model, "1")
        for output in answer["outputs"]:
            assert ("binary_data_size" in output.get("parameters", {})) == binary_out
            assert ("data" in output) != binary_out
        check(result, sample)


def test_every_mixture_of_forms_gives_the_same_bits(client):
    tokens, children = np.array([4, 0, 9, 2], dtype=np.int64), np.array([[1, 2], [0, 4], [5, 3]], dtype=np.int64)
    answers = []
    for forms in itertools.product(FORMS, repeat=4):
        inputs = [given("tokens", tokens, forms[0]), given("children", children, forms[1])]
        outputs = [triton.InferRequestedOutput("logits", binary_data=forms[2]), triton.InferRequestedOutput("label", binary_data=forms[3])]
        result = client.infer("trees", inputs, outputs=outputs)
        for output, binary in zip(result.get_response()["outputs"], forms[2:], strict=True):
            assert ("binary_data_size" in output.get("parameters", {})) == binary
        answers.append((result.as_numpy("logits").tolist(), result.as_numpy("label").tolist()))
    assert len(answers) == 16
    assert all(answer == answers[0] for answer in answers), answers
    assert answers[0][1] == [int(np.argmax(answers[0][0]))]


def test_without_named_outputs_all_come_as_binary(client):
    sample = samples("digits")[0]
    result = client.infer("digits", [given("image", image(sample), True)])
    assert [output["name"] for output in result.get_response()["outputs"]] == ["logits", "label"]
    assert [output["parameters"]["binary_data_size"] for output in result.get_response()["outputs"]] == [40, 8]
    check(result, sample)


def test_only_the_named_outputs_come_in_the_order_asked_for(client):
    sample = samples("digits")[0]
    inputs = [given("image", image(sample), True)]
    alone = client.infer("digits", inputs, outputs=[triton.InferRequestedOutput("label")])
    assert [output["name"] for output in alone.get_response()["outputs"]] == ["label"]
    turned = client.infer("digits", inputs, outputs=[triton.InferRequestedOutput("label"), triton.InferRequestedOutput("logits", binary_data=False)])
    assert sorted(output["name"] for output in turned.get_response()["outputs"]) == ["label", "logits"]
    check(turned, sample)


def test_integers_in_and_out(client):
    source = np.array([3, 1, 4, 1, 5], dtype=np.int64)
    answers = [client.infer("numbers", [given("source", source, binary)]).as_numpy("target") for binary in FORMS]
    assert answers[0].dtype == np.int64 and 1 <= answers[0].size <= 6
    np.testing.assert_array_equal(answers[0], answers[1])


@pytest.mark.parametrize("binary_in", FORMS)
@pytest.mark.parametrize("binary_out", FORMS)
def test_numbers_that_json_has_not_go_in_and_come_out(client, binary_in, binary_out):
    for odd, is_answered in ((np.nan, np.isnan), (np.inf, np.isfinite), (-np.inf, np.isfinite)):
        picture = image(samples("digits")[0]).copy()
        picture[3, 4] = odd
        outputs = [triton.InferRequestedOutput("logits", binary_data=binary_out)]
        logits = client.infer("digits", [given("image", picture, binary_in)], outputs=outputs).as_numpy("logits")
        assert logits.dtype == np.float32 and logits.size == 10 and is_answered(logits).all(), logits


def test_many_requests_at_once(client):
    examples = samples("digits") + samples("digits")
    calls = [client.async_infer("digits", [given("image", image(sample), True)], request_id=str(n)) for n, sample in enumerate(examples)]
    for number, (call, sample) in enumerate(zip(calls, examples, strict=True)):
        result = call.get_result()
        assert result.get_response()["id"] == str(number)
        check(result, sample)


def test_a_failed_request_among_many_fails_alone(client):
    sample = samples("digits")[0]
    good = [client.async_infer("digits", [given("image", image(sample), True)]) for _ in range(4)]
    bad = client.async_infer("digits", [given("image", np.zeros((3, 5), dtype=np.float32), True)])
    with pytest.raises(InferenceServerException) as caught:
        bad.get_result()
    assert caught.value.status() == "400"
    for call in good:
        check(call.get_result(), sample)


def test_the_asyncio_client(server):
    async def run():
        async with triton_aio.InferenceServerClient(server.authority) as client:
            assert await client.is_server_live() and await client.is_model_ready("digits")
            calls = [client.infer("digits", [given("image", image(sample), True)]) for sample in samples("digits")]
            for result, sample in zip(await asyncio.gather(*calls), samples("digits"), strict=True):
                check(result, sample)
            assert (await client.get_model_metadata("digits"))["name"] == "digits"

    asyncio.run(run())


@pytest.mark.parametrize("request_form", [None, "gzip", "deflate"])
@pytest.mark.parametrize("response_form", [None, "gzip", "deflate"])
def test_compression(client, request_form, response_form):
    sample = samples("digits")[1]
    for binary in FORMS:
        result = client.infer(
            "digits",
            [given("image", image(sample), binary)],
            request_compression_algorithm=request_form,
            response_compression_algorithm=response_form,
        )
        check(result, sample)


def test_priority_headers_queries_and_parameters_of_ones_own_are_taken(client):
    sample = samples("digits")[2]
    for priority in (0, 1, 2, 2**32):
        result = client.infer(
            "digits",
            [given("image", image(sample), True)],
            priority=priority,
            timeout=60_000_000,
            headers={"X-Request-Id": "mine"},
            query_params={"a": 1},
            parameters={"shop": "web", "n": 3, "x": 0.5, "yes": True},
        )
        check(result, sample)


def test_a_timeout_that_is_over_is_said(client):
    sample = samples("dates")[0]
    with pytest.raises(InferenceServerException) as caught:
        client.infer("dates", [given("text", text(sample), True)], timeout=1)
    assert caught.value.status() == "504"
    assert "dates" in caught.value.message() and "timeout of 1.0µs" in caught.value.message()
    check(client.infer("dates", [given("text", text(sample), True)], timeout=60_000_000), sample)


# ---- what the server and its models say of themselves ----


def test_health(client):
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("digits") and client.is_model_ready("digits", "1")
    assert not client.is_model_ready("digits", "2") and not client.is_model_ready("nobody")


def test_server_metadata(client):
    metadata = client.get_server_metadata()
    assert metadata["name"] == "cellwright" and metadata["version"]
    assert {"binary_tensor_data", "statistics", "model_repository"} <= set(metadata["extensions"])


def test_model_metadata(client):
    metadata = client.get_model_metadata("digits")
    assert metadata == client.get_model_metadata("digits", "1")
    assert (metadata["name"], metadata["versions"]) == ("digits", ["1"])
    assert metadata["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 8]}]
    assert metadata["outputs"] == [{"name": "logits", "datatype": "FP32", "shape": [10]}, {"name": "label", "datatype": "INT64", "shape": [1]}]
    assert client.get_model_metadata("dates")["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [1]}]
    assert [tensor["shape"] for tensor in client.get_model_metadata("trees")["inputs"]] == [[-1], [-1, 2]]


def test_model_configuration(client):
    config = client.get_model_config("digits")
    assert (config["name"], config["max_batch_size"]) == ("digits", 0)
    assert config["input"] == [{"name": "image", "data_type": "TYPE_FP32", "dims": [-1, 8]}]
    assert [tensor["data_type"] for tensor in config["output"]] == ["TYPE_FP32", "TYPE_INT64"]
    assert client.get_model_config("dates", "1")["input"][0]["data_type"] == "TYPE_STRING"


def test_statistics_count_what_was_asked(client):
    def of(model, version=""):
        (statistics,) = client.get_inference_statistics(model, version)["model_stats"]
        return statistics

    before = of("listops")
    asked = samples("listops")[:3]
    for sample in asked:
        client.infer("listops", [given("expression", text(sample), True)])
    after = of("listops", "1")
    assert (after["name"], after["version"]) == ("listops", "1")
    assert after["inference_count"] - before["inference_count"] == len(asked)
    assert after["inference_stats"]["success"]["count"] - before["inference_stats"]["success"]["count"] == len(asked)
    assert after["inference_stats"]["success"]["ns"] > before["inference_stats"]["success"]["ns"]
    assert after["execution_count"] > before["execution_count"]
    assert abs(after["last_inference"] / 1e3 - time.time()) < 60
    assert sum(size["compute_infer"]["count"] for size in after["batch_stats"]) > 0
    assert {"digits", "dates", "listops", "trees", "numbers"} <= {model["name"] for model in client.get_inference_statistics()["model_stats"]}


def test_the_repository(client):
    def state(model):
        return {entry["name"]: entry["state"] for entry in client.get_model_repository_index()}[model]

    sample = samples("digits")[0]
    inputs = [given("image", image(sample), True)]
    assert state("digits") == "READY"
    client.unload_model("digits")
    assert state("digits") == "UNAVAILABLE" and not client.is_model_ready("digits")
    with pytest.raises(InferenceServerException) as caught:
        client.infer("digits", inputs)
    assert caught.value.status() in ("404", "503") and "digits" in caught.value.message()
    assert client.is_model_ready("dates")
    client.load_model("digits")
    assert state("digits") == "READY"
    check(client.infer("digits", inputs), sample)
    with pytest.raises(InferenceServerException) as caught:
        client.load_model("nobody")
    assert caught.value.status() == "404"


def test_loading_takes_no_configuration(client):
    with pytest.raises(InferenceServerException, match="registry") as caught:
        client.load_model("digits", config="{}")
    assert caught.value.status() in ("400", "501")
    assert client.is_model_ready("digits")


# ---- errors ----

IMAGE = np.zeros((8, 8), dtype=np.float32)


@pytest.mark.parametrize(
    ("model", "version", "inputs", "status", "words"),
    [
        ("nobody", "", [("image", IMAGE)], "404", ["nobody"]),
        ("digits", "7", [("image", IMAGE)], "404", ["digits", "7"]),
        ("digits", "", [("picture", IMAGE)], "400", ["picture"]),
        ("digits", "", [("image", IMAGE.astype(np.float64))], "400", ["image", "FP64", "FP32"]),
        ("digits", "", [("image", IMAGE.astype(np.int64))], "400", ["image", "INT64", "FP32"]),
        ("digits", "", [("image", np.zeros((8, 7), dtype=np.float32))], "400", ["image"]),
        ("digits", "", [("image", np.zeros((0, 8), dtype=np.float32))], "400", ["image"]),
        ("digits", "", [("image", IMAGE), ("image", IMAGE)], "400", ["image", "twice"]),
        ("trees", "", [("tokens", np.array([1, 2], dtype=np.int64))], "400", ["children"]),
        ("numbers", "", [("source", np.array([1, 99], dtype=np.int64))], "400", []),
        ("dates", "", [("text", np.array(["日本".encode()], dtype=np.object_))], "400", ["text"]),
        ("dates", "", [("text", np.array([b"\xff\xfe"], dtype=np.object_))], "400", ["text"]),
    ],
)
def test_bad_requests_get_a_status_and_a_sentence(client, model, version, inputs, status, words):
    with pytest.raises(InferenceServerException) as caught:
        client.infer(model, [given(name, array, True) for name, array in inputs], model_version=version, request_id="the-bad-one")
    assert caught.value.status() == status, caught.value
    # Where there is no such model nobody has read what the request calls itself.
    for word in (*words, model, "request `" if status == "404" else "the-bad-one"):
        assert word in caught.value.message()


def test_what_is_not_served_says_so(client):
    sample = samples("digits")[0]
    inputs = [given("image", image(sample), True)]
    with pytest.raises(InferenceServerException, match="sequence") as caught:
        client.infer("digits", inputs, sequence_id=5, sequence_start=True)
    assert caught.value.status() == "501"
    with pytest.raises(InferenceServerException, match="classification") as caught:
        client.infer("digits", inputs, outputs=[triton.InferRequestedOutput("logits", class_count=3)])
    assert caught.value.status() == "501"
    output = triton.InferRequestedOutput("logits")
    output.set_shared_memory("region", 40)
    with pytest.raises(InferenceServerException, match="shared memory") as caught:
        client.infer("digits", inputs, outputs=[output])
    assert caught.value.status() == "501"
    with pytest.raises(InferenceServerException) as caught:
        client.infer("digits", inputs, outputs=[triton.InferRequestedOutput("nothing")])
    assert caught.value.status() == "400" and "nothing" in caught.value.message()


def test_versions_are_called_by_number(client, server, tmp_path):
    from serving import EXAMPLES

    folder = tmp_path / "digits"
    folder.mkdir()
    for name in ("weights.safetensors", "samples.jsonl", "expected.jsonl"):
        (folder / name).write_bytes((EXAMPLES / "digits" / name).read_bytes())
    # Another number than the first version's, so that it is another version.
    manifest = (EXAMPLES / "digits" / "model.toml").read_text(encoding="utf-8")
    (folder / "model.toml").write_text(manifest.replace("tolerance = 1e-4", "tolerance = 2e-4"), encoding="utf-8")
    server.push(EXAMPLES / "digits", "--name", "versioned")
    second = server.push(folder, "--name", "versioned")
    assert second["version"] == 2
    sample = samples("digits")[0]
    inputs = [given("image", image(sample), True)]
    assert client.infer("versioned", inputs).get_response()["model_version"] == "2"
    assert client.infer("versioned", inputs, model_version="2").get_response()["model_version"] == "2"
    command("models", "rollback", "versioned", "--server", server.url)
    assert client.infer("versioned", inputs).get_response()["model_version"] == "1"
