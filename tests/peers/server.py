"""Servers as processes, what is sent to them, and the load generator that all of them are asked by."""

import json
import os
import signal
import socket
import struct
import subprocess
import time
import urllib.error
import urllib.request

import numpy as np

from setting import CannotRun, Figures, Setting

START_S = 180
# Whose answers are compared.
FIRST = 8


class Server:
    """What one is: `name` says which, `command` starts it, `request` and `answer` are its way of saying things."""

    name = ""

    def __init__(self):
        self.environment: dict[str, str] = {}

    def command(self, port: int) -> list:
        raise NotImplementedError

    def is_ready(self, port: int) -> bool:
        raise NotImplementedError

    def request(self, asked) -> bytes:
        raise NotImplementedError

    def answer(self, body: bytes) -> np.ndarray:
        raise NotImplementedError


class Running:
    """A server, for the time of a `with`. Only one of them runs at a time."""

    def __init__(self, server: Server, setting: Setting):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._log = (setting.work / f"{server.name.split()[0]}.log").open("ab")
        self._process = subprocess.Popen(
            [str(part) for part in server.command(self.port)],
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, **server.environment},
            # A group, to be ended as a whole; but no session of its own: some kernels give each session an equal part of the processor.
            preexec_fn=os.setpgrp,
        )
        try:
            self._await(server)
        except BaseException:
            self.__exit__()
            raise

    def _await(self, server: Server) -> None:
        end = time.monotonic() + START_S
        while not server.is_ready(self.port):
            if self._process.poll() is not None or time.monotonic() > end:
                raise CannotRun(f"{server.name} does not start (its log is {self._log.name})")
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


# ---- one request ----


def http(path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: 127.0.0.1", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def infer(model: str, tensors: dict) -> bytes:
    """A call of the Open Inference Protocol with binary tensors of 64-bit integers."""
    inputs = [
        {"name": name, "datatype": "INT64", "shape": list(values.shape), "parameters": {"binary_data_size": values.nbytes}} for name, values in tensors.items()
    ]
    head = json.dumps({"parameters": {"binary_data_output": True}, "inputs": inputs}).encode()
    headers = ("content-type: application/octet-stream", f"inference-header-content-length: {len(head)}")
    return http(f"/v2/models/{model}/infer", head + b"".join(values.tobytes() for values in tensors.values()), *headers)


def first_tensor(body: bytes) -> np.ndarray:
    """Of what `infer` is answered: a head in JSON, which says how long each of the tensors behind it is."""
    head, begin = json.JSONDecoder().raw_decode(body.decode("latin-1"))
    output = head["outputs"][0]
    datatype = {"FP32": "<f4", "INT64": "<i8"}[output["datatype"]]
    return np.frombuffer(body[begin : begin + output["parameters"]["binary_data_size"]], dtype=datatype)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return response.status == 200
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def accepts(port: int, request: bytes) -> bool:
    try:
        exchange(port, request)
        return True
    except (OSError, RuntimeError):
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


# ---- load ----


class Asked:
    """A server with the requests it is asked, in a file that the load generator reads."""

    def __init__(self, setting: Setting, server: Server, requests: list, row: str):
        self.server = server
        self._setting = setting
        self._file = setting.work / f"{row}-{server.name.split()[0]}.requests"
        self._first = requests[:FIRST]
        with self._file.open("wb") as file:
            for request in map(server.request, requests):
                file.write(struct.pack("<I", len(request)) + request)

    def answers(self) -> list[np.ndarray]:
        """Of the first requests, sent one after the other."""
        with Running(self.server, self._setting) as running:
            return [self.server.answer(exchange(running.port, self.server.request(each))) for each in self._first]

    def running(self) -> Running:
        return Running(self.server, self._setting)

    def most(self, running: Running, seconds: float, connections: int | None = None) -> dict:
        """The most it can do: on each connection the next request follows the answer (a closed loop)."""
        return self._replay(running, seconds, ["--connections", str(connections or self._setting.connections)])

    def under(self, running: Running, seconds: float, rate: float) -> dict:
        """So many requests a second arrive at random; latency counts from when one was meant to arrive (an open loop)."""
        return self._replay(running, seconds, ["--connections", str(self._setting.connections), "--rate", str(rate)])

    def _replay(self, running: Running, seconds: float, options: list) -> dict:
        command = [self._setting.replay, f"127.0.0.1:{running.port}", self._file, "--seconds", str(seconds), *options]
        try:
            ran = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, timeout=2 * seconds + START_S)
        except subprocess.TimeoutExpired as error:
            raise CannotRun(f"the load generator does not end on {self.server.name}") from error
        if ran.returncode != 0:
            raise CannotRun(f"the load generator failed on {self.server.name}: {ran.stderr.strip()}")
        report = json.loads(ran.stdout)
        total = report["total"]
        if total["ok"] == 0 or total["ok"] < total["sent"] * 0.99:
            raise CannotRun(f"of {total['sent']} requests {total['ok']} were answered in time ({total['first_fault'] or 'no fault'})")
        # The generator warms up for a fifth of the time, and counts its processor time over all of it.
        share = report["client_cpu_s"] / (1.2 * seconds * self._setting.cores)
        return {"rate": total["throughput"], "client": share, **{each: total["latency"][f"{each}_us"] / 1e3 for each in ("p50", "p90")}}


def tried(asked: Asked, seconds: float, connections: int | None = None) -> float:
    with asked.running() as running:
        return asked.most(running, seconds, connections)["rate"]


def agree(figures: Figures, answers_: dict) -> None:
    """Leaves only those in the row who answer as the first of them does. By name: what gives their answers, and the error that is allowed."""
    first = None
    for name, (given, tolerance) in answers_.items():
        found = figures.attempt(name, given)
        if found is not None:
            first = first or (name, found, tolerance)
            check = lambda: check_same(f"{name} and {first[0]}", found, first[1], max(tolerance, first[2]))  # noqa: E731
            figures.attempt(name, check)


def check_same(name: str, found: list[np.ndarray], expected: list[np.ndarray], tolerance: float) -> None:
    """Both compute the same model: one request has one answer, up to so much of its largest number."""
    for one, other in zip(found, expected, strict=True):
        if one.dtype.kind == "i":
            np.testing.assert_array_equal(one, other, err_msg=name)
        else:
            np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * np.abs(other).max(), err_msg=name)
