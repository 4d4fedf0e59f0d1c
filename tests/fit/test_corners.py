"""Corners where a save, a start or an end could go wrong without a word."""

from __future__ import annotations

import gc
import json
import logging
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, Dict, Iterator, List

import numpy as np
import paddle
import pytest

import paddle_resume as pr
from paddle_resume.checkpoint.store import Store
from paddle_resume.types import Snapshot

from .models import STEPS, Counter, Net, Points, StopAt, fit, listing, make, seed, weights


class Failing:
    """Makes `Store.save` fail as a full disk does, for some of its calls."""

    def __init__(self, patch: pytest.MonkeyPatch, *calls: int) -> None:
        self.calls = 0
        save = Store.save

        def failing(store: Store, *arguments: Any, **named: Any) -> Any:
            self.calls += 1
            if not calls or self.calls in calls:
                raise OSError(28, "No space left on device")
            return save(store, *arguments, **named)

        patch.setattr(Store, "save", failing)


def test_a_failed_save_waits_for_its_next_trigger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = Failing(monkeypatch)
    keys = {"snapshot_epoch": None, "snapshot_minutes": 1e-9, "async_save": False}
    fit(make(), pr.resume_callbacks(tmp_path, **keys), epochs=1)
    assert failing.calls == STEPS + 1  # and once more at the end
    failing.calls = 0
    keys["snapshot_minutes"] = 1.0
    fit(make(), pr.resume_callbacks(tmp_path, **keys), epochs=2)
    assert failing.calls == 2  # the last boundary, and once more at the end


def test_failed_saves_keep_no_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Failing(monkeypatch)

    class Alive(Counter):
        most = 0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            gc.collect()
            alive = sum(isinstance(item, Snapshot) for item in gc.get_objects())
            self.most = max(self.most, alive)

    alive = Alive()
    callbacks = pr.resume_callbacks(tmp_path, snapshot_step=1, async_save=False)
    fit(make(), [alive, *callbacks], epochs=5)
    assert alive.most == 0


def test_a_log_entry_that_cannot_be_saved(tmp_path: Path) -> None:
    class Odd(Counter):
        def on_train_batch_end(self, step: int, logs: Any = None) -> None:
            logs["odd"] = object()

    model = make()
    try:
        fit(model, [Odd(), *pr.resume_callbacks(tmp_path)])
    finally:
        type(model)._run_one_epoch.__defaults__[0].pop("odd", None)
    assert [c.step for c in pr.checkpoints(tmp_path)] == [STEPS, 2 * STEPS]
    assert "odd" in pr.load(tmp_path / "latest")["state"]["inexact"][0]


class Stateful(Counter):
    """A callback whose state_dict fails from some call on."""

    def __init__(self, good: int) -> None:
        super().__init__()
        self.good = good

    def state_dict(self) -> Dict[str, Any]:
        self.good -= 1
        if self.good < 0:
            raise ValueError("broken state_dict")
        return {"n": 1}

    def set_state_dict(self, state: Dict[str, Any]) -> None:
        pass


def test_a_state_dict_that_fails_at_the_start(tmp_path: Path) -> None:
    callback = Stateful(good=0)
    with pytest.raises(pr.ConfigError, match="broken state_dict"):
        fit(make(), [callback, *pr.resume_callbacks(tmp_path)])
    assert not any(heard.startswith("batch") for heard in callback.heard)


def test_a_state_dict_that_fails_later(tmp_path: Path, caplog: Any) -> None:
    ours = [pr.AutoResume(tmp_path), pr.PeriodicSaver(tmp_path)]  # alone: no copy at each step
    fit(make(), [Stateful(good=2), *ours], epochs=3)
    assert [c.step for c in pr.checkpoints(tmp_path)] == [STEPS]
    assert caplog.text.count("step 6 could not be saved: ValueError") == 1


@pytest.mark.parametrize("same_model", [True, False])
def test_an_interrupt_between_two_hooks(tmp_path: Path, same_model: bool) -> None:
    model = make()
    measure = model._len_data_loader
    calls = []

    def interrupted(loader: Any) -> Any:
        calls.append(loader)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return measure(loader)

    model._len_data_loader = interrupted
    with pytest.raises(KeyboardInterrupt):
        fit(model, pr.resume_callbacks(tmp_path), eval_data=Points(16))
    del model._len_data_loader
    again = model if same_model else make()
    fit(again, pr.resume_callbacks(tmp_path), eval_data=Points(16))
    expected = make()
    fit(expected, [], eval_data=Points(16))
    assert weights(again) == weights(expected)
    assert "_run_one_epoch" not in vars(again)
    assert logging.getLogger("paddle_resume").level == logging.NOTSET


def test_an_early_stopped_run_trains_longer(tmp_path: Path) -> None:
    stop = paddle.callbacks.EarlyStopping(
        "loss", "min", patience=1, baseline=-1.0, save_best_model=False, verbose=0
    )
    keys: Dict[str, Any] = {"snapshot_epoch": None, "snapshot_minutes": None}
    fit(make(), [stop, *pr.resume_callbacks(tmp_path, **keys)], epochs=3, eval_data=Points(16))
    counter = Counter()
    fit(make(), [counter, *pr.resume_callbacks(tmp_path)], epochs=5, eval_data=Points(16))
    assert counter.heard.count("batch 0") == 4
    assert json.loads((tmp_path / "finished.json").read_text())["step"] == 5 * STEPS


def test_a_failed_last_save_claims_no_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    with monkeypatch.context() as patch:
        Failing(patch, 1)
        keys = {"snapshot_epoch": None, "async_save": False}
        fit(make(), pr.resume_callbacks(tmp_path, **keys), num_iters=STEPS - 1)
    assert pr.checkpoints(tmp_path) == []
    assert "could not be saved" in caplog.text and not (tmp_path / "finished.json").exists()


class Lying:
    """A loader that gives another number of batches than its length tells."""

    def __init__(self, claims: int, gives: int) -> None:
        self.claims, self.gives = claims, gives

    def __len__(self) -> int:
        return self.claims

    def __iter__(self) -> Iterator[Any]:
        data = Points(8 * self.gives)
        for start in range(0, len(data), 8):
            yield [paddle.to_tensor(part[start : start + 8]) for part in (data.x, data.y)]


@pytest.mark.parametrize(("claims", "gives"), [(2, 3), (4, 3), (3, 3)])
@pytest.mark.parametrize("batches", [2, 3, 5])
def test_loaders_whose_length_is_wrong(
    tmp_path: Path, claims: int, gives: int, batches: int
) -> None:
    def run(callbacks: List[Any]) -> Dict[str, bytes]:
        model = make()
        fit(model, callbacks, epochs=3, data=Lying(claims, gives))
        return weights(model)

    expected = run([])
    with pytest.raises(StopAt.Crash):
        run([StopAt(batches), *pr.resume_callbacks(tmp_path, snapshot_step=1)])
    assert run(pr.resume_callbacks(tmp_path, snapshot_step=1)) == expected
    counter = Counter()
    run([counter, *pr.resume_callbacks(tmp_path)])
    assert counter.heard == ["end"]


def test_an_epoch_shorter_than_its_length_is_saved(tmp_path: Path) -> None:
    fit(make(), pr.resume_callbacks(tmp_path), data=Lying(8, 3))
    assert [(c.step, c.epoch) for c in pr.checkpoints(tmp_path)] == [(3, 1), (6, 2)]


class Rarely(Points):
    """Draws from numpy for a few samples only, none of them in the first batch."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return (x + np.random.rand(4).astype("float32") if index >= 10 else x), y


def test_a_dataset_that_draws_rarely_in_the_loading_thread(tmp_path: Path, caplog: Any) -> None:
    def run(callbacks: List[Any]) -> Dict[str, bytes]:
        model = make()
        fit(model, callbacks, epochs=3, data=Rarely(), shuffle=False)
        return weights(model)

    expected = run([])
    with pytest.raises(StopAt.Crash):
        run([StopAt(5), *pr.resume_callbacks(tmp_path, snapshot_step=1)])
    resumed = run(pr.resume_callbacks(tmp_path, snapshot_step=1))
    assert resumed == expected or "num_workers=0" in caplog.text


def test_nothing_left_to_train_from_another_folder(tmp_path: Path) -> None:
    fit(make(), pr.resume_callbacks(tmp_path / "a"))
    source = str(tmp_path / "a" / "latest")
    for _ in range(2):
        fit(make(), pr.resume_callbacks(tmp_path / "b", resume_from=source))
    assert [c.step for c in pr.checkpoints(tmp_path / "b")] == [2 * STEPS]
    fit(make(), pr.resume_callbacks(tmp_path / "b"))


def test_a_part_that_this_run_lacks_is_named(tmp_path: Path) -> None:
    class Loss(paddle.nn.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", paddle.zeros([1]))

        def forward(self, out: Any, label: Any) -> Any:
            self.seen += 1
            return paddle.nn.functional.cross_entropy(out, label)

    def build(loss: Any) -> Any:
        seed()
        net = Net()
        model = paddle.Model(net)
        model.prepare(paddle.optimizer.SGD(0.1, parameters=net.parameters()), loss)
        return model

    model = build(Loss())
    fit(model, pr.resume_callbacks(tmp_path))
    again = build(Loss())
    fit(again, pr.resume_callbacks(tmp_path), epochs=3)
    assert again._loss.seen.item() == 3 * STEPS
    with pytest.raises(pr.MismatchError, match="part 'loss'"):
        fit(build(paddle.nn.CrossEntropyLoss()), pr.resume_callbacks(tmp_path), epochs=4)


@pytest.mark.parametrize("wrong", [{"epochs": 1}, {"epochs": 4, "hidden": 9}])
def test_a_start_that_is_refused_moves_nothing(tmp_path: Path, wrong: Dict[str, int]) -> None:
    fit(make(), pr.resume_callbacks(tmp_path), epochs=3)
    before = listing(tmp_path)
    callbacks = pr.resume_callbacks(tmp_path, resume_from="epoch:2")
    with pytest.raises(pr.MismatchError):
        fit(make(wrong.pop("hidden", 6)), callbacks, **wrong)
    assert listing(tmp_path) == before


def test_metrics_are_of_the_line_that_stands(tmp_path: Path) -> None:
    fit(make(), pr.resume_callbacks(tmp_path), eval_data=Points(16))
    fit(make(), pr.resume_callbacks(tmp_path, resume_from="never"))
    assert not any(name.startswith("eval") for c in pr.checkpoints(tmp_path) for name in c.metrics)


def test_load_needs_no_paddle(tmp_path: Path) -> None:
    class Holder:
        def state_dict(self) -> Any:
            return {"t": paddle.to_tensor([1.0])}

        def set_state_dict(self, state: Any) -> None:
            pass

    fit(make(), pr.resume_callbacks(tmp_path, extra={"h": Holder()}))
    code = textwrap.dedent(
        """
        import sys
        import paddle_resume as pr
        found = pr.load(sys.argv[1])
        print(type(found["extra"]["h"]["t"]).__name__, len(pr.checkpoints(sys.argv[2])))
        assert "paddle" not in sys.modules
        """
    )
    command = [sys.executable, "-c", code, str(tmp_path / "latest"), str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "ndarray 2\n"


def test_windows_is_refused_with_the_reason(tmp_path: Path) -> None:
    code = textwrap.dedent(
        """
        import sys
        try:
            import scipy.linalg
        except ImportError:
            pass
        import paddle
        sys.modules["fcntl"] = None
        import paddle_resume as pr
        sys.platform = "win32"
        from paddle_resume.runtime import require_supported_run
        pr.AutoResume(sys.argv[1])
        try:
            require_supported_run()
        except pr.ConfigError as error:
            print(error)
        """
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    assert "found Windows" in subprocess.run(command, capture_output=True, text=True).stdout


def test_a_training_that_draws_beside_a_dataset_that_does_not(tmp_path: Path, caplog: Any) -> None:
    """Nothing is said where the training alone draws, before and after a resume."""

    class Draws(Counter):
        def on_train_batch_end(self, step: int, logs: Any = None) -> None:
            super().on_train_batch_end(step, logs)
            self.heard.append(f"{np.random.rand()}")

    def run(folder: Any, *more: Any) -> List[str]:
        draws = Draws()
        callbacks = [draws, *more]
        if folder is not None:
            callbacks += pr.resume_callbacks(folder, snapshot_step=1)
        try:
            fit(make(), callbacks, epochs=3)
        except StopAt.Crash:
            pass
        return [heard for heard in draws.heard if heard.startswith("0.")]

    expected = run(None)
    first, second = run(tmp_path, StopAt(4)), run(tmp_path)
    assert first + second == expected


def test_back_to_what_was_left_behind(tmp_path: Path) -> None:
    fit(make(), pr.resume_callbacks(tmp_path))
    first = pr.load(tmp_path / "latest")["model"]
    fit(make(rate=0.5), pr.resume_callbacks(tmp_path, resume_from="never"))
    (old,) = tmp_path.glob(f".before-*/step_{2 * STEPS:08d}")
    model = make()
    fit(model, pr.resume_callbacks(tmp_path, resume_from=str(old)))
    now = pr.load(tmp_path / "latest")
    assert {k: v.tobytes() for k, v in now["model"].items()} == {
        k: v.tobytes() for k, v in first.items()
    }
    assert len(list(tmp_path.glob(f".before-*/step_{2 * STEPS:08d}"))) == 2  # nothing is lost
