"""The one save in flight: write, commit, retain."""

from __future__ import annotations

import dataclasses
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple

from paddle_resume.best import Best, BestPolicy, among, steps_named, to_json
from paddle_resume.checkpoint import layout
from paddle_resume.checkpoint.store import BEST_JSON, Dropped, Store
from paddle_resume.errors import CheckpointError
from paddle_resume.observe.events import EventLog
from paddle_resume.observe.log import human_duration, human_size, log
from paddle_resume.retention import Kept, RetentionPolicy, select_for_deletion
from paddle_resume.runtime import versions
from paddle_resume.state.finite import Health
from paddle_resume.triggers import Trigger
from paddle_resume.types import Origin, Position, ResumePlan, SaveResult, Snapshot, values_of

__all__ = ["SavePolicy", "Saver"]


@dataclasses.dataclass(frozen=True)
class SavePolicy:
    """When a run saves, how, and what it keeps.

    Attributes:
        triggers: any of them asks for a save.
        retention: what any of them names is kept.
        in_background: whether the training goes on while the disk is written.
        best: which scores are kept on top; None where nobody asked.
    """

    triggers: Tuple[Trigger, ...]
    retention: Tuple[RetentionPolicy, ...]
    in_background: bool
    best: Optional[BestPolicy] = None


@dataclasses.dataclass(eq=False)
class _Flight:
    """A save, from its begin on; it is in flight until it is over."""

    step: int
    is_last: bool
    started: float = dataclasses.field(default_factory=time.monotonic)
    thread: Optional[threading.Thread] = None
    is_dropped: bool = False
    over: threading.Event = dataclasses.field(default_factory=threading.Event)

    def interrupted(self) -> None:
        """Its starter was interrupted: nobody may wait for what never began."""
        if self.thread is None or self.thread.ident is None:
            self.over.set()

    def wait(self, timeout: Optional[float]) -> bool:
        """Waits until it is over; returns whether it is."""
        if not self.over.wait(timeout):
            return False
        if self.thread is not None and self.thread.ident is not None:
            self.thread.join()
        return True


class Saver:
    """Writes snapshots to a store, one at a time.

    Its methods may be called from any thread.

    Args:
        store: where to.
        plan: under which run, and after which checkpoint.
        policy: how, and what to keep.
        events: where each save is noted.
        before_commit: called before each commit, in the thread that writes: puts on the disk
            what the run that goes on from it will not write again.

    Attributes:
        last_step: the newest step of this run on disk; None while there is none.
        last_attempt: `time.monotonic()` at the start of the last save, or of the run.
        failures: how many saves could not be made.
    """

    def __init__(
        self,
        store: Store,
        plan: ResumePlan,
        policy: SavePolicy,
        events: EventLog,
        before_commit: Callable[[], None],
    ) -> None:
        self._store = store
        self._run_id = plan.run_id
        self._origin: Optional[Origin] = plan.origin
        self._parent = plan.parent
        self._policy = policy
        self._events = events
        self._before_commit = before_commit
        self._turn = threading.RLock()
        self._flight: Optional[_Flight] = None  # the newest, or one that is over
        self._took_s: Optional[float] = None
        self._naming = threading.Lock()
        self._best: Optional[Best] = None
        self._written_best: Optional[Mapping[str, Any]] = None
        self._finite: Dict[Path, bool] = {}
        self._said_not_finite = False
        self.failures = 0
        self.last_attempt = time.monotonic()
        self.last_step: Optional[int] = None
        if plan.source is not None and plan.source.parent == store.save_dir.resolve():
            self.last_step = layout.parse_folder_name(plan.source.name)

    def save(self, snapshot: Snapshot) -> None:
        """Starts to write a snapshot, after the one before it is done.

        Never raises for what the disk does: a failed save is logged and counted.

        Args:
            snapshot: host copies that nobody changes any more.
        """
        with self._turn:
            self.wait()
            if self._is_on_disk(snapshot.state.position.step):
                self.note(snapshot.state.position, snapshot.reasons)  # the other thread was first
                return
            flight = _Flight(snapshot.state.position.step, is_last=False)
            try:
                self._begin(flight)
                if not self._policy.in_background:
                    self._write(snapshot, flight)
                    return
                # Not a daemon: a script that ends now still finishes its save.
                flight.thread = threading.Thread(
                    target=self._write,
                    args=(snapshot, flight),
                    name="paddle_resume-writer",
                    daemon=False,
                )
                flight.thread.start()
            except RuntimeError as error:  # no thread can be started: a limit of the machine
                self.failed(snapshot.state.position, snapshot.reasons, error)
                flight.over.set()
            except BaseException:
                flight.interrupted()
                raise

    def save_now(self, snapshot: Snapshot) -> bool:
        """Writes a snapshot in this thread, after the one before it is done.

        Args:
            snapshot: as for `save`.

        Returns:
            Whether it is on disk.
        """
        step = snapshot.state.position.step
        with self._turn:
            self.wait()
            if self._is_on_disk(step):
                self.note(snapshot.state.position, snapshot.reasons)
            else:
                flight = _Flight(step, is_last=True)
                try:
                    self._begin(flight)
                    self._write(snapshot, flight)
                finally:
                    flight.over.set()
        return self._is_on_disk(step)

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Waits until no save is in flight; an interrupt is passed on when it is not.

        Args:
            timeout: seconds; None for as long as it takes.

        Returns:
            Whether none is in flight now.
        """
        # One flight, looked at once: another waiting thread may start the next as soon as it ends.
        flight = self._flight
        if flight is None:
            return True
        interrupt: Optional[BaseException] = None
        while True:
            try:
                if not flight.wait(timeout):
                    return False
                break
            except KeyboardInterrupt as error:
                interrupt = error  # giving up the lock now would let another run clean up under it
        if interrupt is not None:
            raise interrupt
        return True

    def drop(self, patience: float) -> None:
        """Gives up the save in flight; one that the disk does not let go of is left to itself.

        Args:
            patience: seconds to wait for its end.
        """
        flight = self._flight
        if flight is None or flight.over.is_set():
            return
        flight.is_dropped = True
        if self.wait(patience):
            return
        if self._flight is flight:  # nobody begins another while it is in flight
            self._flight = None

    @property
    def in_flight(self) -> Optional[Tuple[int, float]]:
        """The step of the save in flight, and how many seconds it has run; None for none."""
        flight = self._flight
        if flight is None or flight.over.is_set():
            return None
        return flight.step, time.monotonic() - flight.started

    @property
    def takes_s(self) -> Optional[float]:
        """How many seconds a save takes to be durable; None while there was none to measure."""
        return self._took_s

    def expect(self, seconds: float) -> None:
        """Tells how long a save of an earlier process took, until one is measured here."""
        if self._took_s is None:
            self._took_s = seconds

    def has(self, step: int) -> bool:
        """Whether a step is on disk, or on its way there."""
        found = self.in_flight  # before last_step: it may end in between
        return (found is not None and found[0] == step) or self._is_on_disk(step)

    def crown(self, best: Best) -> None:
        """Keeps the checkpoints of the best scores, and names them in best.json and `best`.

        Args:
            best: the scores; the newest may belong to the save in flight.
        """
        self._best = best
        if self.in_flight is None:  # else the save in flight names it, when it is over
            self._write_best()

    def keeps(self, step: int) -> bool:
        """Whether the folder holds a step, or will soon."""
        return self.has(step) or (self._store.save_dir / layout.folder_name(step)).is_dir()

    def note(self, position: Position, reasons: Sequence[str]) -> None:
        """Adds reasons to a step that is saved already."""
        self._events.append("reason", step=position.step, reasons=list(reasons))

    def failed(
        self,
        position: Position,
        reasons: Sequence[str],
        error: Exception,
        is_last: bool = False,
    ) -> None:
        """Notes a save that could not be made.

        Args:
            position: the boundary.
            reasons: why it was to be saved.
            error: what happened.
            is_last: whether the training ends with it.
        """
        self.failures += 1
        self.last_attempt = time.monotonic()
        what = f"{type(error).__name__}: {error}"
        log.warning(
            "step %d could not be saved: %s. Older checkpoints are untouched%s (%d failed so far).",
            position.step,
            what,
            "" if is_last else "; training goes on and the next trigger tries again",
            self.failures,
        )
        self._events.append(
            "failure",
            step=position.step,
            reasons=list(reasons),
            error=what,
            failures=self.failures,
        )

    def _is_on_disk(self, step: int) -> bool:
        return self.last_step == step and self._store.path_of(step).is_dir()

    def _begin(self, flight: _Flight) -> None:
        self.last_attempt = flight.started
        self._flight = flight

    def _write(self, snapshot: Snapshot, flight: _Flight) -> None:
        try:
            self._commit(snapshot, flight)
        except Exception as error:  # whatever it is, the training must go on
            self.failed(snapshot.state.position, snapshot.reasons, error, flight.is_last)
        finally:
            best = self._best
            try:
                if best is not None and self._flight is flight:
                    self._write_best()
            finally:
                flight.over.set()
            if self._best is not best:
                self._write_best()  # of a score that came meanwhile

    def _commit(self, snapshot: Snapshot, flight: _Flight) -> None:
        position, started = snapshot.state.position, time.monotonic()
        try:
            self._before_commit()
            snapshot = _with_health(snapshot)
            path, size = self._store.save(
                snapshot,
                self._run_id,
                self._parent,
                self._origin,
                1,
                versions(),
                lambda: flight.is_dropped,
            )
        except Dropped:
            log.info("the save of step %d was dropped: there was no time for it", position.step)
            self._events.append("dropped", step=position.step, reasons=list(snapshot.reasons))
            return
        if flight.is_dropped:
            return  # too late for it: a complete checkpoint, which another has overtaken
        durable_s = snapshot.blocked_s + time.monotonic() - started
        self._took_s = durable_s
        blocked_s = snapshot.blocked_s if self._policy.in_background else durable_s
        self._parent = (self._run_id, position.step)
        self.last_step = position.step
        self._announce(SaveResult(path, position, size, blocked_s, durable_s), snapshot)
        self._warn_if_not_finite(path, snapshot)
        self._after_commit(path)

    def _write_best(self) -> None:
        """Names the best in the folder; what of them is not on disk is left out."""
        with self._naming:
            self._name_best()

    def _name_best(self) -> None:
        assert self._best is not None and self._policy.best is not None
        on_disk = {layout.parse_folder_name(path.name): path for path in self._store.checkpoints()}
        best = among(self._best, [step for step in on_disk if step is not None])
        content = to_json(best, self._policy.best)
        if not best.scores or content == self._written_best:
            return
        try:
            self._store.write_json(BEST_JSON, content)
            self._store.link("best", on_disk[best.scores[0].step])
            self._written_best = content
            self._retain()
        except (OSError, CheckpointError) as error:
            log.warning("the best checkpoint could not be named: %s", error)

    def _announce(self, result: SaveResult, snapshot: Snapshot) -> None:
        position = result.position
        log.info(
            "saved step %d (epoch %d; reason: %s): %s in %s, of which the training waited %s: %s",
            position.step,
            position.epoch + (position.batch > 0),
            ", ".join(snapshot.reasons),
            human_size(result.size_bytes),
            human_duration(result.durable_s),
            human_duration(result.blocked_s),
            result.path,
        )
        self._events.append(
            "save",
            step=position.step,
            epoch=position.epoch,
            reasons=list(snapshot.reasons),
            path=result.path.name,
            run_id=self._run_id,
            size_bytes=result.size_bytes,
            blocked_s=round(result.blocked_s, 6),
            durable_s=round(result.durable_s, 6),
            metrics=snapshot.metrics,
        )

    def _warn_if_not_finite(self, path: Path, snapshot: Snapshot) -> None:
        broken = Health.read(values_of(snapshot.state))
        self._finite[path] = not broken
        said, self._said_not_finite = self._said_not_finite, bool(broken)
        if broken and not said:
            log.warning(
                "%s holds NaN or infinity in %d weight(s), the first is %s. The newest checkpoint "
                'without any, where there is one, is kept: resume_from="finite" starts from it.',
                path,
                len(broken),
                broken[0],
            )

    def _after_commit(self, path: Path) -> None:
        """Links and retention: conveniences, whose failure is not the save's."""
        try:
            self._store.link("latest", path)
            self._retain()
        except (OSError, CheckpointError) as error:
            log.warning("after the save of %s: %s", path.name, error)

    def _retain(self) -> None:
        kept = []
        for path in self._store.checkpoints():
            try:
                manifest = self._store.read_manifest(path)
            except CheckpointError:
                continue  # damaged: never ours to delete
            position = manifest.position
            completed = position.epoch if position.batch == 0 else None
            kept.append(Kept(path, position.step, completed, manifest.run_id))
        if self._best is not None:
            best = frozenset(score.step for score in self._best.scores)
        else:
            best = steps_named(self._store.read_json(BEST_JSON))
        protected = {item.path for item in kept if item.step in best}
        others = (self._store.read_link("best"), self._newest_finite(kept))
        protected.update(path for path in others if path is not None)
        for path in select_for_deletion(kept, self._policy.retention, protected, self._run_id):
            error = self._store.delete(path)
            if error is not None:
                log.warning("%s could not be deleted: %s", path, error)
                continue
            self._finite.pop(path, None)
            self._events.append("prune", step=layout.parse_folder_name(path.name))

    def _newest_finite(self, kept: Sequence[Kept]) -> Optional[Path]:
        for item in sorted(kept, key=lambda one: -one.step):
            if item.path not in self._finite:
                self._finite[item.path] = self._is_finite(item.path)
            if self._finite[item.path]:
                return item.path
        return None

    def _is_finite(self, path: Path) -> bool:
        """Looks into a checkpoint from before this process started."""
        try:
            return not Health.read(self._store.read_values(path))
        except CheckpointError:
            return False


def _with_health(snapshot: Snapshot) -> Snapshot:
    state = snapshot.state
    parts = {**state.parts, Health.name: Health.of(state)}
    return dataclasses.replace(snapshot, state=dataclasses.replace(state, parts=parts))
