"""What Triton's Python backend runs for each model of the race; `triton_server` puts it where that looks."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as triton
from networks import networks


class TritonPythonModel:
    def initialize(self, arguments: dict[str, str]) -> None:
        weights = json.loads(arguments["model_config"])["parameters"]["weights"]["string_value"]
        self.network = networks(Path(weights))[arguments["model_name"]]

    def execute(self, requests: list[Any]) -> list[Any]:
        """The batch's requests come apart; they run as one array, and their rows go back to each."""
        arrays = [triton.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        rows = self.network(arrays[0] if len(arrays) == 1 else np.concatenate(arrays))
        answers, start = [], 0
        for array in arrays:
            own = rows[start : start + len(array)]
            start += len(array)
            answers.append(triton.InferenceResponse([triton.Tensor("y", own)]))
        return answers
