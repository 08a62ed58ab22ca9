"""Gradients of a large batch from small ones: the same to float tolerance, whatever counts in each."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from poolish.errors import ConfigError, ResumeError
from poolish.load.micro_batches import AdaptiveBatches, GradientAccumulator

functional = torch.nn.functional

VOCABULARY, MASKED = 7, -100


def model_and_optimizer(lr: float = 0.1):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, 5), torch.nn.Tanh(), torch.nn.Linear(5, VOCABULARY))
    return model.double(), torch.optim.SGD(model.parameters(), lr=lr)


def tokens(n_rows: int, seed: int, masked: float = 0.5):
    """Rows of 6 tokens and what should come next, much of it masked: whole rows too."""
    made = torch.Generator().manual_seed(seed)
    x = torch.randint(VOCABULARY, (n_rows, 6), generator=made)
    y = torch.randint(VOCABULARY, (n_rows, 6), generator=made)
    y[torch.rand(n_rows, 6, generator=made) < masked] = MASKED
    return x, y


def loss_of(model, x, y, reduction):
    return functional.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction=reduction, ignore_index=MASKED)


def add(accumulator, model, x, y):
    accumulator.backward(loss_of(model, x, y, "sum"), count=(y != MASKED).sum())


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def after_large_batches(groups, **options):
    """The weights after one plain step for each group, taken as one batch."""
    model, optimizer = model_and_optimizer()
    clip = options.get("clip")
    for x, y in groups:
        optimizer.zero_grad()
        loss_of(model, x, y, "mean").backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return weights(model)


def assert_same(left, right):
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


# The same as the large batch ------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=9), st.integers(1, 4), st.integers(0, 99))
def test_accumulated_steps_are_those_of_the_large_batches(sizes, steps, seed):
    """With masked tokens, micro-batches of different sizes, and a last group that is smaller."""
    x, y = tokens(sum(sizes), seed)
    y[:, 0] = 1  # something counts in every group
    micro = list(zip(x.split(sizes), y.split(sizes), strict=True))
    groups = [micro[i : i + steps] for i in range(0, len(micro), steps)]
    model, optimizer = model_and_optimizer()
    accumulator = GradientAccumulator(optimizer, steps)

    stepped = []
    for part in micro:
        add(accumulator, model, *part)
        stepped.append(accumulator.step())
    is_rest = accumulator.flush()

    large = [tuple(torch.cat(parts) for parts in zip(*group, strict=True)) for group in groups]
    assert_same(weights(model), after_large_batches(large))
    assert stepped == [(i + 1) % steps == 0 for i in range(len(micro))]
    assert is_rest == bool(len(micro) % steps)
    assert accumulator.n_steps == len(groups)


def test_a_mean_of_means_is_another_number():
    """Why it is not done: the tests above would see it."""
    x, y = tokens(6, seed=1)
    model, optimizer = model_and_optimizer()
    for part in zip(x.split(2), y.split(2), strict=True):
        (loss_of(model, *part, "mean") / 3).backward()
    optimizer.step()

    with pytest.raises(AssertionError):
        assert_same(weights(model), after_large_batches([(x, y)]))


def test_weights_may_be_counted_instead_of_rows():
    """A weighted mean is divided by the sum of the weights."""
    model, optimizer = model_and_optimizer()
    x, y = tokens(8, seed=2, masked=0)
    weight = torch.linspace(0, 2, 8, dtype=torch.float64)

    def weighted_sum(x, y, weight):
        each = functional.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="none").view(len(x), -1)
        return (each.mean(dim=1) * weight).sum()

    expected = torch.autograd.grad(weighted_sum(x, y, weight) / weight.sum(), list(model.parameters()))
    seen = []
    accumulator = GradientAccumulator(
        optimizer, before_step=lambda parameters: seen.extend(parameter.grad.clone() for parameter in parameters)
    )
    for part in zip(x.split(3), y.split(3), weight.split(3), strict=True):
        accumulator.backward(weighted_sum(*part), count=float(part[2].sum()))
    accumulator.flush()

    assert_same(seen, expected)


def test_gradients_are_clipped_as_those_of_the_large_batch():
    """The hook sees them divided, and is given the parameters that have one."""
    x, y = tokens(8, seed=4)
    model, optimizer = model_and_optimizer()
    clip = partial(torch.nn.utils.clip_grad_norm_, max_norm=0.01)
    accumulator = GradientAccumulator(optimizer, before_step=clip)

    for part in zip(x.split(3), y.split(3), strict=True):
        add(accumulator, model, *part)
    accumulator.flush()

    assert_same(weights(model), after_large_batches([(x, y)], clip=0.01))


def test_a_group_in_which_nothing_counts_changes_nothing():
    """Its mean would be 0 / 0; NaN never comes near the weights."""
    x, y = tokens(4, seed=5, masked=1)
    model, optimizer = model_and_optimizer()
    before = weights(model)
    accumulator = GradientAccumulator(optimizer, steps=1)

    add(accumulator, model, x, y)

    assert accumulator.step() is False
    assert_same(weights(model), before)
    assert (accumulator.n_pending, accumulator.n_steps) == (0, 0)


def test_an_empty_micro_batch_adds_nothing():
    """The short end of an uneven shard."""
    x, y = tokens(4, seed=6)
    model, optimizer = model_and_optimizer()
    accumulator = GradientAccumulator(optimizer)

    add(accumulator, model, x, y)
    add(accumulator, model, x[:0], y[:0])
    accumulator.flush()

    assert_same(weights(model), after_large_batches([(x, y)]))


def test_gradients_from_elsewhere_do_not_get_in():
    """A group starts at zero."""
    x, y = tokens(4, seed=7)
    model, optimizer = model_and_optimizer()
    (loss_of(model, x, y, "sum") * 1000).backward()
    accumulator = GradientAccumulator(optimizer)

    add(accumulator, model, x, y)
    accumulator.flush()

    assert_same(weights(model), after_large_batches([(x, y)]))


def test_scaled_gradients_are_unscaled_before_they_are_divided():
    """A GradScaler changes nothing but the range."""
    x, y = tokens(6, seed=8)
    model, optimizer = model_and_optimizer()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    accumulator = GradientAccumulator(optimizer, steps=2, scaler=scaler)

    for part in zip(x.split(3), y.split(3), strict=True):
        add(accumulator, model, *part)
        accumulator.step()

    assert_same(weights(model), after_large_batches([(x, y)]))


def test_micro_batches_may_be_cut_by_memory():
    """With AdaptiveBatches the step is the large batch's, however it was cut."""
    x, y = tokens(10, seed=9)
    model, optimizer = model_and_optimizer()
    accumulator = GradientAccumulator(optimizer)

    def train(part):
        if len(part["x"]) > 3:
            raise MemoryError
        add(accumulator, model, part["x"], part["y"])

    AdaptiveBatches(initial=10).run({"x": x, "y": y}, train)
    accumulator.flush()

    assert_same(weights(model), after_large_batches([(x, y)]))


# When something goes wrong --------------------------------------------------------------------------------------


class Breaks(torch.autograd.Function):
    """Fails in the backward pass, as a device without memory does."""

    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        raise torch.OutOfMemoryError("out of memory")


def test_a_backward_that_changed_nothing_can_be_tried_again():
    """It failed before it reached a gradient, so nothing was added."""
    x, y = tokens(6, seed=10)
    model, optimizer = model_and_optimizer()
    accumulator = GradientAccumulator(optimizer)
    add(accumulator, model, x[:3], y[:3])

    with pytest.raises(torch.OutOfMemoryError):
        accumulator.backward(Breaks.apply(loss_of(model, x[3:], y[3:], "sum")), count=18)
    assert accumulator.n_pending == 1
    add(accumulator, model, x[3:], y[3:])
    accumulator.flush()

    assert_same(weights(model), after_large_batches([(x, y)]))


@pytest.mark.parametrize("n_before", [0, 1])
def test_half_a_backward_is_never_stepped_with(n_before):
    """Some gradients were changed: everything but reset is refused."""
    x, y = tokens(6, seed=11)
    model, optimizer = model_and_optimizer()
    accumulator = GradientAccumulator(optimizer)
    for _ in range(n_before):
        add(accumulator, model, x, y)
    before = weights(model)

    hidden = Breaks.apply(model[:2](x))
    logits = model[2](hidden).flatten(0, 1)
    with pytest.raises(torch.OutOfMemoryError):
        accumulator.backward(functional.cross_entropy(logits, y.flatten(), reduction="sum"), count=36)
    for refused in (accumulator.flush, accumulator.step, partial(add, accumulator, model, x, y)):
        with pytest.raises(RuntimeError, match=r"changed some of the gradients.*call reset"):
            refused()
    assert_same(weights(model), before)

    accumulator.reset()
    add(accumulator, model, x, y)
    accumulator.flush()
    assert_same(weights(model), after_large_batches([(x, y)]))


def test_a_step_that_failed_is_not_made_twice():
    """Its gradients are divided already."""

    def fail(parameters):
        raise ArithmeticError("gradient too large")

    x, y = tokens(6, seed=12)
    model, optimizer = model_and_optimizer()
    accumulator = GradientAccumulator(optimizer, before_step=fail)
    add(accumulator, model, x, y)

    with pytest.raises(ArithmeticError):
        accumulator.flush()
    with pytest.raises(RuntimeError, match="reset"):
        accumulator.flush()


def test_a_checkpoint_inside_a_group_is_refused():
    """Gradients are not saved, so the micro-batches would be lost."""
    x, y = tokens(6, seed=13)
    model, optimizer = model_and_optimizer()
    accumulator = GradientAccumulator(optimizer, steps=2)

    assert accumulator.state_dict() == {"n_steps": 0}
    add(accumulator, model, x, y)
    with pytest.raises(ResumeError, match=r"1 micro-batches wait for a step.*save after step"):
        accumulator.state_dict()
    accumulator.flush()

    state = accumulator.state_dict()
    restored = GradientAccumulator(optimizer, steps=2)
    restored.load_state_dict(state)
    assert (state, restored.n_steps) == ({"n_steps": 1}, 1)


@pytest.mark.parametrize(
    "state", [None, [], {}, {"steps": 1}, {"n_steps": []}, {"n_steps": "nan"}, {"n_steps": -5}, {"n_steps": True}]
)
def test_what_is_no_state_is_refused(state):
    """And the group that has begun is still there."""
    x, y = tokens(6, seed=13)
    model, optimizer = model_and_optimizer()
    accumulator = GradientAccumulator(optimizer, steps=2)
    add(accumulator, model, x, y)

    with pytest.raises(ResumeError, match=r"no state of a GradientAccumulator.*pass what state_dict"):
        accumulator.load_state_dict(state)

    assert (accumulator.n_pending, accumulator.n_steps) == (1, 0)
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("count", [float("nan"), float("inf"), -1])
def test_bad_counts_are_refused(count):
    """Before anything is divided by them."""
    x, y = tokens(2, seed=14)
    model, optimizer = model_and_optimizer()
    accumulator = GradientAccumulator(optimizer)
    accumulator.backward(loss_of(model, x, y, "sum"), count=count)

    with pytest.raises(ValueError, match=f"add up to {float(count)}"):
        accumulator.flush()


def test_bad_use_is_refused():
    """The error says what to do."""
    x, y = tokens(2, seed=15)
    model, optimizer = model_and_optimizer()
    accumulator = GradientAccumulator(optimizer, steps=1)

    with pytest.raises(ValueError, match=r"shape \(12,\), it must be one number; sum it"):
        accumulator.backward(loss_of(model, x, y, "none"), count=12)
    add(accumulator, model, x, y)
    with pytest.raises(RuntimeError, match=r"call step\(\) before"):
        add(accumulator, model, x, y)
    for steps in (0, True, 1.5):
        with pytest.raises(ConfigError, match="steps must be"):
            GradientAccumulator(optimizer, steps)


def test_nothing_pending_is_nothing_to_flush():
    """Flushing at the end of every epoch is always right."""
    model, optimizer = model_and_optimizer()
    before = weights(model)

    assert GradientAccumulator(optimizer, steps=2).flush() is False
    assert_same(weights(model), before)


# Several ranks --------------------------------------------------------------------------------------------------

PROGRAM = """
import sys, torch, torch.distributed as ranks
from contextlib import nullcontext
from poolish.load.micro_batches import GradientAccumulator
from tests.load.test_accumulation import add, after_large_batches, assert_same, model_and_optimizer, tokens, weights

rank = int(sys.argv[1])
ranks.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
torch.set_num_threads(1)
x, y = tokens(18, seed=1)
# Rank 1 has fewer rows in every micro-batch, and none in the last, which belongs to a smaller group.
cuts = [[(0, 4), (6, 10), (12, 18)], [(4, 6), (10, 12), (18, 18)]][rank]


def mean(exchanged, bucket):
    exchanged.append(len(exchanged))
    return ranks.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0] / 2)


for uses_context in (True, False):
    model, optimizer = model_and_optimizer()
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    accumulator = GradientAccumulator(optimizer, steps=2, model=parallel)
    exchanged = []
    parallel.register_comm_hook(exchanged, mean)
    for start, stop in cuts:
        with accumulator.micro_batch() if uses_context else nullcontext():
            add(accumulator, parallel, x[start:stop], y[start:stop])
        accumulator.step()
    accumulator.flush()
    assert_same(weights(model), after_large_batches([(x[:12], y[:12]), (x[12:], y[12:])]))
    print(len(exchanged), accumulator.n_steps)
ranks.destroy_process_group()
"""


def test_ranks_with_unequal_counts_step_as_one_large_batch(tmp_path):
    """Real processes under DistributedDataParallel; inside ``micro_batch`` it exchanges once for a full group."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", PROGRAM, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()

    assert [output for output, _ in outputs] == ["1 2\n3 2\n"] * 2, outputs[0][1] + outputs[1][1]
