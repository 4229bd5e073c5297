"""What capturing gives: a graph with free sizes, the tensors it brings along, and what is known of every
input dim; several graphs where the program changes with the sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from dlcb.compiler.bridge.branches import Branch
from dlcb.compiler.bridge.coverage import covered
from dlcb.compiler.bridge.probes import Bindings
from dlcb.compiler.bridge.verdicts import DimVerdict
from dlcb.compiler.ir.graph import Graph
from dlcb.compiler.source import InputDeclaration


@dataclass(frozen=True)
class Captured:
    """A program with free sizes.

    graph: inputs in declared order; free dims are size variables with the user's names, else s0, s1, ...;
    parameters by state-dict name, other constants "constant.k". outputs: names of the graph's outputs.
    examples: the sizes it was traced at. notes: what was left to PyTorch and why. within: conditions over
    sizes that this graph is limited to, though the program is not. unproven: why the program may be another
    at sizes that were not traced, "" where it is proven that it is not. others: further graphs of the same
    program beyond these, in the order in which they are to be tried. elsewhere: where none of them serves, as
    far as that is known, and why. left: lines of the user's whose calls PyTorch runs, with the reason."""

    graph: Graph
    parameters: Mapping[str, torch.Tensor]
    verdicts: tuple[DimVerdict, ...]
    inputs: tuple[InputDeclaration, ...]
    outputs: tuple[str, ...]
    examples: tuple[Bindings, ...]
    notes: tuple[str, ...]
    seconds: float
    within: tuple[Branch, ...] = ()
    unproven: str = ""
    others: tuple[Captured, ...] = ()
    elsewhere: tuple[str, ...] = ()
    left: Mapping[str, str] = field(default_factory=dict)

    @property
    def all_parameters(self) -> dict[str, torch.Tensor]:
        """Those of every graph."""
        return {name: x for each in (*self.others, self) for name, x in each.parameters.items()}

    @property
    def draws(self) -> str:
        """The first call of any graph that draws random numbers, with the user's line; "" where none does."""
        drawing = (
            f"{node.attributes['target']} at {node.source}"
            for each in (self, *self.others)
            for node in each.graph.nodes
            if "draw" in node.attributes
        )
        return next(drawing, "")

    def serves_all(self, ranges: Mapping[str, tuple[int, int | None]]) -> bool:
        """Whether every size in `ranges` that the program takes is served by one of the graphs, proven."""
        conditions = [[branch.condition for branch in each.within] for each in (self, *self.others)]
        return covered(conditions, ranges)
