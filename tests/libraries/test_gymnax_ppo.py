"""gymnax: PPO on many environments, vmapped over seeds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox

from .recording import (
    assert_bitwise,
    assert_buffered,
    assert_close,
    assert_recorded,
    assert_reduced,
    assert_spooled,
    assert_tapped,
    events_of,
    quiet,
    scaled,
)

gymnax = pytest.importorskip("gymnax")
optax = pytest.importorskip("optax")

UPDATES, STEPS, ENVS, EPOCHS, SPLITS = scaled(2), 16, 2, 2, 2
GAMMA, LAMBDA, CLIP = 0.99, 0.95, 0.2


def dense(key, shape, scale):
    return {
        "w": scale * jax.random.normal(key, shape) / np.sqrt(shape[0]),
        "b": jnp.zeros(shape[1]),
    }


def network(params, obs):
    hidden = jnp.tanh(obs @ params["body"]["w"] + params["body"]["b"])
    logits = hidden @ params["actor"]["w"] + params["actor"]["b"]
    value = hidden @ params["critic"]["w"] + params["critic"]["b"]
    return jax.nn.log_softmax(logits), value[..., 0]


def ppo(log):
    """Trains one seed; returns what a user would otherwise thread by hand."""
    env, env_params = gymnax.make("CartPole-v1")
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(3e-3))

    def log_episode(returned, number):
        log({"return": returned}, env=number)

    def env_step(number, carry, action, key):
        """One step of one environment; a finished episode is an event."""
        state, returned = carry
        obs, state, reward, terminated, truncated, _ = env.step(
            key, state, action, env_params
        )
        done = terminated | truncated
        returned = returned + reward
        jax.lax.cond(done, log_episode, lambda *_: None, returned, number)
        episode = jnp.where(done, returned, jnp.nan)
        return (state, jnp.where(done, 0.0, returned)), (obs, reward, done, episode)

    def loss_of(params, batch):
        obs, action, old, advantage, target = batch
        log_probs, value = network(params, obs)
        chosen = jnp.take_along_axis(log_probs, action[:, None], 1)[:, 0]
        ratio = jnp.exp(chosen - old)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        clipped = jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage
        policy = -jnp.minimum(ratio * advantage, clipped).mean()
        critic = jnp.mean((value - target) ** 2)
        entropy = -jnp.sum(jnp.exp(log_probs) * log_probs, -1).mean()
        losses = {"policy": policy, "critic": critic, "entropy": entropy}
        log(losses)
        return policy + 0.5 * critic - 0.01 * entropy, losses

    def minibatch(carry, batch):
        params, moments = carry
        grads, losses = jax.grad(loss_of, has_aux=True)(params, batch)
        updates, moments = optimizer.update(grads, moments)
        return (optax.apply_updates(params, updates), moments), losses

    def train(key):
        keys = jax.random.split(key, 5)
        params = {
            "body": dense(keys[0], (4, 8), 1.0),
            "actor": dense(keys[1], (8, 2), 0.01),
            "critic": dense(keys[2], (8, 1), 1.0),
        }
        resets = jax.random.split(keys[3], ENVS)
        obs, state = jax.vmap(env.reset, (0, None))(resets, env_params)

        def update(carry, i):
            params, moments, envs, obs = carry
            key = jax.random.fold_in(keys[4], i)
            collecting, shuffling = jax.random.split(key)

            def collect(carry, key):
                envs, obs = carry
                act, move = jax.random.split(key)
                log_probs, value = network(params, obs)
                action = jax.random.categorical(act, log_probs)
                chosen = jnp.take_along_axis(log_probs, action[:, None], 1)[:, 0]
                moves = jax.random.split(move, ENVS)
                envs, (after, *rest) = jax.vmap(env_step)(
                    jnp.arange(ENVS), envs, action, moves
                )
                return (envs, after), (obs, action, chosen, value, *rest)

            (envs, obs), trajectory = jax.lax.scan(
                collect, (envs, obs), jax.random.split(collecting, STEPS)
            )
            before, action, chosen, value, reward, done, episode = trajectory

            def estimate(carry, step):
                advantage, following = carry
                value, reward, done = step
                delta = reward + GAMMA * following * (1 - done) - value
                advantage = delta + GAMMA * LAMBDA * (1 - done) * advantage
                return (advantage, value), advantage

            _, last = network(params, obs)
            _, advantage = jax.lax.scan(
                estimate,
                (jnp.zeros(ENVS), last),
                (value, reward, done),
                reverse=True,
            )
            data = before, action, chosen, advantage, advantage + value
            data = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), data)

            def epoch(carry, key):
                order = jax.random.permutation(key, STEPS * ENVS)
                shuffled = jax.tree.map(lambda x: x[order], data)
                batches = jax.tree.map(
                    lambda x: x.reshape(SPLITS, -1, *x.shape[1:]), shuffled
                )
                return jax.lax.scan(minibatch, carry, batches)

            epochs = jax.random.split(shuffling, EPOCHS)
            (params, moments), losses = jax.lax.scan(epoch, (params, moments), epochs)
            log({"value": jnp.mean(value)}, step=(i + 1) * STEPS * ENVS)
            return (params, moments, envs, obs), (episode, losses, jnp.mean(value))

        start = params, optimizer.init(params), (state, jnp.zeros(ENVS)), obs
        (params, *_), threaded = jax.lax.scan(update, start, jnp.arange(UPDATES))
        return params, threaded

    return train


SEEDS = jax.random.split(jax.random.key(0), 2)
LOSSES = ("policy", "critic", "entropy")


@pytest.fixture(scope="module")
def plain():
    """The training without logs, of all seeds."""
    return jax.jit(jax.vmap(ppo(quiet)))(SEEDS)


def expected(threaded):
    """The events of one seed, except for its episodes."""
    episode, losses, value = jax.tree.map(np.asarray, threaded)
    assert episode.shape == (UPDATES, STEPS, ENVS)
    flat = {key: losses[key].reshape(UPDATES * EPOCHS * SPLITS) for key in LOSSES}
    steps = (np.arange(UPDATES) + 1) * STEPS * ENVS
    return events_of(flat) + events_of({"value": value}, step=steps)


def finished_episodes(threaded):
    """The finished episodes of all environments, by step and then by environment."""
    episode = np.asarray(threaded[0])
    *_, env = np.nonzero(~np.isnan(episode))
    return events_of({"return": episode[~np.isnan(episode)]}, env=env)


def of_env(episodes, i):
    return [event for event in episodes if event[1]["env"] == i]


def of_seed(tree, i):
    return jax.tree.map(lambda x: x[i], tree)


def test_episodes_end_in_every_environment(plain):
    for i in range(len(SEEDS)):
        episodes = finished_episodes(of_seed(plain[1], i))
        assert all(of_env(episodes, number) for number in range(ENVS))


def test_vmapped_ppo_logs_losses_and_episodes_per_seed(plain):
    spooled = jax.jit(jax.vmap(lox.spool(ppo(lox.log))))
    (params, _), logs = spooled(SEEDS)
    assert_close(params, plain[0], rtol=1e-3)
    for i, lane in enumerate(logs.lanes()):
        events = expected(of_seed(plain[1], i))
        assert_spooled(lane.filter([*LOSSES, "value"]), events, rtol=1e-4)
        episodes = finished_episodes(of_seed(plain[1], i))
        envs = lane.filter("return").lanes()
        assert len(envs) == ENVS
        for number, env in enumerate(envs):
            assert_spooled(env, of_env(episodes, number))


def test_tap_streams_episodes_when_they_end(plain):
    train = ppo(lox.log)
    returns, buffers = [], []
    tapped = lox.tap(train, returns.append, argnames="return")
    buffered = lox.tap(tapped, buffers.append, buffer=5, keep_logs=True)
    modes = {"entropy": "mean", "value": "last", "critic": "max"}
    reduced = lox.spool(buffered, list(modes), reduce=modes)
    (_, threaded), logs = lox.nolog(reduced)(SEEDS[0])
    events = expected(threaded)
    episodes = finished_episodes(threaded)
    # a callback is told the lane, too
    lanes = [(data, {**steps, "lane": steps["env"]}) for data, steps in episodes]
    assert_tapped(returns, lanes)
    assert_buffered(buffers, events)
    assert_reduced(logs, events, modes)


def test_logger_has_one_run_per_seed(plain, tmp_path):
    logger = lox.loggers.SaveLogger(tmp_path)
    train = ppo(lox.log)

    def run(key, seed):
        state = logger.init(key, config={"seed": seed})
        params, _ = logger.tap(train, state, buffer=20)(key)
        logger.finish(state)
        return params

    jax.jit(jax.vmap(run))(SEEDS, jnp.arange(len(SEEDS)))
    jax.effects_barrier()
    runs = {run.config["seed"]: run.load() for run in lox.runs(tmp_path)}
    assert sorted(runs) == list(range(len(SEEDS)))
    for i, logs in runs.items():
        events = expected(of_seed(plain[1], i))
        assert_spooled(logs.filter([*LOSSES, "value"]), events, rtol=1e-4)
        # buffers are kept per environment, so that their rows come together
        episodes = finished_episodes(of_seed(plain[1], i))
        rows = [
            ({"return": r["return"]}, {"env": r.env["return"]})
            for r in logs.filter("return").rows()
        ]
        for number in range(ENVS):
            assert_recorded(of_env(rows, number), of_env(episodes, number))


def test_nolog_does_not_change_ppo(plain):
    found = jax.jit(jax.vmap(lox.nolog(ppo(lox.log))))(SEEDS)
    assert_bitwise(found, plain)
