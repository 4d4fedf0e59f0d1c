"""The one save in flight: write, commit, retain."""

from __future__ import annotations

import dataclasses
import threading
import time
from pathlib import Path
from typing import Dict, Optional, Sequence, Tuple

from paddle_resume.checkpoint import layout
from paddle_resume.checkpoint.store import Store
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
    """

    triggers: Tuple[Trigger, ...]
    retention: Tuple[RetentionPolicy, ...]
    in_background: bool


class Saver:
    """Writes snapshots to a store, one at a time.

    Args:
        store: where to.
        plan: under which run, and after which checkpoint.
        policy: how, and what to keep.
        events: where each save is noted.
    """

    def __init__(
        self, store: Store, plan: ResumePlan, policy: SavePolicy, events: EventLog
    ) -> None:
        self._store = store
        self._run_id = plan.run_id
        self._origin: Optional[Origin] = plan.origin
        self._parent = plan.parent
        self._policy = policy
        self._events = events
        self._thread: Optional[threading.Thread] = None
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
        self.wait()
        self.last_attempt = time.monotonic()
        if not self._policy.in_background:
            self._write(snapshot)
            return
        # Not a daemon: a script that ends now still finishes its save.
        self._thread = threading.Thread(
            target=self._write, args=(snapshot,), name="paddle_resume-writer", daemon=False
        )
        self._thread.start()

    def wait(self) -> None:
        """Waits until no save is in flight; an interrupt is passed on when it is not."""
        interrupt: Optional[BaseException] = None
        while self._thread is not None:
            try:
                self._thread.join()
                self._thread = None
            except KeyboardInterrupt as error:
                interrupt = error  # giving up the lock now would let another run clean up under it
        if interrupt is not None:
            raise interrupt

    def note(self, position: Position, reasons: Sequence[str]) -> None:
        """Adds reasons to a step that is saved already."""
        self._events.append("reason", step=position.step, reasons=list(reasons))

    def failed(self, position: Position, reasons: Sequence[str], error: Exception) -> None:
        """Notes a save that could not be made; the training goes on.

        Args:
            position: the boundary.
            reasons: why it was to be saved.
            error: what happened.
        """
        self.failures += 1
        self.last_attempt = time.monotonic()
        what = f"{type(error).__name__}: {error}"
        log.warning(
            "step %d could not be saved: %s. Older checkpoints are untouched; training goes on "
            "and the next trigger tries again (%d failed so far).",
            position.step,
            what,
            self.failures,
        )
        self._events.append(
            "failure",
            step=position.step,
            reasons=list(reasons),
            error=what,
            failures=self.failures,
        )

    def _write(self, snapshot: Snapshot) -> None:
        position = snapshot.state.position
        try:
            snapshot = _with_health(snapshot)
            path, size = self._store.save(
                snapshot, self._run_id, self._parent, self._origin, 1, versions()
            )
        except Exception as error:  # whatever it is, the training must go on
            self.failed(position, snapshot.reasons, error)
            return
        durable_s = time.time() - snapshot.taken_at
        blocked_s = snapshot.blocked_s if self._policy.in_background else durable_s
        self._parent = (self._run_id, position.step)
        self.last_step = position.step
        self._announce(SaveResult(path, position, size, blocked_s, durable_s), snapshot)
        self._warn_if_not_finite(path, snapshot)
        self._after_commit(path)

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
                'without any is kept: resume_from="finite" starts from it.',
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
        protected = {
            path
            for path in (self._store.read_link("best"), self._newest_finite(kept))
            if path is not None
        }
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
