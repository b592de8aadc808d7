"""Pictures of how far a judge can be trusted: what becomes of its scores (reliability), and precision by recall. They stand alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from warehouse.evaluation.judge_reports import Word, bins, confusion, confusion_by_domain
from warehouse.reporting.svg import COLOURS, Axis, Drawing, legend

SIDE, TOP, LEFT, GAP = 250.0, 70.0, 56.0, 90.0


def judge_chart(words: Mapping[str, Sequence[Word]], chosen: Mapping[str, Mapping[str, float]], title: str, *, alone: bool = True) -> str:
    """A line a judge, by its label: left the share that is good among episodes of similar score, right precision by recall over all
    thresholds with what the chosen ones of the domains give as a ring. Empty where nothing was measured."""
    if not any(words.values()):
        return ""
    drawing = Drawing(LEFT + 2 * SIDE + GAP + 30, TOP + SIDE + 46, title)
    drawing.text(14, 22, title, "strong")
    legend(drawing, 14, 46, [(COLOURS[place % len(COLOURS)], f"{label} ({len(of)})") for place, (label, of) in enumerate(words.items())])
    score, share = Axis(0.0, 1.0, LEFT, LEFT + SIDE), Axis(0.0, 1.0, TOP + SIDE, TOP)
    start = LEFT + SIDE + GAP
    recall = Axis(0.0, 1.0, start, start + SIDE)
    _frame(drawing, score, share, "score", "share that is good")
    _frame(drawing, recall, share, "recall", "precision")
    drawing.line(score.px(0), share.px(0), score.px(1), share.px(1), "grid")
    for place, (label, of) in enumerate(words.items()):
        if not of:
            continue
        style = COLOURS[place % len(COLOURS)]
        found = bins(of)
        drawing.polyline([(score.px(each.score), share.px(each.good)) for each in found], style)
        for each in found:
            size = 2.5 + 5 * (each.num / len(of)) ** 0.5
            hint = f"{label}: {each.num} of score {each.score:.2f}, {each.good:.2f} good"
            drawing.circle(score.px(each.score), share.px(each.good), size, style, hint)
        curve = [confusion(of, threshold) for threshold in sorted({word.score for word in of})]
        both = [(each.recall, each.precision) for each in curve]
        drawing.polyline([(recall.px(r), share.px(p)) for r, p in both if r is not None and p is not None], style)
        at = confusion_by_domain(of, chosen[label]) if label in chosen else None
        if at is not None and at.recall is not None and at.precision is not None:
            hint = f"{label}: from {at.threshold:.3f} on precision {at.precision:.3f}, recall {at.recall:.3f}"
            drawing.circle(recall.px(at.recall), share.px(at.precision), 6, f"hollow line {style}", hint)
    return drawing.render(alone=alone)


def _frame(drawing: Drawing, x: Axis, y: Axis, across: str, up: str) -> None:
    for tick in y.ticks():
        drawing.line(x.start_px, y.px(tick), x.end_px, y.px(tick), "grid")
        drawing.text(x.start_px - 6, y.px(tick) + 4, f"{tick:g}", "small muted", "end")
    for tick in x.ticks():
        drawing.text(x.px(tick), y.start_px + 16, f"{tick:g}", "small muted", "middle")
    drawing.text((x.start_px + x.end_px) / 2, y.start_px + 34, across, "small muted", "middle")
    drawing.text(x.start_px, y.end_px - 8, up, "small muted")
