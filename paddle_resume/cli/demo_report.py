"""What `paddle-resume demo` compares, and how it shows it. Knows nothing of processes or Paddle."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["ORDER", "Event", "Key", "Kill", "Report", "Run", "Seam", "compare", "escaped", "show"]

Key = Tuple[int, int, int]
"""A place in the training: epoch, `ORDER` of the event, batch."""
Row = Tuple[str, str, str, str]
ORDER = {"train": 0, "eval_begin": 1, "eval": 2, "eval_end": 3, "end": 4}


@dataclass(frozen=True)
class Event:
    """One line of the recorder in the training program.

    Example:
        >>> Event.parse('{"event": "train", "time": 1.0, "epoch": 2, "batch": 3}').key
        (2, 0, 3)
    """

    name: str
    time: float
    epoch: int
    batch: int = 0
    loss: str = ""
    accuracy: Optional[float] = None

    @classmethod
    def parse(cls, line: str) -> Event:
        """Reads a line."""
        values = json.loads(line)
        known = ("time", "epoch", "batch", "loss", "accuracy")
        return cls(values["event"], **{key: values[key] for key in known if key in values})

    @property
    def key(self) -> Key:
        """Where in the training it happened; ordered as an uninterrupted run passes them."""
        return (self.epoch, ORDER.get(self.name, -1), self.batch)


@dataclass(frozen=True)
class Kill:
    """A `kill -9`, and what it cost.

    Attributes:
        place: where it hit, in words.
        last: the key of the last event before it.
        first: the key of the first event after the restart.
        restart_seconds: from the kill to that first event.
        repeat_seconds: from there until everything done before had been done again.
        repeated_steps: training steps that were done again.
        repeated_batches: evaluation batches that were done again.
    """

    place: str
    last: Key
    first: Key
    restart_seconds: float
    repeat_seconds: float
    repeated_steps: int
    repeated_batches: int


@dataclass
class Run:
    """What one training left behind: a list of events for each start of the program."""

    starts: List[List[Event]] = field(default_factory=list)
    killed_at: List[Tuple[str, float]] = field(default_factory=list)
    seconds: float = 0.0
    weights: Mapping[str, Any] = field(default_factory=dict)
    optimizer: Mapping[str, Any] = field(default_factory=dict)

    @property
    def events(self) -> Iterator[Event]:
        """All that happened in the training, over all starts."""
        return (event for start in self.starts for event in start if event.name in ORDER)

    @property
    def accuracy(self) -> Optional[float]:
        """Of the last evaluation."""
        found = [event.accuracy for event in self.events if event.name == "eval_end"]
        return found[-1] if found else None


@dataclass(frozen=True)
class Seam:
    """A loss beside a kill, in both runs, as `float.hex` has it."""

    where: str
    uninterrupted: str
    killed: str


@dataclass(frozen=True)
class Report:
    """The two runs side by side."""

    epochs: Tuple[int, int]
    steps: Tuple[int, int]
    starts: Tuple[int, int]
    seconds: Tuple[float, float]
    accuracy: Tuple[Optional[float], Optional[float]]
    weights: Tuple[str, str]
    optimizer: Tuple[str, str]
    kills: Tuple[Kill, ...]
    seams: Tuple[Seam, ...]
    differences: Tuple[str, ...]

    @property
    def identical(self) -> bool:
        """Whether nothing at all differs."""
        return not self.differences

    @property
    def seconds_lost(self) -> float:
        """Time that the kills cost, all in all."""
        return sum(kill.restart_seconds + kill.repeat_seconds for kill in self.kills)

    def to_json(self) -> Dict[str, Any]:
        """The report as plain values."""
        return {**asdict(self), "identical": self.identical, "seconds_lost": self.seconds_lost}


def compare(reference: Run, killed: Run) -> Report:
    """Sets two runs of the same program side by side.

    Args:
        reference: an uninterrupted one.
        killed: one that was killed and started again, any number of times.

    Returns:
        The report; its `differences` are empty where every loss, repeated ones too, every
        accuracy, every weight and every value of the optimizer is the same to the last bit, and
        each restart went on from a checkpoint.
    """
    truth = {event.key: event for event in reference.events}
    seen: Dict[Key, Event] = {}
    differences: List[str] = []
    for event in killed.events:
        expected = truth.get(event.key)
        if expected is None:
            differences.append(f"{_where(event.key, truth)}: only in the killed run")
        elif (event.loss, event.accuracy) != (expected.loss, expected.accuracy):
            found, wanted = _shown(event), _shown(expected)
            differences.append(f"{_where(event.key, truth)}: {found}, not {wanted}")
        seen[event.key] = event
    differences += [f"{_where(key, truth)}: missing" for key in sorted(truth) if key not in seen]
    differences += _different_values("weights", reference.weights, killed.weights)
    differences += _different_values("optimizer", reference.optimizer, killed.optimizer)
    kills = tuple(_kills(killed))
    for number, kill in enumerate(kills, 1):
        if truth and kill.first <= min(truth):
            differences.append(f"restart {number}: began from nothing, no checkpoint was used")
    return Report(
        epochs=(_epochs(reference), _epochs(killed)),
        steps=(_steps(reference), _steps(killed)),
        starts=(len(reference.starts), len(killed.starts)),
        seconds=(reference.seconds, killed.seconds),
        accuracy=(reference.accuracy, killed.accuracy),
        weights=(_digest(reference.weights), _digest(killed.weights)),
        optimizer=(_digest(reference.optimizer), _digest(killed.optimizer)),
        kills=kills,
        seams=tuple(_seams(kills, truth, seen)),
        differences=tuple(differences),
    )


def _epochs(run: Run) -> int:
    return len({event.epoch for event in run.events})


def _steps(run: Run) -> int:
    return len({event.key for event in run.events if event.name == "train"})


def _where(key: Key, truth: Mapping[Key, Any]) -> str:
    """Names a place in the training as a person counts: from 1."""
    epoch, order, batch = key
    if order == ORDER["train"]:
        before = sum(1 for other in truth if other[1] == ORDER["train"] and other < key)
        return f"step {before + 1}"
    name = {value: name for name, value in ORDER.items()}[order]
    text = {"eval_begin": "start", "eval": f"batch {batch + 1}", "eval_end": "result"}
    return f"evaluation {epoch + 1}, {text[name]}" if name in text else "the end of the training"


def _shown(event: Event) -> str:
    return _digits(event.loss) if event.loss else str(event.accuracy)


def _digits(loss: str) -> str:
    """Shows a float32 loss with enough digits to tell it from its neighbours."""
    return f"{float.fromhex(loss):.9g}" if loss else "-"


def _kills(run: Run) -> Iterator[Kill]:
    furthest: Key = (-1, 0, 0)
    for (place, killed_at), before, after in zip(run.killed_at, run.starts, run.starts[1:]):
        furthest = max([furthest, *(event.key for event in before if event.name in ORDER)])
        events = [event for event in after if event.name in ORDER]
        again = [event for event in events if event.key <= furthest]
        beyond = [event for event in events if event.key > furthest]
        if not events:
            continue
        caught_up = beyond[0].time if beyond else events[-1].time
        yield Kill(
            place=place,
            last=furthest,
            first=events[0].key,
            restart_seconds=events[0].time - killed_at,
            repeat_seconds=caught_up - events[0].time,
            repeated_steps=sum(1 for event in again if event.name == "train"),
            repeated_batches=sum(1 for event in again if event.name == "eval"),
        )


def _seams(
    kills: Tuple[Kill, ...],
    truth: Mapping[Key, Event],
    seen: Mapping[Key, Event],
) -> Iterator[Seam]:
    """The losses around each kill: the first after the restart, the last done before, the next."""
    with_loss = sorted(key for key, event in truth.items() if event.loss)
    for number, kill in enumerate(kills, 1):
        first = next((key for key in with_loss if key >= kill.first), None)
        last = next((key for key in reversed(with_loss) if key <= kill.last), None)
        fresh = next((key for key in with_loss if key > kill.last), None)
        for key, text in (
            (first, f"first after restart {number}"),
            (last, f"last before kill {number}"),
            (fresh, "next"),
        ):
            if key is not None:
                found = seen[key].loss if key in seen else ""
                yield Seam(f"{_where(key, truth)} ({text})", truth[key].loss, found)


def _leaves(value: Any, prefix: str = "") -> Iterator[Tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from _leaves(value[key], f"{prefix}/{key}" if prefix else str(key))
    else:
        yield prefix, value


def _bytes(value: Any) -> bytes:
    """A value's type and bits."""
    if hasattr(value, "tobytes"):
        return f"{value.dtype}{value.shape}".encode() + bytes(value.tobytes())
    text = value.hex() if isinstance(value, float) else repr(value)
    return f"{type(value).__name__}{text}".encode()


def _digest(values: Mapping[str, Any]) -> str:
    total = hashlib.sha256()
    for name, value in _leaves(values):
        total.update(name.encode() + b"\0" + _bytes(value))
    return total.hexdigest()


def _different_values(what: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> List[str]:
    left, right = dict(_leaves(one)), dict(_leaves(other))
    found = []
    for name in sorted(left.keys() | right.keys()):
        if name not in right or name not in left:
            found.append(f"{what} {name}: only in one of the runs")
        elif _bytes(left[name]) != _bytes(right[name]):
            found.append(f"{what} {name}: not identical")
    return found


def show(report: Report, console: Console) -> None:
    """Prints the comparison as a table, and the verdict."""
    from rich.table import Table

    table = Table(title="Side by side", title_justify="left")
    table.add_column("")
    table.add_column("uninterrupted", justify="right")
    table.add_column(_times(len(report.kills)), justify="right")
    table.add_column("")
    for row in _rows(report):
        table.add_row(*row)
    console.print()
    console.print(table)
    for number, kill in enumerate(report.kills, 1):
        again = f"{kill.repeated_steps} steps"
        if kill.repeated_batches:
            again += f" and {kill.repeated_batches} batches of the evaluation"
        console.print(
            f"Kill {number}, {kill.place}: the program was training again after "
            f"{kill.restart_seconds:.1f} s, and repeated {again} in {kill.repeat_seconds:.1f} s."
        )
    if report.identical:
        console.print(
            "[bold green]Identical.[/] Every loss, the repeated ones too, every weight and every "
            "value of the optimizer is the same to the last bit."
        )
        return
    console.print(f"[bold red]Not identical: {len(report.differences)} differences.[/]")
    for difference in report.differences[:20]:
        console.print(f"  {escaped(difference)}", soft_wrap=True)


def _times(kills: int) -> str:
    return {1: "killed once", 2: "killed twice"}.get(kills, f"killed {kills} times")


def _rows(report: Report) -> Iterator[Row]:
    def row(name: str, values: Tuple[Any, Any], text: Callable[[Any], str] = str) -> Row:
        verdict = "[green]same[/]" if values[0] == values[1] else "[red]differs[/]"
        return (name, text(values[0]), text(values[1]), verdict)

    def percent(value: Optional[float]) -> str:
        return "-" if value is None else f"{100 * value:.2f} %"

    rows = [
        ("starts of the program", str(report.starts[0]), str(report.starts[1]), ""),
        row("epochs", report.epochs),
        row("steps", report.steps),
    ]
    for seam in report.seams:
        rows.append(row("loss at " + seam.where, (seam.uninterrupted, seam.killed), _digits))
    rows += [
        row("final accuracy", report.accuracy, percent),
        row("weights, SHA-256", report.weights, lambda digest: digest[:12]),
        row("optimizer, SHA-256", report.optimizer, lambda digest: digest[:12]),
        ("time", f"{report.seconds[0]:.1f} s", f"{report.seconds[1]:.1f} s", ""),
        ("time lost to the kills", "", f"{report.seconds_lost:.1f} s", ""),
    ]
    yield from rows


def escaped(text: str) -> str:
    """Returns the text such that rich prints it as it is."""
    from rich.markup import escape

    return escape(text)
