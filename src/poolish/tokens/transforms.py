"""What learners make of recorded steps when they read them: numbers in, numbers out.

    rewards  --n_step_returns-->  reward, discount, steps used        of transitions
             --reward_to_go-->    return_to_go                        of sequences (see sequence_transforms.py)
             --advantages-->      advantage, value_target             of sequences, with recorded values
    frames   --stack_ids-->       which frames each stack is made of; single frames are all that is stored
    goals    --goal_steps-->      from which step of the episode a goal is taken (hindsight)

Each is vectorised over a batch and the same as a plain loop over one episode, which its test is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolish.errors import ConfigError

Int64 = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

STRATEGIES = ("future", "final", "episode")


def check_fraction(value: Any, name: str) -> float:
    """A number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)) or not 0 <= value <= 1:
        raise ConfigError(f"{name}={value!r}: give a number from 0 to 1")
    return float(value)


def n_step_returns(rewards: Floats, used: Int64, gamma: float) -> Floats:
    """The discounted sums of the first ``used`` rewards of each row.

    >>> n_step_returns(np.array([[1.0, 2.0, 4.0], [1.0, 2.0, 4.0]]), np.array([3, 1]), 0.5)
    array([3., 1.])
    """
    powers = gamma ** np.arange(rewards.shape[1])
    returns: Floats = (np.where(np.arange(rewards.shape[1]) < used[:, None], rewards, 0) * powers).sum(1)
    return returns


def reward_to_go(rewards: Floats, gamma: float) -> Floats:
    """The discounted sum of each reward and those behind it in its row.

    >>> reward_to_go(np.array([[1.0, 2.0, 4.0]]), 0.5)
    array([[3., 4., 4.]])
    """
    returns = np.empty_like(rewards)
    running = np.zeros(len(rewards))
    for t in range(rewards.shape[1] - 1, -1, -1):
        running = rewards[:, t] + gamma * running
        returns[:, t] = running
    return returns


def advantages(
    rewards: Floats, values: Floats, next_values: Floats, goes_on: Bools, gamma: float, lam: float
) -> Floats:
    """Generalised advantage estimates of rows of steps.

    ``next_values`` is the value behind each step, 0 where the episode terminated; ``goes_on`` says where the row's next
    step belongs to the same episode.

    >>> ones = np.ones((1, 2))
    >>> advantages(ones, 0 * ones, np.array([[2.0, 0.0]]), np.array([[True, False]]), 0.5, 0.5)
    array([[2.25, 1.  ]])
    """
    deltas = rewards + gamma * next_values - values
    found = np.empty_like(deltas)
    running = np.zeros(len(deltas))
    for t in range(deltas.shape[1] - 1, -1, -1):
        running = deltas[:, t] + gamma * lam * np.where(goes_on[:, t], running, 0)
        found[:, t] = running
    return found


def stack_ids(ids: Int64, begins: Int64, n: int) -> Int64:
    """The steps whose frames make a stack, oldest first; before the first step of an episode that one repeats.

    >>> stack_ids(np.array([7, 11]), np.array([6, 5]), 3)
    array([[ 6,  6,  7],
           [ 9, 10, 11]])
    """
    stacked: Int64 = np.maximum(ids[..., None] - np.arange(n - 1, -1, -1), begins[..., None])
    return stacked


def goal_steps(ids: Int64, begins: Int64, ends: Int64, strategy: str, draws: Floats) -> Int64:
    """The step of its episode from behind which each goal is taken, given random numbers from [0, 1).

    >>> ids, begins, ends = np.array([5, 5]), np.array([2, 2]), np.array([9, 9])
    >>> [goal_steps(ids, begins, ends, way, np.array([0.0, 0.99])).tolist() for way in ("future", "final", "episode")]
    [[5, 8], [8, 8], [2, 8]]
    """
    if strategy == "final":
        return ends - 1
    low = ids if strategy == "future" else begins
    return low + (draws * (ends - low)).astype(np.int64)


# What a user passes ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hindsight:
    """Relabels a share of transitions with goals that were reached later (hindsight experience replay).

    ``reward(achieved, goal)`` computes the rewards of whole batches. ``goal`` and ``achieved`` are members of the
    observation. ``future`` takes the goal from behind this step or a later one of the episode, ``final`` from behind
    its last, ``episode`` from behind any.

    >>> Hindsight(lambda achieved, goal: -(abs(achieved - goal) > 0.1).any(-1), ratio=0.5).strategy
    'future'
    """

    reward: Callable[[Any, Any], Any]
    strategy: str = "future"
    ratio: float = 0.8
    goal: str = "desired_goal"
    achieved: str = "achieved_goal"

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ConfigError(f"strategy={self.strategy!r}: choose one of {STRATEGIES}")
        check_fraction(self.ratio, "ratio")
