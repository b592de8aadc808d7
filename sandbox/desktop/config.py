"""The file that says where the desktops of this machine's sessions come from, for every lender of sessions (a pool, a fleet, a server, an
iteration). It is named by the environment variable FLYWHEEL_DESKTOPS; without one, every desktop is a box of this machine.

    provider: qemu              # a virtual machine, put back to a snapshot for every episode
    image: ~/vm-debian

    provider: agent             # a machine of one's own on which the guest agent runs
    host: 192.0.2.7
    port: 8765
    token_file: ~/guest.token
    restore: [virsh, snapshot-revert, windows, clean]
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from sandbox.desktop.session import WINDOW_LIMIT_S, DesktopSession
from warehouse.core.errors import ConfigError, DesktopMissing, missing_extra
from warehouse.core.plain_yaml import read_yaml

DESKTOPS_VARIABLE = "FLYWHEEL_DESKTOPS"
SizePx = Annotated[int, Field(ge=320, le=8192)]
Seconds = Annotated[float, Field(gt=0)]
AtOnce = Annotated[int, Field(ge=1, le=64, description="desktops of one pool or fleet at the same time, by default")]
WindowS = Annotated[Seconds, Field(description="how long a task's program may take to its first window")]


class _Provider(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LocalProvider(_Provider):
    """Boxes of this machine: local.py."""

    provider: Literal["local"] = "local"
    width_px: SizePx = 1024
    height_px: SizePx = 768
    at_once: AtOnce = 4
    window_s: WindowS = WINDOW_LIMIT_S

    def session(self) -> DesktopSession:
        from sandbox.desktop.box import BoxSettings
        from sandbox.desktop.local import LocalDesktops

        return DesktopSession(LocalDesktops(BoxSettings(width_px=self.width_px, height_px=self.height_px)), window_s=self.window_s)


class QemuProvider(_Provider):
    """Virtual machines, one for each session: qemu.py."""

    provider: Literal["qemu"]
    image: Annotated[Path | None, Field(description="folder that scripts/build-vm-image.sh made; default: vm-debian in the cache")] = None
    width_px: SizePx = 1024
    height_px: SizePx = 768
    memory_mib: Annotated[int, Field(ge=256, description="of each machine")] = 1024
    at_once: AtOnce = 1
    window_s: WindowS = 300.0

    def session(self) -> DesktopSession:
        try:
            from sandbox.desktop.machine import Image
            from sandbox.desktop.qemu import QemuDesktops, QemuSettings, default_image
        except ModuleNotFoundError as error:
            raise DesktopMissing(missing_extra(error.name, "desktop")) from error

        image = Image(folder=self.image.expanduser()) if self.image else default_image()
        settings = QemuSettings(image=image, width_px=self.width_px, height_px=self.height_px, memory_mib=self.memory_mib)
        return DesktopSession(QemuDesktops(settings), window_s=self.window_s)


class AgentProvider(_Provider):
    """One machine that somebody else keeps running, with the guest agent on it: agent_desktop.py. It has one desktop."""

    provider: Literal["agent"]
    host: str
    port: Annotated[int, Field(ge=1, le=65535)]
    token_file: Annotated[Path, Field(description="the file that the agent was given")]
    restore: Annotated[
        tuple[str, ...],
        Field(min_length=1, description="command of this machine that puts the other one back to how it was, before every episode"),
    ]
    restore_s: Annotated[Seconds, Field(description="how long that may take, until the agent answers")] = 300.0
    call_s: Annotated[Seconds, Field(description="how long one request to the agent may take")] = 60.0
    window_s: WindowS = 300.0

    @property
    def at_once(self) -> int:
        return 1

    def session(self) -> DesktopSession:
        """Raises ConfigError where the token cannot be read."""
        from sandbox.desktop.agent_desktop import AgentDesktops, AgentSettings

        try:
            token = self.token_file.expanduser().read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            raise ConfigError(f"token_file of {DESKTOPS_VARIABLE} is {str(self.token_file)!r}, which cannot be read: {error}") from error
        settings = AgentSettings(
            host=self.host, port=self.port, token=token, restore=self.restore, restore_s=self.restore_s, call_s=self.call_s
        )
        return DesktopSession(AgentDesktops(settings), window_s=self.window_s)


Provider = LocalProvider | QemuProvider | AgentProvider
_PROVIDER: TypeAdapter[Provider] = TypeAdapter(Annotated[Provider, Field(discriminator="provider")])


def machine_provider() -> Provider:
    """What FLYWHEEL_DESKTOPS names, or boxes of this machine. Raises ConfigError for a file that is missing or malformed."""
    named = os.environ.get(DESKTOPS_VARIABLE)
    if not named:
        return LocalProvider()
    try:
        return _PROVIDER.validate_python(read_yaml(Path(named).expanduser().read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"{DESKTOPS_VARIABLE} is {named!r}, which cannot be read: {error.strerror}. Name a YAML file.") from error
    except (yaml.YAMLError, ValidationError) as error:
        raise ConfigError(f"{named}, which {DESKTOPS_VARIABLE} names, is malformed: {error}") from error
