"""Which machines train together. Light: a profile and requests carry it; what starts processes there is launcher.py's."""

from __future__ import annotations

import shlex
from datetime import timedelta
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

TIMEOUT = timedelta(minutes=10)
"""How long a process waits for the others, unless a profile says otherwise."""
SSH = "ssh -o BatchMode=yes -o ServerAliveInterval=10 {host} {command}"


class TrainingHosts(BaseModel):
    """One setting for CT, SFT, the ORM and RL alike. It says where processes run, never what is learned."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hosts: Annotated[
        tuple[str, ...],
        Field(
            description="addresses of the machines that share `num_processes`, this one among them, with one file system and one "
            "environment; none: this machine alone"
        ),
    ] = ()
    launch: Annotated[
        str,
        Field(
            description="how a shell command is run on another host: {host} stands for its address, {command} for the command, as one "
            "word; its standard input has to reach the command, which ends with it"
        ),
    ] = SSH

    timeout_s: Annotated[
        float,
        Field(
            gt=0,
            description="how long a process waits for the others before the run fails and is restarted, s: longer than one of them "
            "may compute alone, or write a checkpoint",
        ),
    ] = TIMEOUT.total_seconds()

    @field_validator("hosts")
    @classmethod
    def _once_each(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(hosts)) < len(hosts) or not all(hosts):
            raise ValueError(f"each host has one address of its own: {', '.join(hosts)}")
        return hosts

    @field_validator("launch")
    @classmethod
    def _with_its_places(cls, launch: str) -> str:
        words = shlex.split(launch)
        if "{command}" not in words or not any("{host}" in word for word in words):
            raise ValueError(f"{launch!r} has to name {{host}} and, as a word of its own, {{command}}, as in {SSH!r}")
        return launch

    @property
    def timeout(self) -> timedelta:
        return timedelta(seconds=self.timeout_s)

    def command_on(self, host: str, command: str) -> list[str]:
        """What to start here so that the shell command runs there."""
        return [command if word == "{command}" else word.replace("{host}", host) for word in shlex.split(self.launch)]


THIS_MACHINE = TrainingHosts()
