"""BestSaver in real fits: the best is named, kept, survives restarts, and is exact."""

from __future__ import annotations

import json
import math
import shutil
import signal
from pathlib import Path
from typing import Any, Dict, List, Optional

import paddle
import pytest
from fit.models import BATCH, STEPS, Net, Points, disk, fill, fit, make, seed, weights

import paddle_resume as pr

from .runs import Starter

NAN = math.nan


class Scripted(paddle.metric.Metric):  # type: ignore[misc]
    """A metric with a given value for each epoch."""

    def __init__(self, values: List[float]) -> None:
        super().__init__()
        self.values = values
        self.epoch = 0

    def name(self) -> str:
        return "score"

    def reset(self) -> None:
        pass

    def update(self, *arguments: Any) -> float:
        return self.accumulate()

    def accumulate(self) -> float:
        return self.values[min(self.epoch, len(self.values) - 1)]


class Follow(paddle.callbacks.Callback):  # type: ignore[misc]
    """Tells the metric its epoch; notes what the best is at each epoch's begin and at the end."""

    def __init__(self, metric: Scripted, folder: Path) -> None:
        super().__init__()
        self.metric = metric
        self.folder = folder
        self.seen: List[Optional[int]] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch:
            self.seen.append(best_step(self.folder))
        self.metric.epoch = epoch


def best_step(folder: Path) -> Optional[int]:
    """The step that the link `best` names; the same as the first one of best.json."""
    link = folder / "best"
    if not link.is_symlink():
        assert not (folder / "best.json").exists()
        return None
    step = int(link.resolve().name[5:])
    assert link.resolve().is_dir()
    assert json.loads((folder / "best.json").read_text())["best"][0]["step"] == step
    return step


def scores(folder: Path) -> List[Any]:
    """Steps and values of best.json."""
    found = json.loads((folder / "best.json").read_text())["best"]
    assert {entry["monitor"] for entry in found} == {"score"}
    return [(entry["step"], entry["value"]) for entry in found]


def folders(folder: Path) -> List[int]:
    """The steps that are saved."""
    return sorted(int(path.name[5:]) for path in folder.glob("step_*"))


def run(
    folder: Path, values: List[float], epochs: Optional[int] = None, **keys: Any
) -> List[Optional[int]]:
    """Trains one epoch for each value, or some of them; returns what the best was after each."""
    seed()
    net = Net()
    model, metric = paddle.Model(net), Scripted(values)
    optimizer = paddle.optimizer.Adam(0.05, parameters=net.parameters())
    model.prepare(optimizer, paddle.nn.CrossEntropyLoss(), metric)
    # Not in the background: the best is looked for right after.
    options = {"monitor": "score", "mode": "max", "async_save": False, **keys}
    follow = Follow(metric, folder)
    callbacks = [follow, *pr.resume_callbacks(folder, **options)]
    fit(model, callbacks, epochs=epochs or len(values), eval_data=Points(16))
    return [*follow.seen, best_step(folder)]


def test_equal_keeps_the_first_and_nan_is_never_the_best(tmp_path: Path) -> None:
    seen = run(tmp_path, [NAN, 0.5, 0.7, 0.7, 0.6, 0.9, NAN])
    expected = [None, 2, 3, 3, 3, 6, 6]
    assert seen == [None if epoch is None else epoch * STEPS for epoch in expected]
    assert scores(tmp_path) == [(6 * STEPS, 0.9)]


def test_infinity_is_never_the_best(tmp_path: Path) -> None:
    assert run(tmp_path, [math.inf, 0.5, -math.inf])[-1] == 2 * STEPS


def test_min_delta(tmp_path: Path) -> None:
    seen = run(tmp_path, [0.5, 0.55, 0.65, 0.7], min_delta=0.125)
    assert seen == [STEPS, STEPS, 3 * STEPS, 3 * STEPS]


def test_min_mode(tmp_path: Path) -> None:
    assert run(tmp_path, [0.5, 0.7, 0.4, 0.4], mode="min")[-1] == 3 * STEPS


def test_exactly_the_best_and_the_newest_remain(tmp_path: Path) -> None:
    run(tmp_path, [0.3, 0.9, 0.5, 0.8, 0.2, 0.1], keep_best_max=2, keep_checkpoint_max=1)
    assert scores(tmp_path) == [(2 * STEPS, 0.9), (4 * STEPS, 0.8)]
    assert folders(tmp_path) == [2 * STEPS, 4 * STEPS, 6 * STEPS]


def test_it_survives_restarts(tmp_path: Path, start: Starter) -> None:
    values = [0.3, 0.9, 0.9, 0.8, 0.2]
    keys = {
        "monitor": "score",
        "mode": "max",
        "keep_best_max": 2,
        "keep_checkpoint_max": 1,
        "async_save": False,
    }
    ask: Dict[str, Any] = {"values": values, "keys": keys}
    whole = start("scripted", folder=str(tmp_path / "whole"), **ask)
    folder = tmp_path / "killed"
    for epoch in range(1, len(values)):
        killed = start("scripted", folder=str(folder), kill=epoch, **ask)
        assert killed.end() == -signal.SIGKILL, killed.log
    last = start("scripted", folder=str(folder), **ask)
    assert last.end() == 0 and whole.end() == 0, last.log
    assert last.told("digest") == whole.told("digest")
    for name in ("best.json", "finished.json"):
        found = [json.loads((root / name).read_text()) for root in (folder, tmp_path / "whole")]
        for content in found:
            content.pop("run_id", None)
            content.pop("streams", None)
        assert found[0] == found[1]
    assert best_step(folder) == 2 * STEPS
    assert folders(folder) == folders(tmp_path / "whole") == [6, 9, 15]


class Losses(paddle.callbacks.Callback):  # type: ignore[misc]
    """Notes each step's loss."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Dict[int, str] = {}
        self.epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, step: int, logs: Any = None) -> None:
        assert logs is not None
        self.found[self.epoch * STEPS + step + 1] = float(logs["loss"][0]).hex()


@pytest.mark.parametrize("alone", [False, True])
def test_resume_from_best_is_exact(tmp_path: Path, alone: bool) -> None:
    """The boundary before the evaluation: also where nothing else has saved it."""
    reference, other = Losses(), make()
    fit(other, [reference], epochs=4, eval_data=Points(16))
    folder = tmp_path / "run"
    best = pr.BestSaver(folder, monitor="acc", mode="min", min_delta=0.5)  # the first stays it
    periodic = pr.PeriodicSaver(folder, snapshot_epoch=None, snapshot_step=4)
    fit(make(), [best] if alone else [best, periodic], epochs=3, eval_data=Points(16))
    assert best_step(folder) == STEPS and STEPS in folders(folder)
    losses, model = Losses(), make()
    callbacks = [losses, pr.AutoResume(folder, resume_from="best"), best]
    fit(model, callbacks, epochs=4, eval_data=Points(16))
    assert list(losses.found) == list(range(STEPS + 1, 4 * STEPS + 1))
    assert losses.found == {k: v for k, v in reference.found.items() if k > STEPS}
    assert weights(model) == weights(other)


def test_without_evaluation_the_training_metric_counts(tmp_path: Path) -> None:
    ours = [pr.AutoResume(tmp_path), pr.BestSaver(tmp_path, monitor="acc", mode="min")]
    fit(make(), ours, epochs=3)
    assert best_step(tmp_path) in (STEPS, 2 * STEPS, 3 * STEPS)


def test_resume_callbacks_without_evaluation_stand_aside(tmp_path: Path) -> None:
    fit(make(), pr.resume_callbacks(tmp_path))
    assert best_step(tmp_path) is None
    # asked for by name it does not
    fit(make(), pr.resume_callbacks(tmp_path / "asked", monitor="loss"))
    assert best_step(tmp_path / "asked") is not None


def test_a_monitor_that_fit_does_not_have(tmp_path: Path) -> None:
    heard = Losses()
    with pytest.raises(pr.ConfigError, match="top5") as found:
        callbacks = [heard, *pr.resume_callbacks(tmp_path / "run", monitor="acc_top5")]
        fit(make(), callbacks, eval_data=Points(16))
    assert "loss" in str(found.value) and "acc" in str(found.value).replace("acc_top5", "")
    assert not heard.found and not (tmp_path / "run").exists()


def test_a_failed_save_of_the_best_does_not_bar_a_later_one(tmp_path: Path) -> None:
    with disk(tmp_path / "disk", "size=2m") as mounted:
        folder, filler = mounted / "run", mounted / "filler"

        class Full(paddle.callbacks.Callback):  # type: ignore[misc]
            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                if epoch == 1:
                    fill(filler)
                elif filler.exists():
                    filler.unlink()

        seed()
        net = Net()
        model, metric = paddle.Model(net), Scripted([0.3, 0.9, 0.5, 0.4])
        optimizer = paddle.optimizer.Adam(0.05, parameters=net.parameters())
        model.prepare(optimizer, paddle.nn.CrossEntropyLoss(), metric)
        ours = [
            pr.BestSaver(folder, monitor="score", mode="max"),
            pr.PeriodicSaver(folder, snapshot_epoch=None, async_save=False),
        ]
        callbacks = [Full(), Follow(metric, folder), *ours]
        fit(model, callbacks, epochs=4, eval_data=Points(16))
        assert best_step(folder) == 3 * STEPS
        assert scores(folder) == [(3 * STEPS, 0.5)]


class Average(paddle.callbacks.Callback):  # type: ignore[misc]
    """Swaps other weights in for the evaluation, as an EMA does."""

    def on_eval_begin(self, logs: Any = None) -> None:
        weight = self.model.network.last.weight
        self.raw = weight.numpy()
        weight.set_value(self.raw * 0.5)

    def on_eval_end(self, logs: Any = None) -> None:
        self.model.network.last.weight.set_value(self.raw)


@pytest.mark.parametrize("first", [False, True])
def test_swapped_weights_are_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, first: bool
) -> None:
    reference = make()
    fit(reference, [Average()], epochs=3, eval_data=Points(16))
    ours = pr.resume_callbacks(tmp_path)
    model = make()
    callbacks = [Average(), *ours] if first else [*ours, Average()]
    fit(model, callbacks, epochs=3, eval_data=Points(16))
    said = [text for text in caplog.messages if "swapped for the evaluation" in text]
    assert len(said) == 1
    assert weights(model) == weights(reference)


def test_swapped_weights_are_never_saved_as_the_best(tmp_path: Path) -> None:
    """Nothing else has saved the step, and the weights are others when it turns out the best."""

    class NeverBack(Average):
        def on_eval_end(self, logs: Any = None) -> None:
            pass

    fit(make(), [NeverBack(), pr.BestSaver(tmp_path)], epochs=2, eval_data=Points(16))
    assert STEPS not in folders(tmp_path)
    assert best_step(tmp_path) in (None, 2 * STEPS), "the final save is that of the boundary"


def test_one_whose_save_was_lost_does_not_hide_the_best_before_it(tmp_path: Path) -> None:
    """A later checkpoint names it already, when a signal has it dropped for the last save."""
    values = [0.9, 0.95, 0.5, 0.6]
    assert run(tmp_path, values, 1, keep_checkpoint_max=None)[-1] == STEPS
    before = (tmp_path / "best.json").read_bytes()
    assert run(tmp_path, values, 3, keep_checkpoint_max=None)[-1] == 2 * STEPS
    shutil.rmtree(tmp_path / f"step_{2 * STEPS:08d}")
    (tmp_path / "best.json").write_bytes(before)
    (tmp_path / "best").unlink()
    (tmp_path / "best").symlink_to(f"step_{STEPS:08d}")
    assert run(tmp_path, values, 4, keep_checkpoint_max=None)[-1] == STEPS
    assert scores(tmp_path) == [(STEPS, 0.9)]


def test_added_to_a_run_that_had_none(tmp_path: Path) -> None:
    plain = [pr.AutoResume(tmp_path), pr.PeriodicSaver(tmp_path)]
    fit(make(), plain, epochs=2, eval_data=Points(16))
    assert best_step(tmp_path) is None
    fit(make(), [*plain, pr.BestSaver(tmp_path)], epochs=4, eval_data=Points(16))
    assert best_step(tmp_path) in (3 * STEPS, 4 * STEPS)


def test_without_it_the_best_is_kept(tmp_path: Path) -> None:
    run(tmp_path, [0.9, 0.1])
    plain = [pr.AutoResume(tmp_path), pr.PeriodicSaver(tmp_path, keep_checkpoint_max=1)]
    seed()
    net = Net()
    model = paddle.Model(net)
    optimizer = paddle.optimizer.Adam(0.05, parameters=net.parameters())
    model.prepare(optimizer, paddle.nn.CrossEntropyLoss(), Scripted([0.0]))
    fit(model, plain, epochs=5, eval_data=Points(16), batch_size=BATCH)
    assert best_step(tmp_path) == STEPS
    assert folders(tmp_path) == [STEPS, 5 * STEPS]
