"""Where a start goes on from, under which run, and what it leaves behind."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from samples import make_entry

from paddle_resume.checkpoint import lineage
from paddle_resume.checkpoint.lineage import ResumeFrom, parse_resume_from
from paddle_resume.errors import CheckpointError, ConfigError
from paddle_resume.types import Origin

STEP_200 = Origin("step:200", "run-a", 200)
ENTRIES = [
    make_entry(400, "run-a", epoch=4, batch=0),
    make_entry(350, "run-a", epoch=3, batch=50),
    make_entry(300, "run-a", epoch=3, batch=0),
    make_entry(200, "run-a", epoch=2, batch=0),
]
FORKED = [
    make_entry(250, "run-b", STEP_200),
    make_entry(220, "run-b", STEP_200),
    make_entry(200, "run-a"),
]


def steps(entries: Any) -> list:
    return [manifest.position.step for _, manifest in entries]


@pytest.mark.parametrize(
    ("text", "kind", "number"),
    [
        ("auto", "auto", -1),
        ("never", "never", -1),
        ("best", "best", -1),
        ("finite", "finite", -1),
        ("epoch:50", "epoch", 50),
        ("step:0500", "step", 500),
        ("output/run1/step_00000500", "path", -1),
        ("a:b/model", "path", -1),
        (Path("x/model"), "path", -1),
    ],
)
def test_forms_of_resume_from(text: Any, kind: str, number: int) -> None:
    assert parse_resume_from(text) == ResumeFrom(kind, str(text), number)


@pytest.mark.parametrize(
    "text", ["", " ", "epoch:", "epoch:x", "step:-1", "step:5.0", "step:²", None, 5]
)
def test_other_forms_are_refused_with_the_allowed_ones(text: Any) -> None:
    with pytest.raises(ConfigError, match='"epoch:50", "step:500" or the path'):
        parse_resume_from(text)


@pytest.mark.parametrize(
    ("text", "entries", "found"),
    [
        ("step:200", FORKED, [250, 220]),
        ("step:220", FORKED, []),
        ("never", FORKED, []),
        ("never", [], []),
    ],
)
def test_descendants_of_a_named_start(text: str, entries: Any, found: list) -> None:
    assert steps(lineage.descendants(text, entries)) == found


@pytest.mark.parametrize(("text", "found"), [("step:300", [300]), ("epoch:3", [300])])
def test_the_one_that_is_named(text: str, found: list) -> None:
    assert steps(lineage.select(parse_resume_from(text), ENTRIES)) == found


def test_of_two_runs_with_one_argument_the_newest_goes_on() -> None:
    origin = Origin("never")
    entries = [
        make_entry(30, "c", origin),
        make_entry(20, "b", origin),
        make_entry(10, "c", origin),
    ]
    assert steps(lineage.descendants("never", entries)) == [30, 10]


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("step:310", "step:200, step:300, step:350, step:400"),
        ("epoch:9", "epoch:2, epoch:3, epoch:4"),
    ],
)
def test_a_missing_one_names_the_nearest(text: str, nearest: str) -> None:
    with pytest.raises(CheckpointError, match=f"{text}.*{nearest}$"):
        lineage.select(parse_resume_from(text), ENTRIES)


def test_of_many_only_the_five_nearest_are_named() -> None:
    entries = [make_entry(step) for step in range(100, 0, -1)]
    with pytest.raises(CheckpointError, match="nearest ones are step:96, .*, step:100$"):
        lineage.select(parse_resume_from("step:500"), entries)


def test_an_empty_folder_says_so() -> None:
    with pytest.raises(CheckpointError, match="none is at any epoch here"):
        lineage.select(parse_resume_from("epoch:1"), [])


@pytest.mark.parametrize(
    ("step", "run_id", "left"),
    [(-1, None, [400, 350, 300, 200]), (300, None, [400, 350]), (300, "run-a", []), (400, "x", [])],
)
def test_newer_ones_of_another_line_are_in_the_way(step: int, run_id: Any, left: list) -> None:
    found = lineage.newer_not_of_line(step, run_id, ENTRIES)
    assert [int(path.name[5:]) for path in found] == left


def test_auto_goes_on_under_the_same_run() -> None:
    plan = lineage.plan(parse_resume_from("auto"), True, FORKED[0], FORKED)
    assert (plan.action, plan.source) == ("continue", FORKED[0][0])
    assert (plan.run_id, plan.parent, plan.origin) == ("run-b", ("run-b", 250), STEP_200)
    assert plan.leave_behind == ()


def test_a_named_start_is_a_new_run_that_leaves_newer_ones_behind() -> None:
    plan = lineage.plan(parse_resume_from("step:300"), False, ENTRIES[2], ENTRIES)
    assert plan.run_id not in ("run-a", "")
    assert plan.origin == Origin("step:300", "run-a", 300)
    assert plan.parent == ("run-a", 300)
    assert plan.leave_behind == (ENTRIES[0][0], ENTRIES[1][0])


def test_a_start_from_nothing() -> None:
    plan = lineage.plan(parse_resume_from("auto"), True, None, [])
    assert (plan.action, plan.source, plan.parent, plan.origin) == ("fresh", None, None, None)
    plan = lineage.plan(parse_resume_from("never"), False, None, ENTRIES)
    assert plan.origin == Origin("never")
    assert plan.leave_behind == tuple(path for path, _ in ENTRIES)


def test_a_rejected_one_is_not_also_left_behind() -> None:
    own = [make_entry(300, "run-c"), *FORKED]
    rejected = [(own[0][0], "damaged")]
    plan = lineage.plan(parse_resume_from("auto"), True, own[1], own, rejected)
    assert plan.leave_behind == ()
    assert plan.rejected == ((own[0][0], "damaged"),)


def test_run_ids_are_unique_and_sort_by_time() -> None:
    ids = [lineage.new_run_id() for _ in range(500)]
    assert len(set(ids)) == 500
    assert all(re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{8}", run_id) for run_id in ids)


def test_a_checkpoint_has_one_text_however_it_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "step_00000005"
    folder.mkdir()
    (folder / "model.pdparams").touch()
    given = ["", "/", "/model", "/model.pdparams", "/model.pdopt"]
    assert {parse_resume_from(f"{folder}{end}").text for end in given} == {str(folder)}
