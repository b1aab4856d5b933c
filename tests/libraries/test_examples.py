"""The programs in `examples/`: what they log, and what their pages say they print.

Every logged value is compared with the same program written without lox, which threads
its values by hand.
"""

import contextlib
import doctest
import functools
import io
import math
import os
import pathlib
import re
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
import lox.loggers

from .recording import assert_close

PAGES = pathlib.Path(__file__).parents[2] / "docs" / "examples"
NAMES = sorted(page.stem for page in PAGES.glob("*.md"))


@pytest.fixture(autouse=True, scope="module")
def quick_compilation():
    """XLA hardly optimizes, so that two programs with the same operations round alike.

    Sampling and evolution would amplify other roundings to other numbers of rows.
    """
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


def example(name):
    """An example, as a module; skips the test if a library is not installed."""
    return pytest.importorskip(f"examples.{name}")


def assert_same(found, wanted, at):
    """Asserts that rows are the same, to the last bit."""
    np.testing.assert_array_equal(np.asarray(found), np.asarray(wanted), err_msg=at)


def rms(x):
    return jnp.sqrt(jnp.mean(x**2))


# --- pages -------------------------------------------------------------------


def without_numbers(text, directory):
    text = text.replace(str(directory), "DIRECTORY")
    text = re.sub(r", \S+ iterations/s", "", text)
    return re.sub(r"-?\d+(\.\d*)?(e[+-]?\d+)?k?", "#", text)


@functools.cache
def run(name):
    """What an example prints, the directory it writes to, and what it plots.

    Compilation takes most of the time, so its tests share one run.
    """
    module, plotted, printed = example(name), [], io.StringIO()
    directory = os.path.join(tempfile.mkdtemp(), "new")  # is created
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        # what is shown in between depends on the speed of the machine
        patch.setattr("lox.loggers._console.logger._Timer._run", lambda timer: None)
        patch.setattr("lox._host.progress_bars._SECONDS_BETWEEN_LINES", math.inf)
        if name == "optax_updates":
            module.main()
        else:
            plot = module.plot
            patch.setattr(
                module, "plot", lambda *args: (plotted.extend(args), plot(*args))
            )
            module.main(directory)
    return printed.getvalue(), directory, plotted[:-1]


@pytest.mark.parametrize("name", NAMES)
def test_page_shows_what_the_example_prints(name):
    printed, directory, _ = run(name)
    page = (PAGES / f"{name}.md").read_text()
    (shown,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    shown = without_numbers(shown, "/tmp/example")
    printed = without_numbers(printed, directory)
    same = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.OutputChecker().check_output(shown, printed, same), printed


# --- PPO ---------------------------------------------------------------------


def threaded_ppo(ppo, key, updates):
    """The training of one seed, which returns its episodes and losses."""
    gymnax = pytest.importorskip("gymnax")
    optax = pytest.importorskip("optax")
    env, env_params = gymnax.make("CartPole-v1")
    network = ppo.ActorCritic(env.num_actions)
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(ppo.RATE))
    init_key, reset_key, key = jax.random.split(key, 3)
    reset_keys = jax.random.split(reset_key, ppo.ENVS)
    obs, env_state = jax.vmap(env.reset, (0, None))(reset_keys, env_params)
    params = network.init(init_key, obs)

    def env_step(carry, t, params, key):
        env_state, obs, total, length = carry
        action_key, step_key = jax.random.split(jax.random.fold_in(key, t))
        log_probs, value = network.apply(params, obs)
        action = jax.random.categorical(action_key, log_probs)
        step_keys = jax.random.split(step_key, ppo.ENVS)
        after, env_state, reward, terminated, truncated, _ = jax.vmap(
            env.step, (0, 0, 0, None)
        )(step_keys, env_state, action, env_params)
        done = terminated | truncated
        total, length = total + reward, length + 1
        episode = {"done": done, "return": total, "length": length}
        carry = env_state, after, jnp.where(done, 0, total), jnp.where(done, 0, length)
        log_prob = ppo.chosen(log_probs, action)
        transition = ppo.Transition(obs, action, log_prob, value, reward, done)
        return carry, (transition, episode)

    def loss_fn(params, batch):
        terms = ppo.losses(network, params, batch)
        total = terms["policy_loss"] + 0.5 * terms["value_loss"]
        return total - 0.01 * terms["entropy"], terms

    def minibatch(carry, batch):
        params, opt_state = carry
        grads, terms = jax.grad(loss_fn, has_aux=True)(params, batch)
        changes, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, changes), opt_state), terms

    def update(carry, i):
        params, opt_state, envs = carry
        rollout_key, shuffle_key = jax.random.split(jax.random.fold_in(key, i))
        envs, (rollout, episodes) = jax.lax.scan(
            lambda carry, t: env_step(carry, t, params, rollout_key),
            envs,
            jnp.arange(ppo.STEPS),
        )
        advantage = ppo.advantages(rollout, network.apply(params, envs[1])[1])

        def epoch(carry, key):
            order = jax.random.permutation(key, ppo.STEPS * ppo.ENVS)
            batches = jax.tree.map(
                lambda x: x.reshape(-1, *x.shape[2:])[order].reshape(
                    ppo.MINIBATCHES, -1, *x.shape[2:]
                ),
                (rollout, advantage),
            )
            return jax.lax.scan(minibatch, carry, batches)

        carry, losses = jax.lax.scan(
            epoch, (params, opt_state), jax.random.split(shuffle_key, ppo.EPOCHS)
        )
        return (*carry, envs), (episodes, losses)

    envs = env_state, obs, jnp.zeros(ppo.ENVS), jnp.zeros(ppo.ENVS, jnp.int32)
    start = params, optimizer.init(params), envs
    return jax.lax.scan(update, start, jnp.arange(updates))[1]


def test_ppo_saves_the_episodes_and_losses_of_every_seed(tmp_path):
    ppo, updates = example("ppo"), 2
    keys = jax.random.split(jax.random.key(0), 2)
    ppo.train_and_log(keys, lox.loggers.SaveLogger(tmp_path), updates=updates)
    threaded = jax.jit(jax.vmap(lambda key: threaded_ppo(ppo, key, updates)))(keys)
    episodes, losses = jax.tree.map(np.asarray, threaded)
    runs = {run.config["seed"]: run.load() for run in lox.runs(tmp_path)}
    assert sorted(runs) == [0, 1]
    for seed, logs in runs.items():
        update, step, env = np.nonzero(episodes["done"][seed])
        assert len(env) > ppo.ENVS
        for key in ("return", "length"):
            assert_same(logs[key], episodes[key][seed][update, step, env], key)
            np.testing.assert_array_equal(logs.env[key], env)
            steps = (update * ppo.STEPS + step) * ppo.ENVS
            np.testing.assert_array_equal(logs.step[key], steps)
        for key, rows in losses.items():
            steps = (np.arange(updates) + 1) * ppo.STEPS * ppo.ENVS
            of_update = ppo.EPOCHS * ppo.MINIBATCHES
            np.testing.assert_array_equal(logs.step[key], np.repeat(steps, of_update))
            assert_same(logs[key], rows[seed].ravel(), key)


# --- Flax NNX ----------------------------------------------------------------


def threaded_transformer(transformer, steps):
    """The rows of every step; gradients of activations are those of added zeros."""
    nnx = pytest.importorskip("flax.nnx")
    optax = pytest.importorskip("optax")
    graph, params = nnx.split(transformer.Transformer(nnx.Rngs(0)), nnx.Param)[:2]
    optimizer = optax.adamw(3e-3)
    layers = transformer.LAYERS

    def forward(params, zeros, tokens):
        model = nnx.merge(graph, params)
        blocks, stacked = nnx.split(model.blocks)
        h = model.token(tokens) + model.position(jnp.arange(tokens.shape[1]))
        mask = nnx.make_causal_mask(tokens)
        found = []
        for i in range(layers):
            block = nnx.merge(blocks, jax.tree.map(lambda x, i=i: x[i], stacked))
            h = h + block.attention(block.norm_1(h), mask=mask)
            h = h + block.contract(nnx.gelu(block.expand(block.norm_2(h)))) + zeros[i]
            found.append(h)
        logits, labels = model.head(model.norm(h))[:, :-1], tokens[:, 1:]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return losses.mean(), jnp.stack(found)

    @jax.jit
    def step(params, opt_state, tokens):
        zeros = jnp.zeros((layers, *tokens.shape, transformer.WIDTH))
        derivative = jax.value_and_grad(forward, argnums=(0, 1), has_aux=True)
        (loss, found), (grads, cotangents) = derivative(params, zeros, tokens)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        rows = {"loss": loss}
        for name, x in {"h": found, "h/grad": cotangents[::-1]}.items():
            rows[f"{name}/rms"] = jax.vmap(rms)(x)
            rows[f"{name}/max_abs"] = jax.vmap(lambda x: jnp.max(jnp.abs(x)))(x)
        for path, x in nnx.to_flat_state(updates["blocks"]):
            for i in range(layers):
                name = "/".join(map(str, path))
                rows[f"updates/{i}/{name}/rms"] = rms(x.get_value()[i])
        return optax.apply_updates(params, updates), opt_state, rows

    opt_state, threaded = optimizer.init(params), []
    for i in range(steps):
        tokens = transformer.batch(i)
        params, opt_state, rows = step(params, opt_state, tokens)
        threaded.append(rows)
    return {key: np.ravel([row[key] for row in threaded]) for key in threaded[0]}


def test_nnx_transformer_logs_activations_gradients_and_updates():
    transformer = example("nnx_transformer")
    _, _, (logs,) = run("nnx_transformer")
    wanted = threaded_transformer(transformer, steps=2)
    assert set(logs) == set(wanted)
    assert len(wanted["h/grad/rms"]) == 2 * transformer.LAYERS
    for key, rows in wanted.items():
        # gradients of unrolled layers are summed in another order
        assert_close(logs[key][: len(rows)], rows, at=key)


# --- Equinox -----------------------------------------------------------------


def threaded_mlp(mlp, key, gain, steps):
    """The rows of every step; gradients of activations are those of added zeros."""
    eqx = pytest.importorskip("equinox")
    optax = pytest.importorskip("optax")
    model_key, data_key = jax.random.split(key)
    params, static = eqx.partition(mlp.DeepMLP(model_key, gain), eqx.is_array)
    optimizer = optax.adam(1e-3)

    def dense(layer, h):
        return jax.vmap(lambda h: layer.weight @ h + layer.bias)(h)

    def forward(params, zeros, x):
        def layer(h, xs):
            layer, zero = xs
            h = jnp.tanh(dense(layer, h)) + zero
            return h, h

        h = jnp.tanh(dense(params.first, x))
        h, found = jax.lax.scan(layer, h, (params.layers, zeros))
        y = dense(params.last, h)[:, 0]
        return jnp.mean((y - x[:, 0] * x[:, 1]) ** 2), found

    def step(carry, i):
        params, opt_state = carry
        x = jax.random.normal(jax.random.fold_in(data_key, i), (mlp.BATCH, 2))
        zeros = jnp.zeros((mlp.DEPTH, mlp.BATCH, mlp.WIDTH))
        derivative = jax.value_and_grad(forward, argnums=(0, 1), has_aux=True)
        (loss, found), (grads, cotangents) = derivative(params, zeros, x)
        updates, opt_state = optimizer.update(grads, opt_state)
        rows = {
            "loss": loss,
            "h/rms": jax.vmap(rms)(found),
            "h/grad/rms": jax.vmap(rms)(cotangents),
        }
        for name, tree in {"grads": grads.layers, "updates": updates.layers}.items():
            for leaf in ("weight", "bias"):
                of_layers = jax.vmap(rms)(getattr(tree, leaf))
                for j in range(mlp.DEPTH):
                    rows[f"{name}/{j}/{leaf}/rms"] = of_layers[j]
        return (optax.apply_updates(params, updates), opt_state), rows

    start = params, optimizer.init(params)
    return jax.lax.scan(step, start, jnp.arange(steps))[1]


def test_equinox_mlp_logs_activations_gradients_and_updates_per_layer():
    mlp, key = example("equinox_mlp"), jax.random.key(0)
    steps = mlp.STEPS
    _, _, (lanes,) = run("equinox_mlp")
    wanted = jax.jit(jax.vmap(lambda gain: threaded_mlp(mlp, key, gain, steps)))(
        mlp.GAINS
    )
    assert len(lanes) == len(mlp.GAINS)
    for i, lane in enumerate(lanes):
        assert set(lane) == set(wanted)
        for name, rows in wanted.items():
            per_layer = name in ("h/rms", "h/grad/rms")
            found = mlp.by_layer(lane, name).T if per_layer else lane[name]
            assert_same(found, rows[i], name)
            if not per_layer:
                np.testing.assert_array_equal(lane.step[name], np.arange(steps))


# --- optax -------------------------------------------------------------------


def threaded_updates(updates, key):
    """The norms by name, each with its step; `MultiSteps` is written out."""
    optax = pytest.importorskip("optax")
    clip, adam = optax.clip_by_global_norm(1.0), optax.adam(0.1)
    weights = accumulated = jnp.zeros(updates.FEATURES)
    state = adam.init(weights)
    norm = jax.jit(optax.tree.norm)
    gradient = jax.jit(jax.grad(updates.loss_fn))
    add = jax.jit(lambda total, grad, n: total + (grad - total) / (n + 1))
    clipped_by, apply = jax.jit(clip.update), jax.jit(adam.update)
    rows = {"gradient": [], "accumulated": [], "update": []}
    mini_step = applied = 0
    for i, batch in enumerate(zip(*updates.batches(key), strict=True)):
        grad = gradient(weights, batch)
        rows["gradient"].append((i, norm(grad)))
        if not np.all(np.isfinite(grad)):
            continue
        accumulated = add(accumulated, grad, mini_step)
        clipped, _ = clipped_by(accumulated, optax.EmptyState())
        rows["accumulated"].append((applied, norm(clipped)))
        mini_step += 1
        if mini_step == updates.ACCUMULATE:
            update, state = apply(clipped, state)
            rows["update"].append((i, norm(update)))
            weights, accumulated = weights + update, jnp.zeros(updates.FEATURES)
            mini_step, applied = 0, applied + 1
    return weights, rows


def test_optax_updates_logs_norms_of_gradients_and_applied_updates():
    updates, key = example("optax_updates"), jax.random.key(0)
    weights, logs = lox.spool(updates.train)(key)
    wanted_weights, wanted = threaded_updates(updates, key)
    assert_same(weights, wanted_weights, "weights")
    assert set(logs) == set(wanted)
    for name, rows in wanted.items():
        steps, norms = zip(*rows, strict=True)
        np.testing.assert_array_equal(logs.step[name], steps)
        assert_same(logs[name], np.array(norms), name)
    assert len(wanted["update"]) == (updates.STEPS - len(updates.BAD_BATCHES)) // 4


# --- BlackJAX ----------------------------------------------------------------


def threaded_chain(nuts, key):
    """The rows of one chain, which BlackJAX returns."""
    blackjax = pytest.importorskip("blackjax")
    warmup_key, sample_key = jax.random.split(key)
    start = {"mean": 0.0, "log_spread": 0.0, "school": jnp.zeros(8)}
    adaptation = blackjax.window_adaptation(blackjax.nuts, nuts.log_density)
    (state, parameters), adapted = adaptation.run(
        warmup_key, start, num_steps=nuts.WARMUP
    )
    kernel = blackjax.nuts(nuts.log_density, **parameters)

    def step(state, key):
        state, info = kernel.step(key, state)
        rows = {
            nuts.MEAN: state.position["mean"],
            nuts.LEAPS: info.num_integration_steps,
            nuts.DIVERGENT: info.is_divergent,
        }
        return state, rows

    _, rows = jax.lax.scan(step, state, jax.random.split(sample_key, nuts.DRAWS))
    sizes = adapted.adaptation_state.ss_state.log_step_size_avg
    return {**rows, nuts.STEP_SIZE: sizes}


def test_nuts_logs_the_draws_and_the_adaptation_of_every_chain():
    nuts = example("nuts")
    _, _, (logs,) = run("nuts")
    keys = jax.random.split(jax.random.key(0), nuts.CHAINS)
    wanted = jax.jit(jax.vmap(lambda key: threaded_chain(nuts, key)))(keys)
    assert set(logs) == set(wanted)
    for name, rows in wanted.items():
        assert_same(logs[name], rows, name)
        count = nuts.WARMUP if name == nuts.STEP_SIZE else nuts.DRAWS
        assert logs.iteration[name].tolist() == nuts.CHAINS * [list(range(count))]


# --- diffrax -----------------------------------------------------------------


def stepped_by_hand(ode, stiffness):
    """The rows of every attempted step, by calls of the solver and its controller."""
    diffrax = pytest.importorskip("diffrax")
    terms, solver = diffrax.ODETerm(ode.van_der_pol), diffrax.Tsit5()
    controller = diffrax.PIDController(rtol=1e-4, atol=1e-6)
    start, end = jnp.float32(ode.START), jnp.float32(ode.END)
    y, order = jnp.array([2.0, 0.0]), solver.error_order(terms)
    after, memory = controller.init(
        terms, start, end, y, jnp.float32(0.01), stiffness, solver.func, order
    )
    state = solver.init(terms, start, after, y, stiffness)

    @jax.jit
    def attempt(before, after, y, state, memory):
        new_y, error, _, new_state, _ = solver.step(
            terms, before, after, y, stiffness, state, made_jump=False
        )
        kept, before, after, _, memory, _ = controller.adapt_step_size(
            before, after, y, new_y, stiffness, error, order, memory
        )
        y, state = jax.tree.map(
            lambda new, old: jnp.where(kept, new, old), (new_y, new_state), (y, state)
        )
        # the last step ends at `end`, and not shortly before it
        limit = jnp.where(kept, end, before + 0.5 * (end - before))
        after = jnp.where(after > end * (1 - 1e-5), limit, after)
        return kept, jnp.minimum(before, end), after, y, state, memory

    rows, rejected, before = [], 0, start
    while before < end:
        kept, before, after, y, state, memory = attempt(before, after, y, state, memory)
        rejected += not kept
        rows.append((before, after, rejected))
    names = (ode.TIME, ode.NEXT_TIME, ode.REJECTED)
    return dict(zip(names, map(np.array, zip(*rows, strict=True)), strict=True))


def test_ode_logs_every_attempted_step_of_the_solver():
    ode = example("ode")
    _, _, (solution, logs) = run("ode")
    # the solve is the one without lox, to the last bit
    plain = ode.solve(ode.STIFFNESS)
    assert_same(solution.ts, plain.ts, "ts")
    assert_same(solution.ys, plain.ys, "ys")
    assert solution.stats["num_steps"] == plain.stats["num_steps"]
    # some versions of XLA round a step differently inside a loop; from the first
    # sharp turn on, the steps of both then differ
    wanted = stepped_by_hand(ode, jnp.float32(ode.STIFFNESS))
    assert set(logs) == set(wanted)
    for name, rows in wanted.items():
        assert_close(logs[name][:40], rows[:40], rtol=1e-3, at=name)
        steps = np.arange(plain.stats["num_steps"])
        np.testing.assert_array_equal(logs.iteration[name], steps)
    assert logs[ode.TIME][-1] == ode.END
    assert logs[ode.REJECTED][-1] == plain.stats["num_rejected_steps"]


# --- evosax ------------------------------------------------------------------


def threaded_evolution(evolution, key):
    """The rows in preallocated arrays, and their number."""
    algorithms = pytest.importorskip("evosax.algorithms")
    start = jnp.zeros(evolution.DIMENSIONS)
    strategy = algorithms.CMA_ES(evolution.POPULATION, solution=start)
    params = strategy.default_params
    length = evolution.MAX_GENERATIONS

    def body(carry):
        state, i, fitnesses, stds = carry
        ask_key, tell_key = jax.random.split(jax.random.fold_in(key, i))
        population, state = strategy.ask(ask_key, state, params)
        fitness = jax.vmap(evolution.rosenbrock)(population)
        state, _ = strategy.tell(tell_key, population, fitness, state, params)
        return state, i + 1, fitnesses.at[i].set(fitness), stds.at[i].set(state.std)

    def unfinished(carry):
        return (carry[0].best_fitness > evolution.TARGET) & (carry[1] < length)

    carry = (
        strategy.init(key, start, params),
        0,
        jnp.zeros((length, evolution.POPULATION)),
        jnp.zeros(length),
    )
    _, count, fitnesses, stds = jax.lax.while_loop(unfinished, body, carry)
    return {"fitness": fitnesses, "std": stds}, count


def test_evolution_logs_the_generations_that_each_seed_needs():
    evolution = example("evolution")
    _, _, (lanes,) = run("evolution")
    keys = jax.random.split(jax.random.key(0), evolution.SEEDS)
    by_hand = jax.vmap(lambda key: threaded_evolution(evolution, key))
    wanted, counts = jax.jit(by_hand)(keys)
    assert len(set(counts.tolist())) > 1
    assert len(lanes) == evolution.SEEDS
    for i, lane in enumerate(lanes):
        count = int(counts[i])
        assert lane.generation["fitness"].tolist() == list(range(count))
        for name, rows in wanted.items():
            assert_same(lane[name], rows[i, :count], name)
