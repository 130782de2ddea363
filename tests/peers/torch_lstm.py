"""The LSTM over tokens in PyTorch, batches padded to their longest, or packed."""

import os

import numpy as np


class Program:
    def __init__(self, job: dict):
        os.environ |= {"PEER_FOLDER": job["model"], "PEER_THREADS": str(job["threads"]), "PEER_PADDING": job["padding"]}
        from model import Model

        self._model = Model()

    def __call__(self, requests: list[np.ndarray]) -> list[np.ndarray]:
        return [np.frombuffer(state, dtype="<f4") for state in self._model(requests)]
