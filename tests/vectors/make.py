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
BATCH, STEPS, FEATURES, HIDDEN, HEADS = 3, 6, 5, 7, 2


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


def state(modules: dict[str, nn.Module]) -> list[tuple[str, Tensor]]:
    """The weights of modules, each under its name."""
    return [(f"{prefix}.{name}", value) for prefix, module in modules.items() for name, value in module.state_dict().items()]


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
    inputs = {"tokens": torch.tensor(tokens)}
    save("treelstm", about, state(modules), inputs, {"h": h, "c": c, "h_root": h[-1], "c_root": c[-1]}, tree={"tokens": tokens, "children": children})


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


def heads(x: Tensor) -> Tensor:
    """[n, features] as [heads, n, features of one]."""
    return x.unflatten(-1, (HEADS, -1)).transpose(0, 1)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    seen = nn.functional.scaled_dot_product_attention(*(heads(x)[None] for x in (q, k, v)), attn_mask=mask)
    return seen[0].transpose(0, 1).flatten(1)


def below(count: int, nearest: int | None = None) -> Tensor:
    """Which rows each row sees: itself and those before it, or the nearest of them."""
    mask = torch.ones(count, count, dtype=torch.bool).tril()
    return mask if nearest is None else mask.triu(1 - nearest)


def decoder() -> None:
    """A transformer of two layers, with normalisation in front, that writes what is likeliest."""
    hidden, wide, vocabulary, most, end = 8, 12, 13, 200, 6
    modules = {"token": nn.Embedding(vocabulary, hidden), "position": nn.Embedding(2 * most, hidden)}
    for layer in range(2):
        linear = {name: nn.Linear(hidden, hidden) for name in ("query", "keys", "values", "out")}
        linear |= {"wide": nn.Linear(hidden, wide), "narrow": nn.Linear(wide, hidden)}
        norms = {name: nn.LayerNorm(hidden) for name in ("before", "between")}
        modules |= {f"{layer}.{name}": module for name, module in (linear | norms).items()}
    at = {name: randomize(module) for name, module in (modules | {"head": nn.Linear(hidden, vocabulary)}).items()}
    # As it begins. Else one token would win everywhere.
    at["norm"] = nn.LayerNorm(hidden).double()
    at["token"].weight.data *= 4
    at["position"].weight.data *= 2

    def logits(tokens: list[int]) -> Tensor:
        x = at["token"](torch.tensor(tokens)) + at["position"](torch.arange(len(tokens)))
        for layer in range(2):
            here = lambda name: at[f"{layer}.{name}"]
            normal = here("before")(x)
            x = x + here("out")(attention(*(here(name)(normal) for name in ("query", "keys", "values")), below(len(tokens))))
            x = x + here("narrow")(nn.functional.gelu(here("wide")(here("between")(x))))
        return at["head"](at["norm"](x))

    def written(prompt: list[int]) -> Tensor:
        tokens, rows = list(prompt), []
        while len(rows) < most and (not rows or tokens[-1] != end):
            rows.append(logits(tokens)[-1])
            best = rows[-1].topk(2)
            assert best.values[0] - best.values[1] > 2e-4, "two tokens are too close to tell apart in float32; take another seed"
            tokens.append(int(best.indices[0]))
        return torch.stack(rows)

    prompts = [torch.randint(1, vocabulary, (count,)) for count in (1, 7, 60)]
    inputs = {f"ids{len(prompt)}": prompt for prompt in prompts}
    outputs = {f"y{len(prompt)}": written(prompt.tolist()) for prompt in prompts}
    about = (
        "Two layers: nn.LayerNorm, causal attention of two heads, nn.LayerNorm, nn.Linear, gelu, nn.Linear. From a prompt on it writes the likeliest "
        f"token until that is {end}, {most} at most. y: the logits of each written token"
    )
    save("decoder", about, state(at), inputs, outputs)


def over_sources(family: str, about: str, more: dict[str, nn.Module], steps) -> None:
    """A model that reads tokens with nn.GRU and goes on from all its states."""
    modules = {"token": nn.Embedding(11, FEATURES), "reader": nn.GRU(FEATURES, HIDDEN), **more}
    at = {name: randomize(module) for name, module in modules.items()}
    inputs, outputs = {}, {}
    for count in [1, 7, 300, 2000]:
        ids = torch.randint(0, 11, (count,))
        states, _ = at["reader"](at["token"](ids))
        inputs[f"ids{count}"], outputs[f"y{count}"] = ids, steps(at, states)
    weights = [(name, value.T if name == "score.weight" and len(value) == 1 else value) for name, value in state(at)]
    save(family, "nn.Embedding and nn.GRU read 1 to 2,000 tokens. " + about, weights, inputs, outputs)


def luong() -> None:
    def steps(at: dict[str, nn.Module], source: Tensor) -> Tensor:
        fed, h, rows = torch.zeros(HIDDEN).double(), source[-1], []
        for _ in range(8):
            h = at["step"](fed[None, None], h[None, None])[0][0, 0]
            shares = (source @ at["score"](h)).softmax(0)
            fed = at["combine"](torch.cat([shares @ source, h])).tanh()
            rows.append(fed)
        return torch.stack(rows)

    more = {"step": nn.GRU(HIDDEN, HIDDEN), "score": nn.Linear(HIDDEN, HIDDEN, bias=False), "combine": nn.Linear(2 * HIDDEN, HIDDEN, bias=False)}
    about = "Eight steps of nn.GRU from the last state, with Luong's attention (score `general`), whose rows are fed to the next step. y: these rows"
    over_sources("luong", about, more, steps)


def bahdanau() -> None:
    def steps(at: dict[str, nn.Module], source: Tensor) -> Tensor:
        h, rows = source[-1], []
        for _ in range(8):
            shares = at["score"]((at["of_state"](h) + at["of_source"](source)).tanh()).softmax(0)
            h = at["step"]((shares * source).sum(0)[None, None], h[None, None])[0][0, 0]
            rows.append(h)
        return torch.stack(rows)

    linear = {name: nn.Linear(HIDDEN, HIDDEN, bias=False) for name in ("of_state", "of_source")}
    more = linear | {"score": nn.Linear(HIDDEN, 1, bias=False), "step": nn.GRU(HIDDEN, HIDDEN)}
    over_sources("bahdanau", "Eight steps of nn.GRU from the last state, over Bahdanau's attention to all states. y: their states", more, steps)


def transducer() -> None:
    """The greedy way through a transducer's lattice. A blank leaves the predictor as it is."""
    symbols, blank, most = 6, 1, 3
    modules = {"token": nn.Embedding(11, FEATURES), "reader": nn.GRU(FEATURES, HIDDEN), "head": nn.Linear(HIDDEN, symbols)}
    modules |= {name: nn.Linear(HIDDEN, HIDDEN, bias=False) for name in ("of_source", "of_state")}
    modules |= {"symbol": nn.Embedding(symbols, FEATURES), "predictor": nn.RNN(FEATURES, HIDDEN)}
    at = {name: randomize(module) for name, module in modules.items()}
    for name in ("head", "of_source", "of_state"):
        at[name].weight.data *= 6
    at["head"].bias.data[blank] += 1
    inputs, outputs, ends = {}, {}, set()
    for count in [1, 7, 150]:
        ids = torch.randint(0, 11, (count,))
        states, _ = at["reader"](at["token"](ids))
        h, rows = torch.zeros(HIDDEN).double(), []
        for frame in states:
            for said in range(most):
                rows.append(at["head"]((at["of_source"](frame) + at["of_state"](h)).tanh()))
                best = rows[-1].topk(2)
                assert best.values[0] - best.values[1] > 2e-4, "two symbols are too close to tell apart in float32; take another seed"
                symbol = best.indices[0]
                if symbol == blank:
                    break
                h = at["predictor"](at["symbol"](symbol)[None, None], h[None, None])[1][0, 0]
            ends.add(said if symbol == blank else most)
        inputs[f"ids{count}"], outputs[f"y{count}"] = ids, torch.stack(rows)
    assert ends == set(range(most + 1)), f"frames end in other ways: {ends}"
    predictor = at.pop("predictor")
    weights = state(at) + [(f"predictor.symbol.{name}", getattr(predictor, f"{name}_ih_l0")) for name in ("weight", "bias")]
    weights += [(f"predictor.before.{name}", getattr(predictor, f"{name}_hh_l0")) for name in ("weight", "bias")]
    about = (
        f"nn.Embedding and nn.GRU read tokens. A joint network adds a frame's product and the predictor's. Symbol {blank} is the blank, and a frame gives "
        f"{most} symbols at most. The predictor is nn.RNN. y: the logits of each step, blanks too"
    )
    save("transducer", about, weights, inputs, outputs)


def pooling() -> None:
    def steps(at: dict[str, nn.Module], source: Tensor) -> Tensor:
        return at["out"](torch.cat([source.mean(0), source.amax(0)]))[None]

    over_sources("pooling", "y: nn.Linear of the mean and the largest of all states", {"out": nn.Linear(2 * HIDDEN, 4)}, steps)


def local() -> None:
    """Attention to the last 16 rows."""
    hidden = 8
    modules = {"token": nn.Embedding(11, FEATURES)} | {name: nn.Linear(FEATURES, hidden) for name in ("query", "keys", "values")}
    at = {name: randomize(module) for name, module in (modules | {"out": nn.Linear(hidden, 4)}).items()}
    inputs, outputs = {}, {}
    for count in [1, 16, 17, 100]:
        ids = torch.randint(0, 11, (count,))
        x = at["token"](ids)
        rows = attention(*(at[name](x) for name in ("query", "keys", "values")), below(count, nearest=16))
        inputs[f"ids{count}"], outputs[f"y{count}"] = ids, at["out"](rows)
    save("local", "nn.Embedding, then attention of two heads to the last 16 rows, then nn.Linear. y of every step", state(at), inputs, outputs)


def embedding_projection() -> None:
    vocabulary, classes = 11, 9
    emb, out = randomize(nn.Embedding(vocabulary, FEATURES)), randomize(nn.Linear(FEATURES, classes))
    tokens = torch.randint(0, vocabulary, (STEPS, BATCH))
    embedded = emb(tokens)
    logits = out(embedded)
    best = logits.topk(2).values
    assert (best[..., 0] - best[..., 1]).min() > 1e-3, "two classes are too close to tell apart in float32; take another seed"
    outputs = {"embedded": embedded, "logits": logits, "token": logits.argmax(-1)}
    about = "nn.Embedding, then nn.Linear, then the largest logit's index"
    save("embedding_projection", about, state({"emb": emb, "out": out}), {"tokens": tokens}, outputs)


def main() -> None:
    recurrent = (lstm, gru, lambda: rnn("rnn", "tanh"), lambda: rnn("rnn_relu", "relu"), stacked_bilstm, treelstm)
    for family in (*recurrent, convolution, decoder, luong, bahdanau, transducer, local, pooling, embedding_projection):
        torch.manual_seed(SEED)
        family()


if __name__ == "__main__":
    main()
