"""How a fit with the callbacks starts, ends and leaves the process."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import paddle
import pytest

import paddle_resume as pr

from .models import STEPS, Counter, Points, StopAt, disk, fill, fit, make, weights


def reference(epochs: int, **more: Any) -> Dict[str, bytes]:
    """The weights of a run without any of our callbacks."""
    model = make()
    fit(model, [], epochs=epochs, **more)
    return weights(model)


def crash(folder: Path, batches: int, epochs: int = 2, **keys: Any) -> None:
    with pytest.raises(StopAt.Crash):
        fit(make(), [StopAt(batches), *pr.resume_callbacks(folder, **keys)], epochs=epochs)


def steps(folder: Path) -> List[int]:
    return [checkpoint.step for checkpoint in pr.checkpoints(folder)]


def assert_nothing_left(model: Any, folder: Path) -> None:
    assert "_run_one_epoch" not in vars(model)
    assert not [t for t in threading.enumerate() if "paddle_resume" in t.name]
    import fcntl

    # In a child: a lock of this very process would not show in it.
    code = "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, fcntl.LOCK_EX | 4)"
    assert fcntl.LOCK_NB == 4
    done = subprocess.run(["python3", "-c", code, str(folder / ".lock")], capture_output=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("workers", [0, 2])
def test_goes_on_after_an_exception(tmp_path: Path, workers: int) -> None:
    expected = reference(2, num_workers=workers)
    crash(tmp_path, 4, snapshot_step=1)
    model = make()
    counter = Counter()
    callbacks = [counter, *pr.resume_callbacks(tmp_path)]
    fit(model, callbacks, epochs=2, num_workers=workers)
    assert counter.heard == ["epoch 1", "batch 1", "batch 2", "end"]
    assert weights(model) == expected
    assert_nothing_left(model, tmp_path)


@pytest.mark.parametrize("order", ["first", "last", "apart"])
def test_place_in_the_list_does_not_matter(tmp_path: Path, order: str) -> None:
    expected = reference(2)
    resume, save = pr.AutoResume(tmp_path), pr.PeriodicSaver(tmp_path, snapshot_step=1)
    for batches in (2, 1, None):
        counter = Counter()
        other = [counter] if batches is None else [counter, StopAt(batches)]
        model = make()
        callbacks = {
            "first": [save, resume, *other],
            "last": [*other, resume, save],
            "apart": [resume, *other, save],
        }[order]
        if batches is None:
            fit(model, callbacks)
        else:
            with pytest.raises(StopAt.Crash):
                fit(model, callbacks)
    # Epoch 0 is heard of once more, for its on_epoch_end to be replayed.
    assert counter.heard == ["epoch 0", "epoch 1", "batch 0", "batch 1", "batch 2", "end"]
    assert weights(model) == expected


def test_finished_returns_at_once_with_the_final_state(tmp_path: Path, caplog: Any) -> None:
    first = make()
    fit(first, pr.resume_callbacks(tmp_path))
    again = make()
    counter = Counter()
    fit(again, [counter, *pr.resume_callbacks(tmp_path)])
    assert counter.heard == ["end"]
    assert weights(again) == weights(first)
    assert "raise epochs" in caplog.text
    assert_nothing_left(again, tmp_path)


def test_finished_with_evaluation_returns_at_once(tmp_path: Path) -> None:
    first = make()
    fit(first, pr.resume_callbacks(tmp_path), eval_data=Points(16))
    again = make()
    counter = Counter()
    fit(again, [counter, *pr.resume_callbacks(tmp_path)], eval_data=Points(16))
    assert counter.heard == ["end"]
    assert weights(again) == weights(first)


@pytest.mark.parametrize("evaluated", [True, False])
def test_trains_longer_where_epochs_are_raised(tmp_path: Path, evaluated: bool) -> None:
    data = {"eval_data": Points(16)} if evaluated else {}
    expected = reference(4, **data)
    fit(make(), pr.resume_callbacks(tmp_path), epochs=2, **data)
    model = make()
    fit(model, pr.resume_callbacks(tmp_path), epochs=4, **data)
    assert weights(model) == expected
    assert json.loads((tmp_path / "finished.json").read_text())["step"] == 4 * STEPS


def test_without_any_trigger_the_last_boundary_is_saved(tmp_path: Path) -> None:
    off = {"snapshot_epoch": None, "snapshot_minutes": None}
    fit(make(), pr.resume_callbacks(tmp_path, **off))
    assert [c.reason for c in pr.checkpoints(tmp_path)] == ["final"]
    assert (tmp_path / "finished.json").exists()


@pytest.mark.parametrize("snapshot_epoch", [1, None])
def test_early_stopped_is_finished(tmp_path: Path, snapshot_epoch: Any) -> None:
    def stopping() -> Any:
        return paddle.callbacks.EarlyStopping(
            "loss", "min", patience=1, baseline=-1.0, save_best_model=False, verbose=0
        )

    keys = {"snapshot_epoch": snapshot_epoch, "snapshot_minutes": None}
    first = make()
    callbacks = [stopping(), *pr.resume_callbacks(tmp_path, **keys)]
    fit(first, callbacks, epochs=6, eval_data=Points(16))
    mark = json.loads((tmp_path / "finished.json").read_text())
    assert (mark["why"], mark["step"]) == ("stopped", STEPS)
    again = make()
    counter = Counter()
    callbacks = [counter, stopping(), *pr.resume_callbacks(tmp_path, **keys)]
    fit(again, callbacks, epochs=6, eval_data=Points(16))
    assert counter.heard == ["end"]
    assert weights(again) == weights(first)


def test_num_iters_is_finished_and_can_be_raised(tmp_path: Path) -> None:
    expected = reference(1, num_iters=7)
    fit(make(), pr.resume_callbacks(tmp_path), num_iters=4)
    counter = Counter()
    fit(make(), [counter, *pr.resume_callbacks(tmp_path)], num_iters=4)
    assert counter.heard == ["end"]
    model = make()
    fit(model, pr.resume_callbacks(tmp_path), num_iters=7)
    assert weights(model) == expected
    assert steps(tmp_path)[-1] == 7


def test_periodic_saver_alone_saves_and_never_resumes(tmp_path: Path, caplog: Any) -> None:
    fit(make(), [pr.PeriodicSaver(tmp_path)])
    counter = Counter()
    fit(make(), [counter, pr.PeriodicSaver(tmp_path)])
    assert counter.heard[0] == "epoch 0" and steps(tmp_path) == [STEPS, 2 * STEPS]
    assert "no AutoResume" in caplog.text
    before = list(tmp_path.glob(".before-*/step_*"))
    assert len(before) == 2  # nothing is lost


def test_auto_resume_alone_resumes_and_never_saves(tmp_path: Path) -> None:
    expected = reference(3)
    fit(make(), pr.resume_callbacks(tmp_path), epochs=2)
    model = make()
    fit(model, [pr.AutoResume(tmp_path)], epochs=3)
    assert weights(model) == expected
    assert steps(tmp_path) == [STEPS, 2 * STEPS]


def test_retention_with_milestones_over_a_restart(tmp_path: Path) -> None:
    keys = {"keep_checkpoint_max": 2, "keep_every_epoch": 2}
    crash(tmp_path, 3 * STEPS, epochs=6, **keys)
    fit(make(), pr.resume_callbacks(tmp_path, **keys), epochs=6)
    assert [c.epoch for c in pr.checkpoints(tmp_path)] == [2, 4, 5, 6]


def test_callbacks_change_nothing(tmp_path: Path) -> None:
    model = make()
    fit(model, pr.resume_callbacks(tmp_path, snapshot_step=1), epochs=3)
    assert weights(model) == reference(3)


def test_evaluate_and_predict_outside_fit_trigger_nothing(tmp_path: Path) -> None:
    model = make()
    callbacks = pr.resume_callbacks(tmp_path / "run")
    model.evaluate(Points(), batch_size=8, verbose=0, callbacks=callbacks)
    model.predict(Points(), batch_size=8, verbose=0, callbacks=callbacks)
    assert not (tmp_path / "run").exists()


def test_error_in_a_later_callback_at_the_start(tmp_path: Path) -> None:
    class Bad(paddle.callbacks.Callback):  # type: ignore[misc]
        def on_train_begin(self, logs: Any = None) -> None:
            raise ValueError("bad")

    model = make()
    with pytest.raises(ValueError):
        fit(model, [*pr.resume_callbacks(tmp_path), Bad()])
    assert "_run_one_epoch" not in vars(model)
    fit(model, pr.resume_callbacks(tmp_path))
    assert_nothing_left(model, tmp_path)


@pytest.mark.parametrize(
    "hook",
    [
        "on_epoch_begin",
        "on_epoch_end",
        "on_eval_begin",
        "on_eval_batch_end",
        "on_eval_end",
        "on_train_end",
    ],
)
def test_error_anywhere_leaves_nothing(tmp_path: Path, hook: str) -> None:
    class Bad(paddle.callbacks.Callback):  # type: ignore[misc]
        pass

    def fail(*arguments: Any) -> None:
        raise ValueError("bad")

    bad = Bad()
    setattr(bad, hook, fail)
    model = make()
    with pytest.raises(ValueError):
        fit(model, [bad, *pr.resume_callbacks(tmp_path)], eval_data=Points(16))
    assert_nothing_left(model, tmp_path)
    after = make()
    fit(after, pr.resume_callbacks(tmp_path), eval_data=Points(16))
    assert weights(after) == reference(2, eval_data=Points(16))


def test_second_fit_in_the_process_is_a_restart(tmp_path: Path) -> None:
    model = make()
    with pytest.raises(StopAt.Crash):
        callbacks = [StopAt(4), *pr.resume_callbacks(tmp_path, snapshot_step=1)]
        fit(model, callbacks, epochs=2)
    fit(model, pr.resume_callbacks(tmp_path, snapshot_step=1), epochs=2)
    assert weights(model) == reference(2)


def test_a_save_that_fails_does_not_stop_the_training(tmp_path: Path, caplog: Any) -> None:
    class Fill(Counter):
        """Fills the disk after the first epoch, and makes room after the second."""

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                fill(small / "filler")
            if epoch == 2:
                os.unlink(small / "filler")

    with disk(tmp_path / "disk", "size=512k") as small:
        model = make()
        fit(model, [Fill(), *pr.resume_callbacks(small / "run", async_save=False)], epochs=3)
        assert steps(small / "run") == [STEPS, 3 * STEPS]
        assert "could not be saved" in caplog.text and "No space left" in caplog.text
        assert weights(model) == reference(3)
        assert not list((small / "run").glob(".tmp-*"))


def test_nan_is_said_and_the_last_finite_is_kept(tmp_path: Path, caplog: Any) -> None:
    class Poison(Counter):
        def on_train_batch_end(self, step: int, logs: Any = None) -> None:
            if len(self.heard) == STEPS + 2:
                self.model.network.last.bias.set_value(np.full(2, np.nan, "float32"))
            super().on_train_batch_end(step, logs)

    keys = {"snapshot_step": 1, "keep_checkpoint_max": 1}
    fit(make(), [Poison(), *pr.resume_callbacks(tmp_path, **keys)], epochs=3)
    assert steps(tmp_path) == [STEPS, 3 * STEPS]
    assert "holds NaN or infinity" in caplog.text
    counter = Counter()
    keys = {"resume_from": "finite", "snapshot_step": 1}
    fit(make(), [counter, *pr.resume_callbacks(tmp_path, **keys)], epochs=3)
    assert counter.heard[1] == "epoch 1"  # from the finite one, whose epoch's end is replayed
    assert list(tmp_path.glob(".before-*/step_*"))


def test_nan_is_said_at_the_resume(tmp_path: Path, caplog: Any) -> None:
    class Poison(Counter):
        def on_train_end(self, logs: Any = None) -> None:
            pass

        def on_train_batch_end(self, step: int, logs: Any = None) -> None:
            self.model.network.last.bias.set_value(np.full(2, np.nan, "float32"))

    fit(make(), [Poison(), *pr.resume_callbacks(tmp_path)], epochs=1)
    caplog.clear()
    fit(make(), pr.resume_callbacks(tmp_path), epochs=1)
    assert 'resume_from="finite"' in caplog.text


def test_extra_is_saved_and_restored(tmp_path: Path) -> None:
    class Average:
        """An exponential moving average, as users write it."""

        def __init__(self) -> None:
            self.mean = np.zeros(3)
            self.seen: Dict[int, str] = {}

        def state_dict(self) -> Dict[str, Any]:
            return {"mean": self.mean, "seen": self.seen, "t": paddle.to_tensor([1.5])}

        def set_state_dict(self, state: Dict[str, Any]) -> None:
            self.mean, self.seen, self.t = state["mean"], state["seen"], state["t"]

    saved, restored = Average(), Average()
    saved.mean[:], saved.seen = (1, np.nan, np.inf), {3: "x"}
    fit(make(), pr.resume_callbacks(tmp_path, extra={"ema": saved}))
    fit(make(), pr.resume_callbacks(tmp_path, extra={"ema": restored}))
    np.testing.assert_array_equal(restored.mean, saved.mean)
    assert restored.seen == {3: "x"} and restored.t.numpy().tolist() == [1.5]
    assert pr.load(tmp_path / "latest")["extra"]["ema"]["seen"] == {3: "x"}


def test_files_open_with_plain_paddle_and_model_load(tmp_path: Path) -> None:
    with paddle.utils.unique_name.guard():  # as in a process of its own
        model = make()
        fit(model, pr.resume_callbacks(tmp_path))
    plain = paddle.load(str(tmp_path / "latest" / "model.pdparams"))
    assert {k: np.asarray(v).tobytes() for k, v in plain.items()} == weights(model)
    paddle.load(str(tmp_path / "latest" / "extra.pdparams"))
    with paddle.utils.unique_name.guard():
        other = make()
        other.load(str(tmp_path / "latest" / "model"))
        assert weights(other) == weights(model)
        fit(other, [])  # and trains on: its optimizer found every slot


def test_checkpoint_of_a_gpu_machine(tmp_path: Path, monkeypatch: Any, caplog: Any) -> None:
    from paddle_resume.state import rng

    of_this_machine = rng.paddle_streams
    with monkeypatch.context() as patch:
        gpu = {"gpu:0": {"seed": 3, "offset": 8}}
        patch.setattr(rng, "paddle_streams", lambda: {**of_this_machine(), **gpu})
        crash(tmp_path, 4, snapshot_step=1)
    model = make()
    fit(model, pr.resume_callbacks(tmp_path))
    assert weights(model) == reference(2)
    assert "gpu:0 has no device here" in caplog.text


def test_checkpoints_and_load(tmp_path: Path) -> None:
    fit(make(), pr.resume_callbacks(tmp_path), eval_data=Points(16))
    found = pr.checkpoints(tmp_path)
    assert [(c.step, c.epoch) for c in found] == [(STEPS, 1), (2 * STEPS, 2)]
    assert found[0].reason == "epoch" and found[1].reason == "epoch+final"
    assert {"loss", "acc", "eval_loss", "eval_acc"} <= set(found[1].metrics)
    for given in (
        found[1],
        found[1].path,
        tmp_path / "latest",
        found[1].path / "model",
        str(found[1].path / "model.pdparams"),
    ):
        content = pr.load(given)
        assert sorted(content) == ["extra", "model", "optimizer", "state"]
        assert content["state"]["position"]["step"] == 2 * STEPS
    assert set(content["model"]) == set(make().network.state_dict())
    with pytest.raises(pr.CheckpointError):
        pr.checkpoints(tmp_path / "nowhere")
    with pytest.raises(pr.CheckpointError):
        pr.load(tmp_path / "nowhere")


def test_eval_pool_that_persists_draws_no_seed_twice(tmp_path: Path) -> None:
    def run(folder: Any, batches: Any) -> Any:
        model = make()
        loader = paddle.io.DataLoader(
            Points(16), batch_size=8, num_workers=1, persistent_workers=True
        )
        train = paddle.io.DataLoader(Points(), batch_size=8, shuffle=True)
        callbacks: List[Any] = []
        if folder is not None:
            callbacks = pr.resume_callbacks(folder, snapshot_step=1)
        if batches is not None:
            callbacks.append(StopAt(batches))
        try:
            fit(model, callbacks, epochs=3, data=train, eval_data=loader)
        except StopAt.Crash:
            pass
        return weights(model), np.random.rand()

    expected = run(None, None)
    run(tmp_path, STEPS + 2)  # the pool was started by the first epoch's evaluation
    assert run(tmp_path, None) == expected
