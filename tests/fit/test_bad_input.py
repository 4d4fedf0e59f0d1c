"""Bad input is a clear error before the first step, and nothing is lost."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, Dict

import paddle
import pytest

import paddle_resume as pr

from .models import STEPS, Counter, Points, disk, fill, fit, listing, make


def refused(error: Any, *words: str, callbacks: Any, model: Any = None, **more: Any) -> str:
    """Runs a fit that must fail before its first batch, and returns the message."""
    counter = Counter()
    with pytest.raises(error) as caught:
        fit(model or make(), [counter, *callbacks], **more)
    assert not any(heard.startswith("batch") for heard in counter.heard)
    for word in words:
        assert word in str(caught.value), (word, str(caught.value))
    return str(caught.value)


def trained(folder: Path, epochs: int = 2, **more: Any) -> None:
    fit(make(), pr.resume_callbacks(folder), epochs=epochs, **more)


def test_save_dir_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    refused(
        pr.ConfigError, str(tmp_path / "file"), callbacks=pr.resume_callbacks(tmp_path / "file")
    )
    assert (tmp_path / "file").read_text() == "precious"


def test_save_dir_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    folder = tmp_path / "file" / "run"
    refused(pr.ConfigError, "save_dir", callbacks=pr.resume_callbacks(folder))


@pytest.mark.parametrize("folder", ["", 3, None, b"bytes"])
def test_save_dir_is_no_path(folder: Any) -> None:
    with pytest.raises(pr.ConfigError, match="save_dir"):
        pr.AutoResume(folder)


def test_save_dir_on_a_full_disk(tmp_path: Path) -> None:
    with disk(tmp_path / "disk", "size=64k") as full:
        fill(full / "filler")
        refused(pr.ConfigError, "No space left", callbacks=pr.resume_callbacks(full / "run"))


def test_save_dir_read_only(tmp_path: Path) -> None:
    with disk(tmp_path / "disk", "ro") as read_only:
        callbacks = pr.resume_callbacks(read_only / "run")
        refused(pr.ConfigError, "Read-only", callbacks=callbacks)


def test_save_dir_locked_by_a_live_run(tmp_path: Path) -> None:
    holder = textwrap.dedent(
        """
        import sys, time
        from pathlib import Path
        from paddle_resume.checkpoint.store import Store
        store = Store(Path(sys.argv[1])); store.create(); store.lock()
        print("locked", flush=True); time.sleep(60)
        """
    )
    other = subprocess.Popen(
        [sys.executable, "-c", holder, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None and other.stdout.readline() == "locked\n"
        refused(pr.LockedError, str(other.pid), callbacks=pr.resume_callbacks(tmp_path))
    finally:
        other.kill()
        other.wait()
    trained(tmp_path)  # a dead owner holds nothing


@pytest.mark.parametrize("key", ["snapshot_epoch", "snapshot_step", "keep_every_epoch"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "3", True])
def test_counts(key: str, value: Any) -> None:
    with pytest.raises(pr.ConfigError, match=f"{key}=.*whole number"):
        pr.PeriodicSaver("run", **{key: value})


@pytest.mark.parametrize("value", [0, -3, "soon", True, float("nan"), float("inf")])
def test_minutes(value: Any) -> None:
    with pytest.raises(pr.ConfigError, match="snapshot_minutes"):
        pr.PeriodicSaver("run", snapshot_minutes=value)


@pytest.mark.parametrize("value", [0, -1, "3", 2.0, False])
def test_keep(value: Any) -> None:
    with pytest.raises(pr.ConfigError, match="keep_checkpoint_max"):
        pr.PeriodicSaver("run", keep_checkpoint_max=value)


@pytest.mark.parametrize(
    "arguments",
    [
        {"resume_from": ""},
        {"resume_from": 500},
        {"resume_from": "step:x"},
        {"resume_from": "epoch:-1"},
        {"verify": "some"},
        {"lr_policy": "reset"},
        {"partial": 1},
        {"extra": [1]},
        {"extra": {"ema": object()}},
    ],
)
def test_auto_resume_arguments(arguments: Dict[str, Any]) -> None:
    with pytest.raises(pr.ConfigError, match=next(iter(arguments))):
        pr.AutoResume("run", **arguments)


def test_unknown_key_names_the_nearest() -> None:
    with pytest.raises(pr.ConfigError, match="Did you mean snapshot_step"):
        pr.resume_callbacks("run", snapshot_steps=3)


def test_unsaveable_extra(tmp_path: Path) -> None:
    class Bad:
        def state_dict(self) -> Any:
            return {"file": sys.stdout}

        def set_state_dict(self, state: Any) -> None:
            pass

    callbacks = pr.resume_callbacks(tmp_path, extra={"bad": Bad()})
    refused(pr.ConfigError, "extra['bad']", "file", callbacks=callbacks)


def test_different_save_dirs(tmp_path: Path) -> None:
    callbacks = [pr.AutoResume(tmp_path / "a"), pr.PeriodicSaver(tmp_path / "b")]
    refused(pr.ConfigError, "2 save_dirs", callbacks=callbacks)


def test_two_auto_resumes(tmp_path: Path) -> None:
    refused(pr.ConfigError, "AutoResume", callbacks=[pr.AutoResume(tmp_path)] * 2)


def test_static_mode(tmp_path: Path) -> None:
    code = textwrap.dedent(
        """
        import sys
        try:
            import scipy.linalg
        except ImportError:
            pass
        import paddle, paddle_resume as pr
        paddle.enable_static()
        x = paddle.static.InputSpec([None, 4], "float32", "x")
        y = paddle.static.InputSpec([None, 1], "int64", "y")
        net = paddle.nn.Linear(4, 2)
        model = paddle.Model(net, x, y)
        model.prepare(paddle.optimizer.SGD(0.1, parameters=net.parameters()),
                      paddle.nn.CrossEntropyLoss())
        class Data(paddle.io.Dataset):
            def __len__(self): return 8
            def __getitem__(self, i):
                import numpy as np
                return np.ones(4, "float32"), np.zeros(1, "int64")
        try:
            model.fit(Data(), batch_size=4, verbose=0, callbacks=pr.resume_callbacks(sys.argv[1]))
        except pr.ConfigError as error:
            print("refused:", error)
        """
    )
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "refused: paddle_resume found static graph mode" in done.stdout, done.stderr


@pytest.mark.parametrize(
    "place",
    ["missing", "missing/model", "missing/model.pdparams", "step:7", "epoch:9", "best", "."],
)
def test_named_start_that_is_not_there(tmp_path: Path, place: str) -> None:
    trained(tmp_path)
    before = listing(tmp_path)
    given = place if ":" in place or place == "best" else str(tmp_path / place)
    callbacks = pr.resume_callbacks(tmp_path, resume_from=given)
    refused(pr.CheckpointError, callbacks=callbacks)
    assert listing(tmp_path) == before


def test_nearest_steps_are_named(tmp_path: Path) -> None:
    trained(tmp_path)
    callbacks = pr.resume_callbacks(tmp_path, resume_from="step:5")
    refused(pr.CheckpointError, f"step:{STEPS}", f"step:{2 * STEPS}", callbacks=callbacks)


def test_another_model(tmp_path: Path) -> None:
    trained(tmp_path)
    other = make(hidden=9)
    message = refused(
        pr.MismatchError,
        "first.weight is [4, 6] float32 in the checkpoint and [4, 9] float32 in the network",
        callbacks=pr.resume_callbacks(tmp_path),
        model=other,
        epochs=4,
    )
    assert "partial=True" in message


def test_ten_differences_at_most_then_a_count(tmp_path: Path) -> None:
    class Deep(paddle.nn.Layer):  # type: ignore[misc]
        def __init__(self, prefix: str) -> None:
            super().__init__()
            for index in range(8):
                self.add_sublayer(f"{prefix}{index}", paddle.nn.Linear(4, 4))
            self.out = paddle.nn.Linear(4, 2)

        def forward(self, x: Any) -> Any:
            return self.out(x)

    def build(prefix: str) -> Any:
        net = Deep(prefix)
        model = paddle.Model(net)
        optimizer = paddle.optimizer.SGD(0.1, parameters=net.parameters())
        model.prepare(optimizer, paddle.nn.CrossEntropyLoss())
        return model

    fit(build("a"), pr.resume_callbacks(tmp_path))
    message = refused(
        pr.MismatchError, callbacks=pr.resume_callbacks(tmp_path), model=build("b"), epochs=4
    )
    assert "and 22 more" in message and message.count("\n  ") == 11


def test_partial_loads_what_fits(tmp_path: Path, caplog: Any) -> None:
    trained(tmp_path)
    other = make(hidden=9)
    saved = pr.load(tmp_path / "latest")["model"]
    before = {name: t.numpy() for name, t in other.network.state_dict().items()}
    fit(other, pr.resume_callbacks(tmp_path, partial=True, snapshot_epoch=None), epochs=2)
    now = {name: t.numpy() for name, t in other.network.state_dict().items()}
    assert (now["last.bias"] == saved["last.bias"]).all()
    assert (now["first.weight"] == before["first.weight"]).all()
    assert "partial=True: not restored" in caplog.text


def test_another_optimizer(tmp_path: Path) -> None:
    trained(tmp_path)
    refused(
        pr.MismatchError,
        "the optimizer Adam and this run uses Momentum",
        callbacks=pr.resume_callbacks(tmp_path),
        model=make(optimizer="Momentum"),
        epochs=4,
    )


def test_another_kind_of_learning_rate(tmp_path: Path) -> None:
    trained(tmp_path)
    schedule = paddle.optimizer.lr.StepDecay(0.1, 3)
    refused(
        pr.MismatchError,
        "StepDecay",
        callbacks=pr.resume_callbacks(tmp_path),
        model=make(rate=schedule),
        epochs=4,
    )


def test_fewer_epochs_than_trained(tmp_path: Path) -> None:
    trained(tmp_path, epochs=3)
    before = listing(tmp_path)
    refused(pr.MismatchError, "epochs=2", callbacks=pr.resume_callbacks(tmp_path), epochs=2)
    assert listing(tmp_path) == before


def test_fewer_num_iters_than_trained(tmp_path: Path) -> None:
    trained(tmp_path, num_iters=5)
    callbacks = pr.resume_callbacks(tmp_path)
    refused(pr.MismatchError, "num_iters=4", callbacks=callbacks, num_iters=4)


def damage(folder: Path) -> None:
    for step in folder.glob("step_*"):
        path = step / "model.pdparams"
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(bytes(content))


def test_every_checkpoint_damaged_at_every_start(tmp_path: Path) -> None:
    trained(tmp_path)
    damage(tmp_path)
    before = listing(tmp_path)
    for _ in range(3):
        callbacks = pr.resume_callbacks(tmp_path)
        refused(
            pr.CheckpointError, "every checkpoint", "model.pdparams", callbacks=callbacks, epochs=4
        )
        assert listing(tmp_path) == before


def test_checkpoints_gone_is_not_a_fresh_start(tmp_path: Path) -> None:
    trained(tmp_path)
    for step in tmp_path.glob("step_*"):
        step.rename(tmp_path / f"moved-{step.name}")
    for _ in range(2):
        refused(
            pr.CheckpointError,
            "start from nothing on purpose",
            callbacks=pr.resume_callbacks(tmp_path),
            epochs=4,
        )


def test_only_the_newest_damaged(tmp_path: Path, caplog: Any) -> None:
    trained(tmp_path)
    newest = tmp_path / f"step_{2 * STEPS:08d}"
    (newest / "model.pdopt").write_bytes(b"")
    counter = Counter()
    fit(make(), [counter, *pr.resume_callbacks(tmp_path)], epochs=2)
    assert counter.heard[0] == "epoch 0"  # once more, for the epoch's end to be replayed
    assert "epoch 1" in counter.heard and "batch 0" in counter.heard
    assert list(tmp_path.glob(".bad-step_*"))
    assert "model.pdopt" in caplog.text


class Runs:
    """Runs a command when unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


def test_a_file_that_tries_to_run_code(tmp_path: Path) -> None:
    trained(tmp_path)
    proof = tmp_path / "proof"
    import xxhash

    from paddle_resume.checkpoint import manifest as manifests

    for step in tmp_path.glob("step_*"):
        # As an attacker would: with manifest and checksums made anew.
        evil = pickle.dumps({"first.weight": Runs(f"touch {proof}")}, 4)
        (step / "model.pdparams").write_bytes(evil)
        manifest = manifests.read(step)
        files = dict(manifest.files)
        files["model.pdparams"] = (len(evil), xxhash.xxh3_128_hexdigest(evil))
        import dataclasses

        forged = manifests.dumps(dataclasses.replace(manifest, files=files))
        (step / "manifest.json").write_bytes(forged)
    refused(pr.CheckpointError, "system", callbacks=pr.resume_callbacks(tmp_path), epochs=4)
    assert not proof.exists()


@pytest.mark.parametrize(
    "change, said",
    [
        ({"batch_size": 4}, "batch_size was 8 and is 4"),
        ({"data": Points(40)}, "dataset_length was 24 and is 40"),
        ({"num_workers": 1}, "num_workers was 0 and is 1"),
        ({"accumulate_grad_batches": 2}, "accumulate_grad_batches was 1 and is 2"),
    ],
)
def test_changes_are_said_once(
    tmp_path: Path, caplog: Any, change: Dict[str, Any], said: str
) -> None:
    trained(tmp_path)
    fit(make(), pr.resume_callbacks(tmp_path), epochs=3, **change)
    assert caplog.text.count(said) == 1


def test_another_paddle_is_said(tmp_path: Path, caplog: Any) -> None:
    import dataclasses

    import xxhash

    from paddle_resume.checkpoint import manifest as manifests

    trained(tmp_path)
    for step in tmp_path.glob("step_*"):
        path = step / "state.json"
        content = path.read_text().replace(f'"paddle": "{paddle.__version__}"', '"paddle": "1.8.5"')
        path.write_text(content)
        manifest = manifests.read(step)
        files = dict(manifest.files)
        data = path.read_bytes()
        files["state.json"] = (len(data), xxhash.xxh3_128_hexdigest(data))
        changed = manifests.dumps(dataclasses.replace(manifest, files=files))
        (step / "manifest.json").write_bytes(changed)
    fit(make(), pr.resume_callbacks(tmp_path), epochs=3)
    err = caplog.text
    assert err.count(f"paddle was '1.8.5' and is '{paddle.__version__}'") == 1


def test_another_learning_rate_is_said(tmp_path: Path, caplog: Any) -> None:
    trained(tmp_path)
    model = make(rate=0.5)
    fit(model, pr.resume_callbacks(tmp_path), epochs=3)
    assert model._optimizer.get_lr() == 0.05
    assert "learning_rate was 0.05 and is 0.5" in caplog.text
    model = make(rate=0.5)
    fit(model, pr.resume_callbacks(tmp_path, lr_policy="override"), epochs=4)
    assert model._optimizer.get_lr() == 0.5


def test_fresh_start_is_said_in_one_line(tmp_path: Path, caplog: Any) -> None:
    fit(make(), pr.resume_callbacks(tmp_path / "new"))
    lines = [line for line in caplog.messages if "fresh start" in line]
    assert len(lines) == 1 and lines[0].startswith("[paddle_resume] ")


def test_optimizer_with_unknown_parameters(tmp_path: Path) -> None:
    model = make()
    stray = paddle.nn.Linear(2, 2)
    parameters = model.network.parameters() + stray.parameters()
    model.prepare(paddle.optimizer.SGD(0.1, parameters=parameters), paddle.nn.CrossEntropyLoss())
    refused(pr.ConfigError, "2 parameter(s)", callbacks=pr.resume_callbacks(tmp_path), model=model)


def test_callback_given_to_another_callback(tmp_path: Path) -> None:
    class Outer(paddle.callbacks.Callback):  # type: ignore[misc]
        def on_train_begin(self, logs: Any = None) -> None:
            pr.AutoResume(tmp_path).on_train_begin()

    refused(pr.ConfigError, "not called by paddle.Model.fit", callbacks=[Outer()])


def test_events_are_json_lines(tmp_path: Path) -> None:
    trained(tmp_path)
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    names = [json.loads(line)["event"] for line in lines]
    assert names == ["start", "save", "save", "finished"]


def test_a_checkpoint_of_a_newer_paddle_resume(tmp_path: Path) -> None:
    import xxhash

    trained(tmp_path)
    path = tmp_path / f"step_{2 * STEPS:08d}" / "manifest.json"
    content = json.loads(path.read_text())
    content["format"] = 99
    del content["checksum"]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    content["checksum"] = xxhash.xxh3_128_hexdigest(text.encode())
    path.write_text(json.dumps(content))
    before = listing(tmp_path)
    callbacks = pr.resume_callbacks(tmp_path)
    refused(pr.CheckpointError, "upgrade paddle_resume", callbacks=callbacks, epochs=4)
    assert listing(tmp_path) == before
