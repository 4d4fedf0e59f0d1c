"""What the best is: the direction that a name tells, the ranking, and what is remembered."""

from __future__ import annotations

import json
import logging
import math
from fractions import Fraction
from pathlib import Path
from typing import Any, List, Set, Tuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import paddle_resume as pr
from paddle_resume.best import (
    Best,
    BestPolicy,
    BestScores,
    Score,
    among,
    from_json,
    ranked,
    steps_named,
    to_json,
)
from paddle_resume.errors import ConfigError
from paddle_resume.monitor import check_monitor, direction_of, value_of

MAX = (
    "acc accuracy auc f1 precision recall map iou miou dice hmean kappa bleu rouge psnr ssim top1 "
    "top5"
).split()
MIN = "loss error err eer ppl perplexity mse mae rmse cer wer".split()
TOKENS = [(token, "max") for token in MAX] + [(token, "min") for token in MIN]


@pytest.mark.parametrize(("token", "direction"), TOKENS)
def test_each_token_tells_the_direction(token: str, direction: str) -> None:
    for name in (token, token.upper(), token.capitalize()):
        assert direction_of(name) == direction
        for text in ("{}_x", "eval_{}", "x_{}_y", "eval/{}", "{}@2", "val.{}", "my {}", "x-{}"):
            assert direction_of(text.format(name)) == direction
    assert direction_of(f"val{token.capitalize()}") == direction  # camel case
    if token.isalpha():
        assert direction_of(f"val_{token}50") == direction


@pytest.mark.parametrize(
    ("name", "direction"),
    [
        ("acc_top1", "max"),
        ("eval_accuracy", "max"),
        ("bbox_mAP", "max"),
        ("mAP", "max"),
        ("bbox_mAP50", "max"),
        ("bboxMAP", "max"),
        ("mAP@0.5", "max"),
        ("mIoU", "max"),
        ("valMIoU", "max"),
        ("meanIoU", "max"),
        ("F1", "max"),
        ("valF1Score", "max"),
        ("eval/acc", "max"),
        ("acc@1", "max"),
        ("acc5", "max"),
        ("BLEUScore", "max"),
        ("MSELoss", "min"),
        ("GLoss", "min"),
        ("word-error-rate", "min"),
        ("cross entropy loss", "min"),
    ],
)
def test_names_that_people_use(name: str, direction: str) -> None:
    assert direction_of(name) == direction
    assert BestPolicy(name).direction == direction


@pytest.mark.parametrize(
    "name",
    ["speed", "glossary", "GlossAry", "maple", "MAPE", "smape", "lossy", "accident", "top10", "f12",
     "errors", "farce", "Größerr", "accé", "准确率", "_", "3"],
)  # fmt: skip
def test_a_name_that_says_nothing_needs_a_mode(name: str) -> None:
    with pytest.raises(ConfigError, match="does not say") as caught:
        BestPolicy(name)
    assert f'monitor={name!r}, mode="auto"' in str(caught.value)
    assert 'mode="min" or mode="max"' in str(caught.value)
    assert [BestPolicy(name, mode).direction for mode in ("min", "max")] == ["min", "max"]


@pytest.mark.parametrize("name", ["top1_err", "acc_loss", "mapLoss", "f1loss", "1 - IoU error"])
def test_a_name_that_says_both_needs_a_mode(name: str) -> None:
    with pytest.raises(ConfigError, match=r"more is better \(.+\) and that less is \(.+\)"):
        BestPolicy(name)
    assert BestPolicy(name, "min").direction == "min"


def test_an_explicit_mode_is_not_argued_with() -> None:
    assert BestPolicy("loss", "max").direction == "max"
    assert BestPolicy("acc", "min").direction == "min"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("monitor", ["", " ", None, 3, b"loss", ["loss"]]),
        ("mode", ["", "MAX", "maximum", None, True, ["min"]]),
        ("min_delta", [-1, -1e-9, math.nan, math.inf, True, None, "0.1", 10**400]),
        ("keep_best_max", [0, -1, True, None, 1.0, "1"]),
    ],
)
def test_other_arguments_are_refused(name: str, values: List[Any]) -> None:
    for value in values:
        given_: dict = {"monitor": "loss", "keep" if name == "keep_best_max" else name: value}
        with pytest.raises(ConfigError) as caught:
            BestPolicy(**given_)
        assert str(caught.value).startswith(f"{name}={value!r}: ")
        assert str(caught.value).endswith("expected") or name == "monitor"


def test_the_edges_are_allowed() -> None:
    BestPolicy("loss", "auto", 0, 1)
    BestPolicy("loss", "auto", np.float64(0.5), 10**6)


def test_a_monitor_that_fit_has_is_taken() -> None:
    check_monitor("acc_top5", ["loss", "acc_top1", "acc_top5"])


@pytest.mark.parametrize(
    ("monitor", "hint"),
    [
        ("eval_acc", "without a prefix: monitor='acc'"),
        ("val_acc", "without a prefix: monitor='acc'"),
        ("eval/acc", "without a prefix: monitor='acc'"),
        ("Valid: Loss", "without a prefix: monitor='loss'"),
        ("Acc", "Did you mean monitor='acc'?"),
        ("accuracy", "Did you mean monitor='acc'?"),
        ("los", "Did you mean monitor='loss'?"),
        ("mean", "Did you mean monitor='hmean'?"),
        ("zzz", "Monitor one of these"),
        ("eval_", "Monitor one of these"),
    ],
)
def test_a_monitor_that_fit_has_not_is_refused(monitor: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_monitor(monitor, ["loss", "acc", "hmean", "acc"])
    assert str(caught.value).startswith(f"monitor={monitor!r}: ")
    assert "only 'loss', 'acc', 'hmean'." in str(caught.value)
    assert str(caught.value).endswith(hint)


def test_a_fit_without_metrics_has_nothing_to_monitor() -> None:
    with pytest.raises(ConfigError, match=r"no loss and no metric at all.*prepare\(\)"):
        check_monitor("loss", [])


class FakeTensor:
    """As a bfloat16 tensor of Paddle: numpy() and tolist() give its bits."""

    def __init__(self, *values: float) -> None:
        self.values = values
        self.size = len(values)

    def numpy(self) -> np.ndarray:
        return np.full(self.size, 16128, "uint16")

    def item(self, index: int) -> float:
        return self.values[index]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (0.5, 0.5),
        (3, 3.0),
        ([0.5], 0.5),
        ((0.5, 9.0), 0.5),
        ([[0.5, 2.0], 3.0], 0.5),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3.0),
        (np.array(0.5), 0.5),
        (np.array([[0.5, 2.0]]), 0.5),
        ([np.array([0.5])], 0.5),
        (Fraction(1, 2), 0.5),
        (FakeTensor(0.5), 0.5),
        ([FakeTensor(0.5, 2.0)], 0.5),
        (-math.inf, -math.inf),
        (None, None),
        ([], None),
        ([[]], None),
        (np.array([]), None),
        (FakeTensor(), None),
        ("0.5", None),
        (np.array(["0.5"]), None),
        (1j, None),
        ({}, None),
        (10**400, None),
    ],
)
def test_values_in_logs(value: Any, found: Any) -> None:
    assert value_of({"acc": value, "step": 7}, "acc") == found
    assert found is None or type(value_of({"acc": value}, "acc")) is float


def test_a_missing_value_and_nan() -> None:
    assert value_of({"loss": [0.5]}, "acc") is None
    assert math.isnan(value_of({"acc": np.float32("nan")}, "acc") or 0.0)


def best_after(policy: BestPolicy, *offers: Tuple[int, float]) -> List[Tuple[int, float]]:
    scores = BestScores(policy)
    for step, value in offers:
        scores.offer(step, value)
    return [(score.step, score.value) for score in scores.best.scores]


@pytest.mark.parametrize(
    ("policy", "offers", "best"),
    [
        (BestPolicy("acc"), [(1, 0.5), (2, 0.7), (3, 0.6)], [(2, 0.7)]),
        (BestPolicy("loss"), [(1, 0.5), (2, 0.7), (3, 0.4)], [(3, 0.4)]),
        (BestPolicy("acc"), [(1, 0.5), (2, 0.5)], [(1, 0.5)]),
        (BestPolicy("acc", keep=2), [(1, 0.5), (2, 0.5), (3, 0.5)], [(1, 0.5), (2, 0.5)]),
        (BestPolicy("acc", keep=2), [(1, 0.5), (2, 0.4), (3, 0.3)], [(1, 0.5), (2, 0.4)]),
        (BestPolicy("acc", keep=2), [(1, 0.5), (2, 0.7), (3, 0.6)], [(2, 0.7), (3, 0.6)]),
        (BestPolicy("loss", keep=3), [(1, 3), (2, 1), (3, 2)], [(2, 1), (3, 2), (1, 3)]),
        # NaN and infinity first are not the best for ever, nor at all
        (BestPolicy("loss"), [(1, math.nan), (2, 5.0), (3, math.nan)], [(2, 5.0)]),
        (BestPolicy("acc"), [(1, math.inf), (2, -math.inf), (3, 0.1)], [(3, 0.1)]),
        (BestPolicy("loss"), [(1, -math.inf), (2, 9.0)], [(2, 9.0)]),
        (BestPolicy("loss"), [(1, math.nan)], []),
        # min_delta: more than it, not as much
        (BestPolicy("acc", min_delta=0.25), [(1, 0.5), (2, 0.75)], [(1, 0.5)]),
        (BestPolicy("acc", min_delta=0.25), [(1, 0.5), (2, 0.8)], [(2, 0.8)]),
        (BestPolicy("loss", min_delta=0.25), [(1, 0.5), (2, 0.25)], [(1, 0.5)]),
        (BestPolicy("loss", min_delta=0.25), [(1, 0.5), (2, 0.2)], [(2, 0.2)]),
        (BestPolicy("acc", min_delta=1, keep=2), [(1, 5), (2, 6), (3, 5.5)], [(1, 5), (2, 6)]),
        # the same step again, as a resumed run evaluates it
        (BestPolicy("acc"), [(1, 0.5), (1, 0.5)], [(1, 0.5)]),
        (BestPolicy("acc"), [(1, 0.5), (1, 0.3)], [(1, 0.3)]),
        (BestPolicy("acc"), [(1, 0.5), (1, math.nan)], [(1, 0.5)]),
        (BestPolicy("acc", keep=2), [(1, 0.5), (2, 0.6), (2, 0.4)], [(1, 0.5), (2, 0.4)]),
        # scores that min_delta makes a cycle of stay as they are
        (
            BestPolicy("acc", min_delta=0.1, keep=3),
            [(1, 0.5), (2, 0.55), (3, 0.64), (1, 0.5)],
            [(3, 0.64), (1, 0.5), (2, 0.55)],
        ),
    ],
)
def test_the_ranking(policy: BestPolicy, offers: Any, best: Any) -> None:
    assert best_after(policy, *offers) == best


def test_offer_tells_whether_the_score_is_among_the_best() -> None:
    scores = BestScores(BestPolicy("acc", keep=2))
    offers = [(1, 0.5), (2, 0.4), (3, 0.3), (4, 0.5), (4, 0.5), (5, math.nan), (2, 0.4)]
    assert [scores.offer(*one) for one in offers] == [True, True, False, True, True, False, False]


FINITE = st.floats(allow_nan=False, allow_infinity=False)
SMALL = st.integers(-4, 4).map(lambda n: n / 4)  # many equal ones
VALUES = st.lists(st.one_of(SMALL, st.floats()), max_size=20)
DELTAS = st.one_of(st.just(0.0), st.sampled_from([0.25, 0.3, 1e308]), st.floats(0, 10))
POLICIES = st.builds(
    BestPolicy, st.just("x"), st.sampled_from(["min", "max"]), DELTAS, st.integers(1, 5)
)


@given(POLICIES, VALUES)
def test_no_score_beats_the_first_and_none_is_nan(policy: BestPolicy, values: List[float]) -> None:
    scores = BestScores(policy)
    for step, value in enumerate(values):
        before = scores.best
        entered = scores.offer(step, value)
        assert entered == (step in {score.step for score in scores.best.scores})
        assert entered or scores.best == before
        assert len(scores.best.scores) <= policy.keep
    finite = [value for value in values if math.isfinite(value)]
    assert len(scores.best.scores) == min(len(finite), policy.keep)
    for score in scores.best.scores:
        assert math.isfinite(score.value) and values[score.step] == score.value
    assert not any(policy.beats(value, scores.best.scores[0].value) for value in finite)
    assert len({score.step for score in scores.best.scores}) == len(scores.best.scores)


@given(st.sampled_from(["min", "max"]), st.integers(1, 5), VALUES)
def test_without_min_delta_it_is_a_sort(mode: str, keep: int, values: List[float]) -> None:
    sign = 1 if mode == "min" else -1
    finite = [(sign * value, step) for step, value in enumerate(values) if math.isfinite(value)]
    expected = [(step, values[step]) for _, step in sorted(finite)[:keep]]
    assert best_after(BestPolicy("x", mode, keep=keep), *enumerate(values)) == expected


@given(POLICIES, VALUES)
def test_scores_that_are_offered_again_change_nothing(
    policy: BestPolicy, values: List[float]
) -> None:
    scores = BestScores(policy)
    for step, value in enumerate(values):
        scores.offer(step, value)
    for score in scores.best.scores:
        before = scores.best
        assert scores.offer(score.step, score.value)
        assert scores.best == before


@given(POLICIES, VALUES, st.integers(0, 20))
def test_a_run_that_is_resumed_ends_with_the_same_best(
    policy: BestPolicy, values: List[float], stop: int
) -> None:
    through, first, second = BestScores(policy), BestScores(policy), BestScores(policy)
    for step, value in enumerate(values):
        through.offer(step, value)
        if step < stop:
            first.offer(step, value)
    held = json.loads(json.dumps(dict(first.capture().values), allow_nan=False))
    assert second.restore(type(first.capture())(values=held)) == []
    assert second.best == first.best
    for step, value in list(enumerate(values))[stop:]:
        second.offer(step, value)
    assert second.best == through.best


@given(POLICIES, st.lists(FINITE, max_size=5))
def test_json_reads_back(policy: BestPolicy, values: List[float]) -> None:
    best = Best(tuple(Score(step, value) for step, value in enumerate(values))[: policy.keep])
    text = json.dumps(to_json(best, policy), allow_nan=False)
    assert from_json(json.loads(text), policy) == best


GOOD = {"monitor": "loss", "mode": "min", "best": [{"step": 5, "value": 1}]}


def test_json_of_more_than_are_kept_is_cut() -> None:
    entries = [{"step": 5, "value": 1}, {"step": 3, "value": 2.5, "of": "later"}]
    content = {**GOOD, "best": entries, "more": 1}
    assert from_json(content, BestPolicy("loss", keep=2)) == Best((Score(5, 1.0), Score(3, 2.5)))
    only = from_json(content, BestPolicy("loss"))
    assert only == Best((Score(5, 1.0),))
    assert type(only.scores[0].value) is float
    assert from_json({**GOOD, "best": []}, BestPolicy("loss")) == Best()


BAD_ENTRIES: List[Any] = [5, None, [5, 1], {}, {"step": 5}, {"value": 1}, {"step": 4, "value": 1}]
BAD_ENTRIES += [{"step": step, "value": 1} for step in ("5", True, -1, 5.0, None)]
BAD_ENTRIES += [
    {"step": 5, "value": value}
    for value in (None, "1", True, math.nan, math.inf, -math.inf, 10**400, [1])
]


@pytest.mark.parametrize(
    "content",
    [
        *(None, [], "loss", 5, {}),
        *({**GOOD, "monitor": value} for value in ("acc", None, ["loss"])),
        *({**GOOD, "mode": value} for value in ("max", "auto", None)),
        *({**GOOD, "best": value} for value in (None, {}, "", 5)),
        *({**GOOD, "best": [{"step": 4, "value": 0.5}, entry]} for entry in BAD_ENTRIES),
    ],
)
def test_other_json_counts_as_none(content: Any) -> None:
    assert from_json(GOOD, BestPolicy("loss", keep=2)) is not None
    assert from_json(content, BestPolicy("loss", keep=2)) is None


def test_the_steps_that_best_json_names_whatever_the_metric() -> None:
    entries = [{"step": 4, "value": 0.5}, {"step": 5}, {"step": 3, "value": 1}, "x"]
    assert steps_named({"monitor": "any", "best": entries}) == {3, 4}
    for content in (None, [], "best", {}, {"best": 5}, {"best": []}):
        assert steps_named(content) == frozenset()


def test_another_metric_starts_anew_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    old, new = BestScores(BestPolicy("acc")), BestScores(BestPolicy("loss"))
    old.offer(5, 0.5)
    new.offer(3, 0.1)
    with caplog.at_level(logging.WARNING, "paddle_resume"):
        assert new.restore(old.capture()) == []
    assert new.best == Best()
    (record,) = caplog.records
    assert "counted for monitor='acc', mode='max'" in record.getMessage()
    assert "anew for monitor='loss', mode='min'" in record.getMessage()


def test_the_same_metric_goes_on_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    old, new = BestScores(BestPolicy("loss")), BestScores(BestPolicy("loss", "min"))
    old.offer(5, 0.5)
    new.offer(7, 0.1)  # of the time before: what is restored replaces it
    new.restore(old.capture())
    assert new.best == Best((Score(5, 0.5),))
    assert not caplog.records


def test_a_mode_that_contradicts_the_name_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "paddle_resume"):
        pr.BestSaver(tmp_path, "acc", "max")
        pr.BestSaver(tmp_path, "tokens_per_s", "min")
        assert not caplog.records
        pr.BestSaver(tmp_path, "acc", "min")
    (record,) = caplog.records
    assert "the lowest of monitor='acc', whose name says the opposite" in record.getMessage()


def test_a_best_without_a_checkpoint_bars_nothing() -> None:
    scores = BestScores(BestPolicy("acc", keep=2))
    for offer in ((1, 0.5), (2, 0.9)):
        scores.offer(*offer)
    scores.forget(0)
    assert scores.best == Best((Score(2, 0.9), Score(1, 0.5)))
    scores.forget_if(lambda step: step not in [1, 7])
    assert scores.best == Best((Score(1, 0.5),))
    assert scores.offer(3, 0.6)
    assert among(scores.best, [1]) == Best((Score(1, 0.5),))
    assert among(scores.best, []) == Best()


def test_what_a_lost_best_had_pushed_out_is_back() -> None:
    scores = BestScores(BestPolicy("acc"))
    scores.seed({"monitor": "acc", "mode": "max", "best": [{"step": 1, "value": 0.5}]})
    for offer in ((2, 0.7), (3, 0.9), (3, 0.9)):
        assert scores.offer(*offer)
    scores.forget(3)  # its save failed
    assert scores.best == Best((Score(2, 0.7),))
    assert not scores.offer(4, 0.6)
    scores.forget_if({2, 3}.__contains__)
    assert scores.best == Best((Score(1, 0.5),))
    scores.forget(1)
    assert scores.best == Best()


def test_what_could_not_be_saved_does_not_hide_the_best_before_it() -> None:
    """The checkpoint of step 205 names step 200, whose save was dropped for it."""
    before, policy = BestScores(BestPolicy("acc")), BestPolicy("acc")
    for offer in ((100, 0.9), (200, 0.95)):
        assert before.offer(*offer)
    scores = BestScores(policy)
    scores.restore(before.capture())
    best_json = to_json(Best((Score(100, 0.9),)), policy)
    scores.recall(best_json, {100, 205}.__contains__)
    assert scores.best == Best((Score(100, 0.9),))
    assert not scores.offer(300, 0.5)
    scores.recall(None, {100}.__contains__)
    assert scores.best == Best((Score(100, 0.9),))


@given(POLICIES, VALUES, st.sets(st.integers(0, 20)))
def test_a_lost_score_leaves_no_trace(
    policy: BestPolicy, values: List[float], lost: Set[int]
) -> None:
    scores, others = BestScores(policy), BestScores(policy)
    for step, value in enumerate(values):
        entered = scores.offer(step, value)
        if entered and step not in lost:
            others.offer(step, value)
    before = scores.best
    scores.forget_if({99}.__contains__)
    assert scores.best == before
    scores.forget_if(lost.__contains__)
    assert scores.best == others.best


def test_pure_functions_leave_their_arguments() -> None:
    best = Best((Score(1, 0.5),))
    assert ranked(best, Score(2, 0.7), BestPolicy("acc")) == Best((Score(2, 0.7),))
    assert best == Best((Score(1, 0.5),))
