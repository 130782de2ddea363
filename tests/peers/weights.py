"""The weights of a bundle, for those who compute the same model otherwise."""

import json
from pathlib import Path

import numpy as np


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Every tensor of a file of 32-bit floats."""
    bytes_ = path.read_bytes()
    begin = 8 + int.from_bytes(bytes_[:8], "little")
    tensors = {}
    for name, tensor in json.loads(bytes_[8:begin]).items():
        first, last = (begin + offset for offset in tensor["data_offsets"])
        tensors[name] = np.frombuffer(bytes_[first:last], dtype="<f4").reshape(tensor["shape"]).copy()
    return tensors
