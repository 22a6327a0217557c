"""One self-contained HTML page for an example: attention by layer and head, and words."""

from __future__ import annotations

import html
from pathlib import Path

from bertfam_tf.analysis.attention import AttentionMaps
from bertfam_tf.analysis.attribution import Attribution
from bertfam_tf.attention_html import attention_html, page
from bertfam_tf.files import HTML, check_kind, write
from bertfam_tf.user_warnings import renamed_arguments

_STYLE = """
.words span, bdi { unicode-bidi: isolate; }
.words span { padding: .1rem .25rem; border-radius: .25rem; margin: 0 .05rem; }
"""


@renamed_arguments(found="attribution")
def write_page(
    file: str | Path, maps: AttentionMaps | None = None, attribution: Attribution | None = None
) -> Path:
    """Writes a page that needs nothing else: no server, no other file.

    Args:
        file: the HTML file to write.
        maps: the attention of an example, with a choice of layer and head.
        attribution: the attribution of its answer to words.

    Raises:
        FileExistsError: if there is another kind of file.
        OSError: if the file cannot be written.
    """
    check_kind(file, *HTML)
    body = []
    if attribution is not None:
        body.append(_words(attribution))
    if maps is not None:
        body.append(attention_html(maps.tokens, maps.layers))
    title = "bertfam analyze"
    content = page(title, f"<h1>{title}</h1>{''.join(body)}", _STYLE)
    write(Path(file), content.encode("utf-8", "replace"))
    return Path(file)


def _words(attribution: Attribution) -> str:
    largest = max((abs(share) for _, share in attribution.words), default=0.0) or 1.0
    spans = []
    for word, share in attribution.words:
        colour = "37, 99, 235" if share >= 0 else "220, 38, 38"
        style = f"background: rgba({colour}, {abs(share) / largest * 0.6:.3f})"
        title = f"{share:+.4f}"
        spans.append(f'<span style="{style}" title="{title}">{html.escape(word.text)}</span>')
    return (
        f"<h2>Which words made “<bdi>{html.escape(attribution.target)}</bdi>”</h2>"
        f'<div class="words">{" ".join(spans)}</div>'
        f'<p class="note">Blue words add to the score, red ones take from it: from '
        f"{attribution.baseline:.3f} without words to {attribution.score:.3f} "
        "(integrated gradients).</p>"
    )
