"""One aggregation in groups of columns, or of heads: what peers read and write to at one time is one group of it.

Sums are linear in columns, attention is independent by head: each group is an aggregation of its own (``Reducer.parts``), with
the same numbers in it. The groups' tables wait for their turn; where the pool spills they may lie on disk meanwhile.

    out[:, g] = aggregate(exchanged[:, g], dest_local[:, g], params[g])

Memory: for each group in turn its share of what an aggregation holds, beside it the whole gradient of this worker. The output
stays in groups (``engine.grouped``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sargnn.backends.memory import Pool
from sargnn.engine.grouped import Given, put_together
from sargnn.engine.rebuild import ONE_PASS
from sargnn.engine.reducers.base import Part, Saved, Tensors
from sargnn.profile import AGGREGATION

if TYPE_CHECKING:
    from sargnn.engine.function import ManualMode
    from sargnn.engine.modes.base import Call


@dataclass
class _Group:
    """What one group keeps from forward to backward; its tables as the pool gives them back."""

    part: Part
    exchanged: Given
    dest_local: Given
    stats: Given
    kept: Any = None


class AggregateByColumns(torch.autograd.Function):
    """As ``Aggregate``, one part of ``call.parts`` after the other."""

    @staticmethod
    def forward(ctx: Any, mode: ManualMode, call: Call, num_exchanged: int, num_local: int, *tensors: Tensor) -> Tensors:
        pool, reducer, first_param = call.fold.pool, call.reducer, num_exchanged + num_local
        exchanged = tuple(t.contiguous() for t in tensors[:num_exchanged])
        dest_local, params = tensors[num_exchanged:first_param], tensors[first_param:]
        groups = [_Group(part, _taken(pool, part, exchanged), _taken(pool, part, dest_local), []) for part in call.parts]
        onto = call.parts[0].onto and num_local > 0
        for table in (*(exchanged if call.given else ()), *(dest_local if onto else ())):
            pool.discard(table)
        outputs = call.outputs
        assert outputs is not None
        for group in groups:
            rows, local = _given(group.exchanged), _given(group.dest_local)
            if not (reducer.needs_src_in_backward and call.training):
                group.exchanged, group.dest_local = [], []
            elif not mode.reads_exchanged_in_backward:
                group.exchanged = []
            out, stats, group.kept = mode.forward(_call(call, group.part), rows, local, _params(group.part, params))
            del rows, local
            group.stats = [pool.keep(table) for table in stats] if call.training else []
            outputs.add(pool, out, call.fold.backend.rows, call.plan)
            del out, stats
            if group is not groups[-1]:  # no two groups' rows are read at one time
                call.exchange.wait_for_readers()
        ctx.mode, ctx.call, ctx.groups = mode, call, groups if call.training else []
        ctx.widths, ctx.sizes = [t.shape[1] for t in (*exchanged, *dest_local)], (num_exchanged, num_local, len(params))
        ctx.save_for_backward(*(params if reducer.needs_src_in_backward else ()))
        ctx.outputs = outputs.groups if reducer.needs_out_in_backward and call.training else []
        return outputs.stand_ins()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        call: Call = ctx.call
        pool, widths, (num_exchanged, num_local, num_params) = call.fold.pool, ctx.widths, ctx.sizes
        if not ctx.groups:
            raise RuntimeError(ONE_PASS)
        groups, ctx.groups = ctx.groups, []
        of_grads = [_taken(pool, part, grads) for part in call.parts]
        of_outputs = [list(of_group) for of_group in zip(*ctx.outputs, strict=True)] or [[] for _ in groups]
        ctx.outputs = []
        # Nobody else reads them, as a hook of a user's module may: their memory is free, or becomes that of ``dest_local``'s.
        unread = [grad for grad in grads if call.given and pool.is_only_holder(grad)]
        for grad in unread:
            pool.discard(grad)
        room = grads[0] if call.parts[0].onto and unread else None
        d_exchanged: list[Given] = []
        d_local: list[Given] = []
        d_params: list[Tensors] = []
        for of_grad, of_output in zip(of_grads, of_outputs, strict=True):
            group = groups.pop(0)
            saved = Saved(
                _given(group.exchanged),
                _given(group.dest_local),
                _params(group.part, ctx.saved_tensors),
                _given(of_output),
                _given(group.stats),
            )
            mine = _given(of_grad)
            of_output.clear()
            with call.fold.profile.span(AGGREGATION):
                d_rows, d_dest, d_of_params = ctx.mode.backward(_call(call, group.part), saved, group.kept, mine)
            d_exchanged.append([pool.keep(table) for table in d_rows])
            d_local.append([pool.keep(table) for table in d_dest[:num_local]])
            of_grad.clear()  # not before: a gradient that is handed on is not written to, and its copy on disk stays valid
            del group, saved, mine
            d_params.append(d_of_params)
            del d_rows, d_dest
        if room is not None:
            pool.renew(room)
        gradients: list[Tensor | None] = [
            *_all_together(pool, d_exchanged, widths[:num_exchanged]),
            *_all_together(pool, d_local, widths[num_exchanged:], room),
        ]
        gradients += [torch.cat(shares) for shares in zip(*d_params, strict=True)] or [None] * num_params
        return (None, None, None, None, *gradients)


def _call(call: Call, part: Part) -> Call:
    widths = tuple(len(range(width)[part.columns(width)]) for width in call.widths)
    return dataclasses.replace(call, reducer=part.reducer, widths=widths, given=True, parts=())


def _params(part: Part, params: Sequence[Tensor]) -> Tensors:
    return tuple(param[part.columns(len(param))].contiguous() for param in params)


def _taken(pool: Pool, part: Part, tables: Sequence[Tensor]) -> Given:
    """A part's columns, in memory of their own."""
    taken = []
    for table in tables:
        columns = table[:, part.columns(table.shape[1])]
        taken.append(pool.keep(pool.empty(len(columns), columns.shape[1], table).copy_(columns)))
    return taken


def _given(tables: Given) -> Tensors:
    return tuple(give() for give in tables)


def _all_together(
    pool: Pool, tables: Sequence[Given], widths: Sequence[int], room: Tensor | None = None
) -> list[Tensor | None]:
    """The groups' gradients of each table; None where they give none. ``room``: for the first one's."""
    if not tables[0]:
        return [None] * len(widths)
    return [
        put_together(pool, [of_group.pop(0) for of_group in tables], width, None if number else room)
        for number, width in enumerate(widths)
    ]
