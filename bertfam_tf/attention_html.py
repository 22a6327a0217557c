"""Attention of one example as HTML that needs nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

STYLE = """
body { font: 16px/1.6 system-ui, sans-serif; color: #1f2937; max-width: 60rem; margin: 2rem auto;
  padding: 0 1rem; }
h2 { font-size: 1rem; margin: 2rem 0 .5rem; }
label { margin-right: 1rem; }
canvas { width: 100%; border: 1px solid #e2e8f0; border-radius: .5rem; }
p.note { color: #64748b; font-size: .85rem; }
"""

# Lines from each token on the left to those that it attends to, as dark as the probability.
_SCRIPT = """
const data = JSON.parse(document.getElementById("data").textContent);
const layer = document.getElementById("layer"), head = document.getElementById("head");
const canvas = document.getElementById("lines");
let over = -1;
const row = 22, width = 640;
function fill(select, count, names) {
  select.innerHTML = "";
  for (let i = 0; i < count; i++) select.add(new Option(names ? names(i) : i, i));
}
function draw() {
  const map = data.layers[layer.value][head.value], n = data.tokens.length;
  const scale = window.devicePixelRatio || 1;
  canvas.width = width * scale; canvas.height = (n * row + 10) * scale;
  const c = canvas.getContext("2d");
  c.scale(scale, scale); c.font = "13px system-ui, sans-serif"; c.textBaseline = "middle";
  for (let i = 0; i < n; i++) {
    const y = i * row + row / 2 + 5;
    c.globalAlpha = over < 0 || over === i ? 1 : 0.35;
    c.fillStyle = "#1f2937"; c.textAlign = "right"; c.fillText(data.tokens[i], 200, y);
    c.globalAlpha = 1; c.textAlign = "left"; c.fillText(data.tokens[i], 440, y);
    for (let j = 0; j < n; j++) {
      if (over >= 0 && over !== i) continue;
      c.globalAlpha = map[i][j]; c.strokeStyle = "#2563eb"; c.lineWidth = 2;
      c.beginPath(); c.moveTo(206, y); c.lineTo(434, j * row + row / 2 + 5); c.stroke();
    }
  }
}
layer.onchange = () => { fill(head, data.layers[layer.value].length); draw(); };
head.onchange = draw;
canvas.onmousemove = e => {
  const y = (e.offsetY / canvas.clientHeight) * (data.tokens.length * row + 10);
  const at = Math.floor((y - 5) / row);
  if (at !== over) { over = at; draw(); }
};
canvas.onmouseleave = () => { over = -1; draw(); };
fill(layer, data.layers.length);
fill(head, data.layers[0].length);
draw();
"""


def attention_html(tokens: Sequence[str], layers: Sequence[np.ndarray]) -> str:
    """Elements with a choice of layer and head, and their script; for one page once.

    Args:
        tokens: the names of the tokens.
        layers: the probabilities (heads, queries, keys) of each layer.
    """
    data = {
        "tokens": list(tokens),
        "layers": [[[[round(float(x), 4) for x in q] for q in h] for h in a] for a in layers],
    }
    # "<" cannot end the script early; JSON in ASCII also keeps surrogates and control characters.
    content = json.dumps(data).replace("<", "\\u003c")
    return (
        "<h2>Attention</h2>"
        '<label>layer <select id="layer"></select></label>'
        '<label>head <select id="head"></select></label>'
        '<p class="note">From each token on the left to those that it attends to.</p>'
        '<canvas id="lines"></canvas>'
        f'<script type="application/json" id="data">{content}</script><script>{_SCRIPT}</script>'
    )


def page(title: str, body: str, style: str = "") -> str:
    """Returns a whole HTML page.

    Args:
        title: the title of the page, escaped.
        body: HTML.
        style: CSS in addition to ``STYLE``.
    """
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}{style}</style></head><body>{body}</body></html>\n"
    )
