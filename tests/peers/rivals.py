"""The servers that Cellwright is compared with. What each of them runs is in `serve_*.py`, and the model of all three in `model.py`."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from server import Server, accepts, answers, first_tensor, http, infer
from setting import CannotRun, Setting, version

HERE = Path(__file__).resolve().parent
SHORT = np.array([1, 2], dtype=np.int64)


class Rival(Server):
    def __init__(self, bundle: Path, threads: int, workers: int, padding: str):
        super().__init__()
        way = {"PEER_THREADS": str(threads), "PEER_WORKERS": str(workers), "PEER_PADDING": padding, "OMP_NUM_THREADS": str(threads)}
        self.environment = {"PEER_FOLDER": str(bundle), **way}

    def answer(self, body: bytes) -> np.ndarray:
        return np.frombuffer(body, dtype="<f4")


class Mosec(Rival):
    def __init__(self, setting: Setting, *how):
        super().__init__(*how)
        self.name = f"mosec {version('mosec')}"

    def command(self, port: int) -> list:
        return [sys.executable, HERE / "serve_mosec.py", "--address", "127.0.0.1", "--port", port, "--timeout", "60000", "--log-level", "error"]

    def is_ready(self, port: int) -> bool:
        return answers(f"http://127.0.0.1:{port}/metrics") and accepts(port, self.request(SHORT))

    def request(self, asked) -> bytes:
        return http("/inference", asked.tobytes(), "content-type: application/octet-stream")


class LitServe(Rival):
    def __init__(self, setting: Setting, *how):
        super().__init__(*how)
        self.name = f"litserve {version('litserve')}"

    def command(self, port: int) -> list:
        return [sys.executable, HERE / "serve_litserve.py", port]

    def is_ready(self, port: int) -> bool:
        return answers(f"http://127.0.0.1:{port}/health")

    def request(self, asked) -> bytes:
        return http("/predict", json.dumps({"tokens": asked.tolist()}).encode(), "content-type: application/json")


class Triton(Rival):
    def __init__(self, setting: Setting, *how):
        super().__init__(*how)
        if setting.triton is None:
            raise CannotRun("it needs /usr/bin/python3.11")
        self._python = setting.triton
        asks = "import importlib.metadata; print(importlib.metadata.version('nvidia-pytriton'))"
        found = subprocess.run([self._python, "-c", asks], capture_output=True, text=True, check=False, timeout=60)
        if found.returncode != 0:
            raise CannotRun("the package nvidia-pytriton is not installed")
        self.name = f"triton (nvidia-pytriton {found.stdout.strip()})"

    def command(self, port: int) -> list:
        return [self._python, HERE / "serve_triton.py", port]

    def is_ready(self, port: int) -> bool:
        return answers(f"http://127.0.0.1:{port}/v2/models/tokens/ready") and accepts(port, self.request(SHORT))

    def request(self, asked) -> bytes:
        # Its batches are the first dimension of every tensor.
        return infer("tokens", {"tokens": asked[None]})

    def answer(self, body: bytes) -> np.ndarray:
        return first_tensor(body)
