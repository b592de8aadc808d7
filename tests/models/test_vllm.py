"""The HTTP engine on a real vLLM, on the CPU, in a venv of its own (benchmarks/common/vllm_server.py): it says what the embedded engine
says, and takes new weights by each of its ways while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from agent.episode.pool_collector import CollectorSettings, PoolCollector
from agent.policy.policy import Message, Prompt, Response, Sampling
from agent.prompts.prompt import PromptBuilder
from benchmarks.common.server_process import ServerProcess
from benchmarks.common.tiny_qwen3 import tiny_qwen3_policy
from benchmarks.common.vllm_server import vllm_server
from models.checkpoints.checkpoint import read_card, save
from models.engine.embedded import EmbeddedEngine
from models.families.registry import load_policy
from models.families.tiny_vision import tiny_vision_policy
from models.http.config import HttpEngineConfig
from models.http.engine import HttpEngine
from models.rl.config import PpoConfig
from models.rl.trainer import PpoResult, PpoRun, train_ppo
from models.rl.updates.replay import ReplayPool
from models.training.adapter_config import AdapterConfig
from models.training.adapters import prepare_for_training, save_adapter
from pipelines.policy_server.following import Follower, ServersElsewhere
from tests.models.chat_models import png
from tests.models.corridor import SHORT, CorridorPool
from tests.models.policy_servers import act
from warehouse.core.errors import ConfigError, ModelError
from warehouse.core.home import Home
from warehouse.lineage import registry
from warehouse.lineage.releases import promote
from warehouse.storage.tables import Warehouse

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),  # peft's
]
WORDS = ("Ok", "Submit", "Find", "see", "then", "hello", "click")
RL_OPTIONS = ("--logprobs-mode", "processed_logprobs", "--enable-scale-out")
LORA_OPTIONS = ("--enable-lora", "--max-lora-rank", "8")
SOURCE = str(Path(__file__).parents[2])


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`a` and `b` of different weights; `tied-a` and `tied-b`, whose output layers are their embeddings."""
    root = tmp_path_factory.mktemp("checkpoints")
    for name, seed in {"a": 0, "b": 1}.items():
        save(root / name, *tiny_qwen3_policy(WORDS, seed), stage="seed_policy", iteration="0000")
        tied = tiny_qwen3_policy(WORDS, seed, tie_word_embeddings=True)
        save(root / f"tied-{name}", *tied, stage="seed_policy", iteration="0000")
    return root


def started(python: Path, root: Path, name: str, *options: str, **variables: str) -> Any:
    return vllm_server(python, root / name, root, *RL_OPTIONS, *options, environment=variables)


@pytest.fixture(scope="module")
def server(vllm_python: Path, checkpoints: Path) -> Iterator[ServerProcess]:
    """As it is started for learning: its own routes, adapters, and weights over the network."""
    options = ("--worker-extension-cls", "models.http.vllm_gloo.Gloo", "--weight-transfer-config", '{"backend": "gloo"}')
    with started(vllm_python, checkpoints, "a", *options, VLLM_SERVER_DEV_MODE="1", PYTHONPATH=SOURCE) as running:
        yield running


def asked(text: str = "Find Ok then see", **sampling: Any) -> Prompt:
    return Prompt(messages=(Message(role="user", content=text),), sampling=Sampling(**({"max_new_tokens": 12} | sampling)))


def config(server: ServerProcess, **fields: Any) -> HttpEngineConfig:
    return HttpEngineConfig(**({"base_url": server.url, "retries": 1} | fields))


def logprobs_of(model: Any, answer: Response, temperature: float = 1.0) -> list[float]:
    """What a model gives for the tokens of an answer."""
    ids = torch.tensor([answer.prompt_token_ids + answer.token_ids])
    with torch.no_grad():
        logits = model(ids).logits[0, len(answer.prompt_token_ids) - 1 : -1]
    chosen = torch.log_softmax(logits / temperature, dim=-1).gather(1, torch.tensor(answer.token_ids)[:, None])
    return [float(one) for one in chosen[:, 0]]


@pytest.mark.parametrize("send", ["messages", "token_ids"])
def test_it_answers_as_the_embedded_engine(server: ServerProcess, checkpoints: Path, send: Any) -> None:
    embedded = EmbeddedEngine.from_checkpoint(checkpoints / "a")
    http, model = HttpEngine.of_checkpoint(config(server, send=send), checkpoints / "a"), load_policy(checkpoints / "a")
    gives = http.capabilities()
    assert (gives.server, gives.max_context, gives.loads, gives.weights) == ("vllm", 512, "checkpoints", "disk")
    assert gives.versions == (send == "token_ids")
    http.require_learnable(0.7, 0.8)
    texts = [f"Find Ok {'then see ' * n}" for n in range(1, 6)]
    for here, there in zip(act(embedded, *map(asked, texts)), act(http, *map(asked, texts)), strict=True):
        assert (there.prompt_token_ids, there.token_ids, there.text) == (here.prompt_token_ids, here.token_ids, here.text)
        assert there.logprobs == pytest.approx(here.logprobs, abs=1e-3)
    for temperature in (1.0, 0.7):
        answers = act(http, *(asked(text, temperature=temperature, seed=seed) for seed, text in enumerate(texts)))
        again = act(http, *(asked(text, temperature=temperature, seed=seed) for seed, text in enumerate(texts)))
        for answer, same in zip(answers, again, strict=True):
            assert answer.token_ids == same.token_ids, "sampling follows the seed"
            assert answer.logprobs == pytest.approx(logprobs_of(model, answer, temperature), abs=1e-3)
    assert len({answer.token_ids for answer in act(http, *(asked(temperature=1.0, seed=seed) for seed in range(8)))}) > 4
    (too_long,) = act(http, asked("see " * 600))
    assert (too_long.text, too_long.token_ids) == ("", ())
    for engine in (embedded, http):
        engine.close()


@pytest.mark.parametrize("weights", ["disk", "transfer"])
def test_a_running_server_takes_whole_weights(server: ServerProcess, checkpoints: Path, tmp_path: Path, weights: Any) -> None:
    """Of a checkpoint, and of a learner. An answer under way goes on, and says whose weights wrote each token."""
    ids = {name: read_card(checkpoints / name).checkpoint_id for name in "ab"}
    fields = {"exchange": str(tmp_path)} if weights == "disk" else {}
    engine = HttpEngine.of_checkpoint(config(server, send="token_ids", weights=weights, **fields), checkpoints / "b")
    engine.require_updatable()
    models = {name: load_policy(checkpoints / name) for name in "ab"}
    (answer,) = act(engine, asked(temperature=1.0, seed=1))
    assert (engine.policy_id, answer.policy_id) == (ids["b"], ids["b"])
    assert answer.logprobs == pytest.approx(logprobs_of(models["b"], answer), abs=1e-3)

    async def meanwhile() -> list[Response]:
        is_loaded = asyncio.Event()

        async def client(index: int) -> None:
            while not is_loaded.is_set():
                sampling = {"temperature": 1.0, "seed": 100 * index + len(found[index]), "max_new_tokens": 400}
                found[index] += await engine.act([asked("see then " * 4, **sampling)])

        found: list[list[Response]] = [[] for _ in range(8)]
        clients = [asyncio.ensure_future(client(index)) for index in range(8)]
        while not all(found):
            await asyncio.sleep(0.02)
        await asyncio.to_thread(engine.load_weights, models["a"].state_dict(), "checkpoint-learning", 3)
        is_loaded.set()
        await asyncio.gather(*clients)
        return [answer for answers in found for answer in answers]

    answers = asyncio.run(meanwhile())
    assert any(set(answer.versions) == {0, 3} for answer in answers), "none was under way"
    for answer in answers:
        before, after = (logprobs_of(models[name], answer) for name in "ba")
        by_version = [first if version == 0 else second for version, first, second in zip(answer.versions, before, after, strict=True)]
        assert answer.logprobs == pytest.approx(by_version, abs=1e-3), "each token is of the weights that it names, all it read included"
    (answer,) = act(engine, asked(temperature=1.0, seed=3))
    assert (answer.policy_id, set(answer.versions)) == ("checkpoint-learning", {3})
    assert answer.logprobs == pytest.approx(logprobs_of(models["a"], answer), abs=1e-3)
    with pytest.raises(ModelError, match="not with"):
        other = HttpEngine.of_checkpoint(config(server, send="token_ids", weights=weights, **fields), checkpoints / "a")
        act(engine, asked())
    other.close()
    engine.close()
    assert not list(tmp_path.iterdir())


def test_a_server_takes_an_adapter(vllm_python: Path, checkpoints: Path, tmp_path: Path) -> None:
    """Whole weights too, in its development mode, and which of the two is the settings' choice."""
    model, trained = load_policy(checkpoints / "a"), AdapterConfig(lora_rank=4)
    prepare_for_training(model, trained)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.3)
    with started(vllm_python, checkpoints, "a", *LORA_OPTIONS, VLLM_SERVER_DEV_MODE="1", VLLM_ALLOW_RUNTIME_LORA_UPDATING="True") as server:
        for send in ("messages", "token_ids"):
            chosen = config(server, send=send, weights="lora", exchange=str(tmp_path))
            engine = HttpEngine.of_checkpoint(chosen, checkpoints / "a")
            engine.require_updatable(adapters=True)
            (plain,) = act(engine, asked(temperature=1.0, seed=1))
            assert plain.logprobs == pytest.approx(logprobs_of(load_policy(checkpoints / "a"), plain), abs=1e-3)
            for version in (1, 2):
                engine.load_adapter(partial(save_adapter, model.state_dict(), config=trained), f"checkpoint-{version}", version)
                (answer,) = act(engine, asked(temperature=1.0, seed=1))
                assert (answer.policy_id, set(answer.versions)) == (f"checkpoint-{version}", {version})
                assert answer.logprobs == pytest.approx(logprobs_of(model, answer), abs=1e-3)
            engine.close()
            assert not list(tmp_path.iterdir())
        http = config(server, send="token_ids", weights="lora", exchange=str(tmp_path / "exchange"))
        check_learned(learned(learning(tmp_path / "rl", checkpoints / "a", algorithm="reinforce", rounds=2, lora_rank=4), http))
        whole = HttpEngine.of_checkpoint(config(server, send="token_ids"), checkpoints / "b")
        (answer,) = act(whole, asked(temperature=1.0, seed=1))
        assert (whole.capabilities().weights, answer.policy_id) == ("disk", read_card(checkpoints / "b").checkpoint_id)
        assert answer.logprobs == pytest.approx(logprobs_of(load_policy(checkpoints / "b"), answer), abs=1e-3)
        whole.close()
        with pytest.raises(ModelError, match="takes no weights over the network"):
            HttpEngine.of_checkpoint(config(server, weights="transfer"), checkpoints / "a")
    with started(vllm_python, checkpoints, "a") as plain_server, pytest.raises(ConfigError, match="VLLM_SERVER_DEV_MODE=1"):
        HttpEngine.of_checkpoint(config(plain_server, weights="disk"), checkpoints / "a")


def learning(folder: Path, init: Path, **settings: Any) -> PpoRun:
    defaults = {"episodes_per_task": 12, "minibatch_episodes": 8, "warmup_steps": 1, "learning_rate": 3e-3, "replay_weight": 0.0}
    return PpoRun(
        config=PpoConfig.model_validate(defaults | settings),
        init_checkpoint=init,
        tasks=(SHORT,),
        replay=ReplayPool(),
        output=folder / "out",
        run_folder=folder / "run",
        stage="rl_pointing",
        iteration="0001",
    )


def learned(run: PpoRun, http: HttpEngineConfig, watch: Callable[[HttpEngine], None] = lambda engine: None) -> PpoResult:
    """On the corridor; as a stage of RL opens its engine (pipelines/stages/rl.py)."""

    def at_server(*_: object) -> HttpEngine:
        engine = HttpEngine.of_checkpoint(http, run.init_checkpoint)
        engine.require_learnable(run.config.temperature)
        engine.require_updatable(adapters=bool(run.config.lora_rank))
        watch(engine)
        return engine

    async def main() -> PpoResult:
        settings = CollectorSettings(concurrency=8, max_retries=0, retry_delay_s=0.0)
        return await train_ppo(run, PoolCollector(CorridorPool(8), PromptBuilder("compact"), settings=settings), make_policy=at_server)

    return asyncio.run(main())


def check_learned(result: PpoResult, *, is_streaming: bool = False) -> None:
    """What is learned from is what was sampled, token by token, and every token says by which weights."""
    num_learned = sum(metrics["updates"] > 0 for metrics in result.metrics)
    assert num_learned > 1
    mismatch = [metrics["mismatch_kl"] for metrics in result.metrics if metrics["updates"]]
    assert all(each < (0.5 if is_streaming else 1e-6) for each in mismatch)
    steps = [step for episode in result.rollout_log.episodes() for step in episode.steps]
    assert all(len(step.response_token_ids) == len(step.response_logprobs) == len(step.response_versions) > 0 for step in steps)
    assert {version for step in steps for version in step.response_versions} >= set(range(num_learned))


@pytest.mark.parametrize("weights", ["disk", "transfer"])
def test_ppo_through_it_hands_its_weights_over(server: ServerProcess, checkpoints: Path, tmp_path: Path, weights: Any) -> None:
    """Three rounds, the first of which fits the critic alone."""
    http = config(server, send="token_ids", weights=weights, exchange=str(tmp_path / "exchange"))
    critic = {"pretraining_rounds": 1, "gate_explained_variance": -1.0}
    check_learned(learned(learning(tmp_path, checkpoints / "a", rounds=3, **critic), http))


def test_learning_streams_through_it(server: ServerProcess, checkpoints: Path, tmp_path: Path) -> None:
    settings = {"algorithm": "reinforce", "streaming": True, "rounds": 3, "min_batch_episodes": 6, "batches_ahead": 1}
    http = config(server, send="token_ids", exchange=str(tmp_path / "exchange"))
    check_learned(learned(learning(tmp_path, checkpoints / "a", **settings), http), is_streaming=True)


def test_a_release_is_followed_while_it_serves(server: ServerProcess, tmp_path: Path) -> None:
    warehouse, said = Warehouse(Home(tmp_path)), list[str]()
    for number in (1, 2):
        folder = warehouse.home.checkpoints / f"{number:04d}"
        card = save(folder, *tiny_qwen3_policy(WORDS, 10 + number), stage="merged_policy", iteration=f"{number:04d}")
        registry.register(warehouse, iteration=f"{number:04d}", stage="merged_policy", checkpoint_id=card.checkpoint_id, folder=folder)
    promote(warehouse, "0001/merged_policy", by="anna", reason="because")
    follower, client = (HttpEngine(config(server, send="messages", under_way="finish")) for _ in range(2))

    async def main() -> list[Response]:
        following = asyncio.ensure_future(Follower(warehouse, said.append, every_s=0.05).follow(ServersElsewhere(follower)))
        answers: list[Response] = []
        for number in (1, 2):
            if number > 1:
                promote(warehouse, "0002/merged_policy", by="anna", reason="because")
            async with asyncio.timeout(60):
                while len(said) < number:
                    await client.act([asked(temperature=1.0, seed=len(answers))])
            answers += await client.act([asked(temperature=1.0, seed=number)])
        following.cancel()
        return answers

    for number, answer in enumerate(asyncio.run(main()), start=1):
        model = load_policy(warehouse.home.checkpoints / f"{number:04d}")
        assert answer.logprobs == pytest.approx(logprobs_of(model, answer), abs=1e-3)
    assert ["cannot" in line for line in said] == [False, False]
    for engine in (follower, client):
        engine.close()


def test_it_sees_as_the_embedded_engine_does(vllm_python: Path, tmp_path: Path) -> None:
    """vLLM's vision tower takes squares of two patches, and its CPU kernels differ from torch's by more than those of its text model."""
    sizes = {"hidden_size": 128, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [4, 6, 6]}}
    save(tmp_path / "vision", *tiny_vision_policy(WORDS, 0, merge_size=2, **sizes), stage="seed_policy", iteration="0000")
    embedded = EmbeddedEngine.from_checkpoint(tmp_path / "vision")
    pictures = {"red": png(96, 64, "red"), "blue": png(64, 96, "blue"), "wide": png(160, 64, (3, 200, 77))}
    prompts = [
        Prompt(
            messages=(Message(role="user", content="see", screenshot_id=name),), images={name: data}, sampling=Sampling(max_new_tokens=12)
        )
        for name, data in pictures.items()
    ]
    with started(vllm_python, tmp_path, "vision", "--limit-mm-per-prompt", '{"image": 5}') as server:
        http = HttpEngine.of_checkpoint(config(server), tmp_path / "vision")
        http.require_learnable()
        for here, there in zip(act(embedded, *prompts), act(http, *prompts), strict=True):
            assert (there.prompt_token_ids, there.token_ids) == (here.prompt_token_ids, here.token_ids)
            assert there.logprobs == pytest.approx(here.logprobs, abs=1e-2)
        http.close()
    embedded.close()


def test_an_output_layer_that_is_the_embedding_changes_with_it(vllm_python: Path, checkpoints: Path) -> None:
    """On a CPU vLLM computes it with a copy that it packed at its start: from disk that is refused, by gloo it is packed again."""
    options = ("--worker-extension-cls", "models.http.vllm_gloo.Gloo", "--weight-transfer-config", '{"backend": "gloo"}')
    with started(vllm_python, checkpoints, "tied-a", *options, VLLM_SERVER_DEV_MODE="1", PYTHONPATH=SOURCE) as server:
        with pytest.raises(ModelError, match="tie_word_embeddings"):
            HttpEngine.of_checkpoint(config(server), checkpoints / "tied-b")
        engine = HttpEngine.of_checkpoint(config(server, weights="transfer"), checkpoints / "tied-b")
        (answer,) = act(engine, asked(temperature=1.0, seed=1))
        assert answer.logprobs == pytest.approx(logprobs_of(load_policy(checkpoints / "tied-b"), answer), abs=1e-3)
        engine.close()
