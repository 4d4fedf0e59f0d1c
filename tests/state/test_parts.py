"""Networks, buffers, gradients, metrics, streams, scaler: each goes out and in exactly."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import paddle
import pytest

from paddle_resume.state import rng
from paddle_resume.state.amp import Scaler
from paddle_resume.state.gradients import Gradients
from paddle_resume.state.listeners import Listeners
from paddle_resume.state.metrics import Metrics
from paddle_resume.state.model import Buffers, Network
from paddle_resume.types import Captured


def through_disk(captured: Captured) -> Captured:
    return Captured(dict(captured.tensors), json.loads(json.dumps(captured.values)))


def draws() -> Any:
    drop = paddle.nn.functional.dropout(paddle.ones([500]), 0.3).numpy().tobytes()
    return (
        drop,
        paddle.randn([7]).numpy().tobytes(),
        paddle.randperm(9).numpy().tolist(),
        np.random.rand(),
        np.random.randn(),
        random.random(),
        random.gauss(0, 1),
    )


@pytest.mark.parametrize("before", [0, 1, 311, 312, 1000])
def test_streams(before: int) -> None:
    paddle.seed(before)
    np.random.seed(before)
    random.seed(before)
    if before:
        paddle.rand([before])
    np.random.randn()  # leaves one Gaussian cached
    random.gauss(0, 1)
    saved = json.loads(json.dumps(rng.all_streams()))
    expected = draws()
    paddle.seed(99)
    draws()
    assert rng.set_all_streams(saved) == []
    assert rng.all_streams() == saved
    assert draws() == expected


def test_a_stream_of_an_absent_device_is_named() -> None:
    streams = {**rng.paddle_streams(), "gpu:7": {"seed": 1, "offset": 2}}
    assert "gpu:7" in rng.set_paddle_streams(streams)[0]
    assert "cpu" in rng.set_paddle_streams({})[0]


class Tied(paddle.nn.Layer):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.a = paddle.nn.Linear(3, 3)
        self.b = paddle.nn.Linear(3, 3)
        self.b.weight = self.a.weight
        self.register_buffer("seen", paddle.zeros([2]), persistable=False)
        self.register_buffer("window", paddle.zeros([1]))


def test_tied_weights_are_one_array_and_buffers_may_grow() -> None:
    net = Tied()
    net.seen = paddle.to_tensor([1.0, 2.0, 3.0])
    net.window.set_value(np.ones(1, "float32"))
    net.a.bias.stop_gradient = True
    saved = through_disk(Network(net).capture())
    buffers = through_disk(Buffers({"model": net}).capture())
    assert saved.tensors["a.weight"] is saved.tensors["b.weight"]
    other = Tied()
    assert Network(other).restore(saved) == []
    assert Buffers({"model": other}).restore(buffers) == []
    assert other.seen.numpy().tolist() == [1, 2, 3] and other.window.item() == 1
    assert other.b.weight is other.a.weight and other.a.bias.stop_gradient
    assert (other.a.weight.numpy() == net.a.weight.numpy()).all()


def test_a_persistable_buffer_that_grew() -> None:
    net = Tied()
    net.window = paddle.to_tensor([4.0, 5.0])
    saved = through_disk(Network(net).capture())
    other = Tied()
    assert Network(other).restore(saved) == []
    assert other.window.numpy().tolist() == [4, 5] and "window" in other.state_dict()


def test_what_differs_is_named_and_nothing_is_touched() -> None:
    saved = through_disk(Network(paddle.nn.Linear(3, 4)).capture())
    other = paddle.nn.Linear(3, 5)
    before = other.weight.numpy()
    problems = Network(other).restore(saved)
    assert any(
        "weight is [3, 4] float32 in the checkpoint and [3, 5] float32" in p for p in problems
    )
    assert (other.weight.numpy() == before).all()


def test_another_dtype_is_a_difference() -> None:
    saved = through_disk(Network(paddle.nn.Linear(3, 4)).capture())
    other = paddle.nn.Linear(3, 4)
    other.to(dtype="float64")
    assert "float64 in the network" in Network(other).restore(saved)[0]


def test_gradients_none_zero_and_pending() -> None:
    net = paddle.nn.Linear(3, 2)
    unused = paddle.nn.Linear(1, 1)
    zeroed = paddle.nn.Linear(1, 1)
    layers = {"x": net.weight, "y": unused.weight, "z": zeroed.weight}
    net(paddle.ones([1, 3])).sum().backward()
    zeroed(paddle.ones([1, 1])).sum().backward()
    zeroed.clear_gradients()
    saved = through_disk(Gradients(layers).capture())
    assert set(saved.tensors) == {"x"} and saved.values["zeros"] == ["z"]
    again = {
        name: paddle.nn.Linear(3, 2).weight if name == "x" else paddle.nn.Linear(1, 1).weight
        for name in layers
    }
    again["y"].grad = paddle.ones([1, 1])
    assert Gradients(again).restore(saved) == []
    assert (again["x"].grad.numpy() == net.weight.grad.numpy()).all()
    assert again["y"].grad is None and again["z"].grad.item() == 0


def test_minus_zero_is_not_zero() -> None:
    net = paddle.nn.Linear(1, 1)
    net.weight.grad = paddle.to_tensor(np.array([[-0.0]], "float32"))
    saved = Gradients({"w": net.weight}).capture()
    assert np.signbit(saved.tensors["w"]).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: paddle.metric.Accuracy(topk=(1, 2)),
        lambda: paddle.metric.Precision(),
        lambda: paddle.metric.Recall(),
        lambda: paddle.metric.Auc(),
    ],
)
def test_metrics(make: Any) -> None:
    draw = np.random.RandomState(0)

    def feed(metric: Any) -> None:
        scores = draw.rand(6, 2).astype("float32")
        labels = draw.randint(0, 2, (6, 1))
        if isinstance(metric, paddle.metric.Accuracy):
            metric.update(metric.compute(paddle.to_tensor(scores), paddle.to_tensor(labels)))
        else:
            metric.update(scores if "Auc" in type(metric).__name__ else scores[:, :1], labels)

    metric = make()
    feed(metric)
    saved = through_disk(Metrics([metric]).capture())
    other = make()
    assert Metrics([other]).restore(saved) == []
    state = draw.get_state()
    feed(metric)
    draw.set_state(state)
    feed(other)
    assert other.accumulate() == metric.accumulate()


def test_a_metric_that_cannot_be_saved_is_named() -> None:
    metric = paddle.metric.Precision()
    metric.handle = open("/dev/null")
    captured = Metrics([metric]).capture()
    metric.handle.close()
    assert "Precision" in captured.values["unsaved"][0]


def test_scaler_is_created_for_its_state() -> None:
    def scaler(scale: float = 1024.0, counted: int = 0) -> Any:
        made = paddle.amp.GradScaler()
        made._enable = True  # as on a GPU; this machine has none
        made.load_state_dict(
            {
                "scale": np.array([scale], "float32"),
                "incr_ratio": 2.0,
                "decr_ratio": 0.5,
                "incr_every_n_steps": 1000,
                "decr_every_n_nan_or_inf": 2,
                "incr_count": counted,
                "decr_count": counted // 2,
                "use_dynamic_loss_scaling": True,
            }
        )
        return made

    trained = scaler(512.0, 7)
    saved = through_disk(Scaler(lambda: trained, scaler).capture())
    made = []

    def create() -> Any:
        made.append(scaler())
        return made[0]

    assert Scaler(lambda: None, create).restore(saved) == []
    assert made[0].state_dict() == trained.state_dict()


def test_scaler_without_amp_is_a_problem() -> None:
    saved = Captured(values={"scaler": {"scale": 1.0}})
    assert "AMP off" in Scaler(lambda: None, lambda: None).restore(saved)[0]


def test_listeners_by_table_and_by_their_own_state() -> None:
    class Mine:
        def __init__(self) -> None:
            self.count = 0

        def state_dict(self) -> Any:
            return {"count": self.count}

        def set_state_dict(self, state: Any) -> None:
            self.count = state["count"]

    def build() -> Any:
        class Sub(paddle.callbacks.EarlyStopping):  # type: ignore[misc]
            pass

        return [Sub(), Mine(), Mine(), paddle.callbacks.ReduceLROnPlateau()]

    first = build()
    first[0].best_value, first[0].wait_epoch = np.float32(0.5), 2
    first[1].count, first[2].count = 3, 4
    first[3].best = float("-inf")
    saved = through_disk(Listeners(first).capture())
    second = build()
    assert Listeners(second).restore(saved) == []
    assert second[0].best_value == np.float32(0.5) and second[0].wait_epoch == 2
    assert (second[1].count, second[2].count) == (3, 4)
    assert second[3].best == float("-inf")
