"""Odd loaders, samplers and datasets: exact after a crash, or said not to be."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List

import numpy as np
import paddle
import pytest
from paddle.io import BatchSampler, DataLoader, IterableDataset, Sampler

import paddle_resume as pr

from .models import STEPS, Counter, Points, StopAt, fit, make, seed, weights

EPOCHS = 3


def run(make_loader: Callable[[], Any], callbacks: List[Any], **more: Any) -> Dict[str, bytes]:
    model = make()
    loader = make_loader()
    fit(model, callbacks, data=loader, epochs=EPOCHS, **more)
    return weights(model)


def crashed(folder: Path, make_loader: Callable[[], Any], batches: int, **more: Any) -> None:
    with pytest.raises(StopAt.Crash):
        run(make_loader, [StopAt(batches), *pr.resume_callbacks(folder, snapshot_step=1)], **more)


def assert_exact(folder: Path, make_loader: Callable[[], Any], batches: int) -> None:
    expected = run(make_loader, [])
    crashed(folder, make_loader, batches)
    assert run(make_loader, pr.resume_callbacks(folder, snapshot_step=1)) == expected


class Generating(DataLoader):  # type: ignore[misc]
    """A subclass that iterates in a generator of its own."""

    def __iter__(self) -> Iterator[Any]:
        yield from super().__iter__()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_iterates_in_its_own_way(tmp_path: Path, workers: int) -> None:
    assert_exact(
        tmp_path, lambda: Generating(Points(), batch_size=8, shuffle=True, num_workers=workers), 4
    )


class Bucket(BatchSampler):  # type: ignore[misc]
    """Gives a batch more than its length tells."""

    def __init__(self) -> None:
        self.batch_size = 8

    def __len__(self) -> int:
        return STEPS

    def __iter__(self) -> Iterator[List[int]]:
        for start in (0, 8, 16, 12):
            yield list(range(start, start + 8))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batches", [3, 4, 6])
def test_a_batch_sampler_whose_length_is_too_small(
    tmp_path: Path, workers: int, batches: int
) -> None:
    assert_exact(
        tmp_path, lambda: DataLoader(Points(), batch_sampler=Bucket(), num_workers=workers), batches
    )


class Remembers(Sampler):  # type: ignore[misc]
    """Counts its passes in a dict, and holds another sampler that counts its own."""

    def __init__(self, data: Any, inner: Any = None) -> None:
        super().__init__(data)
        self.state, self.inner = {"passes": 0}, inner

    def __iter__(self) -> Iterator[int]:
        shift = sum(self.inner) if self.inner is not None else 0
        draw = np.random.RandomState(self.state["passes"] * 1000 + shift)
        self.state["passes"] += 1
        return iter(draw.permutation(len(self.data_source)).tolist())

    def __len__(self) -> int:
        return len(self.data_source)


class Ticks(Sampler):  # type: ignore[misc]
    def __init__(self) -> None:
        self.ticks = 0

    def __iter__(self) -> Iterator[int]:
        self.ticks += 7
        return iter([self.ticks])


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_what_samplers_remember(tmp_path: Path, inner: bool, workers: int) -> None:
    def loader() -> Any:
        data = Points()
        sampler = Remembers(data, Ticks() if inner else None)
        batches = BatchSampler(sampler=sampler, batch_size=8)
        return DataLoader(data, batch_sampler=batches, num_workers=workers)

    assert_exact(tmp_path, loader, 2 * STEPS + 1)


def test_a_sampler_that_keeps_an_iterator_is_said(tmp_path: Path, caplog: Any) -> None:
    class Endless(Sampler):  # type: ignore[misc]
        def __init__(self, data: Any) -> None:
            super().__init__(data)
            self.source = iter(range(10**6))

        def __iter__(self) -> Iterator[int]:
            return iter([next(self.source) % len(self.data_source) for _ in range(24)])

        def __len__(self) -> int:
            return len(self.data_source)

    def loader() -> Any:
        data = Points()
        return DataLoader(data, batch_sampler=BatchSampler(sampler=Endless(data), batch_size=8))

    crashed(tmp_path, loader, 4)
    assert "source is a range_iterator" in caplog.text


def test_a_samplers_setting_is_the_scripts(tmp_path: Path) -> None:
    seen: List[float] = []

    class Ratio(Sampler):  # type: ignore[misc]
        def __init__(self, data: Any, ratio: float) -> None:
            super().__init__(data)
            self.ratio = ratio

        def __iter__(self) -> Iterator[int]:
            seen.append(self.ratio)
            return iter(range(len(self.data_source)))

        def __len__(self) -> int:
            return len(self.data_source)

    def loader(ratio: float) -> Any:
        data = Points()
        sampler = BatchSampler(sampler=Ratio(data, ratio), batch_size=8)
        return DataLoader(data, batch_sampler=sampler)

    crashed(tmp_path, lambda: loader(0.1), 4)
    seen.clear()
    run(lambda: loader(0.9), pr.resume_callbacks(tmp_path))
    assert set(seen) == {0.9}


class Live(IterableDataset):  # type: ignore[misc]
    """Hands out the very dict that it goes on to change."""

    def __init__(self) -> None:
        self.state, self.data = {"at": 0}, Points(22)

    def state_dict(self) -> Dict[str, int]:
        return self.state

    def set_state_dict(self, state: Dict[str, int]) -> None:
        self.state.update(state)

    def __iter__(self) -> Iterator[Any]:
        while self.state["at"] < 22:
            self.state["at"] += 1
            yield self.data[self.state["at"] - 1]
        self.state["at"] = 0


@pytest.mark.parametrize("batches", [1, 2, 3, 5])
def test_a_stream_whose_state_is_live(tmp_path: Path, batches: int) -> None:
    assert_exact(tmp_path, lambda: DataLoader(Live(), batch_size=8), batches)


class Noisy(Points):
    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x + np.random.rand(4).astype("float32"), y


def test_augmentation_in_the_loading_thread_many_times(tmp_path: Path) -> None:
    """Who draws is found out in a race of two threads: it must come out right each time."""
    for attempt in range(6):
        assert_exact(
            tmp_path / str(attempt),
            lambda: DataLoader(Noisy(), batch_size=8, shuffle=True),
            2 + attempt,
        )


class Wrapped:
    """A loader around a loader that loads in a thread."""

    def __init__(self) -> None:
        self.inner = DataLoader(Noisy(), batch_size=8)

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Iterator[Any]:
        yield from self.inner


def test_a_wrapped_loading_thread_is_said_not_to_be_exact(tmp_path: Path, caplog: Any) -> None:
    crashed(tmp_path, Wrapped, 2)
    assert "can only be read again from its start" in caplog.text


def test_a_persistent_loader_shared_with_the_evaluation(tmp_path: Path) -> None:
    def shared(callbacks: List[Any]) -> Dict[str, bytes]:
        model = make()
        loader = DataLoader(Points(), batch_size=8, num_workers=1, persistent_workers=True)
        fit(model, callbacks, data=loader, eval_data=loader, epochs=2)
        return weights(model)

    assert shared(pr.resume_callbacks(tmp_path)) == shared([])


def test_a_shorter_dataset_with_workers_in_mid_epoch(tmp_path: Path) -> None:
    def loader(samples: int) -> Any:
        return DataLoader(Points(samples), batch_size=8, shuffle=True, num_workers=2)

    crashed(tmp_path, lambda: loader(80), 4)
    run(lambda: loader(24), pr.resume_callbacks(tmp_path))


def test_an_error_in_the_loading_thread_is_raised_not_waited_for(tmp_path: Path) -> None:
    class Breaks(Sampler):  # type: ignore[misc]
        def __iter__(self) -> Iterator[int]:
            yield from range(8)
            raise ValueError("broken sampler")

        def __len__(self) -> int:
            return 24

    def loader() -> Any:
        data = Points()
        batches = BatchSampler(sampler=Breaks(data), batch_size=8)
        return DataLoader(data, batch_sampler=batches)

    with pytest.raises(ValueError, match="broken sampler"):
        run(loader, pr.resume_callbacks(tmp_path))


def test_weights_changed_at_the_end_are_changed_once(tmp_path: Path) -> None:
    class Half(Counter):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = epoch == 1

        def on_train_end(self, logs: Any = None) -> None:
            for parameter in self.model.network.parameters():
                parameter.set_value(parameter * 0.5)

    def once() -> Dict[str, bytes]:
        model = make()
        keys = {"snapshot_epoch": None, "snapshot_minutes": None}
        fit(model, [Half(), *pr.resume_callbacks(tmp_path, **keys)], epochs=5)
        return weights(model)

    assert once() == once()


def test_a_start_says_that_resume_from_has_been_followed(tmp_path: Path, caplog: Any) -> None:
    keys = {"resume_from": "never", "snapshot_step": 1}
    with pytest.raises(StopAt.Crash), caplog.at_level("INFO", "paddle_resume"):
        fit(make(), [StopAt(2), *pr.resume_callbacks(tmp_path, **keys)])
    assert "has been followed" not in caplog.text
    with pytest.raises(StopAt.Crash), caplog.at_level("INFO", "paddle_resume"):
        fit(make(), [StopAt(3), *pr.resume_callbacks(tmp_path, **keys)])
    assert "resume_from='never' has been followed by this run's first start" in caplog.text


def test_never_does_not_start_from_nothing_twice(tmp_path: Path) -> None:
    keys = {"resume_from": "never", "snapshot_step": 1, "keep_checkpoint_max": 1}
    with pytest.raises(StopAt.Crash):
        fit(make(), [StopAt(2), *pr.resume_callbacks(tmp_path, **keys)])
    (only,) = tmp_path.glob("step_*")
    (only / "manifest.json").write_bytes(b"{")
    for _ in range(2):
        with pytest.raises(pr.CheckpointError, match="damaged"):
            fit(make(), pr.resume_callbacks(tmp_path, **keys))
    assert list(tmp_path.glob("step_*")) == [only]


def test_a_copy_of_the_folder_does_not_let_another_run_in(tmp_path: Path, caplog: Any) -> None:
    other = textwrap.dedent(
        """
        import sys, time
        from pathlib import Path
        from paddle_resume.checkpoint.store import Store
        store = Store(Path(sys.argv[1])); store.lock()
        print("in", flush=True); time.sleep(60)
        """
    )
    started = []

    class Copies(Counter):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                shutil.copytree(tmp_path / "run", tmp_path / "backup")  # drops the lock
            if epoch == 3:
                shutil.copytree(tmp_path / "run", tmp_path / "backup2")
                command = [sys.executable, "-c", other, str(tmp_path / "run")]
                started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
                assert started[0].stdout.readline() == "in\n"

    try:
        callbacks = pr.resume_callbacks(tmp_path / "run", async_save=False)
        fit(make(), [Copies(), *callbacks], epochs=4)
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert [c.epoch for c in pr.checkpoints(tmp_path / "run")] == [1, 2, 3]
    assert f"pid {started[0].pid}" in caplog.text


def test_a_buffer_that_is_none_until_the_first_forward(tmp_path: Path) -> None:
    class Cached(paddle.nn.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear = paddle.nn.Linear(4, 2)
            self.register_buffer("cache", None)

        def forward(self, x: Any) -> Any:
            seen = x.mean(0).detach()
            self.cache = seen if self.cache is None else 0.5 * self.cache + 0.5 * seen
            return self.linear(x - self.cache)

    def trained(callbacks: List[Any]) -> Dict[str, bytes]:
        seed()
        net = Cached()
        model = paddle.Model(net)
        optimizer = paddle.optimizer.SGD(0.1, parameters=net.parameters())
        model.prepare(optimizer, paddle.nn.CrossEntropyLoss())
        fit(model, callbacks, epochs=EPOCHS)
        return weights(model)

    expected = trained([])
    with pytest.raises(StopAt.Crash):
        trained([StopAt(4), *pr.resume_callbacks(tmp_path, snapshot_step=1)])
    assert trained(pr.resume_callbacks(tmp_path)) == expected


def test_a_pending_gradient_of_another_shape(tmp_path: Path, caplog: Any) -> None:
    more = {"accumulate_grad_batches": STEPS}
    with pytest.raises(StopAt.Crash):
        fit(make(), [StopAt(2), *pr.resume_callbacks(tmp_path, snapshot_step=1)], **more)
    fit(make(hidden=9), pr.resume_callbacks(tmp_path, partial=True), **more)
    assert "the gradient of first.weight is [4, 6]" in caplog.text


def test_num_iters_added_counts_all_steps(tmp_path: Path) -> None:
    with pytest.raises(StopAt.Crash):
        fit(make(), [StopAt(4), *pr.resume_callbacks(tmp_path, snapshot_step=1)], epochs=9)
    fit(make(), pr.resume_callbacks(tmp_path), num_iters=7)
    assert pr.checkpoints(tmp_path)[-1].step == 7


def test_a_schedule_that_is_too_short_to_override_with(tmp_path: Path) -> None:
    fit(make(rate=paddle.optimizer.lr.StepDecay(0.1, 3)), pr.resume_callbacks(tmp_path))
    short = make(rate=paddle.optimizer.lr.OneCycleLR(0.1, total_steps=3))
    with pytest.raises(pr.MismatchError, match="OneCycleLR"):
        fit(short, pr.resume_callbacks(tmp_path, lr_policy="override"), epochs=4)
