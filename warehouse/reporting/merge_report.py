"""A merge as people read it: tables in Markdown and a picture of the search for its weights. What they say is merge_results.py's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from warehouse.evaluation.merge_results import KEPT_SHARE, Mixture, Retention
from warehouse.evaluation.statistics import Estimate
from warehouse.reporting.svg import COLOURS, Axis, Drawing, legend

MAX_MIXTURES_DRAWN = 24


def successes_table(found: Mapping[tuple[str, str], Estimate]) -> str:
    """Markdown of (policy's role, domain) → success: a row a policy, a column a domain. Specialists, joint training and the merge stand
    side by side."""
    domains, roles = sorted({domain for _, domain in found}), list(dict.fromkeys(role for role, _ in found))
    rows = [["policy", *domains], ["---"] * (1 + len(domains))]
    return _markdown([*rows, *([role, *(_cell(found[role, of]) if (role, of) in found else "–" for of in domains)] for role in roles)])


def retention_table(rows: Sequence[Retention]) -> str:
    """Markdown: each specialist against the merge on its own domain."""
    if not rows:
        return "no specialist and merge were evaluated on the same domain"
    table = [["domain", "split", "specialist", "merge", "kept", f"{KEPT_SHARE:.0%} of the specialist"], ["---"] * 6]
    for row in rows:
        share = f"{row.share:.0%}" if row.share is not None else "–"
        table.append([row.domain, row.split, _cell(row.specialist), _cell(row.merged), share, row.verdict])
    return _markdown(table)


def mixtures_table(tried: Sequence[Mixture]) -> str:
    """Markdown: every mixture, its success on each domain and over all tasks, the chosen one in bold."""
    stages, domains = list(tried[0].weights), sorted({domain for mixture in tried for domain in mixture.domains})
    rows = [["method", *stages, *domains, "all tasks"], ["---"] * (2 + len(stages) + len(domains))]
    for mixture in tried:
        successes = [_cell(mixture.domains[domain]) if domain in mixture.domains else "–" for domain in domains]
        cells = [mixture.method, *(f"{weight:.3g}" for weight in mixture.weights.values()), *successes, _cell(mixture.all_tasks)]
        rows.append([f"**{cell}**" if mixture.is_chosen else cell for cell in cells])
    return _markdown(rows)


def mixtures_chart(tried: Sequence[Mixture]) -> str:
    """A row a mixture, the best first: success over all tasks and on each domain with 95 % intervals; empty without one."""
    if not tried:
        return ""
    shown = sorted(tried, key=lambda mixture: (-mixture.all_tasks.mean, mixture.candidate))[:MAX_MIXTURES_DRAWN]
    domains = sorted({domain for mixture in shown for domain in mixture.domains})
    styles = {"all tasks": "grey", **{domain: COLOURS[place % len(COLOURS)] for place, domain in enumerate(domains)}}
    left, top, mark_px = 190.0, 76.0, 9.0
    row_px = mark_px * (len(domains) + 1) + 12
    drawing = Drawing(780, top + row_px * len(shown) + 34, "Success of every mixture on the eval split")
    drawing.text(14, 22, "Mixtures of the specialists, eval split", "strong")
    drawing.text(14, 42, "weights of " + " / ".join(shown[0].weights) + "; 95 % intervals; the chosen one is marked", "small muted")
    legend(drawing, 14, 62, [(style, name) for name, style in styles.items()])
    axis = Axis(0.0, 1.0, left, drawing.width - 20)
    for tick in axis.ticks():
        drawing.line(axis.px(tick), top, axis.px(tick), top + row_px * len(shown), "grid")
        drawing.text(axis.px(tick), top + row_px * len(shown) + 18, f"{tick:.0%}", "small muted", "middle")
    for place, mixture in enumerate(shown):
        y = top + row_px * place + 8
        label, style = (f"▸ {mixture.label}", "small strong") if mixture.is_chosen else (mixture.label, "small")
        drawing.text(left - 12, y + row_px / 2 - 4, label, style, "end")
        estimates = {"all tasks": mixture.all_tasks, **mixture.domains}
        for line, (name, colour) in enumerate(styles.items()):
            if name in estimates:
                _mark(drawing, axis, y + mark_px * line, colour, f"{mixture.label}, {name}", estimates[name])
    return drawing.render()


def _mark(drawing: Drawing, axis: Axis, y: float, style: str, name: str, estimate: Estimate) -> None:
    drawing.polyline([(axis.px(estimate.interval.low), y), (axis.px(estimate.interval.high), y)], style)
    drawing.circle(axis.px(estimate.mean), y, 3.5, style, f"{name}: {_cell(estimate)}, {estimate.num_episodes} episodes")


def _cell(estimate: Estimate) -> str:
    return f"{estimate.mean:.3f} [{estimate.interval.low:.2f}, {estimate.interval.high:.2f}]"


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
