"""The models of the race on Triton, batched dynamically: the server that comes in the `nvidia-pytriton`
wheel, with its Python backend. Run as `python triton_server.py PORT WEIGHTS`, it writes a model repository
beside the weights and becomes the server.
"""

import json
import os
import shutil
import sys
from pathlib import Path

import pytriton

MODELS = ("identity", "perceptron", "mean")
HERE = Path(__file__).parent


def config(name: str, weights: Path) -> str:
    """The configuration of one model, in Triton's text form."""
    width = 128 if name == "perceptron" else -1
    answer = {"identity": -1, "perceptron": 128, "mean": 1}[name]
    return f"""
name: "{name}"
backend: "python"
max_batch_size: 32
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ {width} ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ {answer} ] }} ]
dynamic_batching {{ }}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
parameters {{ key: "weights" value: {{ string_value: {json.dumps(str(weights))} }} }}
"""


def main() -> None:
    port, weights = sys.argv[1], Path(sys.argv[2])
    repository = weights.parent / "triton"
    for name in MODELS:
        folder = repository / name / "1"
        folder.mkdir(parents=True)
        shutil.copy(HERE / "triton_model.py", folder / "model.py")
        shutil.copy(HERE / "networks.py", folder)
        (folder.parent / "config.pbtxt").write_text(config(name, weights))
    home = Path(pytriton.__file__).parent / "tritonserver"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = home / "python_backend_stubs" / version / "triton_python_backend_stub"
    backend = weights.parent / "backends" / "python"
    shutil.copytree(home / "backends" / "python", backend)
    shutil.copy(stub, backend)
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[1:])  # its models run in an interpreter of its own
    os.environ["LD_LIBRARY_PATH"] = str(home.parents[1] / "nvidia_pytriton.libs")  # the stub was moved
    program = home / "bin" / "tritonserver"
    os.execv(
        program,
        [
            str(program), f"--model-repository={repository}", f"--backend-directory={backend.parent}",
            f"--http-port={port}", "--http-address=127.0.0.1", "--allow-grpc=false", "--allow-metrics=false",
            "--log-verbose=0", "--log-info=false",
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()
