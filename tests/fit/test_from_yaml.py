"""Callbacks from YAML are those made by hand, and a fit with them goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, List

import pytest

import paddle_resume as pr
from paddle_resume.save_dir import VARIABLE

from .models import STEPS, Counter, Points, StopAt, fit, make, weights

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def made(callbacks: List[Any]) -> List[Any]:
    return [(type(item), item.save_dir, item.policy, item.extra) for item in callbacks]


BY_HAND = {
    "save_dir: run": lambda: [
        pr.AutoResume("run"),
        pr.PeriodicSaver("run"),
        pr.BestSaver("run"),
        pr.EmergencySaver("run"),
    ],
    "{save_dir: run, best: false, emergency: false}": lambda: [
        pr.AutoResume("run"),
        pr.PeriodicSaver("run"),
    ],
    """
save_dir: run
snapshot_epoch: 2
snapshot_step: 500
snapshot_minutes: null
keep_checkpoint_max: null
keep_every_epoch: 4
async_save: false
best: {monitor: acc, mode: max, min_delta: 1e-4, keep_best_max: 2}
emergency:
  signals: [SIGTERM, SIGUSR1]
  on_exception: false
  grace_seconds: 10
  save_signal: SIGUSR2
  stop_after_minutes: 90
resume: {resume_from: "epoch:50", lr_policy: override, partial: true, verify: size}
""": lambda: [
        pr.AutoResume(
            "run", resume_from="epoch:50", lr_policy="override", partial=True, verify="size"
        ),
        pr.PeriodicSaver(
            "run",
            snapshot_epoch=2,
            snapshot_step=500,
            snapshot_minutes=None,
            keep_checkpoint_max=None,
            keep_every_epoch=4,
            async_save=False,
        ),
        pr.BestSaver("run", monitor="acc", mode="max", min_delta=1e-4, keep_best_max=2),
        pr.EmergencySaver(
            "run",
            signals=("SIGTERM", "SIGUSR1"),
            on_exception=False,
            grace_seconds=10,
            save_signal="SIGUSR2",
            stop_after_minutes=90,
        ),
    ],
}


@pytest.mark.parametrize("text", BY_HAND)
def test_they_are_those_made_by_hand(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.yml"
    path.write_text(text)
    assert made(pr.callbacks_from_config(path)) == made(BY_HAND[text]())
    assert made(pr.callbacks_from_config(str(path))) == made(BY_HAND[text]())


def test_overrides_make_the_same_as_arguments() -> None:
    overrides = ["snapshot_epoch=2", "best=false", "emergency.grace_seconds=5"]
    assert made(pr.callbacks_from_config({"save_dir": "run"}, overrides=overrides)) == made(
        [
            pr.AutoResume("run"),
            pr.PeriodicSaver("run", snapshot_epoch=2),
            pr.EmergencySaver("run", grace_seconds=5),
        ]
    )


@pytest.mark.parametrize(
    ("config", "stands_aside"), [({}, True), ({"best": {"monitor": "loss"}}, False)]
)
def test_a_best_saver_that_nobody_asked_for_needs_an_evaluation(
    config: Any, stands_aside: bool
) -> None:
    callbacks = pr.callbacks_from_config({"save_dir": "run", **config})
    assert [item.needs_evaluation for item in callbacks if isinstance(item, pr.BestSaver)] == [
        stands_aside
    ]
    by_hand = pr.resume_callbacks("run", **config.get("best", {}))
    assert made(callbacks) == made(by_hand)
    assert by_hand[2].needs_evaluation == stands_aside


def test_the_variable_moves_the_callbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/mnt/x")
    for config in ({"save_dir": "run"}, {"snapshot_epoch": 2}):
        found = {item.save_dir for item in pr.callbacks_from_config(config)}
        assert found == {Path("/mnt/x")}
    monkeypatch.setenv(VARIABLE, "/mnt/x/")
    assert pr.callbacks_from_config({"save_dir": "run"})[0].save_dir == Path("/mnt/x/run")


def test_what_only_a_callback_finds_has_file_and_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paddle_resume.config import build

    def refuse(save_dir: Any, **keys: Any) -> None:
        raise pr.ConfigError(f"monitor={keys['monitor']!r}: not today")

    monkeypatch.setattr(build, "BestSaver", refuse)
    path = tmp_path / "a.yml"
    path.write_text("save_dir: run\nbest:\n  monitor: acc\n")
    with pytest.raises(pr.ConfigError) as caught:
        pr.callbacks_from_config(path)
    assert str(caught.value) == f"{path}:3: best.monitor='acc': not today"


def test_a_fit_from_yaml_is_killed_and_goes_on(tmp_path: Path) -> None:
    whole = make()
    fit(whole, [], epochs=4, eval_data=Points())

    path = tmp_path / "train.yml"
    path.write_text(
        f"epochs: 4\nResume:\n  save_dir: {tmp_path / 'run'}\n  best: {{monitor: acc}}\n"
        "  keep_checkpoint_max: null\n  emergency: false\n"
    )

    def callbacks() -> List[Any]:
        return pr.callbacks_from_config(path, overrides=["snapshot_epoch=2"])

    with pytest.raises(StopAt.Crash):
        fit(make(), [*callbacks(), StopAt(3 * STEPS)], epochs=4, eval_data=Points())
    steps = [checkpoint.step for checkpoint in pr.checkpoints(tmp_path / "run")]
    assert 2 * STEPS in steps, "snapshot_epoch=2 was not followed"

    model, counter = make(), Counter()
    fit(model, [*callbacks(), counter], epochs=4, eval_data=Points())
    # Resumed at the end of its second epoch, whose on_epoch_begin is dispatched once more.
    assert counter.heard[:2] == ["epoch 1", "epoch 2"], "it began anew"
    assert weights(model) == weights(whole)


def test_a_bad_config_is_an_error_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(pr.ConfigError, match="Did you mean snapshot_epoch"):
        pr.callbacks_from_config({"save_dir": str(tmp_path / "run"), "snapshot_epochs": 2})
    assert not (tmp_path / "run").exists()


def test_the_example_trains_and_then_says_that_it_is_finished(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "fit_from_yaml.py")]
    command += ["-o", "snapshot_epoch=2", "best=false"]

    def run() -> str:
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stderr

    assert "a fresh start" in run()
    saved = sorted(path.name for path in (tmp_path / "output" / "resume").glob("step_*"))
    assert saved == ["step_00000090", "step_00000180"]
    assert "is finished" in run()
