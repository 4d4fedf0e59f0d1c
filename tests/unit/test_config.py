"""YAML to settings: what is read, what wins, and each thing that can be wrong."""

from __future__ import annotations

import datetime
import inspect
import os
from pathlib import Path
from typing import Any, Dict, List, Mapping, Tuple

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import paddle_resume as pr
from paddle_resume.config.document import parse
from paddle_resume.config.layers import Layer, merged, override_layer, place_of
from paddle_resume.config.problems import ALLOWED
from paddle_resume.config.schema import SECTIONS, Settings
from paddle_resume.config.settings import describe, load
from paddle_resume.errors import ConfigError
from paddle_resume.save_dir import VARIABLE

PATIENT = settings(deadline=None)  # other tests may run beside them
CONFIGS = Path(__file__).resolve().parents[2] / "configs"


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture(autouse=True)
def _folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def write(name: str, text: str) -> str:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return name


def effective(config: Any, overrides: Any = ()) -> Dict[str, Any]:
    return {item.key: item.value for item in describe(config, overrides)}


def sources(config: Any, overrides: Any = ()) -> Dict[str, str]:
    return {item.key: item.source for item in describe(config, overrides)}


def refused(config: Any, *words: str, overrides: Any = ()) -> str:
    with pytest.raises(ConfigError) as caught:
        describe(config, overrides)
    text = str(caught.value)
    for word in words:
        assert word in text, (word, text)
    return text


# What is read


def arguments(kind: Any) -> Dict[str, Any]:
    found = inspect.signature(kind).parameters
    return {name: value.default for name, value in found.items() if name != "extra"}


def test_the_keys_and_defaults_are_those_of_the_callbacks() -> None:
    found = effective({"save_dir": "run"})
    expected = arguments(pr.PeriodicSaver)
    for section, kind in (
        ("best", pr.BestSaver),
        ("emergency", pr.EmergencySaver),
        ("resume", pr.AutoResume),
    ):
        for key, value in arguments(kind).items():
            if key not in ("save_dir", "sign_key"):  # of all callbacks, so it stands once
                expected[f"{section}.{key}"] = list(value) if isinstance(value, tuple) else value
    assert found == {**expected, "save_dir": "run"}


def test_every_key_says_what_it_allows() -> None:
    for model in (Settings, *SECTIONS.values()):
        assert all(field.description for field in model.model_fields.values())
    assert len(ALLOWED) == 11 + 4 + 5 + 4


FLAT = """
save_dir: run
snapshot_step: 500
snapshot_minutes: null
best: {monitor: acc, mode: max, min_delta: 1e-4}
emergency:
  signals: [SIGTERM, SIGUSR1]
resume: {resume_from: step:500}
"""
SHARED = (
    "epoch: 12\nsave_dir: not ours\nReader: !Compose [1, !Resize {a: 2}]\nReader: twice\n"
    "when: 2024-01-01\nResume:" + FLAT.replace("\n", "\n  ").rstrip() + "\n"
)


@pytest.mark.parametrize("text", [FLAT, SHARED])
def test_flat_and_in_a_section(text: str) -> None:
    found = effective(write("a.yml", text))
    assert found["save_dir"] == "run"
    assert found["snapshot_step"] == 500
    assert found["snapshot_minutes"] is None
    assert found["best.monitor"] == "acc"
    assert found["best.min_delta"] == 1e-4
    assert found["emergency.signals"] == ["SIGTERM", "SIGUSR1"]
    assert found["resume.resume_from"] == "step:500"
    assert found["keep_checkpoint_max"] == 3


@pytest.mark.parametrize("text", [FLAT, SHARED])
@pytest.mark.parametrize("prefix", ["", "Resume."])
def test_overrides_reach_both_forms(text: str, prefix: str) -> None:
    given = ["snapshot_epoch=2", "best.monitor=f1", "snapshot_step=null", "emergency=false"]
    found = effective(write("a.yml", text), [prefix + text for text in given])
    assert found["snapshot_epoch"] == 2
    assert found["snapshot_step"] is None
    assert (found["best.monitor"], found["best.mode"]) == ("f1", "max")
    assert found["emergency"] is False
    assert found["save_dir"] == "run"
    # A training config may have a save_dir of its own beside ours.
    assert effective("a.yml", [prefix + "save_dir=other"])["save_dir"] == "other"


def test_overrides_of_other_sections_are_left_alone() -> None:
    given = ["epoch=3", "Reader.batch_size=2", "snapshot_epoch=2"]
    assert effective(write("a.yml", SHARED), given)["snapshot_epoch"] == 2
    refused("a.yml", "epochs", overrides=["epochs=3"])


def test_a_later_override_wins_and_its_value_may_hold_an_equals_sign() -> None:
    found = effective({"save_dir": "run"}, ["save_dir=a", "snapshot_epoch=4", "save_dir=b=c"])
    assert (found["save_dir"], found["snapshot_epoch"]) == ("b=c", 4)


def test_overrides_of_none_are_none() -> None:
    assert effective({"save_dir": "run"}, None) == effective({"save_dir": "run"})


def test_a_section_that_is_off_can_be_turned_on_by_an_override() -> None:
    found = effective({"save_dir": "run", "best": False}, ["best.monitor=acc"])
    assert found["best.monitor"] == "acc"


def test_a_dict_may_hold_what_python_has() -> None:
    config = {
        "save_dir": Path("run"),
        "emergency": {"signals": ("SIGTERM",)},
        "resume": {"resume_from": Path("other/step_00000005")},
        **yaml.safe_load("best: {min_delta: 1e-4}"),  # PyYAML makes a text of it
    }
    found = effective(config)
    assert found["save_dir"] == "run"
    assert found["emergency.signals"] == ["SIGTERM"]
    assert found["resume.resume_from"] == "other/step_00000005"
    assert found["best.min_delta"] == 1e-4
    assert isinstance(config["save_dir"], Path), "the caller's dict was changed"


def test_a_home_folder_is_meant_by_a_tilde() -> None:
    found = effective(write("a.yml", "save_dir: ~/run\nresume: {resume_from: ~/old}"))
    assert found["save_dir"] == str(Path.home() / "run")
    assert found["resume.resume_from"] == str(Path.home() / "old")


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("3", 3),
        ("-3", -3),
        ("1_000", 1000),
        ("0", 0),
        ("010", "010"),
        ("1:30", "1:30"),
        ("1:30.5", "1:30.5"),
        ("1.5", 1.5),
        (".5", 0.5),
        ("1.", 1.0),
        ("1e-4", 1e-4),
        ("1E5", 1e5),
        ("-2.5e+3", -2500.0),
        (".inf", float("inf")),
        ('"1e-4"', "1e-4"),
        ("2024-01-01", "2024-01-01"),
        ("1.2.3", "1.2.3"),
        ("-", "-"),
        (".", "."),
        ("yes", True),
        ("off", False),
        ("~", None),
        ("null", None),
        ("None", "None"),
    ],
)
def test_what_a_plain_word_means(word: str, value: Any) -> None:
    found = parse(f"[{word}]" if word != "-" else '["-"]', "a.yml").values[0]
    assert found == value and type(found) is type(value)


@PATIENT
@given(st.floats(allow_nan=False) | st.integers(-(10**18), 10**18))
def test_every_number_of_python_is_read_as_it_is(number: Any) -> None:
    text = {float("inf"): ".inf", float("-inf"): "-.inf"}.get(number, repr(number))
    found = parse(f"a: {text}", "a.yml").values["a"]
    assert found == number and type(found) is type(number)


def test_pyyaml_itself_still_reads_as_before() -> None:
    assert yaml.safe_load("[010, 2024-01-01]") == [8, datetime.date(2024, 1, 1)]


def test_anchors_and_merge_keys_work() -> None:
    text = "Resume:\n  <<: &common {save_dir: run, snapshot_step: 5}\n  snapshot_step: 6\n"
    assert effective(write("a.yml", text))["snapshot_step"] == 6


# _BASE_


def test_the_child_wins_and_later_bases_win_over_earlier_ones() -> None:
    write("base/one.yml", "save_dir: one\nsnapshot_step: 1\nbest: {monitor: acc, mode: max}")
    write("base/two.yml", "_BASE_: deep/three.yml\nsnapshot_step: 2\nkeep_checkpoint_max: 2")
    write("base/deep/three.yml", "snapshot_step: 3\nsnapshot_epoch: 3\nkeep_every_epoch: 3")
    child = write(
        "child.yml", "_BASE_: [base/one.yml, base/two.yml]\nsave_dir: child\nbest: {mode: min}"
    )
    found = describe(child)
    assert {item.key: (item.value, item.source) for item in found if item.source != "default"} == {
        "save_dir": ("child", "child.yml:2"),
        "snapshot_step": (2, "base/two.yml:2"),
        "keep_checkpoint_max": (2, "base/two.yml:3"),
        "snapshot_epoch": (3, "base/deep/three.yml:2"),
        "keep_every_epoch": (3, "base/deep/three.yml:3"),
        "best.monitor": ("acc", "base/one.yml:3"),
        "best.mode": ("min", "child.yml:3"),
    }


def test_bases_are_merged_as_in_paddledetection() -> None:
    write("one.yml", "epoch: 1\nResume: {save_dir: one, snapshot_step: 1}")
    write("two.yml", "epoch: 2\nResume: {snapshot_step: 2}")
    write("child.yml", "_BASE_: [one.yml, two.yml]\nResume: {snapshot_epoch: 5}")
    found = effective("child.yml")
    assert [found[k] for k in ("save_dir", "snapshot_step", "snapshot_epoch")] == ["one", 2, 5]


def test_a_flat_base_of_a_training_config_counts_and_a_foreign_one_does_not() -> None:
    write("flat.yml", "snapshot_epoch: 5")
    write("runtime.yml", "use_gpu: true\nsave_dir: output\nsnapshot_epoch: 7")
    write("train.yml", "_BASE_: [flat.yml, runtime.yml]\nResume: {save_dir: run}")
    found = effective("train.yml")
    assert (found["save_dir"], found["snapshot_epoch"]) == ("run", 5)


def test_off_in_a_child_and_off_in_a_base() -> None:
    write("base.yml", "save_dir: run\nbest: {monitor: acc}\nemergency: false")
    write("child.yml", "_BASE_: base.yml\nbest: false\nemergency: {grace_seconds: 5}")
    found = sources("child.yml")
    assert found["best"] == "child.yml:2"
    assert found["emergency.grace_seconds"] == "child.yml:3"
    # What an off between them has dropped does not come back.
    assert effective("child.yml", ["best.mode=max"])["best.monitor"] == "loss"
    assert sources("child.yml", ["best.mode=max"])["best.monitor"] == "default"


def test_bases_may_be_absolute_or_in_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    write("home/base.yml", "save_dir: at home")
    write("abs.yml", "snapshot_step: 4")
    write("sub/child.yml", f"_BASE_: [~/base.yml, {tmp_path}/abs.yml]")
    found = effective("sub/child.yml")
    assert (found["save_dir"], found["snapshot_step"]) == ("at home", 4)
    assert effective("~/base.yml")["save_dir"] == "at home"


def test_one_base_twice_is_no_cycle() -> None:
    write("base.yml", "save_dir: run")
    write("left.yml", "_BASE_: base.yml")
    write("right.yml", "_BASE_: base.yml")
    write("child.yml", "_BASE_: [left.yml, right.yml]")
    assert effective("child.yml")["save_dir"] == "run"


def test_a_dict_may_have_bases() -> None:
    write("base.yml", "save_dir: run")
    assert effective({"_BASE_": "base.yml", "snapshot_step": 3})["save_dir"] == "run"


def test_a_missing_base_names_the_chain() -> None:
    write("a.yml", "_BASE_: sub/b.yml")
    write("sub/b.yml", "_BASE_: c.yml")
    refused("a.yml", "sub/c.yml", "no such file", "a.yml -> sub/b.yml -> sub/c.yml")


def test_a_cycle_of_bases_names_the_chain() -> None:
    write("a.yml", "save_dir: run\n_BASE_: sub/b.yml")
    write("sub/b.yml", "_BASE_: ../a.yml")
    refused("a.yml", "sub/b.yml:1", "circle", "a.yml -> sub/b.yml -> sub/../a.yml")
    refused(write("self.yml", "_BASE_: self.yml"), "circle", "self.yml -> self.yml")


@pytest.mark.parametrize("base", ["3", "null", "''", "[a.yml, 3]", "{a: b}"])
def test_a_base_is_a_path_or_a_list(base: str) -> None:
    refused(write("a.yml", f"save_dir: run\n_BASE_: {base}"), "a.yml:2", "_BASE_", "path of a file")


# What is wrong with a file


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("save_dir: run\nbest: {monitor: acc", ["a.yml:2:20", "no valid YAML"]),
        ("save_dir: run\n\tbest: 3", ["a.yml:2:1", "no valid YAML", "tab"]),
        ("save_dir: run\n  snapshot_step: 3", ["a.yml:2:16", "no valid YAML"]),
        ("save_dir: *nothing", ["a.yml:1:11", "nothing"]),
        ("a: 1\n---\nb: 2", ["a.yml:2:1", "no valid YAML"]),
        ("save_dir: run\x00", ["a.yml", "no valid YAML"]),
        ("[" * 5000, ["a.yml", "nested too deeply"]),
        ("? [a]\n: 3", ["a.yml:1", "unhashable"]),
        ("", ["a.yml", "says nothing", "save_dir"]),
        ("# only a comment\n", ["a.yml", "says nothing"]),
        ("- save_dir", ["a.yml", "a list found", "key: value"]),
        ("save_dir", ["a.yml", "a single value found"]),
        ("3", ["a.yml", "a single value found"]),
        ("save_dir: run\nsnapshot_step: 3\nsave_dir: other", ["a.yml:3", "save_dir", "line 1"]),
        ("save_dir: run\nbest:\n  mode: max\n  mode: min", ["a.yml:4", "best.mode", "line 3"]),
        ("Resume: {save_dir: a}\nResume: {save_dir: b}", ["a.yml:2", "Resume", "line 1"]),
        ("Resume: {save_dir: a,\n save_dir: b}", ["a.yml:2", "Resume.save_dir", "line 1"]),
        ("Resume: 3", ["a.yml:1", "Resume: 3", "section"]),
        ("Resume:", ["a.yml:1", "Resume: None", "section"]),
        ("snapshot_step: 3", ["a.yml", "save_dir is missing", VARIABLE]),
        ("Resume: {snapshot_step: 3}", ["a.yml", "save_dir is missing", VARIABLE]),
        ("save_dir: null", ["a.yml:1", "save_dir is missing", VARIABLE]),
    ],
)
def test_bad_files(text: str, words: List[str]) -> None:
    refused(write("a.yml", text), *words)


@pytest.mark.parametrize(
    "line",
    [
        "best: {1: 2}",
        "snapshot_step: !!bool 'x'",
        "snapshot_step: !!int ''",
        "snapshot_epoch: !!timestamp x",
        '_BASE_: "a\\0b"',
    ],
)
def test_what_trips_the_parser_is_an_error_of_ours(line: str) -> None:
    refused(write("a.yml", f"save_dir: run\n{line}"), "a.yml")


@pytest.mark.parametrize("tag", ["object/apply:os.system", "name:os.system", "module:os", "tuple"])
@pytest.mark.parametrize("where", ["save_dir: {}", "Other: {}\nResume: {{save_dir: run}}"])
def test_yaml_that_asks_for_python_is_refused_and_not_run(tag: str, where: str) -> None:
    value = f"!!python/{tag} ['touch {os.getcwd()}/ran']"
    text = where.format(value)
    refused(write("a.yml", text), "a.yml:1", f"!!python/{tag}", "nothing was run")
    with pytest.raises(ConfigError, match="nothing was run"):
        pr.callbacks_from_config({"save_dir": "run"}, [f"best={value}"])
    assert not Path("ran").exists()


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    refused("missing.yml", "missing.yml", "no such file", str(tmp_path))
    refused(tmp_path / "missing.yml", "no such file")
    refused(tmp_path, str(tmp_path), "a folder")
    refused("a\0b", "cannot be read")
    Path("latin.yml").write_bytes(b"save_dir: run\n# gr\xfc\xdfe\n")
    refused("latin.yml", "latin.yml:2", "0xfc", "UTF-8")
    refused(write("a.yml", "x: 1") + "/b.yml", "cannot be read")


@pytest.mark.parametrize("config", [3, None, ["a.yml"], b"a.yml"])
def test_other_things_are_no_config(config: Any) -> None:
    refused(config, "config=", "path of a YAML file, or a dict")


def test_a_byte_order_mark_is_no_part_of_the_first_key() -> None:
    Path("a.yml").write_bytes(b"\xef\xbb\xbfsave_dir: run\n")
    assert effective("a.yml")["save_dir"] == "run"


# What is wrong with a setting

COUNT = "a whole number from 1"
BAD_VALUES: List[Tuple[str, str, List[str]]] = [
    *[
        (key, value, [COUNT])
        for key in ("snapshot_epoch", "snapshot_step", "keep_checkpoint_max", "keep_every_epoch")
        for value in ("0", "-1", "1.5", "1.0", '"3"', "yes", "abc", "[1]", "{a: 1}")
    ],
    *[
        (key, value, ["a number above 0"])
        for key in ("snapshot_minutes", "emergency.grace_seconds", "emergency.stop_after_minutes")
        for value in ("0", "-0.5", ".inf", ".nan", '"3"', "true", "auto", "1:30")
    ],
    *[("best.keep_best_max", value, [COUNT]) for value in ("-1", "0", "null", "true")],
    *[("best.min_delta", value, ["a number from 0"]) for value in ("-1", ".nan", "abc", "null")],
    *[("best.mode", value, ["auto, min or max"]) for value in ("most", "MAX", "null", "1")],
    *[("best.monitor", value, ["the name of a metric"]) for value in ("3", "''", "null", "[acc]")],
    *[("async_save", value, ["true or false"]) for value in ("1", '"true"', "null")],
    *[("emergency.on_exception", value, ["true or false"]) for value in ("1", "null")],
    *[("emergency.signals", value, ["names of signals"]) for value in ("15", "[15]", "null")],
    *[("emergency.signals", v, ["SIGFOO", "SIGTERM"]) for v in ("SIGFOO", "[SIGINT, SIGFOO]")],
    ("emergency.signals", "[SIGKILL]", ["SIGKILL cannot be caught"]),
    ("emergency.signals", "SIGSTOP", ["SIGSTOP cannot be caught"]),
    ("emergency.save_signal", "SIGKILL", ["SIGKILL cannot be caught"]),
    ("emergency.save_signal", "10", ["the name of a signal"]),
    ("emergency.save_signal", "SIGTERM", ["is among signals"]),
    *[("resume.resume_from", v, ['"auto"', "step:500"]) for v in ("3", "null", "''", "step:x")],
    ("resume.lr_policy", "keep", ["restore or override"]),
    ("resume.verify", "all", ["full, size or none"]),
    ("resume.partial", "1", ["true or false"]),
    *[("save_dir", value, ["the path of a folder"]) for value in ("3", "''", "[a]", '"a\\0b"')],
    *[
        (key, value, ["a section such as", "false for off"])
        for key in ("best", "emergency")
        for value in ("true", "null", "acc", "[acc]")
    ],
    *[("resume", value, ["a section such as"]) for value in ("true", "null", "auto")],
    ("resume", "false", ["cannot be turned off", "resume: {resume_from: never}"]),
]


@pytest.mark.parametrize(("key", "value", "words"), BAD_VALUES)
def test_bad_values(key: str, value: str, words: List[str]) -> None:
    section, _, name = key.rpartition(".")
    line = f"{section}: {{{name}: {value}}}" if section else f"{name}: {value}"
    text = line if key == "save_dir" else f"save_dir: run\n{line}"
    read = yaml.safe_load(f"[{value}]")[0]
    shown = "1:30" if value == "1:30" else repr(read) if not isinstance(read, list) else "["
    place = "a.yml:1" if key == "save_dir" else "a.yml:2"
    named = key if "signal" in key or section == "" else f"{key}="
    told = refused(write("a.yml", text), f"{place}: ", named, *words)
    assert shown in told or read in ("SIGKILL", "SIGSTOP") or "signals" in key, told
    # The same from an override, and within a section.
    refused({"save_dir": "run"}, "override", key, *words, overrides=[f"{key}={value}"])
    refused(write("b.yml", "Resume:\n  " + text.replace("\n", "\n  ")), "b.yml:", key, *words)


def test_hints_for_what_only_looks_right() -> None:
    refused({"save_dir": "run", "snapshot_step": "500"}, "take the quotes away")
    refused({"save_dir": "run", "snapshot_step": "None"}, "written null")


def test_monitors_that_need_a_mode() -> None:
    refused(
        write("a.yml", "save_dir: run\nbest:\n  monitor: tokens_per_s"),
        "a.yml:3",
        "best.monitor",
        "tokens_per_s",
        "mode",
    )


def test_milestones_need_saved_epochs() -> None:
    text = "save_dir: run\nsnapshot_epoch: 2\nkeep_every_epoch: 3"
    refused(write("a.yml", text), "a.yml:3: keep_every_epoch=3", "multiple of snapshot_epoch")
    refused("a.yml", "snapshot_epoch=None", overrides=["snapshot_epoch=null"])
    assert effective("a.yml", ["keep_every_epoch=4"])["keep_every_epoch"] == 4


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("snapshot_epochs", 2, ["snapshot_epochs=2", "Did you mean snapshot_epoch?", "async_save"]),
        ("SAVE_DIR", "x", ["Did you mean save_dir?"]),
        ("keep_max", 2, ["no such key", "Allowed here: save_dir, snapshot_epoch"]),
        ("resumee", {}, ["Did you mean resume?"]),
        ("Resumes", {}, ["Did you mean Resume?"]),
        ("Optimizer", {"lr": 1}, ["no such key", "section Resume:"]),
        ("best", {"monitr": "acc"}, ["best.monitr='acc'", "Did you mean best.monitor?", "mode"]),
        ("best", {"snapshot_epoch": 2}, ["best.snapshot_epoch=2", "beside save_dir"]),
        ("best", {"grace_seconds": 2}, ["belongs to emergency", "emergency: {grace_seconds: 2}"]),
        ("monitor", "acc", ["monitor belongs to best", "best: {monitor: acc}", "best.monitor=acc"]),
        ("signals", ["SIGTERM"], ["signals belongs to emergency"]),
        ("resume_from", "auto", ["belongs to resume", "resume: {resume_from: auto}"]),
        ("partial", True, ["resume: {partial: true}"]),
        ("save_signal", None, ["emergency: {save_signal: null}"]),
        ("extra", {"a": 1}, ["extra", "state_dict()"]),
        (3, 4, ["3=4", "no such key"]),
        (None, 4, ["None=4", "no such key"]),
        (True, 4, ["True=4", "no such key"]),
    ],
)
def test_unknown_keys(key: Any, value: Any, words: List[str]) -> None:
    refused({"save_dir": "run", key: value}, *words)


def test_every_wrong_key_is_named_at_once() -> None:
    text = "save_dir: run\nsnapshot_epochs: 2\nsnapshot_step: x\nbest: {mode: most}\nmonitor: acc"
    told = refused(write("a.yml", text), "a.yml: 4 settings", "a.yml:2", "a.yml:3", "a.yml:4")
    assert "a.yml:5: monitor" in told
    many = {"save_dir": "run", **{f"key{n}": n for n in range(30)}}
    assert "and 20 more" in refused(many)


def test_huge_values_are_shown_in_short() -> None:
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n"
    for one, two in zip("abcdefgh", "bcdefghi"):
        bomb += f"{two}: &{two} [{','.join(['*' + one] * 9)}]\n"
    told = refused(write("a.yml", bomb + "Resume: {save_dir: run, snapshot_step: *i}"), "snapshot_")
    assert len(told) < 2000
    refused(write("b.yml", "Resume: &r {save_dir: run, best: *r}"), "best.")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("snapshot_epoch", ["'snapshot_epoch'", "no `=`", "snapshot_epoch=2"]),
        ("", ["no `=`"]),
        ("=2", ["no key"]),
        ("a..b=2", ["'a..b' is no key"]),
        (".a=2", ["no key"]),
        ("snapshot_step=", ["no value", "snapshot_step=null"]),
        ("best={monitor", ["no valid YAML"]),
        ("snapshot_epochs=2", ["Did you mean snapshot_epoch?"]),
        ("best.monitor.x=3", ["best.monitor"]),
        ("Resume=3", ["Resume: 3"]),
        (3, ["no `=`"]),
    ],
)
def test_bad_overrides(override: Any, words: List[str]) -> None:
    write("a.yml", "save_dir: run")
    refused("a.yml", "a.yml", "override", *words, overrides=[override])


def test_a_text_is_no_list_of_overrides() -> None:
    refused({"save_dir": "run"}, "a list expected", overrides="snapshot_epoch=2")


# Where it comes from


def test_sources() -> None:
    write("a.yml", "save_dir: run\nbest:\n  monitor: acc\n  min_delta: 0.1")
    found = sources("a.yml", ["best.min_delta=0.2", "snapshot_epoch=2"])
    assert found["save_dir"] == "a.yml:1"
    assert found["best.monitor"] == "a.yml:3"
    assert found["best.min_delta"] == "override 'best.min_delta=0.2'"
    assert found["snapshot_epoch"] == "override 'snapshot_epoch=2'"
    assert found["best.mode"] == found["resume.verify"] == "default"
    assert sources({"save_dir": "run"})["save_dir"] == "the config"


def test_the_variable_replaces_save_dir(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/mnt/x")
    for config in ({"save_dir": "run"}, {"snapshot_step": 3}):
        first = describe(config)[0]
        assert (first.key, first.value, first.source) == ("save_dir", "/mnt/x", VARIABLE)
    monkeypatch.setenv(VARIABLE, "/mnt/x/")
    assert describe({"save_dir": "run"})[0].value == "/mnt/x/run"
    refused({"snapshot_step": 3}, "save_dir is missing", "does not end with a slash")


KEYS = st.sampled_from(["a", "b", "c"])
TREES = st.recursive(
    st.integers(0, 9), lambda inner: st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)
ROOTS = st.lists(st.dictionaries(KEYS, TREES, max_size=3), min_size=1, max_size=4)


def leaves(tree: Any, above: Tuple[str, ...] = ()) -> Dict[Tuple[str, ...], Any]:
    if not isinstance(tree, Mapping):
        return {above: tree}
    found: Dict[Tuple[str, ...], Any] = {}
    for key, value in tree.items():
        found.update(leaves(value, (*above, key)))
    return found


@PATIENT
@given(ROOTS)
def test_each_merged_value_is_that_of_the_layer_named(roots: List[Dict[str, Any]]) -> None:
    layers = [Layer(str(number), values) for number, values in enumerate(roots)]
    total = merged(layers)
    for path, value in leaves(total).items():
        place = place_of(path, layers)
        assert place is not None
        assert leaves(roots[int(place)])[path] == value
    assert merged([*layers, layers[-1]]) == total
    for path, value in leaves(roots[-1]).items():
        assert leaves(total)[path] == value


@PATIENT
@given(
    st.dictionaries(
        st.sampled_from(["save_dir", "snapshot_epoch", "best", "emergency", "resume", "monitor"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=2)
                | st.dictionaries(
                    st.text(max_size=5) | st.sampled_from(["mode"]), inner, max_size=2
                )
            ),
            max_leaves=5,
        ),
    )
)
def test_whatever_is_given_is_taken_or_a_config_error(config: Dict[str, Any]) -> None:
    try:
        load(config)
    except ConfigError as error:
        assert "the config" in str(error)


@PATIENT
@given(st.text())
def test_whatever_an_override_is_it_is_read_or_a_config_error(text: str) -> None:
    try:
        override_layer(text, "a.yml")
    except ConfigError as error:
        assert "a.yml, override" in str(error)


# The files that come with the package


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yml")), ids=lambda path: path.name)
def test_every_file_in_configs_can_be_used(path: Path) -> None:
    callbacks = pr.callbacks_from_config(path)
    assert [type(callback).__name__ for callback in callbacks][:2] == [
        "AutoResume",
        "PeriodicSaver",
    ]
    assert path.name in (CONFIGS / "README.md").read_text("utf-8")


def test_the_file_with_every_key_has_every_key_and_its_default() -> None:
    found = describe(CONFIGS / "resume.yml")
    assert "default" not in [item.source for item in found]
    assert {item.key: item.value for item in found} == effective({"save_dir": found[0].value})
