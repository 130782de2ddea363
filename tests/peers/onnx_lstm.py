"""The LSTM over tokens in ONNX Runtime: the operators `Gather` and `LSTM`, which is told the lengths of a padded batch."""

from pathlib import Path

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import weights


class Program:
    def __init__(self, job: dict):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = job["threads"]
        self._session = onnxruntime.InferenceSession(graph(Path(job["model"])), options, providers=["CPUExecutionProvider"])

    def __call__(self, requests: list[np.ndarray]) -> list[np.ndarray]:
        lengths = np.array([len(request) for request in requests], dtype=np.int32)
        tokens = np.zeros((lengths.max(), len(requests)), dtype=np.int64)
        for column, request in enumerate(requests):
            tokens[: len(request), column] = request
        (states,) = self._session.run(None, {"tokens": tokens, "lengths": lengths})
        return list(states[0])


def graph(model: Path) -> bytes:
    found = weights.read_safetensors(model / "weights.safetensors")
    hidden = found["lstm.weight_hh_l0"].shape[1]
    biases = np.concatenate([reordered(found["lstm.bias_ih_l0"]), reordered(found["lstm.bias_hh_l0"])])
    initializers = {
        "embedding": found["embedding.weight"],
        "W": reordered(found["lstm.weight_ih_l0"])[None],
        "R": reordered(found["lstm.weight_hh_l0"])[None],
        "B": biases[None],
    }
    nodes = [
        helper.make_node("Gather", ["embedding", "tokens"], ["x"]),
        helper.make_node("LSTM", ["x", "W", "R", "B", "lengths"], ["", "final"], hidden_size=hidden),
    ]
    made = helper.make_graph(
        nodes,
        "lstm",
        [helper.make_tensor_value_info("tokens", TensorProto.INT64, ["T", "B"]), helper.make_tensor_value_info("lengths", TensorProto.INT32, ["B"])],
        [helper.make_tensor_value_info("final", TensorProto.FLOAT, [1, "B", hidden])],
        [numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in initializers.items()],
    )
    model_ = helper.make_model(made, opset_imports=[helper.make_opsetid("", 14)])
    model_.ir_version = 8
    return model_.SerializeToString()


def reordered(array: np.ndarray) -> np.ndarray:
    """PyTorch's gates are i, f, g, o; ONNX's are i, o, f, c."""
    i, f, g, o = np.split(array, 4)
    return np.concatenate([i, o, f, g])
