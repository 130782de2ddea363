"""The TreeLSTM in PyTorch: all leaves of a set of trees at once, then all nodes of equal height, level by level."""

from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import linear

import weights

torch.set_num_interop_threads(1)


class Program:
    def __init__(self, job: dict):
        torch.set_num_threads(job["threads"])
        torch.set_flush_denormal(True)
        found = weights.read_safetensors(Path(job["model"]) / "weights.safetensors")
        self._weights = {name: torch.from_numpy(array) for name, array in found.items()}

    @torch.inference_mode()
    def __call__(self, requests: list[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
        leaves, levels, roots, nodes = placed(requests)
        tokens = torch.from_numpy(np.concatenate([tokens for tokens, _ in requests]))
        given = self._weights
        hidden = given["node.weight"].shape[0] // 5
        h, c = torch.empty(nodes, hidden), torch.empty(nodes, hidden)
        i, o, u = linear(given["emb.weight"][tokens], given["leaf.weight"], given["leaf.bias"]).chunk(3, -1)
        state = i.sigmoid_() * u.tanh_()
        h[leaves], c[leaves] = o.sigmoid_() * state.tanh(), state
        for own, left, right in levels:
            both = torch.cat([h[left], h[right]], -1)
            i, f_left, f_right, o, u = linear(both, given["node.weight"], given["node.bias"]).chunk(5, -1)
            state = i.sigmoid_() * u.tanh_() + f_left.sigmoid_() * c[left] + f_right.sigmoid_() * c[right]
            h[own], c[own] = o.sigmoid_() * state.tanh(), state
        return list(linear(h[roots], given["head.weight"], given["head.bias"]).numpy())


def placed(requests: list) -> tuple:
    """Where each node of each tree has its state: the leaves, then (own, left, right) of each level, then the roots; and how many there are."""
    leaves, own, children, height, roots, base = [], [], [], [], [], 0
    for tokens, inner in requests:
        count = len(tokens)
        leaves.append(np.arange(base, base + count))
        heights = [0] * count
        for left, right in inner.tolist():
            heights.append(1 + max(heights[left], heights[right]))
        height.append(heights[count:])
        own.append(np.arange(base + count, base + count + len(inner)))
        children.append(inner + base)
        base += count + len(inner)
        roots.append(base - 1)
    own, children, height = np.concatenate(own), np.concatenate(children), np.concatenate(height).astype(int)
    order = np.argsort(height, kind="stable")
    ends = np.cumsum(np.bincount(height, minlength=1)[1:])
    levels = [each for each in np.split(order, ends[:-1]) if len(each)]
    indices = lambda array: torch.from_numpy(np.ascontiguousarray(array))  # noqa: E731
    found = [(indices(own[each]), indices(children[each, 0]), indices(children[each, 1])) for each in levels]
    return indices(np.concatenate(leaves)), found, torch.tensor(roots), base
