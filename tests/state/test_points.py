"""Points: what is copied at a boundary, what may wait, and the gate before the update."""

from __future__ import annotations

import threading
import time
from typing import Any, Dict, List

import numpy as np
import paddle
import pytest

from paddle_resume.errors import ResumeError
from paddle_resume.points import Points
from paddle_resume.state.model import Network
from paddle_resume.state.optimizer import OptimizerSlots, named_parameters
from paddle_resume.state.rng import RandomStreams
from paddle_resume.types import Captured, Position

START = Position(0, 0, 0)
LARGE = 600  # squared: more than what is always copied


class Net(paddle.nn.Layer):  # type: ignore[misc]
    """A normalised layer, and a large frozen one that the forward may move."""

    def __init__(self, large: int = 4, moves: bool = False) -> None:
        super().__init__()
        self.first = paddle.nn.Linear(4, 6)
        self.norm = paddle.nn.BatchNorm1D(6)
        self.drop = paddle.nn.Dropout(0.5)
        self.frozen = paddle.nn.Linear(large, large, bias_attr=False)
        self.frozen.weight.stop_gradient = True
        self.moves = moves

    def forward(self, x: Any) -> Any:
        if self.moves:
            with paddle.no_grad():
                self.frozen.weight.set_value(self.frozen.weight * 0.5)
        return self.drop(self.norm(self.first(x)))


def optimizer_of(net: Any) -> Any:
    trained = [p for p in net.parameters() if not p.stop_gradient]
    return paddle.optimizer.Adam(0.1, parameters=trained)


def forward(net: Any) -> Any:
    return net(paddle.to_tensor(np.random.rand(8, 4).astype("float32"))).sum()


def step(net: Any, optimizer: Any) -> None:
    forward(net).backward()
    optimizer.step()
    optimizer.clear_grad()


def bytes_of(part: Captured) -> Dict[str, bytes]:
    return {name: array.tobytes() for name, array in part.tensors.items()}


def test_a_forward_after_the_boundary_leaves_the_point_as_it_was() -> None:
    net = Net()
    optimizer = optimizer_of(net)
    parts = [
        Network(net),
        OptimizerSlots(optimizer, named_parameters({"model": net})),
        RandomStreams(),
    ]
    step(net, optimizer)
    wanted = {part.name: part.capture() for part in parts}
    points = Points(lambda: parts, START)
    point = points.reach(Position(0, 1, 1), {})
    forward(net).backward()
    paddle.rand([3])
    np.random.rand(3)
    assert bytes_of(Network(net).capture()) != bytes_of(wanted["model"])  # BatchNorm's statistics
    state = points.complete(point, at_once=False)
    for name, part in wanted.items():
        assert bytes_of(state.parts[name]) == bytes_of(part)
        assert state.parts[name].values == part.values
    assert list(state.parts["model"].tensors) == list(net.state_dict())


def test_a_large_frozen_weight_that_the_forward_moves_is_copied_from_then_on() -> None:
    net = Net(LARGE, moves=True)
    network = Network(net)
    assert "frozen.weight" not in network.mark().tensors  # taken for still
    forward(net)
    before = net.frozen.weight.numpy()
    marked = network.mark()
    assert "frozen.weight" in marked.tensors
    forward(net)
    assert np.array_equal(network.complete(marked, False).tensors["frozen.weight"], before)


def test_a_large_frozen_weight_that_stays_is_not_copied_at_each_boundary() -> None:
    net = Net(LARGE)
    network = Network(net)
    for _ in range(4):
        marked = network.mark()
        assert "frozen.weight" not in marked.tensors
        forward(net)
        assert "frozen.weight" in network.complete(marked, False).tensors


def test_one_that_moves_late_is_never_saved_wrong() -> None:
    net = Net(LARGE)
    network = Network(net)
    for _ in range(3):
        marked = network.mark()
    with paddle.no_grad():
        net.frozen.weight.set_value(net.frozen.weight * 0.5)
    with pytest.raises(ResumeError, match=r"frozen\.weight was changed"):
        network.complete(marked, False)
    assert "frozen.weight" in network.mark().tensors  # from now on


def test_one_that_was_changed_between_two_saves_is_saved_as_it_is() -> None:
    net = Net(LARGE)
    network = Network(net)
    network.capture()
    network.capture()
    with paddle.no_grad():
        net.frozen.weight.set_value(net.frozen.weight * 0.5)
    found = network.capture().tensors["frozen.weight"]
    assert np.array_equal(found, net.frozen.weight.numpy())


def test_a_layer_that_is_unfrozen_or_frozen_after_the_boundary_is_there_once() -> None:
    net = Net()
    network = Network(net)
    for frozen in (True, False):
        wanted = network.capture()
        marked = network.mark()
        net.frozen.weight.stop_gradient = not frozen
        net.first.weight.stop_gradient = frozen
        found = network.complete(marked, False)
        assert bytes_of(found) == bytes_of(wanted) and found.values == wanted.values


def test_swapped_weights_are_found() -> None:
    net = Net()
    points = Points(lambda: [Network(net)], START)
    point = points.reach(Position(1, 0, 3, "epoch_end"), {}, digest=True)
    forward(net)
    assert points.is_whole(point)
    kept = net.first.weight.numpy()
    with paddle.no_grad():
        net.first.weight.set_value(kept * 0.99)
    assert not points.is_whole(point)
    with paddle.no_grad():
        net.first.weight.set_value(kept)
    assert points.is_whole(point)


def test_an_update_waits_for_who_holds_the_point() -> None:
    points = Points(list, START)
    points.reach(Position(0, 1, 1), {})
    order: List[str] = []

    def update() -> None:
        points.begin_update()
        order.append("update")

    with points.held() as point:
        assert point is not None
        thread = threading.Thread(target=update)
        thread.start()
        time.sleep(0.05)
        order.append("saved")
    thread.join()
    assert order == ["saved", "update"]
    assert points.last is None


def test_what_can_no_longer_be_copied_is_an_error() -> None:
    """A run that has ended meanwhile has no parts: an empty state must never be saved."""
    parts: List[Any] = [RandomStreams()]
    points = Points(lambda: parts, START)
    point = points.reach(Position(0, 1, 1), {})
    parts.clear()
    with pytest.raises(ResumeError, match="rng can no longer be copied"):
        points.complete(point, at_once=False)
