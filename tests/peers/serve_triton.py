"""The model under NVIDIA's Triton with its Python backend: `python serve_triton.py PORT`. Its dynamic batcher batches requests of equal lengths alone."""

import os
import socket
import sys

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

from model import BATCH_MAX, BATCH_WAIT_MS, Model


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def instance():
    """One that computes; each is called by a thread of its own."""
    model = Model()

    @batch
    def infer(tokens: np.ndarray) -> dict:
        states = model(list(tokens))
        return {"final": np.stack([np.frombuffer(state, dtype="<f4") for state in states])}

    return infer


def main() -> None:
    ports = {"http_port": int(sys.argv[1]), "grpc_port": free_port(), "metrics_port": free_port()}
    with Triton(config=TritonConfig(http_address="127.0.0.1", grpc_address="127.0.0.1", **ports)) as triton:
        batcher = DynamicBatcher(max_queue_delay_microseconds=BATCH_WAIT_MS * 1000)
        triton.bind(
            model_name="tokens",
            infer_func=[instance() for _ in range(int(os.environ.get("PEER_WORKERS", "1")))],
            inputs=[Tensor(name="tokens", dtype=np.int64, shape=(-1,))],
            outputs=[Tensor(name="final", dtype=np.float32, shape=(-1,))],
            config=ModelConfig(max_batch_size=BATCH_MAX, batcher=batcher),
        )
        triton.serve()


if __name__ == "__main__":
    main()
