"""What is admitted at once is what breaks no declaration."""

import random

from dlcb.compiler.errors import ContractError
from dlcb.compiler.source import InputDeclaration, ModelSource
from dlcb.compiler.thunks.contract import admission, check_declared


def refused(check, *arguments) -> str:
    try:
        check(*arguments)
    except ContractError as error:
        return str(error)
    return ""


def test_admission_refuses_what_breaks_a_declaration_in_the_same_words() -> None:
    source = ModelSource(
        "m",
        "1",
        factory="m:f",
        inputs=(
            InputDeclaration("x", "float32", ("batch", 3, "?")),
            InputDeclaration("y", "float32", ("length", "batch")),
        ),
        dims={"batch": (2, 4), "length": (1, None)},
    )
    admit, draw, seen = admission(source), random.Random(1), set()
    for _ in range(400):
        batch = draw.randrange(1, 6)
        shapes = [(batch, draw.choice([3, 3, 3, 4]), 7), (draw.randrange(3), draw.choice([batch, 3]))]
        if not draw.randrange(10):
            shapes[1] += (1,)
        words = refused(check_declared, source, shapes)
        assert refused(admit, shapes) == words
        seen.add(words)
    assert "" in seen
    rules = (
        "declared as 3;",
        "declared as 2 to 4;",
        "declared as at least 1;",
        "declared is rank",
        "'batch' is 4",
    )
    assert all(any(rule in words for words in seen) for rule in rules)
