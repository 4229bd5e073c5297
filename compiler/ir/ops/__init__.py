"""Every operator of the intermediate representation, one declaration each, by name: `ops.OPS["add"]` or
`ops.add`."""

from __future__ import annotations

from dlcb.compiler.ir.op import Op
from dlcb.compiler.ir.ops import composite, contract, create, elementwise, index, move, opaque, reduce, window

OPS: dict[str, Op] = {
    op.name: op
    for module in (elementwise, move, create, reduce, index, window, contract, composite, opaque)
    for op in vars(module).values()
    if isinstance(op, Op)
}


def __getattr__(name: str) -> Op:
    try:
        return OPS[name]
    except KeyError:
        raise AttributeError(f"no operator {name!r} in {__name__}") from None
