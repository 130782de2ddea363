"""OpenAI's client against `/v1/embeddings`, and the numbers against an encoder that is written down in numpy."""

import json
from math import erf

import numpy as np
import openai
import pytest

import bundles

TOLERANCE = 1e-4
TEXTS = {"the quick brown foxes": [2, 5, 6, 7, 8, 9, 3], "the fox jumps .": [2, 5, 8, 10, 11, 12, 3], "fox": [2, 8, 3], "zebra": [2, 1, 3]}


@pytest.fixture
def client(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = bundles.encoder(tmp_path_factory.mktemp("encoder")) / "weights.safetensors"
    raw = path.read_bytes()
    count = int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8 : 8 + count]), raw[8 + count :]
    read = lambda entry: np.frombuffer(data[slice(*entry["data_offsets"])], "<f4").reshape(entry["shape"]).astype(np.float64)
    return {name: read(entry) for name, entry in header.items()}


def embedding(weights: dict, tokens: list[int]) -> np.ndarray:
    """BERT (Devlin and others, 2019), mean pooling, normalisation."""

    def linear(x, name):
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def normal(x, name):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
        return x * weights[f"{name}.LayerNorm.weight"] + weights[f"{name}.LayerNorm.bias"]

    def heads(x):
        return x.reshape(len(x), bundles.ENCODER["heads"], -1).swapaxes(0, 1)

    table = "embeddings.{}_embeddings.weight".format
    x = weights[table("word")][tokens] + weights[table("position")][: len(tokens)] + weights[table("token_type")][0]
    x = normal(x, "embeddings")
    for layer in range(bundles.ENCODER["layers"]):
        name = f"encoder.layer.{layer}"
        q, k, v = (heads(linear(x, f"{name}.attention.self.{part}")) for part in ("query", "key", "value"))
        scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        seen = (shares / shares.sum(-1, keepdims=True) @ v).swapaxes(0, 1).reshape(x.shape)
        x = normal(linear(seen, f"{name}.attention.output.dense") + x, f"{name}.attention.output")
        wide = linear(x, f"{name}.intermediate.dense")
        wide = wide * 0.5 * (1 + np.vectorize(erf)(wide / np.sqrt(2)))
        x = normal(linear(wide, f"{name}.output.dense") + x, f"{name}.output")
    mean = x.mean(0)
    return mean / np.linalg.norm(mean)


def test_embeddings_are_those_of_the_model(client, weights):
    for form in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
        answer = client.embeddings.create(model="encoder", input=list(TEXTS), **form)
        assert answer.model == "encoder" and answer.usage.prompt_tokens == answer.usage.total_tokens == 20
        for index, (row, tokens) in enumerate(zip(answer.data, TEXTS.values(), strict=True)):
            found = np.frombuffer(__import__("base64").b64decode(row.embedding), "<f4") if isinstance(row.embedding, str) else row.embedding
            assert row.index == index
            np.testing.assert_allclose(found, embedding(weights, tokens), atol=TOLERANCE)


def test_tokens_give_what_texts_give(client):
    texts = [row.embedding for row in client.embeddings.create(model="encoder", input=list(TEXTS)).data]
    tokens = [row.embedding for row in client.embeddings.create(model="encoder", input=list(TEXTS.values())).data]
    assert texts == tokens
    assert client.embeddings.create(model="encoder", input=TEXTS["fox"]).data[0].embedding == texts[2]


def test_dimensions_shorten(client):
    whole = client.embeddings.create(model="encoder", input="fox").data[0].embedding
    short = client.embeddings.create(model="encoder", input="fox", dimensions=3).data[0].embedding
    np.testing.assert_allclose(short, np.array(whole[:3]) / np.linalg.norm(whole[:3]), atol=1e-6)


@pytest.mark.parametrize(
    ("asked", "error", "words"),
    [
        ({"model": "nobody"}, openai.NotFoundError, "there is no model `nobody`"),
        ({"model": "digits"}, openai.BadRequestError, "no table [embeddings]"),
        ({"input": ""}, openai.BadRequestError, "text 0 of `input` is empty"),
        ({"input": []}, openai.BadRequestError, "`input` is empty"),
        ({"input": [[13]]}, openai.BadRequestError, "the vocabulary has 13"),
        ({"dimensions": 9}, openai.BadRequestError, "`dimensions` is 9"),
    ],
)
def test_what_is_refused_has_a_sentence(client, asked, error, words):
    with pytest.raises(error) as refused:
        client.embeddings.create(**({"model": "encoder", "input": "fox"} | asked))
    assert words in str(refused.value)
