"""The oracle: random programs, and what a plain Python run of them logs.

A program is a tree of statements. `run` executes one against a set of operations:
`Plain` is Python (loops unrolled, only the taken branch, no JAX transformation), `Jax`
is JAX's control flow. What `Plain` logs is what must be logged.
"""

import dataclasses
import os
import random
from collections import defaultdict
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import lox
from lox._logs.access import key_of

# How many random programs the tests compare; `make fuzz` compares thousands.
PROGRAMS = int(os.environ.get("LOX_ORACLE_PROGRAMS", "16"))

COTANGENTS = ("log_grad", "log_grad", "log", "update")
STRAIGHT = (
    "log",
    "log",
    "log_constant",
    "log_vector",
    "log_tree",
    "log_when",
    "log_elements",
    "update",
)
MIXED = (
    *STRAIGHT,
    "log_grad",
    "log_grad_when",
    "log_grad_tree",
    "watch",
    "watch_nonfinite",
    "update",
    "update",
)
BLOCKS = (
    "scan",
    "reverse_scan",
    "fori",
    "cond",
    "switch",
    "jit",
    "checkpoint",
    "custom_jvp",
    "custom_vjp",
    "map",
)
UNBOUNDED = ("while", "fori_dynamic")  # no reverse-mode derivative, no stacking
MIXED_BLOCKS = (*BLOCKS, "logging_custom_vjp", "while_in_custom_vjp")


@dataclasses.dataclass(frozen=True)
class Statement:
    kind: str
    number: int = 0
    blocks: tuple[tuple["Statement", ...], ...] = ()

    def __str__(self, indent: int = 0) -> str:
        text = "  " * indent + f"{self.kind} {self.number}"
        for block in self.blocks:
            text += "\n" + "  " * indent + " {"
            for inner in block:
                text += "\n" + inner.__str__(indent + 2)
            text += "\n" + "  " * indent + " }"
        return text


Program = tuple[Statement, ...]


def show(program: Program) -> str:
    return "\n".join(map(str, program))


def generate(
    seed: int,
    unbounded: bool = False,
    straight: tuple[str, ...] = STRAIGHT,
    blocks: tuple[str, ...] = BLOCKS,
) -> Program:
    """A random program; `unbounded` ones have loops without a static length."""
    rng = random.Random(seed)
    budget = [rng.randint(3, 9)]
    kinds = blocks + UNBOUNDED if unbounded else blocks

    def block(depth: int) -> Program:
        return tuple(statement(depth) for _ in range(rng.randint(1, 3)))

    def statement(depth: int) -> Statement:
        budget[0] -= 1
        if depth == 0 or budget[0] < 0 or rng.random() < 0.4:
            return Statement(rng.choice(straight), rng.randint(0, 3))
        kind = rng.choice(kinds)
        count = {"cond": 2, "switch": 3}.get(kind, 1)
        return Statement(
            kind, rng.randint(0, 3), tuple(block(depth - 1) for _ in range(count))
        )

    return tuple(statement(3) for _ in range(rng.randint(2, 4)))


# --- operations ------------------------------------------------------------

# values of plain runs that decided between branches, and are so close to the limit that
# another order of additions may decide otherwise
close_calls: list[float] = []


class Plain:
    """Plain Python, on NumPy's numbers."""

    numpy = np

    def __init__(self):
        self.events = []

    def stop_gradient(self, x):
        return x

    def log(self, data, when=True, **steps):
        # NumPy's, because JAX finds indices slowly
        for i in map(tuple, np.argwhere(np.asarray(when))):
            row = jax.tree.map(lambda x, i=i: np.asarray(x)[i], data)
            own = {n: np.asarray(x)[i if np.ndim(x) else ()] for n, x in steps.items()}
            self.events.append((row, own))

    def log_grad(self, name, x, **options):
        return x

    def watch(self, name, tree, when=True, grad=False, **steps):
        for path, x in tree.items():
            happens = not np.isfinite(x) if when == "nonfinite" else when
            self.log({f"{name}/{path}/rms": abs(x)}, when=bool(happens), **steps)
        return tree

    def scan(self, body, x, length, reverse=False):
        for i in reversed(range(length)) if reverse else range(length):
            x = body(x, i)
        return x

    def fori(self, body, x, length):
        return self.scan(body, x, length)

    fori_dynamic = fori

    def while_loop(self, cond, body, x):
        while cond(x):
            x = body(x)
        return x

    def switch(self, index, branches, x):
        return branches[min(max(int(index), 0), len(branches) - 1)](x)

    def call(self, fun, x, *rest):
        return fun(x, *rest)

    jit = checkpoint = custom_jvp = custom_vjp = logging_custom_vjp = call

    def while_in_custom_vjp(self, fun, x, i, who):
        for _ in range(2):
            x = fun(x, i, who) + 0.125
        return x

    def map(self, fun, x, length):
        return sum((fun(x + i) for i in range(length)), x)


class Dual:
    """A number and its derivatives with respect to all perturbations."""

    __array_ufunc__ = None  # NumPy's numbers leave sums and products to this class

    def __init__(self, value, derivatives):
        self.value = np.float32(value)
        self.derivatives = derivatives  # by the number of the perturbation

    def __add__(self, other):
        if not isinstance(other, Dual):
            return Dual(self.value + other, self.derivatives)
        sums = dict(self.derivatives)
        for number, derivative in other.derivatives.items():
            sums[number] = sums.get(number, 0.0) + derivative
        return Dual(self.value + other.value, sums)

    def __mul__(self, factor):
        scaled = {n: one * factor for n, one in self.derivatives.items()}
        return Dual(self.value * factor, scaled)

    __radd__, __rmul__ = __add__, __mul__

    def __float__(self):
        return float(self.value)


class Perturbed(Plain):
    """Plain Python that adds a perturbation to the values with logged cotangents.

    The perturbations are zero. The derivative of the result with respect to one of them
    is the cotangent of the value.

    Attributes:
        cotangents: the key and the steps of each of these values.
    """

    def __init__(self):
        super().__init__()
        self.cotangents = []
        self._counts = True

    def stop_gradient(self, x):
        return Dual(x.value, {})

    def log(self, data, **steps):
        pass

    def log_grad(self, name, x, when=True, of=None, **steps):
        """Perturbs a value; `of` makes the logged value of its cotangent."""
        if isinstance(x, dict):  # one value is differentiated, the others are not
            tree = dict.fromkeys(x)
            a = self.log_grad(name, x["a"], when, lambda ct: {**tree, "a": ct}, **steps)
            return {**x, "a": a}
        if not self._counts:
            return x
        values = {key: float(step) for key, step in steps.items()}
        self.cotangents.append((name, values, when, of))
        return x + Dual(0, {len(self.cotangents) - 1: 1.0})

    def watch(self, name, tree, when=True, grad=False, **steps):
        if not grad:
            return tree
        of = np.abs
        return {
            path: self.log_grad(f"{name}/grad/{path}/rms", x, when, of, **steps)
            for path, x in tree.items()
        }

    def custom(self, fun, x, *rest):
        # the derivative is given by the rules below, not by the function
        before, self._counts = self._counts, False
        y = fun(x, *rest)
        self._counts = before
        return Dual(y.value, (0.5 * x).derivatives)

    custom_jvp = custom_vjp = custom

    def logging_custom_vjp(self, fun, x, i, who):
        y = self.custom(fun, x, i, who)
        return self.log_grad("ct", y, step=i, who=who)

    def while_in_custom_vjp(self, fun, x, i, who):
        return self.custom(partial(super().while_in_custom_vjp, fun), x, i, who)


class Jax:
    """JAX's own control flow."""

    numpy = jnp
    stop_gradient = staticmethod(lax.stop_gradient)
    log = staticmethod(lox.log)
    log_grad = staticmethod(lox.log_grad)

    def watch(self, *args, **options):
        return lox.watch(*args, stats=("rms",), **options)

    def scan(self, body, x, length, reverse=False):
        def step(x, i):
            return body(x, i), None

        return lax.scan(step, x, jnp.arange(length), reverse=reverse)[0]

    def fori(self, body, x, length):
        return lax.fori_loop(0, length, lambda i, x: body(x, i), x)

    def fori_dynamic(self, body, x, length):
        stop = (x * 0).astype(jnp.int32) + length
        return lax.fori_loop(0, stop, lambda i, x: body(x, i), x)

    def while_loop(self, cond, body, x):
        return lax.while_loop(cond, body, x)

    def switch(self, index, branches, x):
        if len(branches) == 2:
            return lax.cond(index > 0, branches[1], branches[0], x)
        return lax.switch(index, branches, x)

    def jit(self, fun, *args):
        return jax.jit(fun)(*args)

    def checkpoint(self, fun, *args):
        return jax.checkpoint(fun)(*args)

    def custom_jvp(self, fun, *args):
        f = jax.custom_jvp(fun)
        # some rules call the custom function, and others the function that it wraps
        called = fun if len(fun.args[0]) % 2 else f
        f.defjvp(lambda primals, tangents: (called(*primals), tangents[0] * 0.5))
        return f(*args)

    def custom_vjp(self, fun, *args):
        f = jax.custom_vjp(fun)
        f.defvjp(lambda *a: (fun(*a), None), lambda _, ct: (ct * 0.5, None, None))
        return f(*args)

    def logging_custom_vjp(self, fun, *args):
        f = jax.custom_vjp(fun)

        def bwd(residuals, ct):
            i, who = residuals
            lox.log({"ct": ct}, step=i, who=who)
            return ct * 0.5, None, None

        f.defvjp(lambda x, i, who: (fun(x, i, who), (i, who)), bwd)
        return f(*args)

    def while_in_custom_vjp(self, fun, *args):
        def loop(x, i, who):
            def body(carry):
                return fun(carry[0], i, who) + 0.125, carry[1] + 1

            return lax.while_loop(lambda carry: carry[1] < 2, body, (x, 0))[0]

        return self.custom_vjp(loop, *args)

    def map(self, fun, x, length):
        return x + lax.map(lambda i: fun(x + i), jnp.arange(1.0 * length)).sum()


def run(program: Program, x: Any, ops: Any) -> Any:
    xp = ops.numpy

    # derivative rules cannot close over values, so all values are arguments
    def index_of(x: Any, count: int) -> Any:
        # in large numbers, the last digits depend on how a compiler rounds
        if isinstance(ops, Plain):
            size = abs(float(x))
            if size < 16 and abs(size * 3 - round(size * 3)) < 1e-4 * (1 + size):
                close_calls.append(size)
            return int(np.floor(size * 3)) % count if size < 16 else 0
        size = jnp.where(jnp.abs(x) < 16, jnp.abs(x), 0)
        return jnp.floor(size * 3).astype(jnp.int32) % count

    def do(s: Statement, x: Any, i: Any, who: Any) -> Any:
        n = s.number
        if s.kind == "log":
            ops.log({f"x{n}": x, "i": i}, step=i, who=who)
        elif s.kind == "log_constant":
            ops.log({f"lr{n}": 0.25}, who=who)
        elif s.kind == "log_vector":
            ops.log({"v": xp.stack([xp.float32(x), xp.float32(n)])}, who=who)
        elif s.kind == "log_tree":
            ops.log({"t": {"a": x, "b": (x + n,)}}, who=who)
        elif s.kind == "log_when":
            ops.log({f"w{n}": x}, when=index_of(x, 2) == 0, who=who)
        elif s.kind == "log_elements":
            xs = xp.stack([xp.float32(x), xp.float32(x) + n / 4, xp.float32(n)])
            flags = [xp.asarray(index_of(one, 2) == 0) for one in xs]
            ops.log({"e": xs}, when=xp.stack(flags), step=xp.arange(3) + i, who=who)
        elif s.kind == "log_grad":
            return ops.log_grad(f"d{n}", x, step=i, who=who)
        elif s.kind == "log_grad_when":
            when = index_of(x, 2) == 0
            return ops.log_grad(f"g{n}", x, when=when, step=i, who=who)
        elif s.kind == "log_grad_tree":
            return log_grad_tree(x, n, who)
        elif s.kind == "watch":
            tree = ops.watch(f"p{n}", {"a": x}, grad=n > 0, step=i, who=who)
            return tree["a"]
        elif s.kind == "watch_nonfinite":
            bad = x + xp.where(index_of(x, 2) == 0, xp.inf, 0.0)
            ops.watch(f"q{n}", {"a": bad, "b": x}, when="nonfinite", who=who)
        elif s.kind == "update":
            return x * (0.5 + 0.25 * n) + 0.125
        elif s.kind in ("scan", "reverse_scan"):
            body = inside(s.blocks[0], who)
            return ops.scan(body, x, n, reverse=s.kind == "reverse_scan")
        elif s.kind == "fori":
            return ops.fori(inside(s.blocks[0], who), x, n)
        elif s.kind == "fori_dynamic":
            return ops.fori_dynamic(inside(s.blocks[0], who), x, n)
        elif s.kind == "while":
            return while_loop(s, x, i, who)
        elif s.kind in ("cond", "switch"):
            branches = [lambda x, b=b: do_all(b, x, i, who) for b in s.blocks]
            return ops.switch(index_of(x, len(branches)), branches, x)
        elif s.kind == "map":
            return ops.map(lambda x: do_all(s.blocks[0], x, i, who), x, n)
        else:
            return getattr(ops, s.kind)(partial(do_all, s.blocks[0]), x, i, who)
        return x

    def log_grad_tree(x: Any, n: int, who: Any) -> Any:
        # an integer has no cotangent, and a constant is not differentiated
        tree = ops.log_grad("tree", {"a": x, "n": xp.int32(n)}, who=who)
        return tree["a"] * 0.75

    def while_loop(s: Statement, x: Any, i: Any, who: Any) -> Any:
        # the condition logs too; the bound makes every loop end
        def cond(carry):
            x, k = carry
            ops.log({"c": x}, who=who)
            bound = s.number if s.number < 2 else 2 + index_of(x, 2)
            return k < bound

        def body(carry):
            x, k = carry
            return do_all(s.blocks[0], x, i, who), k + 1

        return ops.while_loop(cond, body, (x, 0))[0]

    def inside(block: Program, who: Any) -> Any:
        return lambda x, i: do_all(block, x, i, who)

    def do_all(block: Program, x: Any, i: Any, who: Any) -> Any:
        for s in block:
            x = do(s, x, i, who)
        return x

    return do_all(program, x, 0, ops.stop_gradient(x))


def function(program: Program) -> Any:
    return lambda x: run(program, x, Jax())


def expected(program: Program, x: float) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The events of a plain Python run."""
    plain = Plain()
    run(program, np.float32(x), plain)
    return plain.events


def result(program: Program, x: float) -> Any:
    """The result of a plain Python run."""
    return run(program, np.float32(x), Plain())


def gradient(function: Any, x: float) -> Any:
    """The gradient of a function whose events are removed."""
    return jax.jit(jax.grad(lox.nolog(function)))(x)


def expected_cotangents(
    program: Program, x: float, plain: type[Perturbed] = Perturbed
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The events of a backward pass, which is plain Python's in reverse."""
    perturbed = plain()
    result = run(program, Dual(x, {}), perturbed)
    events = []
    for number, (name, steps, when, of) in enumerate(perturbed.cotangents):
        if when:
            value = np.float32(result.derivatives.get(number, 0.0))
            events.append(({name: value if of is None else of(value)}, steps))
    return events[::-1]


# --- comparing -------------------------------------------------------------


def by_key(events: Any) -> dict[str, list[Any]]:
    rows = defaultdict(list)
    for data, _ in events:
        for key, value in data.items():
            rows[key].append(value)
    return dict(rows)


def assert_spooled(logs: Any, events: Any) -> None:
    """Asserts that spooled logs are the values of the events, stacked by key."""
    rows = by_key(events)
    steps = by_key([(dict.fromkeys(data, s), None) for data, s in events])
    some = {key for key in logs if _length(logs, key)}
    assert some == set(rows), (sorted(some), sorted(rows))
    for key, values in rows.items():
        assert _length(logs, key) == len(values), key
        compare(stack(values), _rows(logs[key], values))
        for name in ("step", "who"):
            if name in steps[key][0]:
                wanted = np.asarray([s[name] for s in steps[key]], dtype=np.float32)
                compare(wanted, np.reshape(getattr(logs, name)[key], wanted.shape))


def _length(logs: Any, key: str) -> int:
    return key_of(logs, key).length()


def _rows(value: Any, values: list[Any]) -> Any:
    return jax.tree.map(
        lambda leaf, own: np.reshape(leaf, (len(values), *np.shape(own))),
        value,
        values[0],
    )


def stack(values: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *values)


def compare(wanted: Any, found: Any) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6),
        wanted,
        found,
    )


def assert_tapped(calls: list[Any], events: Any) -> None:
    """Asserts that a callback got the events one by one, in order."""
    assert [set(logs) for logs in calls] == [set(data) for data, _ in events]
    for logs, (data, steps) in zip(calls, events, strict=True):
        compare(data, dict(logs))
        for name, value in steps.items():
            compare(np.float32(value), getattr(logs, name)[next(iter(data))])
