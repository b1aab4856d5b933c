"""PPO in the manner of PureJaxRL: the whole training of all seeds is one XLA program.

Finished episodes and losses are logged where they occur. They are shown in the terminal
during training and saved, with one run per seed.
"""

import pathlib
import sys
import tempfile
from typing import NamedTuple

import flax.linen as nn
import gymnax
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import optax
from flax.training.train_state import TrainState
from gymnax.wrappers.purerl import LogWrapper

import lox
import lox.loggers

SEEDS, ENVS, STEPS, UPDATES, EPOCHS, MINIBATCHES = 4, 8, 64, 50, 4, 4
RATE, GAMMA, LAMBDA, CLIP = 2.5e-3, 0.99, 0.95, 0.2


class ActorCritic(nn.Module):
    actions: int

    @nn.compact
    def __call__(self, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        hidden = nn.tanh(nn.Dense(32)(nn.tanh(nn.Dense(32)(obs))))
        logits = nn.Dense(self.actions, kernel_init=nn.initializers.zeros)(hidden)
        hidden = nn.tanh(nn.Dense(32)(nn.tanh(nn.Dense(32)(obs))))
        return nn.log_softmax(logits), nn.Dense(1)(hidden)[..., 0]


class Transition(NamedTuple):
    obs: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    done: jax.Array


def chosen(log_probs: jax.Array, action: jax.Array) -> jax.Array:
    return jnp.take_along_axis(log_probs, action[:, None], axis=1)[:, 0]


def advantages(rollout: Transition, last_value: jax.Array) -> jax.Array:
    """Generalized advantage estimation."""

    def step(carry: tuple, transition: Transition) -> tuple:
        advantage, next_value = carry
        alive = 1 - transition.done
        target = transition.reward + GAMMA * next_value * alive
        advantage = target - transition.value + GAMMA * LAMBDA * alive * advantage
        return (advantage, transition.value), advantage

    start = jnp.zeros_like(last_value), last_value
    return jax.lax.scan(step, start, rollout, reverse=True)[1]


def losses(network: ActorCritic, params: dict, batch: tuple) -> dict[str, jax.Array]:
    rollout, advantage = batch
    log_probs, value = network.apply(params, rollout.obs)
    ratio = jnp.exp(chosen(log_probs, rollout.action) - rollout.log_prob)
    gain = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    clipped = jnp.clip(ratio, 1 - CLIP, 1 + CLIP)
    return {
        "policy_loss": -jnp.minimum(ratio * gain, clipped * gain).mean(),
        "value_loss": jnp.mean((value - advantage - rollout.value) ** 2),
        "entropy": -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1).mean(),
    }


def train(key: jax.Array, updates: int = UPDATES) -> TrainState:
    env, env_params = gymnax.make("CartPole-v1")
    env = LogWrapper(env)
    network = ActorCritic(env.num_actions)
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(RATE))
    init_key, reset_key, key = jax.random.split(key, 3)
    obs, env_state = jax.vmap(env.reset, in_axes=(0, None))(
        jax.random.split(reset_key, ENVS), env_params
    )
    state = TrainState.create(
        apply_fn=network.apply, params=network.init(init_key, obs), tx=optimizer
    )

    def update(carry: tuple, i: jax.Array) -> tuple:
        state, env_state, obs = carry
        rollout_key, shuffle_key = jax.random.split(jax.random.fold_in(key, i))

        def env_step(carry: tuple, t: jax.Array) -> tuple:
            env_state, obs = carry
            action_key, step_key = jax.random.split(jax.random.fold_in(rollout_key, t))
            log_probs, value = network.apply(state.params, obs)
            action = jax.random.categorical(action_key, log_probs)
            next_obs, env_state, reward, terminated, truncated, info = jax.vmap(
                env.step, in_axes=(0, 0, 0, None)
            )(jax.random.split(step_key, ENVS), env_state, action, env_params)
            # one event for each environment whose episode ends here
            lox.log(
                {
                    "return": info["returned_episode_returns"],
                    "length": info["returned_episode_lengths"],
                },
                when=info["returned_episode"],
                step=(i * STEPS + t) * ENVS,
                env=jnp.arange(ENVS),
            )
            done = terminated | truncated
            log_prob = chosen(log_probs, action)
            transition = Transition(obs, action, log_prob, value, reward, done)
            return (env_state, next_obs), transition

        (env_state, obs), rollout = jax.lax.scan(
            env_step, (env_state, obs), jnp.arange(STEPS)
        )
        advantage = advantages(rollout, network.apply(state.params, obs)[1])

        def loss_fn(params: dict, batch: tuple) -> jax.Array:
            terms = losses(network, params, batch)
            lox.log(terms, step=(i + 1) * STEPS * ENVS)
            policy, value, entropy = terms.values()
            return policy + 0.5 * value - 0.01 * entropy

        def minibatch(state: TrainState, batch: tuple) -> tuple:
            grads = jax.grad(loss_fn)(state.params, batch)
            return state.apply_gradients(grads=grads), None

        def epoch(state: TrainState, key: jax.Array) -> tuple:
            order = jax.random.permutation(key, STEPS * ENVS).reshape(MINIBATCHES, -1)
            batches = jax.tree.map(
                lambda x: x.reshape(-1, *x.shape[2:])[order], (rollout, advantage)
            )
            return jax.lax.scan(minibatch, state, batches)

        state, _ = jax.lax.scan(epoch, state, jax.random.split(shuffle_key, EPOCHS))
        return (state, env_state, obs), None

    carry, _ = jax.lax.scan(update, (state, env_state, obs), jnp.arange(updates))
    return carry[0]


def train_and_log(keys: jax.Array, logger: lox.loggers.Logger, **sizes: int) -> None:
    """Trains all seeds at once; each seed is a run of the logger."""

    def run(key: jax.Array, seed: jax.Array) -> None:
        state = logger.init(key, config={"seed": seed})
        logger.tap(lambda key: train(key, **sizes), state, buffer=100)(key)
        logger.finish(state)

    jax.jit(jax.vmap(run))(keys, jnp.arange(len(keys)))
    jax.effects_barrier()


def plot(runs: dict[int, lox.logdict], path: pathlib.Path) -> None:
    figure, axes = plt.subplots()
    for seed, logs in sorted(runs.items()):
        axes.plot(logs.step["return"], logs["return"], ".", markersize=3, label=seed)
    axes.set(xlabel="environment steps", ylabel="return of finished episodes")
    axes.legend(title="seed")
    figure.savefig(path)
    plt.close(figure)


def main(directory: str | None = None) -> None:
    directory = directory or tempfile.mkdtemp()
    logger = lox.loggers.MultiLogger(
        lox.loggers.SaveLogger(directory, config={"rate": RATE}, exists="overwrite"),
        lox.loggers.ConsoleLogger(total=UPDATES * STEPS * ENVS),
    )
    train_and_log(jax.random.split(jax.random.key(0), SEEDS), logger)

    runs = {run.config["seed"]: run.load() for run in lox.runs(directory)}
    for seed, logs in sorted(runs.items()):
        returns = logs["return"]
        first, last = returns[:20].mean(), returns[-20:].mean()
        print(f"seed {seed}: {len(returns)} episodes, return {first:.0f} to {last:.0f}")
    path = pathlib.Path(directory) / "ppo.png"
    plot(runs, path)
    print("Saved the plot to", path)


if __name__ == "__main__":
    main(*sys.argv[1:])
