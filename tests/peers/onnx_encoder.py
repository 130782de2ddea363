"""A sentence-transformers model in ONNX Runtime, as PyTorch exports it, with its pooling."""

import io
import os

import numpy as np
import onnxruntime
import torch

os.environ["HF_HUB_OFFLINE"] = "1"
from sentence_transformers import SentenceTransformer  # noqa: E402

from torch_encoder import padded  # noqa: E402

NAMES = ("input_ids", "attention_mask")


class Whole(torch.nn.Module):
    """The model with tensors instead of dictionaries."""

    def __init__(self, model: SentenceTransformer):
        super().__init__()
        self._model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self._model({"input_ids": ids, "attention_mask": mask})["sentence_embedding"]


class Program:
    def __init__(self, job: dict):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = job["threads"]
        self._session = onnxruntime.InferenceSession(exported(job["model"]), options, providers=["CPUExecutionProvider"])

    def __call__(self, requests: list[np.ndarray]) -> list[np.ndarray]:
        (rows,) = self._session.run(None, dict(zip(NAMES, padded(requests), strict=True)))
        return list(rows)


def exported(model: str) -> bytes:
    # Attention in operators that every runtime has. It fuses them itself.
    loaded = SentenceTransformer(model, device="cpu", model_kwargs={"attn_implementation": "eager"}).eval()
    into, ones = io.BytesIO(), torch.ones(2, 7, dtype=torch.long)
    axes = {name: {0: "texts", 1: "tokens"} for name in NAMES} | {"embedding": {0: "texts"}}
    torch.onnx.export(Whole(loaded), (ones, ones), into, input_names=list(NAMES), output_names=["embedding"], dynamic_axes=axes, dynamo=False)
    return into.getvalue()
