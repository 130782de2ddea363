"""`schemathesis` walks the server's own OpenAPI document with good and bad data: what comes back must be what the document says.

It walks a server of its own, with an operator's key, because it makes and deletes keys, tenants and models as it goes.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from serving import EXAMPLES, Server, command, environment

CONFIGURATION = Path(__file__).with_name("schemathesis.toml")
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
)
# Cases for each operation and phase: enough to have found every fault that a thousand found, when this was written.
EXAMPLES_MAX = 25


@pytest.fixture(scope="module")
def key_and_server(tmp_path_factory):
    data = tmp_path_factory.mktemp("walked")
    created = command("keys", "create", "--admin", "--json", "--data", data)
    key = json.loads(created.stdout)["secret"]
    with Server(data) as server:
        server.push(EXAMPLES / "digits", "--key", key)
        server.push(EXAMPLES / "dates", "--name", "scratch", "--key", key)
        yield key, server
        assert server.is_running(), server.said()
        assert "panicked" not in server.said()


def walk(key: str, url: str, folder: Path, parameters: dict, *filters: str) -> None:
    """One walk, with some parameters of paths given; the rest is made up."""
    configuration = folder / "schemathesis.toml"
    given = "".join(f'"path.{name}" = {json.dumps(value)}\n' for name, value in parameters.items())
    configuration.write_text(f"{CONFIGURATION.read_text(encoding='utf-8')}\n[parameters]\n{given}", encoding="utf-8")
    arguments = [Path(sys.executable).with_name("schemathesis"), "--config-file", configuration, "run", f"{url}/openapi.json"]
    arguments += ["--header", f"Authorization: Bearer {key}", "--checks", ",".join(CHECKS), "--max-examples", str(EXAMPLES_MAX)]
    arguments += ["--phases", "examples,coverage,fuzzing", "--mode", "all", "--generation-deterministic"]
    arguments += ["--suppress-health-check", "all", "--request-timeout", "30", "--no-color", *filters]
    walked = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, timeout=300, check=False, env=environment())
    assert walked.returncode == 0, f"{walked.stdout[-20_000:]}\n{walked.stderr[-4000:]}"
    assert re.search(r"[1-9]\d* generated", walked.stdout), walked.stdout[-4000:]


def test_names_that_are_made_up(key_and_server, tmp_path):
    key, server = key_and_server
    walk(key, server.url, tmp_path, {})


def test_a_model_that_is_there(key_and_server, tmp_path):
    key, server = key_and_server
    walk(key, server.url, tmp_path, {"model": "digits", "version": "1"}, "--include-path-regex", "^/v2/models/")


def test_a_model_that_comes_and_goes(key_and_server, tmp_path):
    key, server = key_and_server
    walk(key, server.url, tmp_path, {"model": "scratch", "version": "1"}, "--include-path-regex", "^/(v1/models|v2/repository)")


def test_a_tenant_that_is_there(key_and_server, tmp_path):
    key, server = key_and_server
    walk(key, server.url, tmp_path, {"tenant": "default"}, "--include-path-regex", "^/v1/tenants")
