"""Programs of one line, drawn from a seed, whose numbers are made of sizes in every way and have the values
of sizes by chance: what a file that is exported at one small size must not be wrong about at others."""

from __future__ import annotations

import random
from dataclasses import dataclass

from captured_programs import in_forward
from torch import nn

CALLS = (
    *("x.reshape({k}, -1)", "x.reshape(-1, {k})", "x.view({k}, -1) + 1"),
    "x.view(x.shape[0], {k}, -1).sum(1)",
    *("x.view(b, {k}, -1).sum(1)", "x.view(b, -1, {k}).sum(2)", "x.reshape(-1).view(-1, {k})"),
    *("x.reshape({k}, -1).sum(1)", "x.view(b, {k}, n // {k}).transpose(1, 2).reshape(b, n)"),
    *("x.unflatten(1, ({k}, -1)).sum(1)", "x.t().reshape({k}, -1)"),
    *("x.add(x * 2, alpha={k})", "torch.add(x, x * x, alpha={k})", "torch.sub(x, x * x, alpha={k})"),
    *("x + {k} * x", "x - {k}", "x / {k}", "x * {k}", "x.clamp(max={k})", "x ** {k}"),
    *("x[:, {k}:]", "x[:, :{k}]", "x[:, -{k}:]", "x[:{k}]", "x[{k}:]", "x[:, {k}:n]", "x[:, :{k} + 1]"),
    *("x[:, max(n - {k}, 0):]", "x[:, :min({k}, n)]", "x[:, 1:{k}]", "x[:, ::{k}]", "x[..., :{k}]"),
    *("x[:, None, :{k}]", "x[:{k}, :{k}]", "x[:, :{k}] + x[:, :1]", "x[:, [0, {k} - 1]]"),
    *("x.narrow(1, 0, {k})", "x.split({k}, 1)[0]", "x.chunk({k}, 1)[0]", "torch.roll(x, {k}, 1)"),
    *("x.repeat({k}, 1)", "x[:, None].expand(-1, {k}, -1)", "x.sum(1, keepdim=True).expand(-1, {k})"),
    *("x.tril({k})", "F.pad(x, ({k}, 0))", "torch.arange({k}) + x.sum()", "torch.ones({k}, n) + x.sum(0)"),
    *("x + torch.arange({k}, {k} + n)", "x.sum(0) + torch.zeros({k}, 1)", "x.topk({k}, 1).values"),
    *("torch.linspace(0, 1, {k}) * x.sum()", "torch.full((2,), {k}) * x.sum()", "x.var(1, correction={k})"),
    *("F.one_hot(x.long() % 2, {k} + 1)", "torch.cat([x, torch.zeros(b, {k})], 1)"),
    *("x.repeat_interleave({k}, 1)", "F.interpolate(x[None], size={k})", "F.avg_pool1d(x[None], {k})"),
    *("F.adaptive_avg_pool1d(x[None], {k})", "x.unfold(1, {k}, 1).sum(2)", "torch.eye({k}) * x.sum()"),
)
BEFORE = ("b, n = x.shape", "n = x.shape[1]; b = x.shape[0]", "b = len(x); n = x.size(1)")
NUMBERS = (
    *("1", "2", "3", "4", "6", "8", "self.c", "self.d", "n", "b", "x.shape[1]", "x.shape[0]", "n // 2"),
    *("x.shape[1] // 2", "x.size(1) // 4", "n - 2", "k", "k", "q", "self.k", "self.k", "self.q", "n % 4"),
    *("b + 1", "n // b", "self.c * 2", "self.c + b", "int(n / 2)", "max(n // 4, 1)"),
    "x.shape[-1] // x.shape[0]",
)
MADE = (
    *("n", "b", "n // 2", "n // 4", "n - 1", "b + 1", "n % 4", "n // b", "min(n, 4)", "max(n // 8, 1)"),
    *("n // 2 + 1", "2", "4"),
)
SAMPLES = ((2, 8), (4, 4), (3, 6), (4, 8), (1, 8), (2, 12), (8, 8), (6, 4), (1, 1), (2, 2), (3, 12), (1, 4))


@dataclass(frozen=True)
class Case:
    """A line of `forward`, the statements before it, the module's attributes, and the size of the export."""

    expression: str
    before: tuple[str, ...]
    attributes: tuple[tuple[str, int], ...]
    sample: tuple[int, int]

    def module(self) -> nn.Module:
        return in_forward(self.expression, *self.before, **dict(self.attributes))


def case(seed: int) -> Case:
    draw = random.Random(seed)
    made, other = draw.choice(MADE), draw.choice(MADE)
    statements = (f"k = {made}", f"q = {other}", f"self.k = {made}", f"self.q = {other}")
    before = (draw.choice(BEFORE), *statements)
    expression = draw.choice(CALLS).replace("{k}", draw.choice(NUMBERS))
    if draw.random() < 0.25:
        expression = f"({expression}) * {draw.choice(['2', 'self.d', '1.5', 'k'])}"
    attributes = ("c", draw.choice([1, 2, 3, 4, 8])), ("d", draw.choice([1, 2, 4, 6, 8]))
    return Case(expression, before, attributes, draw.choice(SAMPLES))
