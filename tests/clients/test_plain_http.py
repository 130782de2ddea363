"""What needs no package: raw binary requests, generation, streams, and the clients' own paths, by Python's `http.client`."""

import http.client
import json
import struct

import pytest

from serving import samples


@pytest.fixture
def connection(server):
    connection = http.client.HTTPConnection(server.authority, timeout=60)
    yield connection
    connection.close()


def ask(connection, method: str, path: str, body=None, headers=None):
    connection.request(method, path, body=body, headers=headers or {})
    response = connection.getresponse()
    return response, response.read()


def test_a_raw_request_is_one_tensor_and_nothing_else(connection):
    for sample in samples("digits"):
        floats = sample.request["inputs"][0]["data"]
        raw = struct.pack(f"<{len(floats)}f", *floats)
        headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": "0"}
        response, body = ask(connection, "POST", "/v2/models/digits/infer", raw, headers)
        assert response.status == 200, body
        length = int(response.headers["Inference-Header-Content-Length"])
        answer = json.loads(body[:length])
        assert [output["parameters"]["binary_data_size"] for output in answer["outputs"]] == [40, 8]
        logits, label = struct.unpack_from("<10f", body, length), struct.unpack_from("<q", body, length + 40)
        assert list(label) == sample.outputs["label"]["data"]
        assert logits == pytest.approx(sample.outputs["logits"]["data"], abs=1e-4)
        assert len(body) == length + 48


def test_a_raw_text_is_one_element(connection):
    sample = samples("dates")[1]
    text = sample.request["inputs"][0]["data"][0].encode()
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": "0"}
    response, body = ask(connection, "POST", "/v2/models/dates/infer", text, headers)
    assert response.status == 200, body
    expected = sample.outputs["text"]["data"][0].encode()
    assert body[int(response.headers["Inference-Header-Content-Length"]) :] == struct.pack("<I", len(expected)) + expected


def test_a_raw_request_to_a_model_of_two_inputs_is_refused(connection):
    response, body = ask(connection, "POST", "/v2/models/trees/infer", bytes(16), {"Inference-Header-Content-Length": "0"})
    assert response.status == 400 and "only input" in json.loads(body)["error"]


def test_generate(connection):
    for sample in samples("dates"):
        text = sample.request["inputs"][0]["data"][0]
        response, body = ask(connection, "POST", "/v2/models/dates/generate", json.dumps({"text": text, "id": "a"}))
        assert response.status == 200, body
        answer = json.loads(body)
        assert answer["text"] in (sample.outputs["text"]["data"][0], sample.outputs["text"]["data"])


def events(body: bytes) -> list[dict]:
    assert body.endswith(b"\n\n")
    return [json.loads(event.removeprefix("data:")) for event in body.decode().split("\n\n") if event]


def test_a_stream_is_the_answer_piece_by_piece(connection):
    for sample in samples("dates"):
        expected = sample.outputs["text"]["data"][0]
        request = json.dumps({"text": sample.request["inputs"][0]["data"][0]})
        response, body = ask(connection, "POST", "/v2/models/dates/generate_stream", request)
        assert response.status == 200 and response.headers["Content-Type"].startswith("text/event-stream")
        pieces = [event["text"] for event in events(body) if "text" in event]
        pieces = [piece if isinstance(piece, str) else "".join(piece) for piece in pieces]
        assert "".join(pieces) == expected
        # What was written since the last event; on a busy machine that is more than a character.
        assert len(pieces) > 1 and all(pieces)


def test_a_stream_of_numbers_has_an_event_for_each(connection):
    _, whole = ask(connection, "POST", "/v2/models/numbers/generate", json.dumps({"source": [3, 1, 4]}))
    response, body = ask(connection, "POST", "/v2/models/numbers/generate_stream", json.dumps({"source": [3, 1, 4]}))
    assert response.status == 200
    pieces = [event["target"] for event in events(body) if "target" in event]
    flat = [number for piece in pieces for number in (piece if isinstance(piece, list) else [piece])]
    assert flat == json.loads(whole)["target"]
    assert len(pieces) == len(flat)


def test_a_stream_that_cannot_begin_has_a_status(connection):
    response, body = ask(connection, "POST", "/v2/models/dates/generate_stream", json.dumps({"text": "日本"}))
    assert response.status == 400 and "dates" in json.loads(body)["error"]


def test_metrics_are_prometheus_text(connection):
    response, body = ask(connection, "GET", "/metrics")
    assert response.status == 200 and response.headers["Content-Type"].startswith("text/plain")
    values = dict(line.rsplit(" ", 1) for line in body.decode().splitlines() if line and not line.startswith("#"))
    asked = [name for name in values if name.startswith("nv_inference_request_success{") and 'model="digits"' in name]
    assert asked and float(values[asked[0]]) > 0
    for value in values.values():
        float(value)


def test_the_description_and_its_page(connection):
    response, body = ask(connection, "GET", "/openapi.json")
    assert response.status == 200 and json.loads(body)["openapi"].startswith("3.")
    response, body = ask(connection, "GET", "/docs")
    assert response.status == 200 and b"/v2/models/{model}/infer" in body
