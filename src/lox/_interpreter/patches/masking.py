"""Masks events that only some lanes log."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lox._errors import UnsupportedPrimitiveError
from lox._events.event import Event
from lox._events.primitive import log_p
from lox._interpreter.device_flow import differing
from lox._jax import vma

from .rewriter import AllEventsRewriter


class EventMasker(AllEventsRewriter):
    """Masks events; the context says which lanes run this part of the program."""

    rules_need_state = True

    def rewrite(self, event: Event, operands: Sequence[Any], context: Any) -> None:
        if not event.call.keys:
            log_p.bind(*operands, event=event)
            return
        if context is None:
            raise UnsupportedPrimitiveError(
                f"{event.call.description}, is in the `def_vmap` rule of a function in "
                "a branch or loop with a predicate per lane. Log it in the function "
                "itself, or outside it."
            )
        if not vma.varying_axes(jax.typeof(context)).isdisjoint(event.call.over):
            # not an error if `nolog` removes it; without types, `device_flow` finds it
            event = event.with_layout(problem=differing(event, "cond` or `while_loop"))
        parts = event.split(operands)
        axes = event.layout.lanes + event.layout.elements
        shape = jnp.shape(parts.values[0][0])[:axes]
        # an event for all lanes of the loop, such as a count of `lox.progress`
        common = tuple(range(len(shape), jnp.ndim(context)))
        active = jnp.any(context, common) if common else context
        # the lanes of the loop or branch come first; those of a `vmap` inside, after
        inner = (1,) * (len(shape) - jnp.ndim(active))
        active = jnp.reshape(active, jnp.shape(active) + inner)
        active = jnp.broadcast_to(active, shape)
        parts.mask = active if parts.mask is None else parts.mask & active
        event = event.with_layout(masked=True)
        log_p.bind(*parts.flat(), event=event)
