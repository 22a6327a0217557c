"""Formats answers as HTML. All texts from models and clients are escaped."""

import html

from bertfam_serve.ui_answers import Answer, MarkedText, NamedValue, Scores, TextPart

# Light backgrounds for dark text; labels get them in alphabetical order.
_COLOURS = ("#fde68a", "#bfdbfe", "#bbf7d0", "#fecaca", "#ddd6fe", "#fed7aa", "#a5f3fc", "#f5d0fe")

# Scores beyond the best ones are folded.
_BARS = 15

STYLE = """
.answer { font-size: 1.02rem; line-height: 1.9; color: #1f2937; width: 100%; }
.answer section { margin-bottom: 1.1rem; }
.answer h2 {
  font-size: .74rem; font-weight: 600; letter-spacing: .07em; text-transform: uppercase;
  color: #64748b; line-height: 1.6; margin: 0 0 .25rem;
}
.answer .text { white-space: pre-wrap; overflow-wrap: anywhere; }
.answer .value { font-size: 1.3rem; font-weight: 600; line-height: 1.4; overflow-wrap: anywhere; }
/* An override of the direction of text ends with its own element. */
.answer mark, .answer mark small, .answer span { unicode-bidi: isolate; }
.answer mark { border-radius: .35rem; padding: .14rem .35rem; color: inherit; }
.answer mark small {
  font-size: .64rem; font-weight: 700; letter-spacing: .04em; margin-left: .4rem; color: #475569;
}
.answer .bar {
  display: grid; grid-template-columns: minmax(6rem, 15rem) minmax(3rem, 1fr) 4rem;
  gap: .8rem; align-items: center; line-height: 2;
}
.answer .bar span:first-child { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.answer .bar i { display: block; height: .6rem; border-radius: .3rem; background: #e2e8f0; }
.answer .bar b { display: block; height: 100%; border-radius: .3rem; background: #94a3b8; }
.answer section > .bar:first-of-type b { background: #2563eb; }
.answer summary { cursor: pointer; color: #64748b; }
.answer .bar span:last-child { text-align: right; font-variant-numeric: tabular-nums; }
"""


def markup(answer: Answer) -> str:
    """Returns the answer as HTML, to be used with ``STYLE``."""
    return "".join(f"<section>{_section(item)}</section>" for item in answer)


def _section(item: MarkedText | Scores | NamedValue) -> str:
    if isinstance(item, MarkedText):
        return _marked(item)
    if isinstance(item, Scores):
        bars = [_bar(name, score) for name, score in item.items]
        more = "".join(bars[_BARS:])
        rest = f"<details><summary>{len(bars) - _BARS} more</summary>{more}</details>"
        title = f"<h2>{html.escape(item.title)}</h2>"
        return f"{title}{''.join(bars[:_BARS])}{rest if more else ''}"
    return f'<h2>{html.escape(item.name)}</h2><div class="value">{html.escape(item.value)}</div>'


def _marked(marked: MarkedText) -> str:
    labels = sorted({part.label for part in marked.parts if part.label})
    colours = {label: _COLOURS[i % len(_COLOURS)] for i, label in enumerate(labels)}
    parts = "".join(_part(part, colours) for part in marked.parts)
    return f'<div class="text">{parts}</div>'


def _part(part: TextPart, colours: dict[str, str]) -> str:
    text = html.escape(part.text)
    if not part.label:
        return text
    return (
        f'<mark style="background: {colours[part.label]}" title="{part.score:.4f}">{text}'
        f"<small>{html.escape(part.label)}</small></mark>"
    )


def _bar(name: str, score: float) -> str:
    width = 100 * min(max(score, 0.0), 1.0)
    shown = html.escape(name)
    return (
        f'<div class="bar"><span title="{shown}">{shown}</span>'
        f'<i><b style="width: {width:.1f}%"></b></i><span>{score:.1%}</span></div>'
    )
