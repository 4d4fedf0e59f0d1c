"""PADDLE_RESUME_SAVE_DIR: what it does to a save_dir."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddle_resume.save_dir import VARIABLE, replacement, save_dir_from_environment

PARTS = st.lists(st.sampled_from(["a", "b", "run 1", "..", "."]), min_size=1, max_size=4)


@pytest.mark.parametrize(
    ("value", "save_dir", "expected"),
    [
        ("", "output/run1", "output/run1"),
        ("/mnt/x", "output/run1", "/mnt/x"),
        ("/mnt/x", "/data/run1", "/mnt/x"),
        ("relative", "output/run1", "relative"),
        ("/mnt/x/", "output/run1", "/mnt/x/output/run1"),
        ("/mnt/x/", "./output//run1/", "/mnt/x/output/run1"),
        ("/mnt/x/", "/data/run1", "/mnt/x/data/run1"),
        ("/mnt/x//", "run1", "/mnt/x/run1"),
        ("~/x", "run1", str(Path.home() / "x")),
    ],
)
def test_the_folder(value: str, save_dir: str, expected: str) -> None:
    assert save_dir_from_environment(Path(save_dir), {VARIABLE: value}) == Path(expected)


def test_without_the_variable_nothing_changes() -> None:
    assert save_dir_from_environment(Path("output/run1"), {}) == Path("output/run1")


@given(PARTS)
def test_a_prefix_is_never_left(parts: "list[str]") -> None:
    found = save_dir_from_environment(Path(*parts), {VARIABLE: "/mnt/x/"})
    assert Path("/mnt/x") in [found, *found.parents]
    assert ".." not in found.parts


def test_a_path_upwards_is_taken_from_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = save_dir_from_environment(Path("../run1"), {VARIABLE: "/mnt/x/"})
    assert found == Path(f"/mnt/x{tmp_path.parent}/run1")


def test_what_stands_in_for_a_missing_save_dir() -> None:
    assert replacement({}) is None
    assert replacement({VARIABLE: ""}) is None
    assert replacement({VARIABLE: "/mnt/x/"}) is None
    assert replacement({VARIABLE: "/mnt/x"}) == Path("/mnt/x")


def test_the_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/mnt/x")
    assert save_dir_from_environment(Path("run1")) == Path("/mnt/x")
    assert replacement() == Path("/mnt/x")
