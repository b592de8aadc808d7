"""The error tree of the whole system. One root; a short branch a room; each leaf is also a standard-library type, so callers
outside the project can catch it without importing it.

    FlywheelError
    ├── ConfigError (ValueError)            a profile, flag or file says something that is not allowed
    ├── MachineLimit (OSError)              the machine gives less than is needed: open files, memory, processes
    ├── WarehouseError
    │   ├── UnknownTable (LookupError)      no such table, version or iteration
    │   ├── UnknownId (LookupError)         no task, episode, sample, dataset, checkpoint … of that id
    │   ├── QueryError (ValueError)         a person's SQL is wrong, or asks for what a query may not touch
    │   ├── SchemaMismatch (ValueError)     rows do not fit the catalogue
    │   ├── CorruptTable (OSError)          a table's log or a data file cannot be read
    │   ├── CorruptDatabase (OSError)       a database file of the home, e.g. Dagster's runs, cannot be read
    │   ├── UnreadablePicture (ValueError)  a picture is not a whole PNG, JPEG or WebP file, or too large to decode
    │   ├── StorageFull (OSError)           the disk is full; nothing was committed
    │   ├── StoreUnreachable (ConnectionError)  the object store does not answer, or only with failures
    │   ├── WriteConflict (RuntimeError)    two writers fought over one partition and retries ran out
    │   ├── ReleaseRefused (ValueError)     a promotion, hold or rollback that is not possible as things are
    │   ├── ReleasesChanged (RuntimeError)  somebody else changed the releases meanwhile; look again
    │   ├── ReportedOnly (ValueError)       a choice would read a split that is only reported, e.g. holdout
    │   └── ContaminatedDataset (ValueError)  a training set holds what may not be learned from, e.g. an eval instance
    ├── SandboxError                        the infrastructure failed, never the policy: retried, then recorded as `crashed`
    │   ├── BrowserMissing (FileNotFoundError)
    │   ├── BrowserCrashed (ConnectionError)
    │   │   └── WorkerCrashed                   the process that held the session, and with it its browser
    │   ├── BubblewrapMissing (FileNotFoundError)
    │   ├── WebAppMissing (FileNotFoundError)
    │   ├── WebAppCrashed (ConnectionError)
    │   │   └── WebAppSpoiled               its database cannot be read any more: what the agent did to it
    │   ├── JailCrashed (ConnectionError)   a terminal's jail could not be started, or went away
    │   ├── CorpusMissing (FileNotFoundError)  a package that generated questions are about cannot be had
    │   ├── DesktopMissing (FileNotFoundError)  a program that a desktop needs is not installed
    │   ├── DesktopCrashed (ConnectionError)
    │   ├── DeviceMissing (LookupError)     no Android device of that serial is there, or it cannot be used
    │   ├── DeviceLost (ConnectionError)
    │   ├── LeaseLost (LookupError)         a lease on a remote session is over: released, overdue, or never the caller's
    │   ├── PageNotReady (TimeoutError)     a task page never became ready
    │   ├── SandboxBusy (TimeoutError)      no session came free in time
    │   ├── NothingToLearn (RuntimeError)   nearly all episodes of several batches in a row crashed, or had no answer
    │   ├── HarnessFailed (RuntimeError)    an agent program could not be started, or failed before it asked for anything
    │   ├── ServerUnreachable (ConnectionError)  a sandbox server does not answer
    │   └── SandboxTimeout (TimeoutError)   the environment did not answer in time
    ├── AccessDenied (PermissionError)      a server wants a token, or does not allow what was asked
    ├── TaskError (ValueError)              a task specification is wrong
    ├── RecordingError
    │   ├── RecorderUnavailable (OSError)   this machine does not let us record, or a program that it takes is missing
    │   ├── RecordingLocked (PermissionError)  a recording is sealed, and the passphrase is missing or wrong
    │   ├── RecordingRefused (ValueError)   what was asked is not allowed in its state, e.g. to upload what was not reviewed
    │   ├── UploadFailed (ConnectionError)  the annotation server cannot be reached, or does not take the recording
    │   └── WordingFailed (ConnectionError) the model that is to reword thoughts or tasks does not answer
    ├── ModelError
    │   ├── CheckpointError (ValueError)    a checkpoint folder is missing, cut off or does not match its card
    │   ├── MergeError (ValueError)         parents, shapes, tokenizers or weights do not fit together
    │   ├── RequestRefused (ValueError)     a prompt or a setting of one request cannot be answered; the others can
    │   ├── EngineUnreachable (ConnectionError)  a policy server does not answer, or only with failures
    │   ├── ProcessLost (ConnectionError)   one of several processes that learn together is gone
    │   ├── ValueGateNotPassed (RuntimeError)  value pretraining ended and the critic may not steer
    │   └── TrainingDiverged (ArithmeticError)
    ├── AnnotationError
    │   ├── DatabaseUnusable (RuntimeError) the annotation database cannot be opened, or its tables are of another release
    │   ├── UnknownSubject (LookupError)    no user, campaign, assignment, run … of that id, or it is somebody else's
    │   ├── AssignmentLost (LookupError)    an assignment is no longer leased to its annotator
    │   ├── OutOfDate (RuntimeError)        it was decided on something that has changed since
    │   ├── UnreadableAnswer (ValueError)   a person's thought or action is none in the grammar
    │   ├── BadUpload (ValueError)          what was uploaded is not what was announced, or not what it says it is
    │   │   └── UploadTooLarge              more than is taken
    │   ├── NotNow (RuntimeError)           what was asked does not go with the state that the subject is in
    │   ├── LoginRefused (PermissionError)  name and password do not go together, or nobody is logged in
    │   └── TooManyAttempts (PermissionError)  so many failed or in such haste that the next has to wait
    └── PipelineError
        ├── IterationLocked (RuntimeError)  another iteration is running
        └── StageFailed (RuntimeError)      a stage's subprocess ended badly
            └── WorkerKilled                    without a word: it was killed

Each class says by `is_retryable` whether the same may succeed when it is only retried: true for infrastructure that comes and goes,
false for what a person must fix first. Who retries, and how often, is docs/failures.md; nobody keeps a list of classes.

What a policy does wrong (an unparseable action, too many steps) is a recorded outcome and not an exception: see agent/episode/episode.py.
A message says what was wrong, the value, what is allowed, and how to fix it.
"""

from __future__ import annotations

import sys
from typing import Any


class FlywheelError(Exception):
    """Root of every error this project raises on purpose."""

    is_retryable: bool = False
    """Whether the same may succeed when it is retried and nobody has fixed anything."""


class ConfigError(FlywheelError, ValueError):
    """A profile, flag or file says something that is not allowed."""


class MachineLimit(FlywheelError, OSError):
    """The machine gives less than is needed: open files, memory, processes."""


class WarehouseError(FlywheelError):
    """A table could not be read or written."""


class UnknownTable(WarehouseError, LookupError):
    """No such table, version or iteration."""


class UnknownId(WarehouseError, LookupError):
    """Nothing in the warehouse has this id."""


class QueryError(WarehouseError, ValueError):
    """A person's SQL is wrong, or asks for what a query may not touch."""


class SchemaMismatch(WarehouseError, ValueError):
    """Rows do not fit the catalogue's columns."""


class CorruptTable(WarehouseError, OSError):
    """A table's log or one of its data files cannot be read."""


class CorruptDatabase(WarehouseError, OSError):
    """A database file of the home, such as Dagster's record of runs, cannot be read."""


class UnreadablePicture(WarehouseError, ValueError):
    """A picture is not a whole PNG, JPEG or WebP file, or larger than is decoded."""


class StorageFull(WarehouseError, OSError):
    """The disk is full; the commit did not happen."""


class StoreUnreachable(WarehouseError, ConnectionError):
    """The object store does not answer, or only with failures."""

    is_retryable = True


class WriteConflict(WarehouseError, RuntimeError):
    """Two writers fought over one partition and the retries ran out."""

    is_retryable = True


class ContaminatedDataset(WarehouseError, ValueError):
    """A training set holds a sample that may not be learned from, e.g. one of an eval or holdout instance."""


class ReleaseRefused(WarehouseError, ValueError):
    """A promotion, hold or rollback that is not possible as things are. Nothing was changed."""


class ReleasesChanged(WarehouseError, RuntimeError):
    """The releases are not as they were when the change was decided on: somebody else was faster. Nothing was changed; look again."""


class ReportedOnly(WarehouseError, ValueError):
    """A choice would read what is only reported, e.g. an instance of the holdout split."""


class SandboxError(FlywheelError):
    """The infrastructure failed. Never a reward of 0: the episode is retried, then recorded as `crashed`."""

    is_retryable = True


class BrowserMissing(SandboxError, FileNotFoundError):
    """No usable Chromium was found."""

    is_retryable = False


class BrowserCrashed(SandboxError, ConnectionError):
    """The browser went away while a session used it."""


class WorkerCrashed(BrowserCrashed):
    """The process that held the session went away, and its browser with it."""


class DesktopMissing(SandboxError, FileNotFoundError):
    """A program that a desktop needs, or the desktop itself, is not installed."""

    is_retryable = False


class DesktopCrashed(SandboxError, ConnectionError):
    """The desktop went away while a session used it."""


class BubblewrapMissing(SandboxError, FileNotFoundError):
    """No bubblewrap (bwrap) was found, or it may not make namespaces here."""

    is_retryable = False


class JailCrashed(SandboxError, ConnectionError):
    """A terminal's jail could not be started, or went away while a session used it."""


class CorpusMissing(SandboxError, FileNotFoundError):
    """A package whose pages generated questions are about cannot be had on this machine, or is not the book that is known."""

    is_retryable = False


class WebAppMissing(SandboxError, FileNotFoundError):
    """A web application is not installed and could not be."""

    is_retryable = False


class WebAppCrashed(SandboxError, ConnectionError):
    """A web application did not start in its jail, or went away while a session used it."""


class WebAppSpoiled(WebAppCrashed):
    """The database of a web application cannot be read any more. In the middle of an episode that is the agent's doing: a session judges
    it, and does not pass it on."""


class DeviceMissing(SandboxError, LookupError):
    """No Android device of that serial is connected and authorised, or it lacks what a session needs."""

    is_retryable = False


class DeviceLost(SandboxError, ConnectionError):
    """The Android device, or the adb server in front of it, went away while a session used it."""


class LeaseLost(SandboxError, LookupError):
    """A lease on a remote session is over: released, overdue, or never the caller's."""


class PageNotReady(SandboxError, TimeoutError):
    """A task page loaded but never became ready."""


class SandboxBusy(SandboxError, TimeoutError):
    """No session came free in time."""


class NothingToLearn(SandboxError, RuntimeError):
    """Nearly every episode of several batches in a row crashed, or had no answer to learn from."""

    is_retryable = False


class HarnessFailed(SandboxError, RuntimeError):
    """A harness, a program that drives a session, failed, or ended before the model had answered it anything."""


class HarnessMissing(SandboxError, FileNotFoundError):
    """There is no such program as a harness names."""

    is_retryable = False


class ServerUnreachable(SandboxError, ConnectionError):
    """A sandbox server does not answer."""


class SandboxTimeout(SandboxError, TimeoutError):
    """The environment did not answer in time."""


class AccessDenied(FlywheelError, PermissionError):
    """A server wants a token, or does not allow what was asked."""


class TaskError(FlywheelError, ValueError):
    """A task specification is wrong."""


class RecordingError(FlywheelError):
    """A recording of a person's own work could not be made, read or handed over."""


class RecorderUnavailable(RecordingError, OSError):
    """This machine does not let us record, or lacks a program that it takes."""


class RecordingLocked(RecordingError, PermissionError):
    """A recording is sealed, and the passphrase is missing or wrong."""


class RecordingRefused(RecordingError, ValueError):
    """What was asked is not allowed in the state that a recording is in."""


class UploadFailed(RecordingError, ConnectionError):
    """The annotation server cannot be reached, or does not take the recording. What it holds already is not sent again."""

    is_retryable = True


class WordingFailed(RecordingError, ConnectionError):
    """The model that is to reword thoughts or tasks does not answer, or only with failures, after the last attempt."""

    is_retryable = True


class ModelError(FlywheelError):
    """A model could not be loaded, trained or merged."""


class CheckpointError(ModelError, ValueError):
    """A checkpoint folder is missing, cut off, or does not match its card."""


class MergeError(ModelError, ValueError):
    """Parents, shapes, tokenizers or weights do not fit together."""


class RequestRefused(ModelError, ValueError):
    """A prompt or a setting of one request cannot be answered, whichever weights are asked. Requests beside it go on. `param` names the
    field at fault."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param

    def __reduce__(self) -> tuple[type[RequestRefused], tuple[str, str | None]]:
        return type(self), (str(self), self.param)


class EngineUnreachable(ModelError, ConnectionError):
    """A policy server does not answer, or only with failures, after the last attempt. Never an empty answer."""

    is_retryable = True


class ProcessLost(ModelError, ConnectionError):
    """One of several processes that learn together is gone, or no longer agrees with the others. Another start goes on from what was
    kept."""

    is_retryable = True


class ValueGateNotPassed(ModelError, RuntimeError):
    """Value pretraining ended and the critic does not predict returns well enough to steer the policy."""


class TrainingDiverged(ModelError, ArithmeticError):
    """The loss is not a number, or the policy left the trust region for good."""


class AnnotationError(FlywheelError):
    """The annotation server cannot do what it was asked."""


class DatabaseUnusable(AnnotationError, RuntimeError):
    """The annotation database cannot be opened or reached, or its tables are those of another release."""


class UnknownSubject(AnnotationError, LookupError):
    """There is no user, campaign, assignment, run or picture of this id, or it is somebody else's: the message does not say which."""


class AssignmentLost(AnnotationError, LookupError):
    """An assignment is no longer leased to its annotator: the lease ran out, and it went to the next."""


class OutOfDate(AnnotationError, RuntimeError):
    """It was decided on something that has changed since; look again."""


class UnreadableAnswer(AnnotationError, ValueError):
    """A thought or an action that a person wrote is none in the grammar of their run; nothing was done."""


class BadUpload(AnnotationError, ValueError):
    """What was uploaded is not what was announced, or not what it says it is; nothing of it is kept."""


class UploadTooLarge(BadUpload):
    """A part or a recording is larger than is taken."""


class NotNow(AnnotationError, RuntimeError):
    """What was asked does not go with the state that a run, campaign, review or account is in."""


class LoginRefused(AnnotationError, PermissionError):
    """Wrong name or password, or no login or token, or one that has expired."""


class TooManyAttempts(AnnotationError, PermissionError):
    """So many attempts failed, or came in such haste, that the next has to wait."""

    is_retryable = True

    def __init__(self, message: str, retry_after_s: float = 60.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[type[TooManyAttempts], tuple[str, float]]:
        return type(self), (str(self), self.retry_after_s)


class PipelineError(FlywheelError):
    """An iteration could not start or finish."""


class IterationLocked(PipelineError, RuntimeError):
    """Another iteration is running on the same FLYWHEEL_HOME."""


class StageFailed(PipelineError, RuntimeError):
    """A stage's subprocess ended badly."""

    is_retryable = True


class WorkerKilled(StageFailed):
    """A stage's process ended without a word: somebody or the kernel killed it. What it had finished is kept."""


def is_retryable(error: BaseException) -> bool:
    """Whether the same may succeed when it is only retried. Of an error that is not ours nobody knows: its owner retries."""
    return error.is_retryable if isinstance(error, FlywheelError) else True


def class_named(name: object) -> type[FlywheelError] | None:
    """The class of this module that has the name, or None."""
    found = getattr(sys.modules[__name__], name, None) if isinstance(name, str) else None
    return found if isinstance(found, type) and issubclass(found, FlywheelError) else None


def name_of(error: BaseException) -> str:
    """The name by which another process knows an error: of the nearest class that is in this module, else its own."""
    return next((kind.__name__ for kind in type(error).__mro__ if kind.__module__ == __name__), type(error).__name__)


def to_plain(error: BaseException) -> dict[str, Any]:
    """An error as it crosses to another process: `type`, `message`, `is_retryable`."""
    return {"type": name_of(error), "message": str(error), "is_retryable": is_retryable(error)}


def from_plain(plain: dict[str, Any], otherwise: type[FlywheelError]) -> FlywheelError:
    """The error again, of its own class; of the class `otherwise` where this process does not know it. It is as retryable as it was."""
    error = (class_named(plain.get("type")) or otherwise)(str(plain.get("message", "")))
    is_retryable = plain.get("is_retryable")
    if isinstance(is_retryable, bool) and is_retryable != error.is_retryable:
        error.is_retryable = is_retryable
    return error


def missing_extra(package: str | None, extra: str) -> str:
    """What to say where a package of an optional part is not installed."""
    return f"The Python package {package!r} is not installed. Install the extra: pip install 'flywheel[{extra}]'"
