"""Updates of proximal policy optimization, for 64 seeds at once."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.peers.contender import Tools, Workload

_SEEDS = 64
_ENVS, _ROLLOUT = 8, 16
_UPDATES, _EPOCHS, _MINIBATCHES = 2, 2, 4
_WIDTH = 16


def _network(params: Any, obs: Any) -> Any:
    h = jnp.tanh(obs @ params["in"])
    return jax.nn.log_softmax(h @ params["policy"]), (h @ params["value"])[..., 0]


def _env_step(state: Any, action: Any) -> Any:
    """A pendulum that is pushed to the left or to the right."""
    angle, speed = state
    speed = 0.95 * speed + 0.1 * jnp.sin(angle) + 0.2 * (action - 0.5)
    return (angle + 0.1 * speed, speed), -(angle**2)


def _observe(state: Any) -> Any:
    angle, speed = state
    return jnp.stack([jnp.sin(angle), jnp.cos(angle), speed], -1)


def _rollout(params: Any, state: Any, noise: Any) -> Any:
    def step(state: Any, noise: Any) -> Any:
        obs = _observe(state)
        log_probs, value = _network(params, obs)
        action = (noise < jnp.exp(log_probs[:, 1])).astype(jnp.int32)
        chosen = jnp.take_along_axis(log_probs, action[:, None], -1)[:, 0]
        state, reward = _env_step(state, action)
        return state, (obs, action, chosen, value, reward)

    return lax.scan(step, state, noise)


def _batches(params: Any, state: Any, random: Any) -> Any:
    """A rollout with advantages, shuffled and split."""
    noise, orders = random
    state, (obs, action, chosen, value, reward) = _rollout(params, state, noise)
    _, last = _network(params, _observe(state))

    def back(carry: Any, x: Any) -> Any:
        advantage, following = carry
        value, reward = x
        advantage = reward + 0.99 * following - value + 0.94 * advantage
        return (advantage, value), advantage

    start = jnp.zeros_like(last), last
    _, advantage = lax.scan(back, start, (value, reward), reverse=True)
    data = obs, action, chosen, value, advantage
    data = jax.tree.map(lambda x: x.reshape(_ENVS * _ROLLOUT, *x.shape[2:]), data)
    batches = jax.tree.map(lambda x: x[orders], data)
    return state, batches, {"reward": reward.mean()}


def _losses(params: Any, batch: Any) -> dict[str, Any]:
    obs, action, chosen, value, advantage = batch
    log_probs, new_value = _network(params, obs)
    new_chosen = jnp.take_along_axis(log_probs, action[:, None], -1)[:, 0]
    ratio = jnp.exp(new_chosen - chosen)
    gain = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    clipped = jnp.clip(ratio, 0.8, 1.2)
    return {
        "policy_loss": -jnp.minimum(ratio * gain, clipped * gain).mean(),
        "value_loss": ((new_value - value - advantage) ** 2).mean(),
        "entropy": -(jnp.exp(log_probs) * log_probs).sum(-1).mean(),
    }


def _total(losses: dict[str, Any]) -> Any:
    entropy = 0.01 * losses["entropy"]
    return losses["policy_loss"] + 0.5 * losses["value_loss"] - entropy


def _updated(params: Any, grads: Any) -> Any:
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads)


def _ppo(tools: Tools) -> Any:
    def loss(params: Any, batch: Any) -> Any:
        losses = _losses(params, batch)
        tools.log(losses)
        return _total(losses)

    def minibatch(params: Any, batch: Any) -> Any:
        _, grads = tools.value_and_grad(loss)(params, batch)
        return _updated(params, grads), None

    def update(carry: Any, random: Any) -> Any:
        params, state = carry
        state, batches, logs = _batches(params, state, random)
        tools.log(logs)
        params, _ = tools.scan(minibatch, params, batches)
        return (params, state), None

    return lambda start, random: tools.scan(update, start, random)[0]


def _ppo_by_hand(start: Any, random: Any) -> Any:
    def loss(params: Any, batch: Any) -> Any:
        losses = _losses(params, batch)
        return _total(losses), losses

    def minibatch(params: Any, batch: Any) -> Any:
        (_, losses), grads = jax.value_and_grad(loss, has_aux=True)(params, batch)
        return _updated(params, grads), losses

    def update(carry: Any, random: Any) -> Any:
        params, state = carry
        state, batches, logs = _batches(params, state, random)
        params, losses = lax.scan(minibatch, params, batches)
        return (params, state), (logs, losses)

    carry, (logs, losses) = lax.scan(update, start, random)
    return carry, logs | {k: v.reshape(-1) for k, v in losses.items()}


def _arguments() -> tuple[Any, ...]:
    """For each seed: parameters, environments, and all random numbers.

    Without random numbers in the program, it compiles in a fraction of the time.
    """
    generator = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return jnp.asarray(generator.standard_normal(shape, np.float32))

    params = {
        "in": 0.5 * normal(_SEEDS, 3, _WIDTH),
        "policy": 0.5 * normal(_SEEDS, _WIDTH, 2),
        "value": 0.5 * normal(_SEEDS, _WIDTH, 1),
    }
    state = normal(_SEEDS, _ENVS), jnp.zeros((_SEEDS, _ENVS))
    noise = generator.random((_SEEDS, _UPDATES, _ROLLOUT, _ENVS), np.float32)
    order = np.tile(np.arange(_ENVS * _ROLLOUT), (_SEEDS, _UPDATES, _EPOCHS, 1))
    orders = generator.permuted(order, axis=-1)
    count = _EPOCHS * _MINIBATCHES
    orders = orders.reshape(_SEEDS, _UPDATES, count, -1)
    return (params, state), (jnp.asarray(noise), jnp.asarray(orders))


PPO = Workload(
    f"PPO, {_UPDATES} updates, vmapped over {_SEEDS} seeds",
    _ppo,
    _ppo_by_hand,
    _arguments,
    lanes=_SEEDS,
    events=_UPDATES * (1 + _EPOCHS * _MINIBATCHES),
    ordered=False,  # contenders order lanes and steps differently
)
