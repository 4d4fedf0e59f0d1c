"""Optimizer state is restored by structured name, exactly, for every optimizer."""

from __future__ import annotations

import json
from typing import Any, Dict, List

import numpy as np
import paddle
import pytest

from paddle_resume.errors import ConfigError
from paddle_resume.state.lr import LearningRate
from paddle_resume.state.model import Network
from paddle_resume.state.optimizer import OptimizerSlots, named_parameters
from paddle_resume.types import Captured

OPTIMIZERS = [
    "SGD",
    "Momentum",
    "Adam",
    "AdamW",
    "Adamax",
    "Adagrad",
    "Adadelta",
    "RMSProp",
    "Lamb",
    "NAdam",
    "RAdam",
    "ASGD",
    "Rprop",
]


class Two(paddle.nn.Layer):  # type: ignore[misc]
    """Two layers of one shape, built in either order: their generated names change places."""

    def __init__(self, swapped: bool = False) -> None:
        super().__init__()
        first, second = paddle.nn.Linear(3, 3), paddle.nn.Linear(3, 3)
        self.a, self.b = (second, first) if swapped else (first, second)

    def forward(self, x: Any) -> Any:
        return self.b(paddle.nn.functional.relu(self.a(x)))


def build(name: str, net: Any) -> Any:
    kind = getattr(paddle.optimizer, name)
    more: Dict[str, Any] = {"batch_num": 2} if name == "ASGD" else {}
    if name == "Adamax":
        more["grad_clip"] = paddle.nn.ClipGradByGlobalNorm(1.0)
    return kind(0.05, parameters=net.parameters(), **more)


def train(net: Any, optimizer: Any, steps: int, seed: int) -> None:
    draw = np.random.RandomState(seed)
    for _ in range(steps):
        x = paddle.to_tensor(draw.randn(4, 3).astype("float32"))
        (net(x) ** 2).mean().backward()
        optimizer.step()
        optimizer.clear_grad()


def parts(net: Any, optimizer: Any) -> List[Any]:
    return [
        Network(net),
        OptimizerSlots(optimizer, named_parameters({"model": net})),
        LearningRate(optimizer),
    ]


def through_disk(captured: Captured) -> Captured:
    return Captured(dict(captured.tensors), json.loads(json.dumps(captured.values)))


def weights(net: Any) -> Dict[str, bytes]:
    return {name: p.numpy().tobytes() for name, p in net.named_parameters()}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("swapped", [False, True])
def test_goes_on_exactly_in_a_shifted_process(name: str, swapped: bool) -> None:
    if not hasattr(paddle.optimizer, name):
        pytest.skip(f"this Paddle has no {name}")
    net = Two()
    optimizer = build(name, net)
    train(net, optimizer, 3, seed=1)
    saved = [through_disk(part.capture()) for part in parts(net, optimizer)]
    train(net, optimizer, 3, seed=2)

    paddle.nn.Linear(2, 2)  # another model built first
    other = Two(swapped)
    its = build(name, other)
    for part, captured in zip(parts(other, its), saved):
        assert part.restore(captured) == []
    train(other, its, 3, seed=2)
    assert weights(other) == weights(net)


def test_a_parameter_frozen_until_later_gets_no_slot() -> None:
    net = Two()
    net.b.weight.stop_gradient = True
    optimizer = build("Adam", net)
    train(net, optimizer, 2, seed=1)
    saved = [through_disk(part.capture()) for part in parts(net, optimizer)]
    slots = {tuple(slot) for slot in saved[1].values["slots"].values()}
    assert ("moment1", "a.weight") in slots and ("moment1", "b.weight") not in slots
    # Restored into an optimizer that has trained it already: the slot goes.
    other = Two()
    its = build("Adam", other)
    train(other, its, 2, seed=5)
    for part, captured in zip(parts(other, its), saved):
        assert part.restore(captured) == []
    for model, its_optimizer in ((net, optimizer), (other, its)):
        model.b.weight.stop_gradient = False
        train(model, its_optimizer, 2, seed=3)
    assert weights(other) == weights(net)


def test_groups_with_their_own_rates() -> None:
    def grouped(net: Any) -> Any:
        groups = [
            {"params": net.a.parameters()},
            {"params": net.b.parameters(), "learning_rate": 0.1, "beta1": 0.5},
        ]
        return paddle.optimizer.Adam(0.05, parameters=groups)

    net = Two()
    optimizer = grouped(net)
    train(net, optimizer, 3, seed=1)
    saved = [through_disk(part.capture()) for part in parts(net, optimizer)]
    train(net, optimizer, 3, seed=2)
    other = Two()
    its = grouped(other)
    for part, captured in zip(parts(other, its), saved):
        assert part.restore(captured) == []
    train(other, its, 3, seed=2)
    assert weights(other) == weights(net)


def test_a_named_optimizer() -> None:
    net = Two()
    optimizer = paddle.optimizer.Adam(0.05, parameters=net.parameters(), name="mine")
    train(net, optimizer, 2, seed=1)
    captured = parts(net, optimizer)[1].capture()
    assert ["moment1", "a.weight"] in captured.values["slots"].values()


def test_master_weights() -> None:
    """bfloat16 weights with float32 masters, as AMP O2 has them."""

    def low(seed: int) -> Any:
        paddle.seed(seed)
        net = Two()
        net.to(dtype="bfloat16")
        return net, paddle.optimizer.AdamW(0.05, parameters=net.parameters(), multi_precision=True)

    def step(net: Any, optimizer: Any, seed: int) -> None:
        draw = np.random.RandomState(seed)
        x = paddle.to_tensor(draw.randn(4, 3).astype("float32")).astype("bfloat16")
        try:
            (net(x).astype("float32") ** 2).mean().backward()
            optimizer.step()
        except RuntimeError as error:
            pytest.skip(f"this Paddle cannot train bfloat16 on a CPU: {str(error)[-80:]}")
        optimizer.clear_grad()

    net, optimizer = low(1)
    step(net, optimizer, 1)
    saved = [through_disk(part.capture()) for part in parts(net, optimizer)]
    assert saved[0].tensors["a.weight"].dtype == np.uint16
    assert any(slot[0] == "master_weights" for slot in saved[1].values["slots"].values())
    step(net, optimizer, 2)
    other, its = low(7)
    for part, captured in zip(parts(other, its), saved):
        assert part.restore(captured) == []
    step(other, its, 2)
    assert weights(other) == weights(net)


def test_another_class_is_a_problem_and_touches_nothing() -> None:
    net = Two()
    optimizer = build("Adam", net)
    train(net, optimizer, 1, seed=1)
    captured = parts(net, optimizer)[1].capture()
    momentum = OptimizerSlots(build("Momentum", net), named_parameters({"model": net}))
    assert "Adam" in momentum.restore(captured)[0]


def test_wrapping_optimizers_are_refused() -> None:
    net = Two()
    inner = build("SGD", net)
    ahead = paddle.incubate.LookAhead(inner, alpha=0.5, k=5)
    with pytest.raises(ConfigError, match="LookAhead wraps"):
        OptimizerSlots(ahead, named_parameters({"model": net}))
