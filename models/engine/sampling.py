"""Choosing the next token of every row, and its log-probability under the distribution that was sampled from.

Shape suffixes: B rows, V vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from models.engine.rows import Request, Row, Top


def choose(
    logits_BV: Tensor, rows: Sequence[Row], never: Sequence[int] = (), allowed: Mapping[int, Tensor] | None = None
) -> tuple[list[int], list[float], Sequence[Top]]:
    """Each row's next token, its log-probability in nats, and the likeliest tokens where the row asks for them: greedy rows take the
    likeliest, at temperature 1 over all tokens; the others the inverse transform of their own uniform draw, of the softmax at their
    temperature, cut to the nucleus of `top_p` and renormalised (Holtzman et al. 2020, arXiv 1904.09751, eq. 2–3). Penalties and bias of a
    request come first of all. Tokens in `never` have
    probability 0, and so have those that are not `allowed` (V) for the row of that number: what is left is renormalised, and
    log-probabilities are of that. The log-probability of a row whose logits are not numbers is NaN or -inf; the other rows are as without
    it."""
    device = logits_BV.device
    asked = [row.request for row in rows]
    logits_BV = logits_BV.float()
    if never:
        logits_BV = logits_BV.index_fill(1, torch.tensor(never, device=device), -torch.inf)
    shifted = [index for index, row in enumerate(rows) if row.shifts_logits]
    if allowed or shifted:
        logits_BV = logits_BV.clone()
        for index in shifted:
            _shift(logits_BV[index], rows[index])
        for index, allowed_V in (allowed or {}).items():
            logits_BV[index].masked_fill_(~allowed_V.to(device), -torch.inf)
    if any(request.temperature not in (0.0, 1.0) for request in asked):
        logits_BV = logits_BV / torch.tensor([request.temperature or 1.0 for request in asked], device=device).unsqueeze(1)
    logprobs_BV = functional.log_softmax(logits_BV, dim=-1)
    sampled = [request.temperature > 0 for request in asked]
    if any(writes and request.top_p < 1.0 for writes, request in zip(sampled, asked, strict=True)):
        top_p = torch.tensor([request.top_p if writes else 1.0 for writes, request in zip(sampled, asked, strict=True)], device=device)
        logprobs_BV = nucleus(logprobs_BV, top_p)
    if not any(sampled):
        chosen_B = likeliest(logprobs_BV)
    else:
        cumulative_BV = logprobs_BV.double().exp().cumsum(dim=-1)  # in single precision a large vocabulary would lose its tail
        draws = [row.draws[len(row.logprobs)] if writes else 0.0 for row, writes in zip(rows, sampled, strict=True)]
        threshold_B1 = torch.tensor(draws, dtype=torch.float64, device=device).unsqueeze(1) * cumulative_BV[:, -1:]
        chosen_B = (cumulative_BV <= threshold_B1).sum(dim=-1).clamp(max=logits_BV.shape[1] - 1)
        if not all(sampled):
            chosen_B = torch.where(torch.tensor(sampled, device=device), chosen_B, likeliest(logprobs_BV))
    picked_B = logprobs_BV.gather(1, chosen_B.unsqueeze(1)).squeeze(1)
    tops: Sequence[Top] = _tops(logprobs_BV, asked) if any(request.num_top for request in asked) else [()] * len(rows)
    return chosen_B.tolist(), picked_B.tolist(), tops


def _shift(logits_V: Tensor, row: Row) -> None:
    """Penalties and bias of a row's request, in place."""
    asked, counts = row.request, Counter(row.answer)
    shifts = {token: -asked.frequency_penalty * count - asked.presence_penalty for token, count in counts.items()}
    for token, bias in asked.logit_bias.items():
        shifts[token] = shifts.get(token, 0.0) + bias
    if shifts:
        logits_V[list(shifts)] += torch.tensor(list(shifts.values()), device=logits_V.device)


def _tops(logprobs_BV: Tensor, asked: Sequence[Request]) -> list[Top]:
    values_BN, ids_BN = logprobs_BV.topk(min(max(request.num_top for request in asked), logprobs_BV.shape[1]), dim=-1)
    pairs = [list(zip(ids, values, strict=True)) for ids, values in zip(ids_BN.tolist(), values_BN.tolist(), strict=True)]
    return [[pair for pair in row[: request.num_top] if pair[1] > -torch.inf] for row, request in zip(pairs, asked, strict=True)]


def likeliest(logprobs_BV: Tensor) -> Tensor:
    """The index of each row's largest entry, the first of equals. On a CPU by numpy, whose search is vectorised: of 8 x 10,000 entries in 8
    microseconds against torch's 150."""
    if logprobs_BV.device.type != "cpu":
        return logprobs_BV.argmax(dim=-1)
    return torch.from_numpy(logprobs_BV.numpy().argmax(axis=-1))


def nucleus(logprobs_BV: Tensor, top_p_B: Tensor) -> Tensor:
    """Log-probabilities within the smallest set of likeliest tokens whose probabilities reach `top_p`, renormalised; -inf outside. Rows
    with a `top_p` of 1 are returned to the bit."""
    sorted_BV, order_BV = logprobs_BV.sort(dim=-1, descending=True)
    probabilities_BV = sorted_BV.double().exp()
    before_BV = probabilities_BV.cumsum(dim=-1) - probabilities_BV
    outside_BV = before_BV >= top_p_B.double().unsqueeze(1)
    outside_BV[:, 0] = False
    outside_BV &= (top_p_B < 1.0).unsqueeze(1)
    cut_BV = logprobs_BV.masked_fill(torch.zeros_like(outside_BV).scatter(1, order_BV, outside_BV), -torch.inf)
    return torch.where((top_p_B < 1.0).unsqueeze(1), cut_BV - cut_BV.logsumexp(dim=-1, keepdim=True), cut_BV)
