"""What must hold of any implementation of the advantages and returns of multi-turn reinforcement learning (see library.py).

Shape suffixes: B episodes, T token positions of the longest, E episodes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.invariants.library import TOLERANCE, Invariant, Library, Spans, expected_gae, random_spans, responses, same


def _shares(rng: np.random.Generator) -> tuple[float, float]:
    return float(rng.uniform(0.5, 1)), float(rng.uniform(0, 1))


def _follows_definition(library: Library, spans: Spans, gamma: float, lambda_: float, what: str, original: Spans | None = None) -> None:
    advantages_BT, _ = library.gae(spans, gamma=gamma, lambda_=lambda_)
    same(responses(spans, advantages_BT), expected_gae(original or spans, gamma, lambda_), what)


def gae_is_its_definition(library: Library, rng: np.random.Generator) -> None:
    _follows_definition(library, random_spans(rng, is_plain=True), *_shares(rng), "advantages of single-turn episodes")


def observation_tokens_change_nothing(library: Library, rng: np.random.Generator) -> None:
    _follows_definition(library, random_spans(rng), *_shares(rng), "advantages with observations between the responses")


def values_of_observations_do_not_matter(library: Library, rng: np.random.Generator) -> None:
    spans = random_spans(rng)
    loud = replace(spans, values_BT=np.where(spans.mask_BT, spans.values_BT, 100.0))
    _follows_definition(library, loud, *_shares(rng), "advantages beside values of 100 at observations", spans)


def nan_at_a_masked_token_stays_there(library: Library, rng: np.random.Generator) -> None:
    spans = random_spans(rng)
    broken = replace(spans, values_BT=np.where(spans.mask_BT, spans.values_BT, np.nan))
    _follows_definition(library, broken, *_shares(rng), "advantages beside NaN values at masked tokens", spans)


def _padded(spans: Spans, left: int, right: int, value: float) -> Spans:
    def pad(matrix: Any, fill: float) -> Any:
        return np.pad(matrix, ((0, 0), (left, right)), constant_values=fill)

    return replace(spans, mask_BT=pad(spans.mask_BT, 0), rewards_BT=pad(spans.rewards_BT, 0.0), values_BT=pad(spans.values_BT, value))


def right_padding_changes_nothing(library: Library, rng: np.random.Generator) -> None:
    spans = random_spans(rng, is_plain=True)
    _follows_definition(library, _padded(spans, 0, 3, 7.0), *_shares(rng), "advantages of right-padded episodes", spans)


def left_padding_changes_nothing(library: Library, rng: np.random.Generator) -> None:
    spans = random_spans(rng, is_plain=True)
    _follows_definition(library, _padded(spans, 3, 0, 7.0), *_shares(rng), "advantages of left-padded episodes", spans)


def reward_on_a_masked_last_token_counts(library: Library, rng: np.random.Generator) -> None:
    spans = _padded(random_spans(rng), 0, 1, 0.0)
    ends = [int(np.flatnonzero(mask)[-1]) for mask in spans.mask_BT]
    moved, kept = spans.rewards_BT.copy(), spans.rewards_BT.copy()
    for row, end in enumerate(ends):
        moved[row, end], moved[row, end + 1] = 0.0, 1.5
        kept[row, end] = 1.5
    gamma, lambda_ = _shares(rng)
    _follows_definition(
        library,
        replace(spans, rewards_BT=moved),
        gamma,
        lambda_,
        "outcome one position after the last response token",
        replace(spans, rewards_BT=kept),
    )


def reward_on_an_observation_token_counts(library: Library, rng: np.random.Generator) -> None:
    mask_BT = np.array([[True, True, False, False, True]])
    values_BT = np.where(mask_BT, rng.normal(size=(1, 5)), 0.0)
    moved = Spans(mask_BT=mask_BT, rewards_BT=np.array([[0.0, 0.0, 0.5, 0.0, 1.0]]), values_BT=values_BT)
    kept = replace(moved, rewards_BT=np.array([[0.0, 0.5, 0.0, 0.0, 1.0]]))
    _follows_definition(library, moved, 1.0, 0.9, "a step's reward on the observation that follows it", kept)


def truncated_ends_in_the_value_after_the_cut(library: Library, rng: np.random.Generator) -> None:
    spans = random_spans(rng, is_plain=True)
    cut = replace(spans, after_B=tuple(float(v) for v in rng.normal(size=len(spans.mask_BT))))
    _follows_definition(library, cut, *_shares(rng), "advantages of episodes that a step limit cut off")


def only_the_truncated_bootstrap(library: Library, rng: np.random.Generator) -> None:
    spans = replace(random_spans(rng, is_plain=True), after_B=(None, 2.5, None))
    _follows_definition(library, spans, *_shares(rng), "advantages of ended and cut-off episodes in one batch")


def terminated_ends_in_zero(library: Library, rng: np.random.Generator) -> None:
    spans = _padded(random_spans(rng, is_plain=True), 0, 2, 50.0)
    advantages_BT, _ = library.gae(spans, gamma=1.0, lambda_=0.7)
    pairs = zip(responses(spans, spans.rewards_BT), responses(spans, spans.values_BT), strict=True)
    same([row[-1:] for row in responses(spans, advantages_BT)], [(r - v)[-1:] for r, v in pairs], "A of the last token, r - V")


def the_end_is_not_off_by_one(library: Library, rng: np.random.Generator) -> None:
    spans = Spans(mask_BT=np.ones((1, 3), dtype=bool), rewards_BT=np.array([[0.0, 0.0, 1.0]]), values_BT=np.array([[0.2, 0.4, 0.6]]))
    advantages_BT, _ = library.gae(spans, gamma=1.0, lambda_=0.0)
    same(responses(spans, advantages_BT), [np.array([0.2, 0.2, 0.4])], "one-step advantages around the end")


def episodes_do_not_leak(library: Library, rng: np.random.Generator) -> None:
    spans = random_spans(rng, episodes=4, is_plain=True)
    gamma, lambda_ = _shares(rng)
    together, _ = library.gae(spans, gamma=gamma, lambda_=lambda_)
    alone = [library.gae(spans.rows([i]), gamma=gamma, lambda_=lambda_)[0][0][spans.mask_BT[i]] for i in range(4)]
    same(responses(spans, together), alone, "advantages in a batch and alone")


def order_of_episodes_does_not_matter(library: Library, rng: np.random.Generator) -> None:
    spans = random_spans(rng, episodes=4, is_plain=True)
    order = rng.permutation(4).tolist()
    first, _ = library.gae(spans, gamma=0.9, lambda_=0.8)
    second, _ = library.gae(spans.rows(order), gamma=0.9, lambda_=0.8)
    found = responses(spans.rows(order), second)
    same(found, [responses(spans, first)[i] for i in order], "advantages in another order")


def lambda_one_targets_are_returns(library: Library, rng: np.random.Generator) -> None:
    spans = random_spans(rng, is_plain=True)
    gamma, _ = _shares(rng)
    _, targets_BT = library.gae(spans, gamma=gamma, lambda_=1.0)
    expected = [
        np.array([sum(gamma ** (k - t) * r[k] for k in range(t, len(r))) for t in range(len(r))])
        for r in responses(spans, spans.rewards_BT)
    ]
    same(responses(spans, targets_BT), expected, "value targets at lambda 1")


def potential_shaping_changes_no_advantage(library: Library, rng: np.random.Generator) -> None:
    """Ng, Harada & Russell 1999: r + gamma Phi' - Phi with V - Phi for V leaves every temporal difference as it was."""
    spans = random_spans(rng, is_plain=True)
    gamma, lambda_ = _shares(rng)
    phi_BT = np.where(spans.mask_BT, rng.uniform(size=spans.mask_BT.shape), 0.0)
    next_BT = np.pad(phi_BT, ((0, 0), (0, 1)))[:, 1:]
    shaped = replace(spans, rewards_BT=spans.rewards_BT + gamma * next_BT - phi_BT, values_BT=spans.values_BT - phi_BT)
    _follows_definition(library, shaped, gamma, lambda_, "advantages under potential-based shaping", spans)


def policy_lambda_leaves_targets_alone(library: Library, rng: np.random.Generator) -> None:
    spans = random_spans(rng, is_plain=True)
    found = [library.decoupled_gae(spans, gamma=0.9, lambda_policy=trace, lambda_critic=1.0) for trace in (0.1, 0.9)]
    same(responses(spans, found[0][1]), responses(spans, found[1][1]), "critic targets under two policy lambdas")
    for (advantages_BT, _), trace in zip(found, (0.1, 0.9), strict=True):
        same(responses(spans, advantages_BT), expected_gae(spans, 0.9, trace), "policy advantages under their own lambda")


def length_adaptive_lambda_is_never_negative(library: Library, rng: np.random.Generator) -> None:
    for num_tokens in (1, 5, 10, 19, 20, 40, 400):
        found = library.length_lambda(num_tokens, alpha=0.05)
        wanted = max(0.0, 1 - 1 / (0.05 * num_tokens))
        if abs(found - wanted) > TOLERANCE:
            raise AssertionError(f"lambda of {num_tokens} tokens is {found:.3f}, not {wanted:.3f}")


def returns_cross_observation_spans(library: Library, rng: np.random.Generator) -> None:
    mask_BT = np.array([[True, True, False, False, True], [True, False, True, True, False]])
    rewards_BT = np.array([[0.0, 0.5, 0.0, 0.0, 1.0], [0.25, 0.0, 0.0, -1.0, 0.0]])
    spans = Spans(mask_BT=mask_BT, rewards_BT=rewards_BT, values_BT=np.zeros((2, 5)))
    _, returns_BT = library.returns(spans, gamma=0.9)
    same(responses(spans, returns_BT), [np.array([0.9 * 1.4, 1.4, 1.0]), np.array([0.25 - 0.81, -0.9, -1.0])], "two-step returns")


def returns_are_normalised_over_response_tokens(library: Library, rng: np.random.Generator) -> None:
    spans = random_spans(rng, episodes=6)
    advantages_BT, _ = library.returns(spans, gamma=1.0)
    flat = np.concatenate(responses(spans, advantages_BT))
    if abs(flat.mean()) > 1e-4 or abs(flat.std() - 1) > 0.2 / np.sqrt(len(flat)) + 1e-3:
        raise AssertionError(f"mean {flat.mean():.4f} and spread {flat.std():.4f} over response tokens, not 0 and 1")


def padding_changes_no_return(library: Library, rng: np.random.Generator) -> None:
    spans = random_spans(rng)
    plain, _ = library.returns(spans, gamma=0.9)
    padded = _padded(spans, 2, 3, 0.0)
    same(responses(padded, library.returns(padded, gamma=0.9)[0]), responses(spans, plain), "normalised returns of padded episodes")


def equal_returns_give_nothing(library: Library, rng: np.random.Generator) -> None:
    spans = Spans(mask_BT=np.ones((3, 1), dtype=bool), rewards_BT=np.full((3, 1), 0.7), values_BT=np.zeros((3, 1)))
    advantages_BT, _ = library.returns(spans, gamma=1.0)
    largest = float(np.abs(advantages_BT).max())
    if not largest < 1e-3:
        raise AssertionError(f"an advantage of {largest} where all rewards are equal")


def a_uniform_group_gives_nothing(library: Library, rng: np.random.Generator) -> None:
    rewards_E = np.array([0.1, 0.1, 0.1, 1.0, 0.0, 0.3])
    found = library.group(rewards_E, ["even"] * 3 + ["mixed"] * 3, normalise_std=True)
    if np.abs(found[:3]).max() > 1e-3 or not np.isfinite(found).all():
        raise AssertionError(f"a group rewarded alike got {found[:3].tolist()}")


def group_advantages_add_up_to_nothing(library: Library, rng: np.random.Generator) -> None:
    rewards_E, names = rng.normal(size=9), ["a", "b", "c"] * 3
    found = library.group(rewards_E, names, normalise_std=True)
    for name in "abc":
        total = sum(value for value, member in zip(found, names, strict=True) if member == name)
        if abs(total) > 1e-4:
            raise AssertionError(f"the advantages of a group add up to {total:.4f}")


def groups_do_not_leak(library: Library, rng: np.random.Generator) -> None:
    rewards_E, names = rng.normal(size=8), ["a", "a", "a", "a", "b", "b", "b", "b"]
    louder = np.concatenate([rewards_E[:4], rewards_E[4:] * 50])
    found = [library.group(values, names, normalise_std=True)[:4] for values in (rewards_E, louder)]
    same([found[0]], [found[1]], "a group beside a quiet and a loud one")


def order_in_groups_does_not_matter(library: Library, rng: np.random.Generator) -> None:
    rewards_E, names = rng.normal(size=8), np.array(["a", "b"] * 4)
    order = rng.permutation(8)
    first = library.group(rewards_E, names.tolist(), normalise_std=True)
    second = library.group(rewards_E[order], names[order].tolist(), normalise_std=True)
    same([second], [first[order]], "group advantages in another order")


def a_lonely_episode_gives_nothing(library: Library, rng: np.random.Generator) -> None:
    found = library.group(np.array([0.9, 0.2, 0.4]), ["lonely", "pair", "pair"], normalise_std=True)
    if not abs(found[0]) < 1e-3:
        raise AssertionError(f"a group of one episode got {found[0]:.3f}: nothing compares it")


def without_std_differences_stay_as_they_are(library: Library, rng: np.random.Generator) -> None:
    found = library.group(np.array([1.0, 0.0, 0.0, 0.0]), ["a"] * 4, normalise_std=False)
    same([found], [np.array([0.75, -0.25, -0.25, -0.25])], "advantages without division by the spread (Dr. GRPO)")


ADVANTAGE_INVARIANTS = (
    Invariant(check=gae_is_its_definition, operation="gae", source="arXiv 1506.02438, equation 16"),
    Invariant(check=observation_tokens_change_nothing, operation="gae", source="verl #2337, miles #1827"),
    Invariant(check=values_of_observations_do_not_matter, operation="gae", source="ROLL #447"),
    Invariant(check=nan_at_a_masked_token_stays_there, operation="gae", source="measured in verl 0.9.1"),
    Invariant(check=right_padding_changes_nothing, operation="gae", source="AReaL #1346"),
    Invariant(check=left_padding_changes_nothing, operation="gae", source="AReaL #1346"),
    Invariant(check=reward_on_a_masked_last_token_counts, operation="gae", source="measured in verl 0.9.1; miles #1827"),
    Invariant(check=reward_on_an_observation_token_counts, operation="gae", source="miles #1827"),
    Invariant(check=truncated_ends_in_the_value_after_the_cut, operation="gae", source="AReaL seq_no_eos_mask"),
    Invariant(check=only_the_truncated_bootstrap, operation="gae", source="AReaL seq_no_eos_mask"),
    Invariant(check=terminated_ends_in_zero, operation="gae", source="RoboVerse #814"),
    Invariant(check=the_end_is_not_off_by_one, operation="gae", source="rlevo #342, stable-baselines #385"),
    Invariant(check=episodes_do_not_leak, operation="gae", source="SkyRL, step-wise ordering"),
    Invariant(check=order_of_episodes_does_not_matter, operation="gae", source="SkyRL, step-wise ordering"),
    Invariant(check=lambda_one_targets_are_returns, operation="gae", source="VC-PPO, arXiv 2503.01491"),
    Invariant(check=potential_shaping_changes_no_advantage, operation="gae", source="Ng et al. 1999, theorem 1"),
    Invariant(check=policy_lambda_leaves_targets_alone, operation="decoupled_gae", source="VC-PPO, arXiv 2503.01491"),
    Invariant(check=length_adaptive_lambda_is_never_negative, operation="length_lambda", source="VAPO, arXiv 2504.05118, below 20 tokens"),
    Invariant(check=returns_cross_observation_spans, operation="returns", source="verl #7278, #7300"),
    Invariant(check=returns_are_normalised_over_response_tokens, operation="returns", source="arXiv 2501.03262"),
    Invariant(check=padding_changes_no_return, operation="returns", source="AReaL #1346"),
    Invariant(check=equal_returns_give_nothing, operation="returns", source="DAPO, arXiv 2503.14476, dynamic sampling"),
    Invariant(check=a_uniform_group_gives_nothing, operation="group", source="DAPO, arXiv 2503.14476, dynamic sampling"),
    Invariant(check=group_advantages_add_up_to_nothing, operation="group", source="GRPO, arXiv 2402.03300"),
    Invariant(check=groups_do_not_leak, operation="group", source="GRPO, arXiv 2402.03300"),
    Invariant(check=order_in_groups_does_not_matter, operation="group", source="SkyRL, step-wise ordering"),
    Invariant(check=a_lonely_episode_gives_nothing, operation="group", source="crashed members leave groups of one"),
    Invariant(check=without_std_differences_stay_as_they_are, operation="group", source="Dr. GRPO, arXiv 2503.20783"),
)
