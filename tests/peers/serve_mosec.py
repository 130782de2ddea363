"""The model under mosec: `python serve_mosec.py --address 127.0.0.1 --port 9001 --timeout 60000`. A request and an answer are raw bytes."""

import os

import numpy as np
from mosec import Server, Worker

from model import BATCH_MAX, BATCH_WAIT_MS, Model


class Lstm(Worker):
    def __init__(self):
        super().__init__()
        self._model = Model()
        self.resp_mime_type = "application/octet-stream"

    def deserialize(self, data: bytes) -> np.ndarray:
        return np.frombuffer(data, dtype="<i8").copy()

    def serialize(self, data: bytes) -> bytes:
        return data

    def forward(self, data: list[np.ndarray]) -> list[bytes]:
        return self._model(data)


if __name__ == "__main__":
    server = Server()
    server.append_worker(Lstm, num=int(os.environ.get("PEER_WORKERS", "1")), max_batch_size=BATCH_MAX, max_wait_time=BATCH_WAIT_MS, timeout=60)
    server.run()
