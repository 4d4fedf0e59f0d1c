"""Whatever is done to a checkpoint: it is found before anything is loaded; an older one is used."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import Counter
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Iterator, List, Tuple

import pytest
from unit.samples import assert_same, make_snapshot

from damage import damages
from damage.damages import FOUND, NEWER, NEWEST, OLDER, PASSED_OVER, Damage
from paddle_resume.checkpoint.faults import NewerFormat
from paddle_resume.checkpoint.lineage import parse_resume_from
from paddle_resume.checkpoint.store import Store
from paddle_resume.errors import CheckpointError
from paddle_resume.resumer import Loaded, ResumePolicy, start

SEED = 4
HARMLESS = "as if nothing were damaged"
AUTO = ResumePolicy(parse_resume_from("auto"))


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = Store(tmp_path_factory.mktemp("pristine") / "run")
    store.create()
    for step in (400, 500):
        store.save(make_snapshot(step, scale=40), "run-a", None, None, 1, {"numpy": "2"})
    return store.save_dir


def begin(save_dir: Path, policy: ResumePolicy = AUTO) -> Loaded:
    with no_hang():
        return start(Store(save_dir), policy, lambda _: nullcontext(lambda *_: None))


@contextmanager
def no_hang(seconds: int = 20) -> Iterator[None]:
    """A pipe that is opened for reading waits for ever."""

    def ring(*_: Any) -> None:
        raise TimeoutError(f"it hangs for {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def names(folder: Path) -> List[str]:
    return sorted(os.listdir(folder))


def judge(pristine: Path, damage: Damage, folder: Path) -> str:
    """Damages a copy and starts from it.

    Returns:
        "right", or what is wrong.
    """
    save_dir = folder / "run"
    shutil.copytree(pristine, save_dir)
    damage.apply(save_dir)
    before, says_the_same = names(save_dir), _same_json(save_dir, pristine)
    try:
        plan, state = begin(save_dir)
    except NewerFormat as error:
        if damage.outcome != NEWER or "upgrade paddle_resume" not in str(error):
            return f"refused: {error}"
        return "right" if names(save_dir) == before else "something was moved"
    except CheckpointError as error:
        return f"nothing was loaded: {error}"
    except Exception as error:
        return f"crashed: {type(error).__name__}: {error}"
    if state is None or plan.source is None:
        return "a fresh start"
    try:
        assert_same(state, make_snapshot(400, scale=40).state)
    except AssertionError:
        what = _what(state)
        if what == HARMLESS and says_the_same:
            return "right"
        return f"loaded {plan.source.name}, {what}"
    if damage.outcome == PASSED_OVER:
        return "right" if names(save_dir) == before else "something was moved"
    if damage.outcome != FOUND:
        return "loaded the older one"
    (rejected,) = plan.rejected
    aside = save_dir / f".bad-{rejected[0].name}-1"
    kept = (aside / ".why.txt").read_text("utf-8").strip()
    # The reason in it, the folder not under its own name any more.
    told = kept == rejected[1].encode("utf-8", "replace").decode() and not rejected[0].exists()
    return "right" if told else f"set aside with {kept!r} for {rejected[1]!r}"


def _same_json(save_dir: Path, pristine: Path) -> bool:
    """Whether the manifest was changed and says the same: white space means nothing."""
    one, other = save_dir / NEWEST / "manifest.json", pristine / NEWEST / "manifest.json"
    try:
        with no_hang():
            if one.is_symlink() or not one.is_file() or one.stat().st_size > 1 << 20:
                return False
            texts = one.read_bytes(), other.read_bytes()
            return texts[0] != texts[1] and json.loads(texts[0]) == json.loads(texts[1])
    except (OSError, ValueError, RecursionError):
        return False


def _what(state: Any) -> str:
    try:
        assert_same(state, make_snapshot(500, scale=40).state)
    except AssertionError:
        return "WRONG"
    return HARMLESS


def check(pristine: Path, chosen: List[Damage], folder: Path) -> None:
    tally: Counter = Counter()
    wrong: List[Tuple[str, str]] = []
    for number, damage in enumerate(chosen):
        place = folder / str(number)
        verdict = judge(pristine, damage, place)
        tally[damage.outcome if verdict == "right" else verdict.split(":")[0]] += 1
        if verdict != "right":
            wrong.append((damage.name, verdict))
        shutil.rmtree(place)
    loaded_wrong = sum(verdict.endswith("WRONG") for _, verdict in wrong)
    print(
        f"\ndamages: {len(chosen)} tried, seed {SEED}: {dict(tally)}; loaded wrong: {loaded_wrong}"
    )
    listed = "\n".join(f"{name}: {verdict}" for name, verdict in wrong)
    assert not wrong, listed


def test_a_sample_of_all_damages_is_found(pristine: Path, tmp_path: Path) -> None:
    check(pristine, damages.sample(pristine, SEED), tmp_path)


@pytest.mark.long(3)
def test_all_damages_are_found(pristine: Path, tmp_path: Path) -> None:
    chosen = damages.every(pristine, SEED, 16)
    assert len(chosen) >= 1000
    check(pristine, chosen, tmp_path)


def test_the_judge_sees_what_is_wrong(
    pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(*_: Any) -> None:
        """In the place of each check of a checksum."""

    monkeypatch.setattr("paddle_resume.checkpoint.reader._Hashes.compare", nothing)
    flips = [
        damage
        for damage in damages.of_bytes(pristine, SEED, 2)
        if "model.pdparams, tensor data" in damage.name and "flipped" in damage.name
    ]
    verdicts = {judge(pristine, damage, tmp_path / str(n)) for n, damage in enumerate(flips)}
    assert verdicts == {"loaded step_00000500, WRONG"}


def test_with_everything_bad_every_start_fails_the_same_way(pristine: Path, tmp_path: Path) -> None:
    save_dir = tmp_path / "run"
    shutil.copytree(pristine, save_dir)
    for path in (save_dir / OLDER, save_dir / NEWEST):
        os.truncate(path / "model.pdparams", 100)
    before, said = names(save_dir), set()
    for _ in range(4):
        with pytest.raises(CheckpointError, match="every checkpoint in .* is damaged") as caught:
            begin(save_dir)
        said.add(str(caught.value))
        assert names(save_dir) == before
    assert len(said) == 1
    assert (
        OLDER in str(said) and NEWEST in str(said) and "model.pdparams has 100 bytes" in str(said)
    )
    for path in (save_dir / OLDER, save_dir / NEWEST):
        shutil.rmtree(path)
    os.mkdir(save_dir / ".bad-step_00000400-1")
    with pytest.raises(CheckpointError, match="holds no good checkpoint"):
        begin(save_dir)


def test_from_nothing_is_possible_on_purpose(pristine: Path, tmp_path: Path) -> None:
    save_dir = tmp_path / "run"
    shutil.copytree(pristine, save_dir)
    for path in (save_dir / OLDER, save_dir / NEWEST):
        os.unlink(path / "manifest.json")
    plan, state = begin(save_dir, ResumePolicy(parse_resume_from("never")))
    assert (plan.action, state) == ("fresh", None)
    assert {path.name for path in plan.leave_behind} == {OLDER, NEWEST}
