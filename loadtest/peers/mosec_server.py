"""The models of the race on Mosec, batched dynamically. Run as `python mosec_server.py PORT WEIGHTS`.

JSON requests have the inference protocol's form; binary ones are the bare tensor, one row, since Mosec shows
its workers no headers.
"""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from mosec import Runtime, Server, Worker
from networks import networks

PORT, WEIGHTS = sys.argv[1], Path(sys.argv[2])


class Model(Worker):
    """One model; its name is the class's in lower case."""

    def __init__(self) -> None:
        super().__init__()
        self.network = networks(WEIGHTS)[type(self).__name__.removesuffix("Bytes").lower()]

    def deserialize(self, data: bytes) -> np.ndarray:
        tensor = orjson.loads(data)["inputs"][0]
        return np.asarray(tensor["data"], np.float32).reshape(tensor["shape"])

    def serialize(self, data: np.ndarray) -> bytes:
        output = {"name": "y", "datatype": "FP32", "shape": data.shape, "data": data.ravel()}
        return orjson.dumps({"outputs": [output]}, option=orjson.OPT_SERIALIZE_NUMPY)

    def forward(self, data: list[np.ndarray]) -> list[np.ndarray]:
        return list(self.network(np.concatenate(data))[:, None])


class Identity(Model):
    pass


class Perceptron(Model):
    pass


class Mean(Model):
    pass


class Bytes(Model):
    def deserialize(self, data: bytes) -> np.ndarray:
        return np.frombuffer(data, np.float32)[None]

    def serialize(self, data: np.ndarray) -> Any:
        return data.tobytes()


class IdentityBytes(Bytes):
    pass


class PerceptronBytes(Bytes):
    pass


if __name__ == "__main__":
    # Its command line is its own; each worker process reads this script's again.
    os.environ |= {"MOSEC_PORT": PORT, "MOSEC_ADDRESS": "127.0.0.1", "MOSEC_LOG_LEVEL": "warning"}
    os.environ["MOSEC_MAX_REQUEST_SIZE"] = str(64 << 20)
    served, sys.argv = sys.argv, sys.argv[:1]
    server = Server()
    sys.argv = served

    def batched(worker: type[Worker]) -> list[Runtime]:
        return [Runtime(worker, max_batch_size=32, max_wait_time=1)]

    server.register_runtime(
        {
            "/v2/models/identity/infer": batched(Identity),
            "/v2/models/perceptron/infer": batched(Perceptron),
            "/v2/models/mean/infer": batched(Mean),
            "/identity/bytes": batched(IdentityBytes),
            "/perceptron/bytes": batched(PerceptronBytes),
        }
    )
    server.run()
