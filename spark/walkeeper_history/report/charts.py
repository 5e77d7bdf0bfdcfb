"""Charts of a report as inline SVG: no script, no file beside the page. Pure.

Colours are the page's CSS variables, so that they follow its light and dark form. Every mark has
its numbers in a <title>, which browsers show under the pointer and screen readers read out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 960, 240
LEFT, RIGHT, TOP, BOTTOM = 84, 8, 12, 28


@dataclass(frozen=True, slots=True)
class Bar:
    """One bucket: parts stacked from the bottom, by class of colour, and its title."""

    parts: Sequence[tuple[str, float]]
    title: str


def iec(size: float) -> str:
    """Return a size such as `12.3 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def stacked(
    bars: Sequence[Bar], marks: Iterable[tuple[float, str]], labels: Sequence[tuple[float, str]]
) -> str:
    """Return bars side by side.

    `marks` are upright lines and `labels` words at fractions of the width.
    """
    top = max((sum(value for _, value in bar.parts) for bar in bars), default=0) or 1
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    step = wide / max(len(bars), 1)
    pieces = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">']
    for part in (0, 0.5, 1):
        y = TOP + high * (1 - part)
        pieces.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        text = escape(f"{iec(top * part)}/s")
        pieces.append(f'<text x="{LEFT - 6}" y="{y + 4}" class="end">{text}</text>')
    for number, bar in enumerate(bars):
        y = float(TOP + high)
        pieces.append(f"<g><title>{escape(bar.title)}</title>")
        for name, value in bar.parts:
            tall = high * value / top
            y -= tall
            pieces.append(
                f'<rect class="{name}" x="{LEFT + number * step:.2f}" y="{y:.2f}" '
                f'width="{max(step - 0.6, 0.4):.2f}" height="{tall:.2f}"/>'
            )
        pieces.append("</g>")
    for place, title in marks:
        x = LEFT + wide * place
        pieces.append(
            f'<g><title>{escape(title)}</title><line class="mark" x1="{x:.1f}" x2="{x:.1f}" '
            f'y1="{TOP}" y2="{TOP + high}"/></g>'
        )
    for place, text in labels:
        side = "start" if place < 0.1 else "end" if place > 0.9 else "middle"
        x = LEFT + wide * place
        pieces.append(f'<text x="{x:.1f}" y="{HEIGHT - 8}" class="{side}">{escape(text)}</text>')
    pieces.append("</svg>")
    return "".join(pieces)


def share(parts: Sequence[tuple[str, float]]) -> str:
    """Return a bar within a table's cell: parts of 1 by class of colour."""
    pieces = ['<svg class="share" viewBox="0 0 100 8" preserveAspectRatio="none">']
    x = 0.0
    for name, value in parts:
        pieces.append(
            f'<rect class="{name}" x="{x:.2f}" y="0" width="{100 * value:.2f}" height="8"/>'
        )
        x += 100 * value
    return "".join([*pieces, "</svg>"])
