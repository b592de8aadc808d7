"""Generation in tokens per CPU-second, where episodes go on: each turn adds an observation to the prompt and asks for an answer.

    sessions    8 sessions x 6 turns of 192 observation and 24 answer tokens, greedily, on a Llama of 8.6 M parameters: transformers'
                `generate` for each session, for all in one batch, in one batch with its cache handed on, `generate_batch`, and the
                embedded engine through `act`. All must write the same tokens, or the benchmark fails.
    small       the quickstart's model and prompts like its own: 16 sessions x 8 turns, sampled, answers of 8 to 40 tokens, an environment
                that takes 5 to 45 ms. Prompts gathered into batches that wait for their slowest answer, against continuous batching,
                without and with what a conversation keeps.
    products    a 256 x 768 matrix times blocks of rows: PyTorch's own way against the engine's (models/engine/linear.py), in
                multiplications and additions instead of tokens.
    grammar     what it costs a token to be held to a JSON schema: the mask of an agent's action and its choice among what is left, over
                vocabularies of 10,000 and 150,000 pieces. Wall seconds are of all tokens.

One thread. CPU time is the process's, all threads counted.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from torch.nn import functional
from transformers import ContinuousBatchingConfig, DynamicCache, GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

from agent.policy.batcher import Batcher
from agent.policy.policy import Message, Prompt, Response, Sampling
from assets.seed_data.vocabulary import words
from models.engine.embedded import EmbeddedEngine
from models.engine.grammar import Grammars
from models.engine.linear import Weight
from models.engine.rows import Request, Row
from models.engine.sampling import choose
from models.families.chat import EncodedChat
from models.families.seed_policy import seed_policy

NUM_SESSIONS, NUM_TURNS, OBSERVATION_TOKENS, ANSWER_TOKENS = 8, 6, 192, 24
VOCABULARY, NO_TOKEN = 10_000, -1
SMALL_SESSIONS, SMALL_TURNS = 16, 8
Ids = list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    name: str
    part: str
    tokens: int
    tokens_per_cpu_s: float
    wall_s: float
    ours_over_this: float


class IdCodec:
    """A ChatCodec for prompts that are token ids already, written out as numbers."""

    eos_token_ids = (NO_TOKEN,)
    pad_token_id = 0

    def encode(
        self, messages: Sequence[Message], images: Mapping[str, bytes] | None = None, *, prompt_loss_weight: float = 1.0
    ) -> EncodedChat:
        ids = [int(word) for message in messages for word in message.content.split()]
        return EncodedChat(token_ids=ids, loss_weights=[0.0] * len(ids))

    def decode(self, token_ids: Sequence[int]) -> str:
        return " ".join(map(str, token_ids))


def prompt_of(ids: Ids, sampling: Sampling, conversation: str | None) -> Prompt:
    return Prompt(messages=(Message(role="user", content=" ".join(map(str, ids))),), sampling=sampling, conversation=conversation)


def llama() -> LlamaForCausalLM:
    """8.6 M parameters, random; wide enough apart that rounding cannot change which token is the likeliest."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=1,
        intermediate_size=768,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        initializer_range=0.06,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


def observations() -> list[list[Ids]]:
    """By turn and session."""
    rng = random.Random(0)
    return [[[rng.randrange(2, VOCABULARY) for _ in range(OBSERVATION_TOKENS)] for _ in range(NUM_SESSIONS)] for _ in range(NUM_TURNS)]


def play(answer: Callable[[list[Ids]], list[Ids]]) -> list[list[Ids]]:
    """All turns of all sessions, each answered together; the answers by turn and session."""
    histories: list[Ids] = [[] for _ in range(NUM_SESSIONS)]
    answers = []
    for turn in observations():
        histories = [history + seen for history, seen in zip(histories, turn, strict=True)]
        answers.append(answer(histories))
        histories = [history + written for history, written in zip(histories, answers[-1], strict=True)]
    return answers


def generated(model: LlamaForCausalLM, prompts: list[Ids], **more: Any) -> list[Ids]:
    """Greedy answers of `generate` to prompts of one length."""
    ids = torch.tensor(prompts)
    with torch.inference_mode():
        out: Any = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, min_new_tokens=ANSWER_TOKENS, max_new_tokens=ANSWER_TOKENS, **more
        )
    return out[:, ids.shape[1] :].tolist()  # type: ignore[no-any-return]


def per_session(model: LlamaForCausalLM) -> list[list[Ids]]:
    return play(lambda prompts: [generated(model, [prompt])[0] for prompt in prompts])


def one_batch(model: LlamaForCausalLM) -> list[list[Ids]]:
    return play(partial(generated, model))


def one_batch_cache_kept(model: LlamaForCausalLM) -> list[list[Ids]]:
    """What a caller can do by hand when all sessions stay together: `generate` goes on with the cache of the last turn."""
    cache = DynamicCache(config=model.config)
    return play(lambda prompts: generated(model, prompts, past_key_values=cache))


def continuous_batching(model: LlamaForCausalLM) -> list[list[Ids]]:
    """`generate_batch` as it was fastest here: small pages, few of them, and a batch that holds all sessions' steps."""
    asked = GenerationConfig(do_sample=False, max_new_tokens=ANSWER_TOKENS, eos_token_id=NO_TOKEN, pad_token_id=0)
    longest = NUM_TURNS * (OBSERVATION_TOKENS + ANSWER_TOKENS)
    tuned = ContinuousBatchingConfig(page_size=32, num_blocks=NUM_SESSIONS * (longest // 32 + 2), max_batch_tokens=512)

    def answer(prompts: list[Ids]) -> list[Ids]:
        found = model.generate_batch(prompts, generation_config=asked, continuous_batching_config=tuned, warmup=False)
        by_number = sorted(found.values(), key=lambda output: int(output.request_id.rsplit("_", 1)[-1]))
        return [list(output.generated_tokens) for output in by_number]

    return play(answer)


def embedded(engine: EmbeddedEngine) -> list[list[Ids]]:
    """Each session is a task of its own, as an episode is."""
    turns = observations()
    sampling = Sampling(temperature=0.0, max_new_tokens=ANSWER_TOKENS)

    async def session(number: int) -> list[Ids]:
        history: Ids = []
        answers = []
        for turn in turns:
            history = history + turn[number]
            response = (await engine.act([prompt_of(history, sampling, f"session-{number}")]))[0]
            answers.append(list(response.token_ids))
            history = history + answers[-1]
        return answers

    async def everyone() -> list[list[Ids]]:
        return list(await asyncio.gather(*(session(number) for number in range(NUM_SESSIONS))))

    return [list(turn) for turn in zip(*asyncio.run(everyone()), strict=True)]


def measure_sessions(rounds: int, console: Console) -> list[Figure]:
    model = llama()
    contestants: dict[str, Callable[[], list[list[Ids]]]] = {
        "generate, each session": partial(per_session, model),
        "generate, one batch": partial(one_batch, model),
        "generate, one batch, its cache handed on": partial(one_batch_cache_kept, model),
        "generate_batch": partial(continuous_batching, model),
    }
    spent: dict[str, list[tuple[float, float]]] = {}
    expected = one_batch(model)
    for number in range(rounds):
        for name, run in contestants.items():
            spent.setdefault(name, []).append(timed(name, run, expected))
        engine = EmbeddedEngine(model, IdCodec(), "checkpoint-benchmark")  # new: nothing is kept of the last round
        spent.setdefault("flywheel", []).append(timed("flywheel", partial(embedded, engine), expected))
        engine.close()
        console.print(f"  round {number + 1} of {rounds} done")
    return figures("sessions", NUM_SESSIONS * NUM_TURNS * ANSWER_TOKENS, spent)


def timed(name: str, run: Callable[[], list[list[Ids]]], expected: list[list[Ids]]) -> tuple[float, float]:
    """CPU and wall seconds. Raises SystemExit where the tokens are not the expected ones."""
    gc.collect()
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    answers = run()
    spent = time.process_time() - cpu_s, time.perf_counter() - wall_s
    if answers != expected:
        turns = zip(answers, expected, strict=True)
        wrong = sum(found != right for turn, rights in turns for found, right in zip(turn, rights, strict=True))
        raise SystemExit(f"{name} wrote other tokens than generate in {wrong} of {NUM_SESSIONS * NUM_TURNS} answers")
    return spent


def figures(part: str, tokens: int, spent: Mapping[str, Sequence[tuple[float, float]]], ours: str = "flywheel") -> list[Figure]:
    """Medians; the ratio is the median of the rounds' ratios, for what disturbed a round disturbed all."""
    return [
        Figure(
            name=name,
            part=part,
            tokens=tokens,
            tokens_per_cpu_s=tokens / statistics.median(cpu_s for cpu_s, _ in rounds),
            wall_s=statistics.median(wall_s for _, wall_s in rounds),
            ours_over_this=statistics.median(cpu_s / our_s for (cpu_s, _), (our_s, _) in zip(rounds, spent[ours], strict=True)),
        )
        for name, rounds in spent.items()
    ]


class Gathered:
    """The engine as a policy that does not say it batches by itself: the batcher gathers prompts for it and waits for whole batches."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self._engine = engine

    @property
    def policy_id(self) -> str:
        return self._engine.policy_id

    async def act(self, prompts: Sequence[Prompt]) -> list[Response]:
        return await self._engine.act(prompts)


def small_prompts(session: int) -> list[Ids]:
    """Instruction, up to four lines of what was done, and a list of elements that mostly stays from step to step."""
    rng = random.Random(session)

    def ids(num: int) -> Ids:
        return [rng.randrange(20, 800) for _ in range(num)]

    instruction, elements, done = ids(20), ids(rng.randint(100, 300)), list[Ids]()
    prompts = []
    for _ in range(SMALL_TURNS):
        prompts.append([*instruction, *(token for line in done[-4:] for token in line), *elements])
        done.append(ids(8))
        first = rng.randrange(len(elements))
        elements = [*elements[:first], *ids(10), *elements[first + 10 :]]
    return prompts


def act_small(engine: EmbeddedEngine, *, gathers: bool, keeps: bool) -> int:
    """Tokens written by all sessions."""

    async def session(number: int, batcher: Batcher) -> int:
        rng, num_tokens = random.Random(number), 0
        with batcher.live():
            for turn, ids in enumerate(small_prompts(number)):
                sampling = Sampling(temperature=1.0, max_new_tokens=rng.randint(8, 40), seed=100 * number + turn)
                response = await batcher.act(prompt_of(ids, sampling, f"session-{number}" if keeps else None))
                num_tokens += len(response.token_ids)
                await asyncio.sleep(rng.uniform(0.005, 0.045))
        return num_tokens

    async def everyone() -> int:
        batcher = Batcher(Gathered(engine) if gathers else engine)
        return sum(await asyncio.gather(*(session(number, batcher) for number in range(SMALL_SESSIONS))))

    return asyncio.run(everyone())


def measure_small(rounds: int, console: Console) -> list[Figure]:
    model, _ = seed_policy(words(), 0)
    arms = {"gathered into batches": (True, False), "continuous": (False, False), "continuous, conversations kept": (False, True)}
    spent: dict[str, list[tuple[float, float]]] = {}
    tokens = 0
    for _ in range(rounds):
        for name, (gathers, keeps) in arms.items():
            engine = EmbeddedEngine(model, IdCodec(), "checkpoint-benchmark")
            cpu_s, wall_s = time.process_time(), time.perf_counter()
            tokens = act_small(engine, gathers=gathers, keeps=keeps)
            spent.setdefault(name, []).append((time.process_time() - cpu_s, time.perf_counter() - wall_s))
            engine.close()
    console.print(f"  {rounds} rounds of the small model done")
    return figures("small", tokens, spent, ours="continuous, conversations kept")


def measure_products(rounds: int, console: Console) -> list[Figure]:
    """A round is as many products as make 20 billion operations."""
    found = []
    for num_rows in (1, 8, 64, 1536):
        x, matrix = torch.randn(num_rows, 256), torch.randn(768, 256)
        operations, packed = 2 * num_rows * matrix.numel(), Weight(matrix)
        repeats = 20_000_000_000 // operations if num_rows > 1 else 20_000
        spent: dict[str, list[tuple[float, float]]] = {"ordinary": [], "engine's": []}
        for _ in range(rounds):
            for name, multiply in (("ordinary", partial(functional.linear, weight=matrix)), ("engine's", packed)):
                cpu_s, wall_s = time.process_time(), time.perf_counter()
                with torch.inference_mode():
                    for _ in range(repeats):
                        multiply(x)
                spent[name].append((time.process_time() - cpu_s, time.perf_counter() - wall_s))
        found += figures(f"products, {num_rows} rows", operations * repeats, spent, ours="engine's")
    console.print(f"  {rounds} rounds of products done")
    return found


def pieces_tokenizer(num_tokens: int) -> PreTrainedTokenizerFast:
    """Of bytes and random words, half of them with a blank before."""
    rng, alphabet = random.Random(0), pre_tokenizers.ByteLevel.alphabet()
    vocabulary = {piece: index for index, piece in enumerate(sorted(alphabet))}
    while len(vocabulary) < num_tokens - 1:
        word = "".join(rng.choices("etaoinshrdlucmfwypvbgkjqxz", k=rng.randint(2, 9)))
        vocabulary.setdefault(rng.choice(("", "Ġ")) + word, len(vocabulary))
    core = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    core.add_special_tokens([AddedToken("<end>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>")


ACTION_SCHEMA = {
    "type": "object",
    "required": ["thought", "action", "x", "y"],
    "additionalProperties": False,
    "properties": {
        "thought": {"type": "string", "maxLength": 200},
        "action": {"enum": ["click", "type", "scroll", "finished"]},
        "x": {"type": "integer", "minimum": 0, "maximum": 1920},
        "y": {"type": "integer", "minimum": 0, "maximum": 1080},
    },
}


def measure_grammar(rounds: int, console: Console) -> list[Figure]:
    """Random walks through the grammar; without it, the same choices among all tokens."""
    found = []
    for num_tokens in (10_000, 150_000):
        tokenizer = pieces_tokenizer(num_tokens)
        grammars = Grammars(tokenizer, [int(tokenizer.eos_token_id)], num_tokens)
        grammar, logits = grammars.of_schema(ACTION_SCHEMA, "schema"), torch.randn(1, num_tokens)
        spent: dict[str, list[tuple[float, float]]] = {"free": [], "held to a schema": []}
        num_written = 0
        for _ in range(rounds):
            request = Request(prompt=(1,), temperature=1.0, max_new_tokens=4096, seed=0)
            started, num_steps = time.process_time(), 0
            wall_s = time.perf_counter()
            for _ in range(5):
                row, constraint = Row.of(request), grammar.begin()
                while not row.is_done and len(row.logprobs) < 100:
                    (token,), (logprob,), _ = choose(logits, [row], allowed={0: constraint.allowed()})
                    constraint.take(token)
                    row.tokens.append(token)
                    row.logprobs.append(logprob)
                    row.is_done = token == tokenizer.eos_token_id
                num_steps += len(row.logprobs)
            spent["held to a schema"].append((time.process_time() - started, time.perf_counter() - wall_s))
            started, wall_s, row = time.process_time(), time.perf_counter(), Row.of(request)
            for _ in range(num_steps):
                choose(logits, [row])
            spent["free"].append((time.process_time() - started, time.perf_counter() - wall_s))
            num_written = num_steps
        found += figures(f"grammar, {num_tokens} tokens", num_written, spent, ours="held to a schema")
    console.print(f"  {rounds} rounds of grammars done")
    return found


def show(found: Sequence[Figure], console: Console) -> None:
    for part in dict.fromkeys(figure.part for figure in found):
        table = Table(title=part, title_justify="left")
        for heading in ("contestant", "tokens (operations) per CPU-second", "wall seconds", "flywheel is … times as fast"):
            table.add_column(heading, justify="left" if heading == "contestant" else "right")
        for figure in (figure for figure in found if figure.part == part):
            table.add_row(figure.name, f"{figure.tokens_per_cpu_s:,.0f}", f"{figure.wall_s:.1f}", f"{figure.ours_over_this:.2f}")
        console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds; figures are their medians (default: 3)")
    parser.add_argument("--part", choices=("sessions", "small", "products", "grammar"), help="only this part")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    console = Console()
    parts = {"sessions": measure_sessions, "small": measure_small, "products": measure_products, "grammar": measure_grammar}
    chosen = [arguments.part] if arguments.part else list(parts)
    found = [figure for part in chosen for figure in parts[part](arguments.rounds, console)]
    show(found, console)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({"rounds": arguments.rounds, "figures": [asdict(figure) for figure in found]}, indent=1))


if __name__ == "__main__":
    main()
