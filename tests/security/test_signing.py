"""sign_key: what was not signed with the key is not loaded, whoever wrote it."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Callable, Dict

import pytest
from damage import damages
from damage.damages import forge, with_checksum
from unit.samples import assert_same, make_state, save

import paddle_resume as pr
from paddle_resume.checkpoint import reader, signing
from paddle_resume.checkpoint.lineage import parse_resume_from
from paddle_resume.checkpoint.store import Store
from paddle_resume.errors import CheckpointError, ConfigError
from paddle_resume.resumer import Loaded, ResumePolicy, start

KEY, OTHER = b"0123456789abcdef", b"0123456789abcdeF"
NAME = "PADDLE_RESUME_TEST_KEY"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "run", KEY)
    made.create()
    for step in (400, 500):
        save(made, step)
    return made


def begin(store: Store, verify: str = "full") -> Loaded:
    policy = ResumePolicy(parse_resume_from("auto"), verify=verify)
    return start(store, policy, lambda _: nullcontext(lambda *_: None))


def content(checkpoint: Path) -> Dict[str, Any]:
    found: Dict[str, Any] = json.loads((checkpoint / "manifest.json").read_bytes())
    return found


def rewrite(checkpoint: Path, **changes: Any) -> None:
    """As someone would who knows everything but the key."""
    found = {**content(checkpoint), **changes}
    del found["checksum"]
    (checkpoint / "manifest.json").write_bytes(with_checksum(found))


def test_a_signed_checkpoint_reads_back_with_its_key_and_without_any(store: Store) -> None:
    for other in (store, Store(store.save_dir)):
        manifest, state = other.load(store.path_of(500))
        assert_same(state, make_state(500))
        assert other.verify(store.path_of(500)) == manifest
        assert other.read_values(store.path_of(500))["best"] == {"value": 0.25}
    for name, digest in manifest.sha256.items():
        data = (store.path_of(500) / name).read_bytes()
        assert hashlib.sha256(data).hexdigest() == digest
    assert set(manifest.sha256) == set(manifest.files)


def test_one_that_is_not_signed_has_neither_signature_nor_sha256(tmp_path: Path) -> None:
    plain = Store(tmp_path)
    found = content(save(plain, 500))
    assert "signature" not in found
    assert {key for entry in found["files"].values() for key in entry} == {"size", "xxh3"}


def other_weights(checkpoint: Path) -> None:
    """Weights of someone else, the checksums made right, the signature kept."""
    data = bytearray((checkpoint / "model.pdparams").read_bytes())
    data[-20] ^= 1
    found = content(checkpoint)
    forge(checkpoint, "model.pdparams", bytes(data))
    files = content(checkpoint)["files"]
    files["model.pdparams"]["sha256"] = hashlib.sha256(data).hexdigest()
    rewrite(checkpoint, files=files, signature=found["signature"])


def same_xxh3(checkpoint: Path) -> None:
    """Another content; as if its xxh3, which is not made against enemies, were the same."""
    real = reader.xxhash.xxh3_128
    data = bytearray((checkpoint / "model.pdparams").read_bytes())
    right = real(bytes(data)).hexdigest()
    data[-20] ^= 1
    (checkpoint / "model.pdparams").write_bytes(data)
    wrong = real(bytes(data)).hexdigest()

    class Colliding:
        def __init__(self) -> None:
            self._real = real()

        def update(self, piece: Any) -> None:
            self._real.update(piece)

        def hexdigest(self) -> str:
            found = self._real.hexdigest()
            return right if found == wrong else found

    reader.xxhash.xxh3_128 = Colliding  # type: ignore[misc]


FORGERIES: Dict[str, Callable[[Path], Any]] = {
    "other weights": other_weights,
    "a colliding xxh3": same_xxh3,
    "without a signature": lambda path: _unsign(path),
    "an empty signature": lambda path: rewrite(path, signature=""),
    "a signature of null": lambda path: rewrite(path, signature=None),
    "a signature that is a number": lambda path: rewrite(path, signature=5),
    "a signature that is no ASCII": lambda path: rewrite(path, signature="ü" * 64),
    "the older one's signature": lambda path: rewrite(
        path, signature=content(path.parent / "step_00000400")["signature"]
    ),
    "another run's name": lambda path: rewrite(path, run_id="run-b"),
    "an upper case signature": lambda path: rewrite(
        path, signature=content(path)["signature"].upper()
    ),
    "the older one under its name": lambda path: _older_under_its_name(path),
    "another key": lambda path: _save_again(path, OTHER),
    "no key": lambda path: _save_again(path, None),
}


def _unsign(path: Path) -> None:
    found = content(path)
    for key in ("signature", "checksum"):
        del found[key]
    for entry in found["files"].values():
        del entry["sha256"]
    (path / "manifest.json").write_bytes(with_checksum(found))


def _older_under_its_name(path: Path) -> None:
    shutil.rmtree(path)
    shutil.copytree(path.parent / "step_00000400", path)


def _save_again(path: Path, key: Any) -> None:
    shutil.rmtree(path)
    save(Store(path.parent, key), 500)


@pytest.mark.parametrize("verify", reader.LEVELS)
@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_set_aside_and_the_older_one_used(
    store: Store, name: str, verify: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader.xxhash, "xxh3_128", reader.xxhash.xxh3_128)  # put back at the end
    FORGERIES[name](store.path_of(500))
    with pytest.raises(CheckpointError):
        store.verify(store.path_of(500), verify)
    plan, state = begin(store, verify)
    assert plan.source == store.path_of(400)
    assert_same(state, make_state(400))
    assert (store.save_dir / ".bad-step_00000500-1" / ".why.txt").exists()


def test_with_another_key_nothing_is_good_and_nothing_is_moved(store: Store) -> None:
    before = sorted(os.listdir(store.save_dir))
    for _ in range(2):
        with pytest.raises(CheckpointError, match="its signature is not that of sign_key's key"):
            begin(Store(store.save_dir, OTHER))
        assert sorted(os.listdir(store.save_dir)) == before


def test_every_damage_to_a_signed_manifest_is_found_too(store: Store, tmp_path: Path) -> None:
    data = (store.path_of(500) / "manifest.json").read_bytes()
    for damage in damages.of_bytes(store.save_dir, 4, 1):
        if damage.name.startswith("manifest.json") and "space" not in damage.name:
            damage.apply(store.save_dir)
            if (store.path_of(500) / "manifest.json").read_bytes().strip() != data.strip():
                with pytest.raises(CheckpointError):
                    store.load(store.path_of(500))


@pytest.mark.parametrize(
    ("value", "said"),
    [(None, "is not set"), ("", "is empty"), ("short", "has 5 bytes"), ("x" * 15, "has 15 bytes")],
)
def test_a_key_that_is_none_is_said_when_the_callback_is_made(
    value: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(NAME, raising=False)
    if value is not None:
        monkeypatch.setenv(NAME, value)
    for kind in (pr.AutoResume, pr.PeriodicSaver, pr.BestSaver, pr.EmergencySaver):
        with pytest.raises(ConfigError, match=f"{NAME} {said}|{NAME} {said.split()[0]}"):
            kind("run", sign_key=NAME)
    with pytest.raises(ConfigError, match=NAME):
        pr.callbacks_from_config({"save_dir": "run", "sign_key": NAME})


@pytest.mark.parametrize("name", [5, "", "a-b", "s3cret/key+value=", "x" * 64, "1A", ["A"]])
def test_what_is_no_name_of_a_variable_is_not_shown_for_it_may_be_the_key(name: Any) -> None:
    with pytest.raises(ConfigError, match="the name of an environment variable") as caught:
        pr.AutoResume("run", sign_key=name)
    if len(str(name)) > 5:
        assert str(name) not in str(caught.value)


def test_yaml_names_it_once_for_all_callbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, KEY.decode())
    made = pr.callbacks_from_config({"save_dir": "run"}, overrides=[f"sign_key={NAME}"])
    assert [callback.sign_key for callback in made] == [NAME] * 4
    assert [callback.sign_key for callback in pr.resume_callbacks("run", sign_key=NAME)] == [
        NAME
    ] * 4


def test_a_real_run_signs_what_it_saves_and_goes_on_only_from_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import paddle

    def fit(epochs: int, *callbacks: Any) -> None:
        paddle.seed(1)
        net = paddle.nn.Linear(4, 2)
        model = paddle.Model(net)
        model.prepare(
            paddle.optimizer.Adam(parameters=net.parameters()), paddle.nn.CrossEntropyLoss()
        )
        data = paddle.io.TensorDataset([paddle.ones([8, 4]), paddle.zeros([8, 1], "int64")])
        model.fit(data, batch_size=4, epochs=epochs, verbose=0, callbacks=list(callbacks))

    def both(name: Any = NAME) -> Any:
        # One callback that names it is enough.
        return pr.AutoResume(tmp_path), pr.PeriodicSaver(tmp_path, sign_key=name)

    monkeypatch.setenv(NAME, KEY.decode())
    fit(2, *both())
    signed = Store(tmp_path, KEY)
    assert [signed.verify(path).position.step for path in signed.checkpoints()] == [2, 4]
    assert KEY.decode() not in "".join(
        path.read_text("utf-8", "replace") for path in tmp_path.rglob("*") if path.is_file()
    )
    other_weights(signed.path_of(4))
    (tmp_path / "finished.json").unlink()
    with caplog.at_level(logging.INFO, "paddle_resume"):
        fit(3, *both())
    assert "its signature is not that of sign_key's key" in caplog.text
    assert (tmp_path / ".bad-step_00000004-1").is_dir()
    assert [signed.verify(path).position.step for path in signed.checkpoints()] == [2, 4, 6]
    monkeypatch.setenv("ANOTHER_KEY", OTHER.decode())
    with pytest.raises(CheckpointError, match="every checkpoint"):
        fit(4, *both("ANOTHER_KEY"))
    with pytest.raises(ConfigError, match="2 sign_keys: ANOTHER_KEY, " + NAME):
        fit(4, pr.AutoResume(tmp_path, sign_key="ANOTHER_KEY"), both()[1])
    fit(4, pr.AutoResume(tmp_path), pr.PeriodicSaver(tmp_path))
    with pytest.raises(CheckpointError, match="it has no signature"):
        signed.verify(signed.path_of(8))


def test_the_comparison_takes_constant_time() -> None:
    import inspect

    assert "compare_digest" in inspect.getsource(signing.verify)
    assert "==" not in inspect.getsource(signing.verify)
