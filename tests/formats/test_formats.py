"""What a released version wrote loads for ever, and goes on to where it was going."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Dict

import numpy as np
import pytest
from unit.samples import make_store

import paddle_resume as pr
from formats import make
from paddle_resume.checkpoint.layout import FORMAT
from paddle_resume.checkpoint.store import Store

KEPT = sorted(path for path in make.HERE.iterdir() if path.name.startswith("format"))
NAMES = [path.name for path in KEPT]


def test_there_is_one_of_each_format_and_each_paddle() -> None:
    wanted = {f"format{n}-paddle{v}" for n in range(1, FORMAT + 1) for v in ("2.6", "3.3")}
    assert wanted <= set(NAMES)


def test_what_is_written_now_says_its_format(tmp_path: Path) -> None:
    checkpoint = make_store(tmp_path, 500).path_of(500)
    for name in ("manifest.json", "state.json"):
        assert json.loads((checkpoint / name).read_bytes())["format"] == FORMAT


@pytest.mark.parametrize("kept", KEPT, ids=NAMES)
def test_it_loads_bit_for_bit(kept: Path) -> None:
    wanted = json.loads((kept / "digests.json").read_text())
    assert len(wanted) == 4
    assert make.digests(kept) == wanted


def test_the_digest_sees_one_bit_and_one_value() -> None:
    store = Store(KEPT[0] / "killed")
    state = store.load(store.checkpoints()[0])[1]
    found = {make.digest(state)}
    part = state.parts["model"]
    for key in part.tensors:
        part.tensors[key].view("u1").reshape(-1)[0] ^= 1
        found.add(make.digest(state))
    state.parts["fingerprint"].values.update(x=1)  # type: ignore[attr-defined]
    found.add(make.digest(state))
    assert len(found) == len(part.tensors) + 2


@pytest.mark.parametrize("kept", KEPT, ids=NAMES)
def test_its_list_links_and_marks_are_read(kept: Path) -> None:
    assert [found.step for found in pr.checkpoints(kept / "killed")] == [8, 12]
    assert [found.step for found in pr.checkpoints(kept / "finished")] == [16, 18]
    assert all(found.metrics["loss"] for found in pr.checkpoints(kept / "finished"))
    for name, latest in (("killed", 12), ("finished", 18)):
        store = Store(kept / name)
        assert store.read_link("latest") == store.path_of(latest)
        best = store.read_json("best.json")
        assert best is not None
        assert store.read_link("best") == store.path_of(best["best"][0]["step"])
    finished = Store(kept / "finished").read_json("finished.json")
    assert finished is not None and (finished["step"], finished["why"]) == (18, "epochs")
    loaded = pr.load(kept / "finished" / "latest")
    average = loaded["extra"]["average"]
    assert average["words"] == ("a", b"b", None, 1.5) and average["seen"] >= 1
    assert average["mean"].tolist() == [0, 0, 0]


def final(out: Path) -> Dict[str, "np.ndarray"]:
    with np.load(out) as found:
        return {name: found[name] for name in found.files}


def same(one: Dict[str, "np.ndarray"], other: Dict[str, "np.ndarray"]) -> bool:
    return {k: v.tobytes() for k, v in one.items()} == {k: v.tobytes() for k, v in other.items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, "np.ndarray"]:
    """What an uninterrupted training ends with on this machine, under this Paddle."""
    folder = tmp_path_factory.mktemp("whole")
    done = make.train(folder / "run", folder / "weights.npz")
    assert done.returncode == 0, done.stderr
    return final(folder / "weights.npz")


@pytest.mark.long(3)
@pytest.mark.parametrize("start", [12, 8])
@pytest.mark.parametrize("kept", KEPT, ids=NAMES)
def test_a_killed_run_goes_on_to_the_end_it_was_going_to(
    kept: Path, start: int, whole: Dict[str, "np.ndarray"], tmp_path: Path
) -> None:
    import paddle

    shutil.copytree(kept / "killed", tmp_path / "run", symlinks=True)
    if start == 8:  # in the middle of an epoch
        shutil.rmtree(tmp_path / "run" / "step_00000012")
    done = make.train(tmp_path / "run", tmp_path / "weights.npz")
    assert done.returncode == 0, done.stderr
    assert f"(step {start})" in done.stderr
    found, wanted = final(tmp_path / "weights.npz"), final(kept / "weights.npz")
    # Another processor may round otherwise than the one that wrote it; then also from the start.
    if same(whole, wanted):
        assert same(found, wanted)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5)
    other_paddle = not paddle.__version__.startswith(kept.name.rpartition("paddle")[2])
    assert ("its kernels may round differently: not exact" in done.stderr) == other_paddle


@pytest.mark.long(3)
@pytest.mark.parametrize("kept", KEPT, ids=NAMES)
def test_a_finished_run_stays_finished(kept: Path, tmp_path: Path) -> None:
    shutil.copytree(kept / "finished", tmp_path / "run", symlinks=True)
    done = make.train(tmp_path / "run", tmp_path / "weights.npz")
    assert done.returncode == 0, done.stderr
    assert "finished" in done.stderr
    assert same(final(tmp_path / "weights.npz"), final(kept / "weights.npz"))
