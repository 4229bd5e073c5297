"""The models of the race on LitServe, batched dynamically. Run as `python litserve_server.py PORT WEIGHTS`.

It takes and gives JSON in the inference protocol's form; it has no way for a bare tensor.
"""

import sys
from pathlib import Path
from typing import Any

import litserve
import numpy as np
from networks import networks


class Model(litserve.LitAPI):
    def __init__(self, name: str) -> None:
        super().__init__(max_batch_size=32, batch_timeout=0.001, api_path=f"/v2/models/{name}/infer")
        self.name = name

    def setup(self, device: str) -> None:
        self.network = networks(Path(sys.argv[2]))[self.name]

    def decode_request(self, request):  # type: ignore[no-untyped-def]  # a type here would become a parameter
        tensor = request["inputs"][0]
        return np.asarray(tensor["data"], np.float32).reshape(tensor["shape"])

    def batch(self, inputs: list[np.ndarray]) -> np.ndarray:
        return np.concatenate(inputs)

    def predict(self, x: np.ndarray) -> np.ndarray:
        return self.network(x)

    def unbatch(self, output: np.ndarray) -> list[np.ndarray]:
        return list(output[:, None])

    def encode_response(self, output: np.ndarray) -> dict[str, Any]:
        tensor = {
            "name": "y",
            "datatype": "FP32",
            "shape": list(output.shape),
            "data": output.ravel().tolist(),
        }
        return {"outputs": [tensor]}


if __name__ == "__main__":
    server = litserve.LitServer(
        [Model(name) for name in ("identity", "perceptron", "mean")], accelerator="cpu", timeout=60
    )
    server.run(host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False, log_level="warning")
