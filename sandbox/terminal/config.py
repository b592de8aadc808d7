"""The file that says what the tools of terminal and hybrid sessions reach on a machine: a library for Search and LinkReader, MCP servers,
the network, limits. It is named by the environment variable FLYWHEEL_TOOLS; without one, sessions have an empty library, no servers, no
network, and the limits of bubblewrap.py and shell.py.

    library: {folder: ~/handbooks}          # or {search: "http://localhost:7000/s?q={query}", read: "http://localhost:7000/r?u={url}"}
    mcp_servers:
      calculator: {command: [/usr/bin/python3, -m, calculator]}
    network: none                           # or open: the host's, see docs/isolation.md
    limits: {memory_mib: 2048, workspace_mib: 512}
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sandbox.terminal.bubblewrap import OPEN_FILES_NEEDED, JailLimits, Network
from sandbox.terminal.mcp import McpServer
from sandbox.terminal.search import HttpLibrary, Library, LocalLibrary
from sandbox.terminal.tools import ToolSettings
from warehouse.core.errors import ConfigError
from warehouse.core.plain_yaml import read_yaml

TOOLS_VARIABLE = "FLYWHEEL_TOOLS"
Count = Annotated[int, Field(ge=1)]


class LibraryConfig(BaseModel):
    """Either a folder of .txt, .md and .html documents, or an HTTP endpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: Path | None = None
    search: Annotated[str | None, Field(description="address that holds {query}; answers a JSON list of {url, title, snippet}")] = None
    read: Annotated[str | None, Field(description="address that holds {url}; answers text or HTML")] = None

    @model_validator(mode="after")
    def _is_one_of_two(self) -> LibraryConfig:
        if (self.folder is None) == (self.search is None or self.read is None) or (self.folder and (self.search or self.read)):
            raise ValueError("give either folder, or both search and read")
        return self

    def open(self) -> Library:
        """Raises ConfigError where the folder is none, or an address is malformed."""
        if self.folder is not None:
            return LocalLibrary.from_folder(self.folder.expanduser())
        return HttpLibrary(self.search or "", self.read or "")


class LimitsConfig(BaseModel):
    """What a session may use; see JailLimits."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    processes: Annotated[int, Field(ge=16)] | None = None
    memory_mib: Annotated[int, Field(ge=64)] | None = None
    cpus: Annotated[float, Field(gt=0)] | None = None
    cpu_s: Count | None = None
    workspace_mib: Count | None = None
    scratch_mib: Count | None = None
    open_files: Annotated[int, Field(ge=OPEN_FILES_NEEDED)] | None = None


class ToolsConfig(BaseModel):
    """The file as a whole."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    library: LibraryConfig | None = None
    mcp_servers: dict[str, McpServer] = {}
    network: Annotated[Network, Field(description="what programs in a terminal reach: nothing, or whatever the host does")] = "none"
    limits: LimitsConfig = LimitsConfig()

    def settings(self) -> ToolSettings:
        """Raises ConfigError where what is named cannot be opened."""
        limits = replace(JailLimits(network=self.network), **self.limits.model_dump(exclude_none=True))
        return ToolSettings(jail=limits, library=self.library.open() if self.library else LocalLibrary({}), mcp_servers=self.mcp_servers)


def machine_settings() -> ToolSettings:
    """What FLYWHEEL_TOOLS names, or the defaults. Raises ConfigError for a file that is missing or malformed."""
    named = os.environ.get(TOOLS_VARIABLE)
    if not named:
        return ToolSettings()
    try:
        parsed = read_yaml(Path(named).expanduser().read_text(encoding="utf-8"))
        return ToolsConfig.model_validate(parsed or {}).settings()
    except OSError as error:
        raise ConfigError(f"{TOOLS_VARIABLE} is {named!r}, which cannot be read: {error.strerror}. Name a YAML file.") from error
    except (yaml.YAMLError, ValidationError) as error:
        raise ConfigError(f"{named}, which {TOOLS_VARIABLE} names, is malformed: {error}") from error
