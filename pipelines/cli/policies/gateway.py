"""`flywheel gateway …`: a policy behind the interfaces that agents know, and a record of what passes. The server is models/gateway."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import ValidationError

from models.engine.settings import EngineSettings
from pipelines.cli.options import console
from pipelines.cli.policies.policy import QuantisationOption
from sandbox.http.tokens import own_token, read_tokens
from warehouse.core.errors import ConfigError
from warehouse.core.home import Home

if TYPE_CHECKING:
    from models.gateway.serve import Address
    from models.gateway.settings import GatewaySettings

DEFAULT_PORT = 8432
PROJECT = "default"
"""The project of the home's own token."""
UPSTREAM_TOKEN = "FLYWHEEL_POLICY_TOKEN"

gateway = typer.Typer(no_args_is_help=True, help="Put a policy behind an agent's own interface, and record what passes as episodes.")
HomeOption = Annotated[
    Path | None, typer.Option("--home", envvar="FLYWHEEL_HOME", help="Where episodes are recorded \\[default: .flywheel].")
]


@gateway.command()
def serve(
    upstream: Annotated[
        list[str] | None,
        typer.Option(
            help="Checkpoint id, ITERATION/STAGE, `released`, a model's folder, or the address of a policy server; may repeat: servers "
            "with the same weights share the episodes \\[default: released]."
        ),
    ] = None,
    candidate: Annotated[str | None, typer.Option(help="A second upstream, which answers a share of the episodes (--share).")] = None,
    share: Annotated[float, typer.Option(min=0, max=1, help="Share of the episodes that the candidate answers.")] = 0.1,
    host: Annotated[str, typer.Option(help="Address to listen on; traffic is not encrypted: better use a tunnel.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = DEFAULT_PORT,
    tokens: Annotated[
        Path | None, typer.Option(help="File of lines `project token`; without it one token, for the project `default`, is in the home.")
    ] = None,
    upstream_token_env: Annotated[str, typer.Option(help="Variable that holds the token of a policy server that is named by address.")] = (
        UPSTREAM_TOKEN
    ),
    candidate_token_env: Annotated[
        str | None, typer.Option(help="The same for a candidate that is named by address \\[default: none is sent].")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A name that requests may ask for, beside loopback names, IP addresses and --host; may repeat.")
    ] = None,
    episode_header: Annotated[
        str | None, typer.Option(help="A header of the client's own that names the episode, e.g. X-Session-ID for verifiers.")
    ] = None,
    max_running: Annotated[int, typer.Option(min=1, help="Calls of one project under way at once; more get a 429.")] = 256,
    keep_personal_data: Annotated[
        bool, typer.Option("--keep-personal-data", help="Record texts with e-mail addresses, numbers or secrets in them, too.")
    ] = False,
    device: Annotated[str, typer.Option(help="Where a checkpoint runs, e.g. cpu or cuda:0.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    quantisation: QuantisationOption = None,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of a checkpoint's tensor work.")] = 1,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer that may be asked of a checkpoint.")] = 4096,
    grace: Annotated[float, typer.Option(min=0, help="Seconds that calls under way may take to end after Ctrl-C or SIGTERM.")] = 30.0,
    home: HomeOption = None,
) -> None:
    """Serve OpenAI's chat completions and responses and Anthropic's messages, and record every call.

        flywheel gateway serve --upstream released

        OPENAI_BASE_URL=http://127.0.0.1:8432/v1 OPENAI_API_KEY=$(cat .flywheel/gateway/token)/run-1 my-agent

    See docs/gateway.md for how calls become episodes, and how episodes are learned from.
    """
    from models.gateway.settings import GatewaySettings

    if dtype not in ("float32", "bfloat16"):
        raise ConfigError(f"--dtype {dtype!r}: float32 and bfloat16 are allowed")
    place = Home(home.absolute()) if home is not None else Home.from_env()
    by_project, token_place = project_tokens(place, tokens)
    try:
        settings = GatewaySettings(
            max_running=max_running,
            keep_personal_data=keep_personal_data,
            candidate_share=share if candidate is not None else 0.0,
            allowed_hosts=(host, *(allow_host or [])),
            episode_header=episode_header,
            grace_s=grace,
        )
    except ValidationError as error:
        raise ConfigError(f"invalid limits: {error.errors()[0]['msg']}") from error
    upstreams = upstream or ["released"]
    if len(upstreams) > 1 and (checkpoints := [one for one in upstreams if not is_address(one)]):
        raise ConfigError(f"--upstream {checkpoints[0]}: several upstreams are addresses of policy servers (http://HOST:PORT)")
    if len({one.rstrip("/") for one in upstreams}) < len(upstreams):
        raise ConfigError(f"--upstream names a server twice: {', '.join(upstreams)}")
    variables: dict[str | None, str | None] = {candidate: candidate_token_env, **dict.fromkeys(upstreams, upstream_token_env)}
    engine = EngineSettings(num_threads=threads, quantisation=quantisation)
    opener = Opener(place, variables, device=device, dtype=dtype, engine=engine, max_tokens=max_tokens)
    asyncio.run(_serve(place, opener, upstreams, candidate, by_project, token_place, settings, host, port))


@gateway.command()
def outcomes(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run of verifiers (`vf-eval`), or its traces.jsonl.")],
    success_at: Annotated[float, typer.Option(help="Rewards from this on are V = 1.")] = 1.0,
    by: Annotated[str, typer.Option(help="Who says so, as it is stored.")] = "verifiers",
    url: Annotated[str, typer.Option(help="Address of the gateway that recorded the run.")] = f"http://127.0.0.1:{DEFAULT_PORT}",
    token_env: Annotated[
        str | None, typer.Option(help="Variable with the project's token \\[default: the home's own token, of the project `default`].")
    ] = None,
    home: HomeOption = None,
) -> None:
    """Say what came of the episodes that an evaluation by verifiers had with the gateway: its rewards become their V.

        vf-eval @ eval.toml

        flywheel gateway outcomes outputs/RUN

    The gateway's address is the client's base_url in eval.toml; docs/adapters.md has an example. The same run may be given again.
    """
    from models.gateway.verifiers_traces import post_outcomes
    from models.http.client import token_in

    place = Home(home.absolute()) if home is not None else Home.from_env()
    token = token_in(token_env) if token_env is not None else project_tokens(place, None)[0][PROJECT]
    posted = post_outcomes(run, url, token, success_at=success_at, by=by)
    for problem in posted.problems:
        console.print(problem, soft_wrap=True, highlight=False, markup=False)
    counts = ", ".join(f"{num} {what}" for what, num in sorted(posted.counts.items()) if num)
    console.print(f"outcomes: {counts or 'the run has no traces'}", soft_wrap=True, highlight=False, markup=False)
    if not posted.is_complete:
        raise ConfigError(
            "not every trace with a reward has its outcome: start the gateway with --episode-header X-Session-ID, and give its --url and "
            "its project's token"
        )


def project_tokens(home: Home, path: Path | None) -> tuple[dict[str, str], str]:
    """Tokens by project, and in words where they are. Raises ConfigError."""
    if path is not None:
        return read_tokens(path), f"the file {path}"
    own = home.root / "gateway" / "token"
    return {PROJECT: own_token(own)}, f"the file {own}"


def is_address(name: str) -> bool:
    """Whether an upstream is a server, not a checkpoint."""
    return name.startswith(("http://", "https://"))


class Opener:
    """Opens upstreams: a checkpoint behind a policy server of its own on loopback, in this process, or a server elsewhere. `variables`: by
    address, the variable with its token; nobody gets another's."""

    def __init__(
        self, home: Home, variables: Mapping[str | None, str | None], *, device: str, dtype: str, engine: EngineSettings, max_tokens: int
    ) -> None:
        self._home, self._variables, self._device, self._dtype = home, variables, device, dtype
        self._engine, self._max_tokens = engine, max_tokens

    @asynccontextmanager
    async def open(self, name: str, environ: Mapping[str, str] = os.environ) -> AsyncIterator[Address]:
        """Where an upstream is reached, for as long as the block lasts."""
        from models.gateway.serve import Address

        if is_address(name):
            yield Address(url=name, token=environ.get(self._variables.get(name) or "", "").strip() or None)
            return
        async with self._checkpoint(name) as address:
            yield address

    @asynccontextmanager
    async def _checkpoint(self, name: str) -> AsyncIterator[Address]:
        from models.gateway.served import served_checkpoint
        from pipelines.cli.data.queries import checkpoint_folder
        from warehouse.storage.tables import Warehouse

        folder = checkpoint_folder(Warehouse(self._home), name)
        served = served_checkpoint(folder, dtype=self._dtype, device=self._device, settings=self._engine, max_tokens=self._max_tokens)
        async with served as address:
            yield address


async def _serve(
    home: Home,
    opener: Opener,
    upstreams: Sequence[str],
    candidate: str | None,
    tokens: Mapping[str, str],
    token_place: str,
    settings: GatewaySettings,
    host: str,
    port: int,
) -> None:
    from agent.gateway.log import GatewayLog
    from models.gateway.serve import serve as run_gateway
    from sandbox.http.serving import address_of, bind, is_loopback

    async with AsyncExitStack() as stack:
        log = stack.enter_context(closing(GatewayLog(home)))
        live = await stack.enter_async_context(opener.open(upstreams[0]))
        live = replace(live, replicas=tuple(upstreams[1:]))
        second = await stack.enter_async_context(opener.open(candidate)) if candidate is not None else None
        listener = stack.enter_context(bind(host, port))

        def ready() -> None:
            say = [f"gateway: {address_of(listener)}", f"upstream: {', '.join(upstreams)}", f"tokens: in {token_place}"]
            if candidate is not None:
                say.append(f"candidate: {candidate}, {settings.candidate_share:.0%} of the episodes")
            if not is_loopback(host):
                say.append(f"{host} can be reached from other machines, and traffic is not encrypted")
            for line in say:
                console.print(line, soft_wrap=True, highlight=False, markup=False)
            sys.stdout.flush()

        await run_gateway(log, live, second, tokens, settings, listener, ready)
    console.print("every call is answered")
