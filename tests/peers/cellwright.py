"""Cellwright as one of the servers, and in a process of its own without one."""

import json
import subprocess
import time
from pathlib import Path

import numpy as np

import asked
from server import START_S, Server, answers, first_tensor, infer
from setting import CannotRun, Setting

# For tables by token: more than any model here can fill.
TABLE_MIB = 2048


def workers(setting: Setting) -> dict[str, list[str]]:
    """How the cores may be divided."""
    one = {f"1 worker, threads: {setting.cores}": [f"cpu:threads={setting.cores}"]}
    return one if setting.cores == 1 else {**one, f"{setting.cores} workers, threads: 1": ["cpu:threads=1"] * setting.cores}


def called(precision: str, table: bool) -> str:
    return f"cellwright {precision}{'' if table else ', no table'}"


class Cellwright(Server):
    def __init__(self, setting: Setting, bundle: Path, ask, workers_: list[str], precision: str = "f32", table: bool = True):
        """`ask` makes the tensors of a request, by name, of what is asked."""
        super().__init__()
        self.name = called(precision, table)
        self.model = bundle.name
        self.bundle = asked.at_precision(bundle, precision)
        self._binary = setting.binary
        self._data = self.bundle.parent / f"data-{precision}"
        self._ask = ask
        amx = ",amx=true" if setting.amx else ""
        self._workers = [f"{worker},table_mib={TABLE_MIB if table else 0}{amx}" for worker in workers_]

    def worker_options(self) -> list[str]:
        return [part for worker in self._workers for part in ("--worker", worker)]

    def command(self, port: int) -> list:
        return [self._binary, "serve", "--listen", f"127.0.0.1:{port}", "--data", self._data, *self.worker_options()]

    def is_ready(self, port: int) -> bool:
        if not answers(f"http://127.0.0.1:{port}/v2/health/ready"):
            return False
        if not answers(f"http://127.0.0.1:{port}/v2/models/{self.model}/ready"):
            command = [self._binary, "push", self.bundle, "--server", f"http://127.0.0.1:{port}"]
            try:
                pushed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=START_S)
            except subprocess.TimeoutExpired as error:
                raise CannotRun(f"the model is not ready after {START_S} s") from error
            if pushed.returncode != 0:
                raise CannotRun(f"the model is refused: {pushed.stderr.strip()}")
        return True

    def request(self, asked_) -> bytes:
        return infer(self.model, self._ask(asked_))

    def answer(self, body: bytes) -> np.ndarray:
        return first_tensor(body)


class InProcess:
    """`cellwright run`, given a request as a line when it has answered the one before."""

    def __init__(self, server: Cellwright):
        command = [server._binary, "run", server.bundle, "--input", "-", "--in-flight-max", "1", *server.worker_options()]
        self._process = subprocess.Popen([str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            # It ends when there is nothing more to read.
            self._process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._process.kill()
            self._process.wait()

    def ask(self, tensors: dict) -> tuple[float, np.ndarray]:
        """How many seconds it took, reading and writing JSON included, and the first tensor of the answer."""
        inputs = [{"name": name, "datatype": "INT64", "shape": list(values.shape), "data": values.ravel().tolist()} for name, values in tensors.items()]
        line = json.dumps({"inputs": inputs}) + "\n"
        began = time.perf_counter()
        self._process.stdin.write(line)
        self._process.stdin.flush()
        said = self._process.stdout.readline()
        took = time.perf_counter() - began
        if '"outputs"' not in said:
            raise CannotRun(f"cellwright run said {said!r}")
        return took, np.array(json.loads(said)["outputs"][0]["data"])
