"""The model that the peers serve, in PyTorch: an embedding and one LSTM layer, from the weights that Cellwright serves too."""

import os
from pathlib import Path

import numpy as np
import torch

import weights

BATCH_MAX = 64
BATCH_WAIT_MS = 5

torch.set_num_interop_threads(1)


class Model:
    """Batches of token sequences to final hidden states; `PEER_FOLDER` names the bundle, `PEER_PADDING` how batches are made."""

    def __init__(self):
        self._threads = int(os.environ.get("PEER_THREADS", os.cpu_count() or 1))
        torch.set_flush_denormal(True)
        found = weights.read_safetensors(Path(os.environ["PEER_FOLDER"]) / "weights.safetensors")
        tensors = {name: torch.from_numpy(array) for name, array in found.items()}
        self._packed = os.environ.get("PEER_PADDING", "padded") == "packed"
        gates, hidden = tensors["lstm.weight_hh_l0"].shape
        assert gates == 4 * hidden
        self._embedding = torch.nn.Embedding.from_pretrained(tensors["embedding.weight"])
        self._lstm = torch.nn.LSTM(self._embedding.embedding_dim, hidden, batch_first=True)
        self._lstm.load_state_dict({name.removeprefix("lstm."): value for name, value in tensors.items() if name.startswith("lstm.")})
        self._lstm.eval()
        # The first calls allocate and choose kernels.
        for batch in (1, BATCH_MAX, BATCH_MAX):
            self([np.zeros(64, dtype=np.int64)] * batch)

    @torch.inference_mode()
    def __call__(self, sequences: list[np.ndarray]) -> list[bytes]:
        """The final hidden state of each sequence, as little-endian floats."""
        # OpenMP keeps this for each thread that calls, and not every server calls from the thread that made the model.
        torch.set_num_threads(self._threads)
        rows = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(sequence) for sequence in sequences], batch_first=True)
        lengths = torch.tensor([len(sequence) for sequence in sequences])
        embedded = self._embedding(rows)
        if self._packed:
            packed = torch.nn.utils.rnn.pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
            _, (final, _) = self._lstm(packed)
            states = final[0]
        else:
            steps, _ = self._lstm(embedded)
            states = steps[torch.arange(len(sequences)), lengths - 1]
        return [state.tobytes() for state in states.numpy()]
