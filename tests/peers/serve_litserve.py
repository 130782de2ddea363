"""The model under LitServe: `python serve_litserve.py PORT`. A request is JSON (LitServe reads nothing plainer), an answer raw bytes."""

import os
import sys

import litserve
import numpy as np
from fastapi import Response

from model import BATCH_MAX, BATCH_WAIT_MS, Model


class Lstm(litserve.LitAPI):
    def setup(self, device):
        self._model = Model()

    def decode_request(self, request):
        return np.array(request["tokens"], dtype=np.int64)

    def batch(self, inputs):
        return inputs

    def predict(self, inputs):
        return self._model(inputs)

    def unbatch(self, output):
        return output

    def encode_response(self, output):
        return Response(content=output, media_type="application/octet-stream")


if __name__ == "__main__":
    api = Lstm(max_batch_size=BATCH_MAX, batch_timeout=BATCH_WAIT_MS / 1000)
    # The queue over ZeroMQ is the faster of LitServe's two. It has as many processes for HTTP as it has workers unless told otherwise.
    workers = int(os.environ.get("PEER_WORKERS", "1"))
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=workers, timeout=60, fast_queue=True)
    server.run(host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", generate_client_file=False, access_log=False)
