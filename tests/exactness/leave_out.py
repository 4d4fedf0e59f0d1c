"""Leaves one part of the state out; `training.py` loads it where a spec names one.

Each of MUTATIONS replaces what puts that part back at a resume. Each of LATE has a part copied when
a save is made, some time after the boundary that is saved. They say so on stdout when they are
used, so that a test knows that the part was there to be left out.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any, Callable, Dict, Mapping

__all__ = ["LATE", "MUTATIONS", "apply"]

Change = Callable[[Any, Any], Any]
"""(component, Captured) to the Captured that is restored instead."""


def apply(name: str) -> None:
    """Makes the mutation."""
    {**MUTATIONS, **LATE}[name]()


def _say(what: str) -> None:
    print(f"LEFT OUT: {what}", flush=True)


def _module(name: str) -> Any:
    return importlib.import_module(f"paddle_resume.{name}")


def _without(module: str, kind: str, method: str = "restore") -> Callable[[], None]:
    """Replaces a method that puts something back by one that does nothing."""

    def mutate() -> None:
        def nothing(*arguments: Any, **named: Any) -> Any:
            _say(f"{kind}.{method}")
            return []

        setattr(getattr(_module(module), kind), method, nothing)

    return mutate


def _changed(module: str, kind: str, change: Change) -> Callable[[], None]:
    """Restores something else than what was captured."""

    def mutate() -> None:
        owner = getattr(_module(module), kind)
        restore = owner.restore

        def restore_changed(self: Any, captured: Any) -> Any:
            _say(kind)
            return restore(self, change(self, captured))

        owner.restore = restore_changed

    return mutate


def _values(captured: Any, **changed: Any) -> Any:
    return dataclasses.replace(captured, values={**captured.values, **changed})


def _own(network: Any, captured: Any, chosen: Callable[[Any, str, Any], bool]) -> Any:
    """Returns the capture with what the network itself holds in place of the chosen tensors."""
    layer = network._layer
    tensors = dict(captured.tensors)
    for name, tensor in layer.state_dict().items():
        if chosen(layer, name, tensor) and name in tensors:
            tensors[name] = tensor.numpy()
    return dataclasses.replace(captured, tensors=tensors)


def _parameters(network: Any, captured: Any) -> Any:
    return _own(network, captured, lambda layer, name, tensor: not tensor.stop_gradient)


def _statistics(network: Any, captured: Any) -> Any:
    return _own(network, captured, lambda layer, name, tensor: _is_statistic(name))


def _kept_buffers(network: Any, captured: Any) -> Any:
    return _own(network, captured, lambda layer, name, tensor: name in dict(layer.named_buffers()))


class _Muted:
    """A module with some of its functions replaced by nothing."""

    def __init__(self, real: Any, **replaced: Any) -> None:
        self._real, self._replaced = real, replaced

    def __getattr__(self, name: str) -> Any:
        return self._replaced[name] if name in self._replaced else getattr(self._real, name)


def _nothing(what: str) -> Callable[..., Any]:
    def nothing(*arguments: Any, **named: Any) -> Any:
        _say(what)
        return []

    return nothing


def _python_stream() -> None:
    rng = _module("state.rng")
    rng.random = _Muted(rng.random, setstate=_nothing("python's stream"))


def _numpy_stream() -> None:
    rng = _module("state.rng")
    numpy_random = _Muted(rng.np.random, set_state=_nothing("numpy's stream"))
    rng.np = _Muted(rng.np, random=numpy_random)


def _paddle_stream() -> None:
    _module("state.rng")._load = _nothing("paddle's stream")


def _data_streams() -> None:
    for name in ("data.position", "data.sampler", "data.pool"):
        _module(name).set_all_streams = _nothing("the data's streams")


def _restart(what: str, change: Callable[[Any], Mapping[str, Any]]) -> Callable[[], None]:
    """Restarts the sampler elsewhere."""

    def mutate() -> None:
        owner = _module("data.sampler").RecordedSampler
        restart = owner.restart

        def restart_changed(self: Any, at: Any, *arguments: Any, **named: Any) -> None:
            changed = change(at)
            if any(getattr(at, key) != value for key, value in changed.items()):
                _say(what)
            restart(self, dataclasses.replace(at, **changed), *arguments, **named)

        owner.restart = restart_changed

    return mutate


def _saved_data(kind: str, module: str, key: str, value: Any) -> Callable[[], None]:
    """Opens an epoch's data with one of the saved values changed."""

    def mutate() -> None:
        owner = getattr(_module(module), kind)
        opened = owner.open

        def open_changed(self: Any, start: int, saved: Any, tensors: Any) -> Any:
            if saved is not None and key in saved:
                _say(f"{kind} {key}")
                saved = {**saved, key: value}
                if value is None:
                    del saved[key]
            return opened(self, start, saved, tensors)

        owner.open = open_changed

    return mutate


def _worker_streams() -> None:
    owner = _module("data.workers").WorkerStart
    called = owner.__call__

    def call(self: Any, worker: int) -> None:
        if worker in self._streams:
            _say("a worker's streams")
        self._streams = {}
        called(self, worker)

    owner.__call__ = call


MUTATIONS: Dict[str, Callable[[], None]] = {
    "parameters": _changed("state.model", "Network", _parameters),
    "batch_norm": _changed("state.model", "Network", _statistics),
    "kept_buffers": _changed("state.model", "Network", _kept_buffers),
    "stop_gradient": _changed(
        "state.model", "Network", lambda _, captured: _values(captured, stop_gradient={})
    ),
    "unsaved_buffers": _without("state.model", "Buffers"),
    "slots": _without("state.optimizer", "OptimizerSlots"),
    "schedule": _without("state.lr", "LearningRate"),
    "rate_tensor": _changed(
        "state.lr", "LearningRate", lambda _, captured: _values(captured, tensor=None)
    ),
    "rate_number": _changed(
        "state.lr",
        "LearningRate",
        lambda own, captured: _values(captured, number=own._optimizer._learning_rate),
    ),
    "metrics": _without("state.metrics", "Metrics"),
    "gradients": _changed(
        "state.gradients",
        "Gradients",
        lambda _, captured: dataclasses.replace(captured, tensors={}),
    ),
    "listeners": _without("state.listeners", "Listeners"),
    "logs": _changed(
        "callbacks.loop_state", "LoopState", lambda _, captured: _values(captured, logs={})
    ),
    "num_iters": _changed(
        "callbacks.loop_state",
        "LoopState",
        lambda _, captured: _values(captured, iterations_left=captured.values["num_iters"]),
    ),
    "stop_training": _changed(
        "callbacks.loop_state",
        "LoopState",
        lambda _, captured: _values(captured, stop_training=False),
    ),
    "extra": _without("state.extra", "Extra"),
    "python_stream": _python_stream,
    "numpy_stream": _numpy_stream,
    "paddle_stream": _paddle_stream,
    "data_streams": _data_streams,
    "sampler_memory": _without("data.memory", "SamplerMemory"),
    "batches_done": _restart("batches to skip", lambda at: {"skip": 0}),
    "thread_streams": _restart("the thread's streams", lambda at: {"thread_streams": None}),
    "drawn_indices": _restart(
        "indices drawn ahead",
        lambda at: {"indices": [], "skip": at.skip - len(at.indices)},
    ),
    "worker_streams": _worker_streams,
    "first_worker": _saved_data("PoolSource", "data.pool", "first_worker", 0),
    "was_reset": _saved_data("PoolSource", "data.pool", "was_reset", False),
    "dataset_state": _saved_data("ThreadSource", "data.thread", "stream", None),
}


def _late(part: str, choose: Change = lambda late, marked: late) -> Callable[[], None]:
    """Has a part copied when the save is made.

    Args:
        part: its name.
        choose: (what is there then, what was there at the boundary) to what is saved.
    """

    def mutate() -> None:
        points = _module("points")
        complete = points.Points.complete

        def complete_late(self: Any, point: Any, at_once: bool) -> Any:
            parts = dict(point.parts)
            for found in self._parts():
                if found.name == part and not at_once:
                    _say(f"{part} at its boundary")
                    parts[part] = choose(points.mark(found), parts[part])
            return complete(self, dataclasses.replace(point, parts=parts), at_once)

        points.Points.complete = complete_late

    return mutate


def _late_tensors(late: Any, marked: Any, wanted: Callable[[str], bool]) -> Any:
    tensors = {n: (late if wanted(n) else marked).tensors[n] for n in marked.tensors}
    return dataclasses.replace(marked, tensors=tensors)


def _is_statistic(name: str) -> bool:
    return name.endswith(("._mean", "._variance"))


def _late_value(key: str) -> Change:
    return lambda late, marked: _values(marked, **{key: late.values[key]})


LATE: Dict[str, Callable[[], None]] = {
    "late_batch_norm": _late(
        "model", lambda late, marked: _late_tensors(late, marked, _is_statistic)
    ),
    "late_kept_buffers": _late(
        "model",
        lambda late, marked: _late_tensors(late, marked, lambda name: not _is_statistic(name)),
    ),
    "late_unsaved_buffers": _late("buffer"),
    "late_schedule": _late("lr"),
    "late_gradients": _late("grad"),
    "late_metrics": _late("metric"),
    "late_logs": _late("loop", _late_value("logs")),
    "late_listeners": _late("listener"),
    "late_extra": _late("extra"),
    "late_python_stream": _late("rng", _late_value("python")),
    "late_numpy_stream": _late("rng", _late_value("numpy")),
    "late_paddle_stream": _late("rng", _late_value("paddle")),
    "late_data": _late("data"),
}
"""Every part that may change between a boundary and the next update."""
