"""One server for all tests, with the examples and two small models pushed to it."""

import pytest

import bundles
from serving import EXAMPLES, Server


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("data")) as server:
        folder = tmp_path_factory.mktemp("bundles")
        for bundle in (EXAMPLES / "digits", EXAMPLES / "dates", EXAMPLES / "listops", bundles.trees(folder), bundles.numbers(folder), bundles.encoder(folder)):
            answer = server.push(bundle)
            assert answer["activated"] and all(sample["ok"] for sample in answer["samples"]), answer
        yield server
        assert server.is_running(), server.said()
        assert "panicked" not in server.said()
