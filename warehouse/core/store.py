"""The object store that FLYWHEEL_STORE names: whole objects put, read, listed and deleted by name, through `obstore`. What is in them is
the caller's; nothing here is kept on the disk.

An object is there whole or not at all, and `create` puts one only where there is none (`If-None-Match: *`): by that, writers on several
hosts exclude each other. The keys, the region and an endpoint come from the usual variables (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
AWS_REGION, AWS_ENDPOINT_URL …).
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from warehouse.core.errors import ConfigError, StoreUnreachable, missing_extra

if TYPE_CHECKING:
    from obstore.store import S3Store

STORE_VARIABLE = "FLYWHEEL_STORE"
TRIES_S = 60
"""How long one request is retried: after a failure of the server's, a lost connection, or no answer."""
MAX_RETRIES = 10
"""Within that time."""
ANSWER_S = 20
"""Wait for the next bytes of an answer before the connection counts as lost."""
SEND_S = 300
"""The same where something is sent: the client counts the time that it takes to send, too."""
AT_ONCE = 8
_URL = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(?P<prefix>[^?#]*))?")
_PUT_AT_ONCE, _READ_AT_ONCE = 8 * 2**20, 4 * 2**20
_MOST_PARTS = 9_000
"""Of one object; S3 takes 10,000."""
_IN_PARTS = threading.Lock()
"""One object is sent in parts at a time, AT_ONCE of them: else a slow connection has more under way than it can send in SEND_S."""
_RESUMPTIONS = 8
_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Found:
    """One object of a listing. `name` is relative to the store."""

    name: str
    size: int
    modified: datetime


@dataclass(frozen=True, slots=True)
class Store:
    """Objects below `s3://bucket/prefix`. Holds nothing open: threads may share it, and processes each make their own.

    Every method raises StoreUnreachable where the store gives no answer or fails for TRIES_S seconds (`write`: SEND_S and TRIES_S),
    ConfigError where it refuses."""

    url: str

    @classmethod
    def of(cls, url: str) -> Store:
        """Raises ConfigError for an address of another kind."""
        found = _URL.fullmatch(url.rstrip("/"))
        if found is None:
            raise ConfigError(f"{STORE_VARIABLE}={url!r}: an object store is named s3://bucket/prefix")
        return cls(url.rstrip("/"))

    @classmethod
    def from_env(cls) -> Store | None:
        """That of FLYWHEEL_STORE; None where it is not set: then everything lies on the disk."""
        url = os.environ.get(STORE_VARIABLE)
        return cls.of(url) if url else None

    def read(self, name: str) -> bytes | None:
        """All of an object; None where there is none."""
        import obstore

        with self._asking("read", name):
            retries = _RetryLimit()
            while True:
                try:
                    return bytes(obstore.get(self._client, name).bytes())
                except FileNotFoundError as error:
                    self._check_bucket(error)
                    return None
                except obstore.exceptions.GenericError:
                    if retries.is_over():
                        raise

    def read_many(self, names: Iterable[str]) -> list[bytes | None]:
        return at_once(self.read, names)

    def create(self, name: str, data: bytes) -> bool:
        """Put a new object; False where another of that name is there. Where an answer was lost on the way and the
        object is there with these bytes, it is ours: the bytes of no two writers are the same."""
        import obstore

        with self._asking("write", name):
            try:
                obstore.put(self._client, name, data, mode="create", use_multipart=False)
            except obstore.exceptions.AlreadyExistsError:
                return self.read(name) == data
            except FileNotFoundError as error:
                self._check_bucket(error)
                raise
            except obstore.exceptions.GenericError:
                if (there := self.read(name)) is None:
                    raise
                return there == data
        return True

    def check_creates(self) -> None:
        """Try whether `create` leaves alone what is there: else two hosts commit the same version of a table. Raises ConfigError."""
        name = f"doctor/{uuid.uuid4().hex}"
        is_new, again = self.create(name, b"1"), self.create(name, b"2")
        is_there, is_listed = self.read(name) == b"1", any(each.name == name for each in self.list("doctor"))
        self.delete([name])
        if again or not (is_new and is_there and is_listed):
            raise ConfigError(
                f"{self.url} puts an object where one is, or does not list it, so hosts would lose commits there: take a store with "
                "conditional puts (If-None-Match: *) and consistent listing, as S3 has them"
            )

    def write(self, name: str, data: bytes | Path) -> None:
        """Put an object, in place of what was there. A file is sent in parts, and is there once all are."""
        import obstore

        size = len(data) if isinstance(data, bytes) else data.stat().st_size
        part = max(_PUT_AT_ONCE, -(-size // _MOST_PARTS))
        with self._asking("write", name), _IN_PARTS if size > part else contextlib.nullcontext():
            try:
                obstore.put(_client_of(self.url, SEND_S), name, data, chunk_size=part, max_concurrency=AT_ONCE)
            except FileNotFoundError as error:
                self._check_bucket(error)
                raise

    def fetch(self, name: str, path: Path) -> None:
        """Copy an object to a file, which is there whole or not at all. A connection that is cut is taken up where it was. Raises
        FileNotFoundError where there is no such object."""
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, aside = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".fetched")
        try:
            with os.fdopen(descriptor, "wb") as file:
                for part in self.stream(name):
                    file.write(part)
            os.chmod(aside, 0o644)
            os.replace(aside, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(aside)
            raise

    def stream(self, name: str, begin: int = 0) -> Iterator[bytes]:
        """The bytes of an object from `begin` on, in parts. Raises FileNotFoundError."""
        import obstore

        retries = _RetryLimit()
        with self._asking("read", name):
            while True:
                try:
                    options: Any = {"range": {"offset": begin}} if begin else None
                    answer = obstore.get(self._client, name, options=options)
                    size = answer.meta["size"]
                    for part in answer.stream(min_chunk_size=_READ_AT_ONCE):
                        begin, retries = begin + len(part), _RetryLimit()
                        yield bytes(part)
                    if begin >= size or retries.is_over():  # what is short then is noticed by who checks it
                        return
                except FileNotFoundError as error:
                    self._check_bucket(error)
                    raise
                except obstore.exceptions.GenericError:
                    if retries.is_over():
                        raise

    def size(self, name: str) -> int:
        """In bytes. Raises FileNotFoundError."""
        import obstore

        with self._asking("read", name):
            return int(obstore.head(self._client, name)["size"])

    def read_range(self, name: str, begin: int, num: int) -> bytes:
        """Raises FileNotFoundError."""
        import obstore

        with self._asking("read", name):
            retries = _RetryLimit()
            while True:
                try:
                    return bytes(obstore.get_range(self._client, name, start=begin, length=num)) if num else b""
                except obstore.exceptions.GenericError:
                    if retries.is_over():
                        raise

    def list(self, prefix: str, after: str | None = None) -> Iterator[Found]:
        """The objects whose names begin with the folder `prefix`, in the order of their names; with `after`, those after that name."""
        import obstore

        retries = _RetryLimit()
        with self._asking("list", prefix):
            while True:
                try:
                    for batch in obstore.list(self._client, prefix, offset=after):
                        for meta in batch:
                            after = meta["path"]
                            yield Found(after, meta["size"], meta["last_modified"])
                    return
                except FileNotFoundError as error:
                    self._check_bucket(error)
                    return
                except obstore.exceptions.GenericError as error:
                    self._check_bucket(error)
                    if retries.is_over():
                        raise

    def delete(self, names: Collection[str]) -> None:
        """Those that are there."""
        import obstore

        if names:
            with self._asking("delete", f"{len(names)} objects"), contextlib.suppress(FileNotFoundError):
                retries = _RetryLimit()
                while True:
                    try:
                        obstore.delete(self._client, list(names))
                        return
                    except obstore.exceptions.GenericError:
                        if retries.is_over():
                            raise

    @property
    def _client(self) -> S3Store:
        return _client_of(self.url, ANSWER_S)

    @contextlib.contextmanager
    def _asking(self, verb: str, name: str) -> Iterator[None]:
        import obstore.exceptions as refusals

        try:
            yield
        except (refusals.PermissionDeniedError, refusals.UnauthenticatedError) as error:
            raise ConfigError(
                f"{self.url} does not let us {verb} {name} ({_first_line(error)}): set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to keys "
                "that may read, write, list and delete there"
            ) from error
        except refusals.BaseError as error:
            self._check_bucket(error)
            raise StoreUnreachable(
                f"could not {verb} {name} in {self.url} ({_first_line(error)}): check that the object store runs and that AWS_ENDPOINT_URL "
                "names it, then do the same again"
            ) from error

    def _check_bucket(self, error: BaseException) -> None:
        if "NoSuchBucket" in str(error):
            raise ConfigError(f"there is no bucket of {self.url}: create it, or set {STORE_VARIABLE} to an existing one") from error


class _RetryLimit:
    """How often, and for how long, a cut-off body is requested again; where there was no answer the client itself retries."""

    def __init__(self) -> None:
        self._left, self._until = _RESUMPTIONS, time.monotonic() + TRIES_S

    def is_over(self) -> bool:
        self._left -= 1
        return self._left < 0 or time.monotonic() > self._until


class RangedObject(io.RawIOBase):
    """An object as a file that is read by ranges, for who needs little of it. Raises FileNotFoundError, as it is made or later."""

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name, self._size, self._at = store, name, store.size(name), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        left = max(0, self._size - self._at)
        data = self._store.read_range(self._name, self._at, left if size < 0 else min(size, left))
        self._at += len(data)
        return data


def at_once(do: Callable[[_Argument], _Result], arguments: Iterable[_Argument]) -> list[_Result]:
    """The results in order, of up to AT_ONCE calls at a time: what each waits for is the network."""
    listed = list(arguments)
    if len(listed) < 2:
        return [do(each) for each in listed]
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="store") as pool:
        return list(pool.map(do, listed))


@lru_cache(maxsize=8)
def _client_of(url: str, answer_s: float) -> S3Store:
    try:
        from obstore.store import S3Store
    except ImportError as error:
        raise ConfigError(f"{STORE_VARIABLE}={url}: {missing_extra(error.name, 's3')}") from error
    found = _URL.fullmatch(url)
    if found is None:
        raise ConfigError(f"{STORE_VARIABLE}={url!r}: an object store is named s3://bucket/prefix")
    is_plain = os.environ.get("AWS_ENDPOINT_URL_S3", os.environ.get("AWS_ENDPOINT_URL", "")).startswith("http:")
    return S3Store(
        found["bucket"],
        prefix=found["prefix"] or None,
        region=os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1",
        client_options={
            "allow_http": is_plain,
            "connect_timeout": timedelta(seconds=5),
            "read_timeout": timedelta(seconds=answer_s),
            "timeout": timedelta(hours=1),
        },
        retry_config={
            "max_retries": MAX_RETRIES,
            "retry_timeout": timedelta(seconds=TRIES_S if answer_s == ANSWER_S else answer_s + TRIES_S),
            "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=5), "base": 2},
        },
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
