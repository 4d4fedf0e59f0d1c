"""The checkpoints in one save_dir: each appears complete or not at all."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import (
    Any,
    Callable,
    Collection,
    Dict,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Union,
)

from paddle_resume.checkpoint import aside, examine, layout, links, reader, writer
from paddle_resume.checkpoint import manifest as manifests
from paddle_resume.checkpoint.lock import Holder, Lock
from paddle_resume.checkpoint.reader import Progress
from paddle_resume.checkpoint.writer import Dropped
from paddle_resume.errors import CheckpointError, ConfigError
from paddle_resume.observe import events
from paddle_resume.observe.log import log
from paddle_resume.regular import read_regular
from paddle_resume.types import Manifest, Origin, Snapshot, TrainingState

__all__ = ["BEST_JSON", "EVENTS_FILE", "FINISHED_JSON", "Dropped", "Store"]

FINISHED_JSON = "finished.json"
BEST_JSON = "best.json"
EVENTS_FILE = "events.jsonl"

_LARGEST_JSON = 16 << 20  # bytes: they name a few steps


class Store:
    """One save_dir.

    Args:
        save_dir: its path; `create` makes it.
        sign_key: that signs what is saved, and must have signed what is read; None for no
            signatures.

    Attributes:
        save_dir: its path.
    """

    def __init__(
        self, save_dir: Union[str, "os.PathLike[str]"], sign_key: Optional[bytes] = None
    ) -> None:
        self.save_dir = Path(save_dir)
        self._key = sign_key
        self._lock = Lock(self.save_dir / ".lock")

    def create(self) -> None:
        """Creates the folder.

        Raises:
            ConfigError: it cannot be created.
        """
        with self._usable():
            writer.make_folder(self.save_dir)

    def prove_writable(self) -> None:
        """Proves that the folder can be written to; only for the one who has the lock.

        Raises:
            ConfigError: it cannot; found before the first step, not at the first save.
        """
        probe = self.save_dir / writer.temp_name("probe")
        with self._usable():
            writer.replace_file(probe, b"x" * 4096)
            probe.unlink()

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigError(
                f"save_dir={str(self.save_dir)!r} cannot be used: {error.strerror or error} "
                f"({error.filename or self.save_dir}). Choose a folder that can be written to and "
                f"has room, or make this one so"
            ) from error

    def lock(self, holder: Optional[Holder] = None) -> None:
        """Takes the folder for a run.

        Args:
            holder: see `Lock.acquire`.

        Raises:
            LockedError: another live run has it.
        """
        self._lock.acquire(holder)

    def unlock(self) -> None:
        """Gives the folder back."""
        self._lock.release()

    def checkpoints(self) -> List[Path]:
        """Lists the committed checkpoints.

        Returns:
            Their folders, oldest first; a link is never one.
        """
        found = []
        for entry in self._scan():
            step = layout.parse_folder_name(entry.name)
            if step is not None and entry.is_dir(follow_symlinks=False):
                found.append((step, entry.name))
        return [self.save_dir / name for _, name in sorted(found)]

    def path_of(self, step: int) -> Path:
        """The folder of a step's checkpoint, whether it is there or not."""
        return self.save_dir / layout.folder_name(step)

    def read_manifest(self, path: Path) -> Manifest:
        """See `manifest.read`."""
        return manifests.read(path, self._key)

    def verify(
        self, path: Path, level: str = "full", progress: Optional[Progress] = None
    ) -> Manifest:
        """See `reader.verify`."""
        return reader.verify(path, level, progress, self._key)

    def faults_of(
        self, path: Path, manifest: Manifest, level: str, meter: reader.Meter
    ) -> Mapping[str, str]:
        """See `examine.faults_of`."""
        return examine.faults_of(path, manifest, level, meter, self._key)

    def load(
        self, path: Path, level: str = "full", progress: Optional[Progress] = None
    ) -> Tuple[Manifest, TrainingState]:
        """See `reader.load`."""
        return reader.load(path, level, progress, self._key)

    def read_values(self, path: Path) -> Mapping[str, Mapping[str, Any]]:
        """See `reader.read_values`."""
        return reader.read_values(path, self._key)

    def save(
        self,
        snapshot: Snapshot,
        run_id: str,
        parent: Optional[Tuple[str, int]],
        origin: Optional[Origin],
        world_size: int,
        versions: Mapping[str, str],
        is_dropped: Callable[[], bool] = lambda: False,
    ) -> Tuple[Path, int]:
        """Commits a checkpoint: temporary folder, fsync, rename, fsync.

        Args:
            snapshot: the state, as host copies.
            run_id: the run that writes.
            parent: the checkpoint before it in its line.
            origin: where the run started.
            world_size: number of processes.
            versions: of the software that writes.
            is_dropped: see `writer.write`.

        Returns:
            Its folder, and the size of its files in bytes.

        Raises:
            Dropped: `is_dropped` said so.
            CheckpointError: this step is there already, or a value cannot be written.
            OSError: the disk is full or failed. Older checkpoints are untouched in any case.
        """
        self._lock.renew()
        position = snapshot.state.position
        final = self.path_of(position.step)
        _refuse_existing(final)
        contents = layout.split(snapshot.state)
        draft = Manifest(
            format=layout.FORMAT,
            run_id=run_id,
            parent=parent,
            origin=origin,
            position=position,
            reasons=tuple(snapshot.reasons),
            created=datetime.fromtimestamp(snapshot.taken_at, timezone.utc).isoformat(),
            files={},
            world_size=world_size,
            versions=dict(versions),
        )
        temp = self.save_dir / writer.temp_name(str(position.step))
        try:
            temp.mkdir()
            complete = writer.write(temp, contents, draft, is_dropped, self._key)
            if is_dropped():
                raise Dropped
            _commit(temp, final)
        except BaseException:
            shutil.rmtree(temp, ignore_errors=True)
            raise
        writer.fsync_folder(self.save_dir)
        return final, sum(size for size, _ in complete.files.values())

    def link(self, name: str, target: Path) -> None:
        """See `links.point`."""
        links.point(self.save_dir, name, target)

    def read_link(self, name: str) -> Optional[Path]:
        """See `links.follow`."""
        return links.follow(self.save_dir, name)

    def delete(self, path: Path) -> Optional[OSError]:
        """Deletes a checkpoint; a crash in between leaves no half of one to be found.

        Args:
            path: the checkpoint.

        Returns:
            Why it could not be deleted; None when it was.
        """
        doomed = self.save_dir / writer.temp_name(f"delete-{path.name}")
        try:
            os.rename(path, doomed)
            # Before it is on the disk, a power cut may leave the old name with half of the files.
            writer.fsync_folder(self.save_dir)
            shutil.rmtree(doomed)
        except OSError as error:
            return error
        return None

    def set_aside_bad(self, path: Path, why: str) -> Path:
        """See `aside.set_aside_bad`."""
        return aside.set_aside_bad(self.save_dir, path, why)

    def leave_behind(self, paths: Collection[Path], run_id: str) -> Optional[Path]:
        """See `aside.leave_behind`."""
        described = {name: self.read_json(name) for name in (FINISHED_JSON, BEST_JSON)}
        return aside.leave_behind(self.save_dir, paths, run_id, described)

    def clean_leftovers(self) -> None:
        """Removes what interrupted saves left; only for the one who has the lock."""
        for entry in self._scan():
            if not entry.name.startswith(".tmp-"):
                continue
            try:
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    os.unlink(entry.path)
            except FileNotFoundError:
                pass
            except OSError as error:
                log.warning("%s is left from an interrupted save and stays: %s", entry.path, error)

    def read_json(self, name: str) -> Optional[Dict[str, Any]]:
        """Reads finished.json or best.json.

        Args:
            name: of the file.

        Returns:
            Its content; None where it is missing, or damaged, which is warned about: all that
            matters is in the checkpoints too.
        """
        path = self.save_dir / name
        try:
            return manifests.parse_json(read_regular(path, _LARGEST_JSON), name)
        except FileNotFoundError:
            return None
        except (OSError, CheckpointError) as error:
            log.warning("%s cannot be read and counts as absent: %s", path, error)
            return None

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Replaces finished.json or best.json, atomically and durably.

        Args:
            name: of the file.
            value: JSON values.

        Raises:
            CheckpointError: a value is not JSON.
            OSError: the disk is full or failed; the old content stands.
        """
        writer.replace_file(self.save_dir / name, manifests.dump_json(value, name))

    def signs_of_earlier_run(self) -> Optional[str]:
        """Looks for evidence that a checkpoint was once committed here.

        Returns:
            A sentence that names it; None where a start from nothing is right.
        """
        names = {entry.name for entry in self._scan()}
        files = {
            FINISHED_JSON,
            BEST_JSON,
            *(p.name for n in links.LINKS for p in links.places(self.save_dir, n)),
        }
        for name in sorted(names):
            is_step = layout.parse_folder_name(name) is not None
            if is_step or name in files or name.startswith(".bad-"):
                return f"{self.save_dir / name} shows that a checkpoint was saved here before"
        saved: Optional[Any] = None
        for event in events.read(self.save_dir / EVENTS_FILE):
            if event["event"] == "start" and event.get("action") == "fresh":
                saved = None
            elif event["event"] == "save":
                saved = event.get("step", "?")
        if saved is None:
            return None
        return f"{self.save_dir / EVENTS_FILE} tells of a checkpoint saved here at step {saved}"

    def has_saved_since(self, resume_from: str) -> bool:
        """Whether the run that the newest start with this argument made has saved.

        Args:
            resume_from: the argument as given.
        """
        line, saved = None, False
        for event in events.read(self.save_dir / EVENTS_FILE):
            if event["event"] == "start":
                origin = event.get("origin")
                line = origin.get("resume_from") if isinstance(origin, dict) else None
                saved = saved and event.get("action") != "fresh"
            elif event["event"] == "save":
                saved = True
        return saved and line == resume_from

    def _scan(self) -> Sequence["os.DirEntry[str]"]:
        try:
            with os.scandir(self.save_dir) as entries:
                return list(entries)
        except FileNotFoundError:
            return []


def _refuse_existing(final: Path) -> None:
    if os.path.lexists(final):
        raise CheckpointError(
            f"{final} is there already and was left as it is; this save was dropped. Another run "
            f"may be writing to this save_dir: give each run one of its own"
        )


def _commit(temp: Path, final: Path) -> None:
    """The moment from which on the checkpoint can be seen."""
    # rename() would replace an empty folder without a word.
    _refuse_existing(final)
    os.rename(temp, final)
