"""Every schedule of Paddle goes on exactly."""

from __future__ import annotations

import json
from typing import Any, Callable, Dict

import numpy as np
import paddle
import pytest

from paddle_resume.state.lr import LearningRate
from paddle_resume.types import Captured

lr = paddle.optimizer.lr
SCHEDULES: Dict[str, Callable[[], Any]] = {
    "noam": lambda: lr.NoamDecay(64, 5),
    "piecewise": lambda: lr.PiecewiseDecay([3, 6], [0.1, 0.05, 0.01]),
    "natural_exp": lambda: lr.NaturalExpDecay(0.1, 0.2),
    "inverse_time": lambda: lr.InverseTimeDecay(0.1, 0.2),
    "polynomial": lambda: lr.PolynomialDecay(0.1, 5, cycle=True),
    "warmup": lambda: lr.LinearWarmup(0.1, 4, 0.0, 0.1),
    "warmup_of_cosine": lambda: lr.LinearWarmup(lr.CosineAnnealingDecay(0.1, 7), 4, 0.0, 0.1),
    "exponential": lambda: lr.ExponentialDecay(0.1, 0.9),
    "multi_step": lambda: lr.MultiStepDecay(0.1, [3, 7]),
    "step": lambda: lr.StepDecay(0.1, 3),
    "lambda": lambda: lr.LambdaDecay(0.1, lambda n: 0.95**n),
    "multiplicative": lambda: lr.MultiplicativeDecay(0.1, lambda n: 0.95),
    "cosine": lambda: lr.CosineAnnealingDecay(0.1, 4),
    "one_cycle": lambda: lr.OneCycleLR(0.1, 20),
    "cyclic": lambda: lr.CyclicLR(0.01, 0.1, 3, 4),
    "linear": lambda: lr.LinearLR(0.1, 9),
    "cosine_restarts": lambda: lr.CosineAnnealingWarmRestarts(0.1, 3, 2),
}


def optimizer_with(rate: Any) -> Any:
    net = paddle.nn.Linear(2, 2)
    return paddle.optimizer.SGD(rate, parameters=net.parameters())


def through_disk(captured: Captured) -> Captured:
    return Captured(dict(captured.tensors), json.loads(json.dumps(captured.values)))


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("done", [0, 1, 5])
def test_goes_on(name: str, done: int) -> None:
    try:
        schedule = SCHEDULES[name]()
    except AttributeError:
        pytest.skip(f"this Paddle has no {name}")
    for _ in range(done):
        schedule.step()
    saved = through_disk(LearningRate(optimizer_with(schedule)).capture())
    fresh = SCHEDULES[name]()
    assert LearningRate(optimizer_with(fresh)).restore(saved) == []
    for _ in range(9):
        assert fresh.get_lr() == schedule.get_lr() and fresh.last_lr == schedule.last_lr
        schedule.step()
        fresh.step()


def test_reduce_on_plateau_goes_on() -> None:
    def make() -> Any:
        return lr.ReduceOnPlateau(0.1, factor=0.5, patience=1, cooldown=1)

    losses = [1.0, 0.9, 0.95, 0.96, 0.97, 0.2, 0.5, 0.6, 0.7, 0.8]
    schedule = make()
    for loss in losses[:4]:
        schedule.step(paddle.to_tensor(loss))
    saved = through_disk(LearningRate(optimizer_with(schedule)).capture())
    fresh = make()
    assert LearningRate(optimizer_with(fresh)).restore(saved) == []
    for loss in losses[4:]:
        schedule.step(loss)
        fresh.step(loss)
        assert fresh.last_lr == schedule.last_lr


def test_the_tensor_may_differ_from_the_number() -> None:
    """hapi's ReduceLROnPlateau sets the number; the update reads the stale tensor."""
    optimizer = optimizer_with(0.1)
    layer = paddle.nn.Linear(2, 2)
    optimizer = paddle.optimizer.SGD(0.1, parameters=layer.parameters())
    layer(paddle.ones([1, 2])).sum().backward()
    optimizer.step()
    optimizer._learning_rate = np.float32(0.05) * 1
    saved = through_disk(LearningRate(optimizer).capture())
    fresh = optimizer_with(0.1)
    assert LearningRate(fresh).restore(saved) == []
    assert fresh._learning_rate == optimizer._learning_rate
    assert type(fresh._learning_rate) is type(optimizer._learning_rate)
    tensor = fresh._global_learning_rate()
    assert float(tensor.item()) == float(np.float32(0.1))


def test_override_fast_forwards_the_scripts_schedule() -> None:
    schedule = lr.StepDecay(0.1, 3)
    for _ in range(7):
        schedule.step()
    saved = through_disk(LearningRate(optimizer_with(schedule)).capture())
    fresh = lr.StepDecay(1.0, 3)
    LearningRate(optimizer_with(fresh), "override").restore(saved)
    assert fresh.get_lr() == pytest.approx(0.01) and fresh.last_epoch == 7
