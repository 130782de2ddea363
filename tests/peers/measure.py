"""Cellwright, mosec and LitServe serving one LSTM, each asked the same requests by the same load generator, in turns.

    python measure.py --binary target/release/cellwright --replay target/release/examples/replay --work DIR

Only one of them runs at a time. A turn finds the most it can do (a closed loop) and then its latencies under a load that is offered to all of them
alike (an open loop, counted from when a request was meant to arrive). What is printed are medians over the rounds, and ratios of them.
"""

import argparse
import json
import os
import signal
import socket
import statistics
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "clients"))
import bundles  # noqa: E402

# Sentences of Europarl, in words: the logarithm of their length is about normal.
MU, SIGMA, LONGEST = 2.95, 0.68, 330
REQUESTS = 4096
START_S = 120


def lengths() -> np.ndarray:
    drawn = np.random.default_rng(7).lognormal(MU, SIGMA, REQUESTS)
    return np.clip(np.rint(drawn), 1, LONGEST).astype(int)


def sequences(vocabulary: int) -> list[np.ndarray]:
    random = np.random.default_rng(8)
    return [random.integers(0, vocabulary, length, dtype=np.int64) for length in lengths()]


def http(path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: 127.0.0.1", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Cellwright:
    name = "cellwright"

    def __init__(self, options):
        self._options = options

    def command(self, port: int) -> list:
        data = self._options.work / "data"
        return [self._options.binary, "serve", "--listen", f"127.0.0.1:{port}", "--data", data]

    def is_ready(self, port: int) -> bool:
        if not answers(f"http://127.0.0.1:{port}/v2/health/ready"):
            return False
        if not answers(f"http://127.0.0.1:{port}/v2/models/tokens/ready"):
            subprocess.run(
                [self._options.binary, "push", self._options.bundle, "--server", f"http://127.0.0.1:{port}"], check=True, capture_output=True
            )
        return True

    def request(self, tokens: np.ndarray) -> bytes:
        head = {
            "parameters": {"binary_data_output": True},
            "inputs": [{"name": "tokens", "datatype": "INT64", "shape": [len(tokens)], "parameters": {"binary_data_size": tokens.nbytes}}],
        }
        text = json.dumps(head).encode()
        headers = ("content-type: application/octet-stream", f"inference-header-content-length: {len(text)}")
        return http("/v2/models/tokens/infer", text + tokens.tobytes(), *headers)


class Mosec:
    name = "mosec"

    def __init__(self, _):
        pass

    def command(self, port: int) -> list:
        return [sys.executable, HERE / "serve_mosec.py", "--address", "127.0.0.1", "--port", str(port), "--timeout", "60000", "--log-level", "error"]

    def is_ready(self, port: int) -> bool:
        return answers(f"http://127.0.0.1:{port}/metrics") and accepts(port, self.request(np.array([1, 2], dtype=np.int64)))

    def request(self, tokens: np.ndarray) -> bytes:
        return http("/inference", tokens.tobytes(), "content-type: application/octet-stream")


class LitServe:
    name = "litserve"

    def __init__(self, _):
        pass

    def command(self, port: int) -> list:
        return [sys.executable, HERE / "serve_litserve.py", str(port)]

    def is_ready(self, port: int) -> bool:
        return answers(f"http://127.0.0.1:{port}/health")

    def request(self, tokens: np.ndarray) -> bytes:
        return http("/predict", json.dumps({"tokens": tokens.tolist()}).encode(), "content-type: application/json")


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return response.status == 200
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def exchange(port: int, request: bytes) -> bytes:
    """One request, sent as it stands; the body of its answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(request)
        received = b""
        while b"\r\n\r\n" not in received:
            received += some(connection)
        head, body = received.split(b"\r\n\r\n", 1)
        if b" 200 " not in head.split(b"\r\n")[0]:
            raise RuntimeError(f"{head!r} {body[:500]!r}")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        while len(body) < int(fields[b"content-length"]):
            body += some(connection)
        return body


def some(connection: socket.socket) -> bytes:
    received = connection.recv(1 << 16)
    if not received:
        raise ConnectionError("the connection ended within an answer")
    return received


def accepts(port: int, request: bytes) -> bool:
    try:
        exchange(port, request)
        return True
    except (OSError, RuntimeError):
        return False


class Running:
    """A server, for the time of a `with`."""

    def __init__(self, server, options, environment: dict):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._log = (options.work / f"{server.name}.log").open("ab")
        self._process = subprocess.Popen(
            server.command(self.port), stdout=self._log, stderr=self._log, env={**os.environ, **environment}, start_new_session=True
        )
        end = time.monotonic() + START_S
        while not server.is_ready(self.port):
            if self._process.poll() is not None or time.monotonic() > end:
                self.__exit__()
                sys.exit(f"{server.name} does not start; see {self._log.name}")
            time.sleep(0.1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait(timeout=20)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        self._log.close()


def replay(options, port: int, requests: Path, seconds: float, rate: float | None) -> dict:
    arguments = [options.replay, f"127.0.0.1:{port}", requests, "--seconds", str(seconds), "--connections", str(options.connections)]
    arguments += [] if rate is None else ["--rate", str(rate)]
    ran = subprocess.run([str(argument) for argument in arguments], capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        sys.exit(f"the load generator failed: {ran.stderr}")
    report = json.loads(ran.stdout)["total"]
    if report["ok"] == 0 or report["ok"] < report["sent"] * 0.99:
        sys.exit(f"not all requests were answered: {report}")
    return report


def write_requests(path: Path, requests: list[bytes]) -> None:
    with path.open("wb") as file:
        for request in requests:
            file.write(struct.pack("<I", len(request)) + request)


def check_same(states: dict) -> None:
    """All of them serve the same model: one request has one answer."""
    (_, first), *others = states.items()
    for name, state in others:
        np.testing.assert_allclose(state, first, atol=1e-4, err_msg=name)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--binary", type=Path, required=True)
    arguments.add_argument("--replay", type=Path, required=True)
    arguments.add_argument("--work", type=Path, required=True)
    arguments.add_argument("--hidden", type=int, default=1024)
    arguments.add_argument("--vocabulary", type=int, default=10_000)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--seconds", type=float, default=15, help="of each measurement; a fifth as long before it does not count")
    arguments.add_argument("--connections", type=int, default=64)
    arguments.add_argument("--rate", type=float, help="requests a second offered to all of them [default: half of what the slowest can do at most]")
    arguments.add_argument("--only", nargs="+", choices=["cellwright", "mosec", "litserve"])
    arguments.add_argument("--padding", choices=["padded", "packed"], default="padded", help="how the peers' batches are made")
    arguments.add_argument("--threads", type=int, default=os.cpu_count(), help="of PyTorch")
    options = arguments.parse_args()

    options.work = options.work.resolve()
    options.work.mkdir(parents=True, exist_ok=True)
    folder = options.work / f"h{options.hidden}"
    options.bundle = folder / "tokens"
    if not options.bundle.exists():
        bundles.tokens(folder, options.hidden, options.vocabulary, options.hidden)
    environment = {"PEER_FOLDER": str(options.bundle), "PEER_PADDING": options.padding, "PEER_THREADS": str(options.threads)}
    asked = sequences(options.vocabulary)
    kinds = (Cellwright, Mosec, LitServe)
    servers = [kind(options) for kind in kinds if not options.only or kind.name in options.only]

    states = {}
    for server in servers:
        write_requests(options.work / f"{server.name}.requests", [server.request(tokens) for tokens in asked])
        with Running(server, options, environment) as running:
            body = exchange(running.port, server.request(asked[0]))
            states[server.name] = np.frombuffer(body[-4 * options.hidden :], dtype="<f4")
    check_same(states)

    rate = options.rate
    most, under_load = ({server.name: [] for server in servers} for _ in range(2))
    for number in range(options.rounds):
        for server in servers if number % 2 == 0 else reversed(servers):
            with Running(server, options, environment) as running:
                requests = options.work / f"{server.name}.requests"
                most[server.name].append(replay(options, running.port, requests, options.seconds, None)["throughput"])
        if rate is None:
            rate = min(found[0] for found in most.values()) / 2
        for server in servers:
            with Running(server, options, environment) as running:
                requests = options.work / f"{server.name}.requests"
                under_load[server.name].append(replay(options, running.port, requests, options.seconds, rate)["latency"])

    print(f"LSTM of hidden size {options.hidden}, lengths lognormal({MU}, {SIGMA}) up to {LONGEST}; {options.connections} connections; medians of {options.rounds}")
    print(f"peers: batches up to 64 after at most 5 ms, {options.padding}, {options.threads} PyTorch threads")
    print(f"{'':12} {'most/s':>9} {'(all rounds)':>28} {'p50 ms':>9} {'p90 ms':>9} {'p99 ms':>9}   at {rate:.1f}/s")
    medians = {name: statistics.median(found) for name, found in most.items()}
    for name, found in most.items():
        at = [statistics.median(latency[quantile] for latency in under_load[name]) / 1e3 for quantile in ("p50_us", "p90_us", "p99_us")]
        rounds = " ".join(f"{each:.1f}" for each in found)
        print(f"{name:12} {medians[name]:>9.1f} {rounds:>28} {at[0]:>9.1f} {at[1]:>9.1f} {at[2]:>9.1f}")
    peers = [median for name, median in medians.items() if name != "cellwright"]
    if "cellwright" in medians and peers:
        print(f"cellwright does {medians['cellwright'] / max(peers):.2f} times what the better peer does")


if __name__ == "__main__":
    main()
