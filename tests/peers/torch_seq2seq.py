"""The encoder-decoder in PyTorch: a batch is encoded, packed, and then decoded greedily until each of its targets has ended, or is as long as may be."""

import tomllib
from pathlib import Path

import numpy as np
import torch

import weights

torch.set_num_interop_threads(1)


class Program:
    def __init__(self, job: dict):
        torch.set_num_threads(job["threads"])
        torch.set_flush_denormal(True)
        found = weights.read_safetensors(Path(job["model"]) / "weights.safetensors")
        tensors = {name: torch.from_numpy(array) for name, array in found.items()}
        self._source = torch.nn.Embedding.from_pretrained(tensors["src.weight"])
        self._target = torch.nn.Embedding.from_pretrained(tensors["tgt.weight"])
        vocabulary, hidden = tensors["out.weight"].shape
        self._encoder, self._decoder = (lstm(tensors, name, hidden) for name in ("encoder", "decoder"))
        self._out = torch.nn.Linear(hidden, vocabulary)
        self._out.load_state_dict({name.removeprefix("out."): value for name, value in tensors.items() if name.startswith("out.")})
        given = tomllib.loads((Path(job["model"]) / "model.toml").read_text(encoding="utf-8"))["parameters"]
        self._eos, self._go, self._max_steps = given["eos"], given["go"], given["max_steps"]

    @torch.inference_mode()
    def __call__(self, requests: list[np.ndarray]) -> list[np.ndarray]:
        rows = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(request) for request in requests])
        lengths = torch.tensor([len(request) for request in requests])
        packed = torch.nn.utils.rnn.pack_padded_sequence(self._source(rows), lengths, enforce_sorted=False)
        _, state = self._encoder(packed)
        token = torch.full((len(requests),), self._go)
        ended = torch.zeros(len(requests), dtype=torch.bool)
        written = []
        while len(written) < self._max_steps and not ended.all():
            steps, state = self._decoder(self._target(token)[None], state)
            token = self._out(steps[0]).argmax(-1)
            written.append(token)
            ended |= token == self._eos
        targets = torch.stack(written, 1).numpy()
        eos = targets == self._eos
        ends = np.where(eos.any(1), eos.argmax(1) + 1, targets.shape[1])
        return [target[:end] for target, end in zip(targets, ends, strict=True)]


def lstm(tensors: dict, name: str, hidden: int) -> torch.nn.LSTM:
    layer = torch.nn.LSTM(hidden, hidden)
    layer.load_state_dict({key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")})
    return layer.eval()
