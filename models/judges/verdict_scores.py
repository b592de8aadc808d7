"""The probability of a verdict's word, read off a model: of two answers that are alike up to the verdict, how likely the first's next token
is beside the second's.

The prompt is encoded as it is in training, answer included, so the place that is read is the very place that was learned.
Shapes: B cases, T tokens, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from agent.policy.policy import Message
from models.families.chat import ChatCodec, EncodedChat
from models.judges.judge import Case
from models.training.forward import hidden_where
from warehouse.core.errors import ModelError

MAX_BATCH_TOKENS = 16_384


@dataclass(frozen=True, slots=True)
class _Place:
    """The tokens before the verdict, and the first token of either word."""

    index: int
    encoded: EncodedChat
    length: int
    good: int
    bad: int


class ModelVerdictScores:
    """VerdictScores of a model in this process, which nobody else may train meanwhile."""

    def __init__(self, model: PreTrainedModel, codec: ChatCodec) -> None:
        self._model, self._codec = model, codec

    def __call__(self, messages: Sequence[Sequence[Message]], answers: Sequence[tuple[str, str]], cases: Sequence[Case]) -> list[float]:
        """P(first) / (P(first) + P(second)) for each case. Raises ModelError for answers with the same tokens."""
        places = [
            self._place(index, prompt, pair, case) for index, (prompt, pair, case) in enumerate(zip(messages, answers, cases, strict=True))
        ]
        scores = [0.0] * len(places)
        for batch in _batches(places):
            for place, score in zip(batch, self._read(batch), strict=True):
                scores[place.index] = score
        return scores

    def _place(self, index: int, prompt: Sequence[Message], pair: tuple[str, str], case: Case) -> _Place:
        good, bad = (self._codec.encode((*prompt, Message(role="assistant", content=answer, loss=1.0)), case.images) for answer in pair)
        both = list(zip(good.token_ids, bad.token_ids, strict=False))
        length = next((place for place, (first, second) in enumerate(both) if first != second), None)
        if length is None:
            raise ModelError(f"the tokenizer writes {pair[0][-40:]!r} and {pair[1][-40:]!r} alike: it cannot score verdicts")
        return _Place(index, good, length, good.token_ids[length], bad.token_ids[length])

    @torch.inference_mode()
    def _read(self, places: Sequence[_Place]) -> list[float]:
        device = next(self._model.parameters()).device
        rows = [torch.tensor(list(place.encoded.token_ids[: place.length])) for place in places]
        ids_BT = pad_sequence(rows, batch_first=True, padding_value=self._codec.pad_token_id).to(device)
        wanted_BT = torch.zeros_like(ids_BT, dtype=torch.bool)
        for row, place in enumerate(places):
            wanted_BT[row, place.length - 1] = True
        vision = {name: tensor.to(device) for name, tensor in places[0].encoded.vision.items()} if len(places) == 1 else None
        hidden_BD = hidden_where(self._model, ids_BT, wanted_BT, vision=vision)
        logits_BV = self._model.get_output_embeddings()(hidden_BD).float()
        good, bad = (torch.tensor([getattr(place, word) for place in places], device=device) for word in ("good", "bad"))
        gap_B = logits_BV.gather(1, good.unsqueeze(1)) - logits_BV.gather(1, bad.unsqueeze(1))
        return [float(score) for score in torch.sigmoid(gap_B).flatten()]


def _batches(places: Sequence[_Place]) -> Iterator[list[_Place]]:
    """Of similar length, at most MAX_BATCH_TOKENS with padding; a case that shows images is alone."""
    batch: list[_Place] = []
    for place in sorted(places, key=lambda place: place.length):
        if batch and (place.encoded.vision or place.length * (len(batch) + 1) > MAX_BATCH_TOKENS):
            yield batch
            batch = []
        batch.append(place)
        if place.encoded.vision:
            yield batch
            batch = []
    if batch:
        yield batch
