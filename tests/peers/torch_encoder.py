"""A sentence-transformers model on token ids, padded to the longest of a batch."""

import os

import numpy as np
import torch

# The model's folder is whole: nothing is asked of a hub.
os.environ["HF_HUB_OFFLINE"] = "1"
from sentence_transformers import SentenceTransformer  # noqa: E402


class Program:
    def __init__(self, job: dict):
        torch.set_num_threads(job["threads"])
        self._model = SentenceTransformer(job["model"], device="cpu").eval()

    @torch.inference_mode()
    def __call__(self, requests: list[np.ndarray]) -> list[np.ndarray]:
        ids, mask = (torch.from_numpy(array) for array in padded(requests))
        return list(self._model({"input_ids": ids, "attention_mask": mask})["sentence_embedding"].numpy())


def padded(requests: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Ids, and which of them count."""
    ids = np.zeros((len(requests), max(map(len, requests))), dtype=np.int64)
    mask = np.zeros_like(ids)
    for row, request in enumerate(requests):
        ids[row, : len(request)], mask[row, : len(request)] = request, 1
    return ids, mask
