"""The TreeLSTM in DyNet, which finds itself what of a set of trees may run together (autobatching). It computes on one thread."""

from pathlib import Path

import dynet_config
import numpy as np

import weights

# The memory it may use is taken when it is loaded.
dynet_config.set(mem=3000, autobatch=1, random_seed=1)
import dynet  # noqa: E402


class Program:
    def __init__(self, job: dict):
        found = weights.read_safetensors(Path(job["model"]) / "weights.safetensors")
        self._hidden = found["node.weight"].shape[0] // 5
        # Parameters do not outlive their collection.
        self._collection = collection = dynet.ParameterCollection()
        self._embedding = collection.lookup_parameters_from_numpy(found.pop("emb.weight"))
        self._given = {name: collection.parameters_from_numpy(array) for name, array in found.items()}

    def __call__(self, requests: list[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
        dynet.renew_cg()
        answers = [self._tree(*request) for request in requests]
        dynet.forward(answers)
        return [answer.npvalue() for answer in answers]

    def _tree(self, tokens: np.ndarray, children: np.ndarray):
        given = self._given
        states = [self._leaf(int(token)) for token in tokens]
        for left, right in children:
            states.append(self._node(states[left], states[right]))
        return dynet.affine_transform([given["head.bias"], given["head.weight"], states[-1][0]])

    def _leaf(self, token: int) -> tuple:
        given = self._given
        gates = dynet.affine_transform([given["leaf.bias"], given["leaf.weight"], dynet.lookup(self._embedding, token, update=False)])
        i, o, u = self._parts(gates, 3)
        c = dynet.cmult(dynet.logistic(i), dynet.tanh(u))
        return dynet.cmult(dynet.logistic(o), dynet.tanh(c)), c

    def _node(self, left: tuple, right: tuple) -> tuple:
        given = self._given
        gates = dynet.affine_transform([given["node.bias"], given["node.weight"], dynet.concatenate([left[0], right[0]])])
        i, f_left, f_right, o, u = self._parts(gates, 5)
        kept = dynet.cmult(dynet.logistic(f_left), left[1]) + dynet.cmult(dynet.logistic(f_right), right[1])
        c = dynet.cmult(dynet.logistic(i), dynet.tanh(u)) + kept
        return dynet.cmult(dynet.logistic(o), dynet.tanh(c)), c

    def _parts(self, gates, count: int) -> list:
        return [dynet.pick_range(gates, each * self._hidden, (each + 1) * self._hidden) for each in range(count)]
