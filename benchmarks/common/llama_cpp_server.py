"""llama.cpp's server on the CPU, as a process of its own on loopback, for long tests: on a tiny checkpoint, in a venv of its own, made on
first use. PyPI has no llama-server; xllamacpp has its code, with the routes and the HTTP server.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from benchmarks.common.server_process import ServerProcess, free_port, server_process
from benchmarks.common.venv import python_of

INSTALLS = ("xllamacpp==2026.10.11549", "gguf==0.19.0", "safetensors")
START_S = 120.0


def llama_cpp_python() -> Path:
    """The interpreter of .bench/llama-cpp. Raises what python_of raises."""
    return python_of(Path(".bench/llama-cpp").resolve(), INSTALLS)


def llama_cpp_server(python: Path, folder: Path, scratch: Path) -> AbstractContextManager[ServerProcess]:
    """A server on a Qwen3 checkpoint, whose folder is the model's name, for as long as the block lasts. Raises RuntimeError, with the end
    of its log, where it does not start."""
    port, program = free_port(), Path(__file__).with_name("llama_cpp_serve.py")
    command = [python, program, folder, scratch / "model.gguf", str(port)]
    return server_process(command, port, scratch / "llama-cpp.log", environment={}, start_s=START_S)
