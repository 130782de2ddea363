"""Makes the test vectors of the cell families: `python3 make.py` (PyTorch needed) writes them beside itself.

The files are what any backend must compute, by a party that shares no code with it. Sizes differ from one another and
weights are far from symmetric, so that a swapped gate, a transposed matrix or a lost bias shows at the first step; every
step's outputs are there, so that a test can say which step went wrong. PyTorch computes in float64 from weights and inputs
that are exact in float32; outputs are rounded to nine significant digits.

Each file is `{"family", "about", "weights", "inputs", "outputs"}`, where the last three map names to
`{"shape": […], "data": […]}` in row-major order; weights have PyTorch's `state_dict` names. Sequences are [step, batch, …].
"""

import json
from pathlib import Path
from typing import Iterable

import torch
from torch import Tensor, nn

SEED = 20180423
BATCH, STEPS, FEATURES, HIDDEN = 3, 6, 5, 7


def drawn(*shape: int, scale: float = 1.0) -> Tensor:
    """Normal values that float32 holds exactly, in float64."""
    return (scale * torch.randn(*shape)).float().double()


def randomize(module: nn.Module) -> nn.Module:
    module = module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(drawn(*parameter.shape, scale=0.5))
    return module


def tensor_json(tensor: Tensor) -> dict:
    if not tensor.is_floating_point():
        return {"shape": list(tensor.shape), "data": tensor.flatten().tolist()}
    return {"shape": list(tensor.shape), "data": [float(f"{value:.9g}") for value in tensor.flatten().tolist()]}


def save(family: str, about: str, weights: Iterable[tuple[str, Tensor]], inputs: dict, outputs: dict, **more) -> None:
    parts = {"weights": dict(weights), "inputs": inputs, "outputs": outputs}
    tables = {part: {name: tensor_json(tensor.detach()) for name, tensor in tensors.items()} for part, tensors in parts.items()}
    text = json.dumps({"family": family, "about": about, **more, **tables}, separators=(",", ":"), ensure_ascii=False)
    (Path(__file__).parent / f"{family}.json").write_text(text.replace('"},"', '"},\n"') + "\n", encoding="utf-8")
    print(f"{family}.json: {len(text)} bytes")


def stepwise(module: nn.RNNBase, x: Tensor, state) -> tuple[Tensor, Tensor | None]:
    """h, and c where the cell has one, of every step of a one-layer module."""
    hs, cs = [], []
    for t in range(len(x)):
        _, state = module(x[t : t + 1], state)
        h, c = state if isinstance(state, tuple) else (state, None)
        hs.append(h[0])
        cs.append(c)
    return torch.stack(hs), None if cs[0] is None else torch.cat(cs)


def lstm() -> None:
    module = randomize(nn.LSTM(FEATURES, HIDDEN))
    x, h0, c0 = drawn(STEPS, BATCH, FEATURES), drawn(BATCH, HIDDEN), drawn(BATCH, HIDDEN)
    h, c = stepwise(module, x, (h0[None], c0[None]))
    assert torch.allclose(module(x, (h0[None], c0[None]))[0], h)
    about = "nn.LSTM, one layer, from a non-zero state: gates i, f, g, o; h and c after every step"
    save("lstm", about, module.state_dict().items(), {"x": x, "h0": h0, "c0": c0}, {"h": h, "c": c, "h_final": h[-1], "c_final": c[-1]})


def gru() -> None:
    module = randomize(nn.GRU(FEATURES, HIDDEN))
    x, h0 = drawn(STEPS, BATCH, FEATURES), drawn(BATCH, HIDDEN)
    h, _ = stepwise(module, x, h0[None])
    about = "nn.GRU, one layer, from a non-zero state: gates r, z, n with n = tanh(W_in x + b_in + r * (W_hn h + b_hn)), h' = (1 - z) * n + z * h"
    save("gru", about, module.state_dict().items(), {"x": x, "h0": h0}, {"h": h, "h_final": h[-1]})


def rnn(family: str, nonlinearity: str) -> None:
    module = randomize(nn.RNN(FEATURES, HIDDEN, nonlinearity=nonlinearity))
    x, h0 = drawn(STEPS, BATCH, FEATURES), drawn(BATCH, HIDDEN)
    h, _ = stepwise(module, x, h0[None])
    about = f"nn.RNN, one layer, from a non-zero state: h' = {nonlinearity}(W_ih x + b_ih + W_hh h + b_hh)"
    save(family, about, module.state_dict().items(), {"x": x, "h0": h0}, {"h": h, "h_final": h[-1]})


def stacked_bilstm() -> None:
    """Two bidirectional layers, from zero states. Each layer and direction is also there by itself."""
    lengths, layers = torch.tensor([6, 4, 1]), 2
    module = randomize(nn.LSTM(FEATURES, HIDDEN, num_layers=layers, bidirectional=True))
    x = drawn(STEPS, BATCH, FEATURES)
    x = x * (torch.arange(STEPS)[:, None] < lengths).unsqueeze(-1)
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths)
    result, (h, c) = module(packed)
    outputs = {"y": nn.utils.rnn.pad_packed_sequence(result)[0], "h_final": h, "c_final": c}

    single = nn.LSTM(FEATURES, HIDDEN, bidirectional=True).double()
    single.load_state_dict({name: value for name, value in module.state_dict().items() if "_l0" in name})
    outputs["y_layer0"] = nn.utils.rnn.pad_packed_sequence(single(packed)[0])[0]
    about = (
        "nn.LSTM, 2 layers, both directions, zero states, sequences of the lengths given (zeros after the end): y = [forward h, backward h] of "
        "every step of the last layer, y_layer0 of the first; h_final and c_final as PyTorch orders them: layer 0 forward, layer 0 backward, layer 1 …"
    )
    save("stacked_bilstm", about, module.state_dict().items(), {"x": x, "lengths": lengths}, outputs)


def treelstm() -> None:
    """A fixed tree of five leaves that is neither a chain nor balanced: ((0 1) (2 (3 4)))."""
    vocabulary, tokens, children = 6, [4, 1, 5, 1, 0], [[0, 1], [3, 4], [2, 6], [5, 7]]
    emb = randomize(nn.Embedding(vocabulary, FEATURES))
    leaf, node = randomize(nn.Linear(FEATURES, 3 * HIDDEN)), randomize(nn.Linear(2 * HIDDEN, 5 * HIDDEN))
    states = []
    for x in emb(torch.tensor(tokens)):
        i, o, u = leaf(x).chunk(3)
        c = i.sigmoid() * u.tanh()
        states.append((o.sigmoid() * c.tanh(), c))
    for left, right in children:
        (h_left, c_left), (h_right, c_right) = states[left], states[right]
        i, f_left, f_right, o, u = node(torch.cat([h_left, h_right])).chunk(5)
        c = i.sigmoid() * u.tanh() + f_left.sigmoid() * c_left + f_right.sigmoid() * c_right
        states.append((o.sigmoid() * c.tanh(), c))
    h, c = (torch.stack(column) for column in zip(*states))
    about = (
        "binary TreeLSTM: leaf = nn.Linear, gates i, o, u, c = σ(i) tanh(u); node = nn.Linear of [h_left, h_right], gates i, f_left, f_right, o, u, "
        "c = σ(i) tanh(u) + σ(f_left) c_left + σ(f_right) c_right; h = σ(o) tanh(c). A child below the number of tokens is that leaf, else an "
        "internal node, counted on from there. h and c of all nodes: leaves, then internal nodes"
    )
    modules = {"emb": emb, "leaf": leaf, "node": node}
    weights = [(f"{prefix}.{name}", value) for prefix, module in modules.items() for name, value in module.state_dict().items()]
    inputs = {"tokens": torch.tensor(tokens)}
    save("treelstm", about, weights, inputs, {"h": h, "c": c, "h_root": h[-1], "c_root": c[-1]}, tree={"tokens": tokens, "children": children})


def convolution() -> None:
    """A temporal convolution network: a filter bank over audio, a causal layer, a dilated one with a way around it, one that looks ahead."""
    frame, causal = nn.Conv1d(1, FEATURES, 16, stride=8), nn.Conv1d(FEATURES, HIDDEN, 3)
    dilated, ahead = nn.Conv1d(HIDDEN, HIDDEN, 3, dilation=2), nn.Conv1d(HIDDEN, 4, 4, stride=2, padding=1)
    modules = {name: randomize(module) for name, module in {"frame": frame, "causal": causal, "dilated": dilated, "ahead": ahead}.items()}
    inputs, outputs = {}, {}
    for elements in [24, 61, 200, 333]:
        audio = drawn(elements)
        h = causal(nn.functional.pad(frame(audio[None, None]), (2, 0))).relu()
        h = dilated(nn.functional.pad(h, (4, 0))).relu() + h
        inputs[f"audio{elements}"], outputs[f"y{elements}"] = audio, ahead(h)[0].T
    about = (
        "nn.Conv1d: frames of 16 every 8 elements; kernel 3, causal, relu; the same with dilation 2, and its input added; kernel 4, stride 2, padding 1. "
        "Weights as a window sees rows: [out, kernel, in], flat. y of every other step for signals of several lengths"
    )
    weights = {}
    for name, module in modules.items():
        weights[f"{name}.weight"] = module.weight.permute(0, 2, 1).flatten(1)
        weights[f"{name}.bias"] = module.bias
    save("convolution", about, weights.items(), inputs, outputs)


def embedding_projection() -> None:
    vocabulary, classes = 11, 9
    emb, out = randomize(nn.Embedding(vocabulary, FEATURES)), randomize(nn.Linear(FEATURES, classes))
    tokens = torch.randint(0, vocabulary, (STEPS, BATCH))
    embedded = emb(tokens)
    logits = out(embedded)
    best = logits.topk(2).values
    assert (best[..., 0] - best[..., 1]).min() > 1e-3, "two classes are too close to tell apart in float32; take another seed"
    weights = [(f"{prefix}.{name}", value) for prefix, module in {"emb": emb, "out": out}.items() for name, value in module.state_dict().items()]
    outputs = {"embedded": embedded, "logits": logits, "token": logits.argmax(-1)}
    save("embedding_projection", "nn.Embedding, then nn.Linear, then the largest logit's index", weights, {"tokens": tokens}, outputs)


def main() -> None:
    for family in (lstm, gru, lambda: rnn("rnn", "tanh"), lambda: rnn("rnn_relu", "relu"), stacked_bilstm, treelstm, convolution, embedding_projection):
        torch.manual_seed(SEED)
        family()


if __name__ == "__main__":
    main()
