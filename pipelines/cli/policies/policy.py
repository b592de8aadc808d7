"""`flywheel policy …`: a checkpoint behind OpenAI's interface. The server itself is models/server."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import ValidationError

from models.engine.settings import EngineSettings, Quantisation
from pipelines.cli.options import console
from sandbox.http.tokens import own_token
from warehouse.core.errors import ConfigError
from warehouse.core.home import Home

if TYPE_CHECKING:
    from models.server.backend import ServedEngine
    from models.server.settings import ServerSettings
    from pipelines.policy_server.following import Follower
    from warehouse.storage.tables import Warehouse

DEFAULT_PORT = 8431
TOKEN_VARIABLE = "FLYWHEEL_POLICY_TOKEN"

policy = typer.Typer(no_args_is_help=True, help="Policies over HTTP: serve a checkpoint to anything that speaks OpenAI's interface.")
HomeOption = Annotated[
    Path | None, typer.Option("--home", envvar="FLYWHEEL_HOME", help="Where checkpoints and the token lie \\[default: .flywheel].")
]

QuantisationOption = Annotated[
    Quantisation | None, typer.Option(help="Bits of a checkpoint's linear layers (docs/serving.md) \\[default: as they are].")
]


@policy.command()
def serve(
    checkpoint: Annotated[
        str | None, typer.Argument(help="Checkpoint id, ITERATION/STAGE, `released`, or any Hugging Face model's folder.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Serve whichever release is live, now and from then on: after a promotion, after a rollback.")
    ] = False,
    host: Annotated[str, typer.Option(help="Address to listen on; traffic is not encrypted: better use a tunnel.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = DEFAULT_PORT,
    token_env: Annotated[str, typer.Option(help="Variable that holds the token; not set: a file in the home.")] = TOKEN_VARIABLE,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A name that requests may ask for, beside loopback names, IP addresses and --host; may repeat.")
    ] = None,
    name: Annotated[str, typer.Option(help="What clients call the model, whichever weights answer.")] = "policy",
    max_concurrency: Annotated[int, typer.Option(min=1, help="Answers under way at once; further requests wait.")] = 64,
    max_waiting: Annotated[int, typer.Option(min=0, help="Requests that may wait; more are turned away with 429.")] = 512,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer that may be asked for.")] = 4096,
    max_context: Annotated[
        int | None, typer.Option(min=2, help="Tokens of prompt and answer together \\[default: the model's positions].")
    ] = None,
    weights_root: Annotated[
        list[Path] | None, typer.Option(help="A further folder below which POST /v1/weights may load, beside the home's checkpoints.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    quantisation: QuantisationOption = None,
    device: Annotated[str, typer.Option(help="Where the model runs, e.g. cpu or cuda:0.")] = "cpu",
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of the tensor work; one is fastest for a tiny model.")] = 1,
    grace: Annotated[float, typer.Option(min=0, help="Seconds that answers under way may take to end after Ctrl-C or SIGTERM.")] = 30.0,
    home: HomeOption = None,
) -> None:
    """Serve a checkpoint: /v1/chat/completions, /v1/completions, /v1/models, streaming, /health, /metrics, POST /v1/weights.

    Every request needs the token, as `Authorization: Bearer TOKEN`: of the variable that --token-env names, else of the file policy/token
    in the home, which is made at the first start.

        flywheel policy serve released --port 8431

        flywheel policy serve --follow

        curl -H "Authorization: Bearer $(cat .flywheel/policy/token)" http://127.0.0.1:8431/v1/models

    See docs/serving.md for how a profile, or any OpenAI client, uses it.
    """
    from models.server.settings import ServerSettings
    from warehouse.storage.tables import Warehouse

    if dtype not in ("float32", "bfloat16"):
        raise ConfigError(f"--dtype {dtype!r}: float32 and bfloat16 are allowed")
    place = Home(home.absolute()) if home is not None else Home.from_env()
    warehouse = Warehouse(place)
    served = live_release(warehouse, checkpoint, weights_root) if follow else named_checkpoint(warehouse, checkpoint)
    token, token_place = server_token(place, token_env)
    try:
        settings = ServerSettings(
            model_name=name,
            max_concurrency=max_concurrency,
            max_waiting=max_waiting,
            max_tokens=max_tokens,
            weight_roots=() if follow else tuple(weight_roots(place, weights_root or [])),
            grace_s=grace,
            allowed_hosts=(host, *(allow_host or [])),
        )
    except ValidationError as error:
        raise ConfigError(f"invalid limits: {error.errors()[0]['msg']}") from error
    engine_settings = EngineSettings(
        max_rows=max_concurrency,
        max_context=max_context,
        num_threads=threads,
        running_rows="finish" if follow else "recompute",
        quantisation=quantisation,
    )
    with opened(served, dtype, device, engine_settings) as engine:
        asyncio.run(_serve(engine, token, token_place, settings, host, port, served.follower))


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a server begins with, and with --follow what hands it later releases."""

    folder: Path
    version: int = 0
    follower: Follower | None = None


def live_release(warehouse: Warehouse, checkpoint: str | None, weights_root: list[Path] | None) -> Served:
    """Of --follow. Raises ConfigError for options that do not go with it, CheckpointError where nothing is live."""
    from pipelines.policy_server.following import Follower, find_live
    from warehouse.lineage.registry import RELEASED

    if checkpoint not in (None, RELEASED):
        raise ConfigError(f"--follow serves the live release, and {checkpoint!r} is named besides: leave one of the two out")
    if weights_root:
        raise ConfigError("--follow takes weights of the live release only: leave --weights-root out")
    warehouse.home.check_exists()
    live = find_live(warehouse)
    return Served(folder=live.policy.folder, version=live.number, follower=Follower(warehouse, _say))


def named_checkpoint(warehouse: Warehouse, checkpoint: str | None) -> Served:
    """Raises ConfigError where none is named, CheckpointError where there is none of that name."""
    from pipelines.cli.data.queries import checkpoint_folder

    if checkpoint is None:
        raise ConfigError("name a checkpoint, e.g. `released`, or give --follow")
    return Served(folder=checkpoint_folder(warehouse, checkpoint))


@contextmanager
def opened(served: Served, dtype: str, device: str, settings: EngineSettings) -> Iterator[ServedEngine]:
    """The engine with its first weights. Prints what was assumed of a model without a card of ours."""
    from models.checkpoints.importing import assumed, with_card
    from models.server.backend import ServedEngine

    with with_card(served.folder) as whole:
        if whole != served.folder:
            _say(assumed(whole, served.folder))
        with closing(ServedEngine.open(whole, dtype=dtype, device=device, settings=settings, version=served.version)) as engine:
            yield engine


@policy.command()
def follow(
    server: Annotated[list[str], typer.Option(help="Address of a running policy server; may repeat: all are handed a release.")],
    weights: Annotated[str, typer.Option(help="How weights reach it: auto, disk, transfer (docs/serving.md).")] = "auto",
    token_env: Annotated[str, typer.Option(help="Variable that holds the servers' token; not set: none is sent.")] = TOKEN_VARIABLE,
    home: HomeOption = None,
) -> None:
    """Have servers that run elsewhere serve whichever release is live: vLLM, SGLang, or ours. Until Ctrl-C.

    They read checkpoints from the home under the same path, or are sent them (--weights transfer). Answers under way end with the weights
    that they began with where the server can do that, as vLLM does. A server that was restarted is handed the live release again.

        flywheel policy follow --server http://127.0.0.1:8000
    """
    from models.http.config import HttpEngineConfig
    from models.http.engine import HttpEngine
    from pipelines.policy_server.following import Follower, ServersElsewhere
    from warehouse.storage.tables import Warehouse

    place = Home(home.absolute()) if home is not None else Home.from_env()
    place.check_exists()
    given = {
        "base_url": server[0],
        "replicas": server[1:],
        "weights": weights,
        "under_way": "finish",
        "token_env": token_env if os.environ.get(token_env, "").strip() else None,
        "retries": 0,
    }
    try:
        config = HttpEngineConfig.model_validate(given)
    except ValidationError as error:
        raise ConfigError(f"invalid server: {error.errors()[0]['msg']}") from error
    with closing(HttpEngine(config)) as engine:
        gives = engine.capabilities()
        if gives.loads != "checkpoints":
            raise ConfigError(f"{server[0]} ({gives.server}) loads {gives.loads}, and a release is a whole checkpoint: see docs/serving.md")
        _say(f"policy server: {', '.join(server)}, {gives.server}, weights by {gives.weights}")
        with suppress(KeyboardInterrupt):
            asyncio.run(Follower(Warehouse(place), _say).follow(ServersElsewhere(engine)))


def _say(line: str) -> None:
    console.print(line, soft_wrap=True, highlight=False, markup=False)
    sys.stdout.flush()


async def _serve(
    engine: ServedEngine, token: str, token_place: str, settings: ServerSettings, host: str, port: int, follower: Follower | None
) -> None:
    from models.server.serve import serve as run_server
    from sandbox.http.serving import address_of, bind, is_loopback

    with bind(host, port) as listener:

        def ready() -> None:
            console.print(f"policy server: {address_of(listener)}", soft_wrap=True)
            served = f"{engine.policy_id} as {settings.model_name!r}, {engine.max_context} tokens of context"
            console.print(f"serves: {served}", soft_wrap=True, highlight=False)
            console.print(f"token: in {token_place}", soft_wrap=True, highlight=False)
            if not is_loopback(host):
                console.print(f"[yellow]{host} can be reached from other machines, and traffic is not encrypted.[/]")
            sys.stdout.flush()

        await run_server(engine, token, settings, listener, ready, beside=follower.follow if follower is not None else None)
    console.print("every answer is given")


def weight_roots(home: Home, further: Sequence[Path]) -> list[Path]:
    """Where a server loads weights from: the home's checkpoints, which every stage's own are, and what is named besides."""
    return [home.root / "checkpoints", *(root.absolute() for root in further)]


def server_token(home: Home, variable: str, environ: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """The server's token, and in words where it is from. Raises ConfigError."""
    if token := environ.get(variable, "").strip():
        return token, f"the variable {variable}"
    path = home.root / "policy" / "token"
    return own_token(path), f"the file {path}"
