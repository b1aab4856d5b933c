"""Masks the events in loops and branches that a library batches without JAX's rules.

JAX batches a `lax.while_loop` or `lax.cond` with a predicate per lane; `patches` wraps
its rules to mask the events inside. Equinox (and with it diffrax, optimistix and
lineax) does not use these rules: its predicates go through a primitive like
`unvmap_any`, which reduces over the lanes of every `vmap`. JAX then sees one predicate
for all lanes, and the body also runs for lanes that have finished, whose new values are
discarded.

A value that depends on such a reduction is called *merged*. Its *per-lane* value is the
value that the same expression has without the reduction. The per-lane value of a
predicate is the mask of the events inside. It is computed from the equations of the
program; the library is neither imported nor changed, so the order of imports does not
matter.

A loop may also *start* early because of other lanes: if one lane of a diffrax solve
needs the first stage of a Runge-Kutta step, all lanes compute it. A counter of the loop
then starts at a merged value. Events of a lane are masked until the counter reaches the
per-lane value.

A lane may also run *less* than it would alone, if the merged predicate of a branch or
loop excludes what its own would include. These events cannot be logged, and are refused
(`directions`). So are events that depend on lanes that JAX has reduced before lox sees
the program (`reduced_lanes`).

The backward pass of a loop is separate from its predicates. That of a checkpointed loop
is another loop, which gets its masks from the predicates that it carries
(`backward_loops`). In a bounded loop, cotangents get theirs before the loop is
differentiated (`differentiating`).

In a loop that has been processed, another primitive of the same meaning replaces
`unvmap_any`, so that it is not processed again.
"""
