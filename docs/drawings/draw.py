#!/usr/bin/env python3
"""Draw what moves where in rungs of the ladders, as SVG beside this file: python docs/drawings/draw.py.

Blue is what one thread or warp uses, grey what comes along or is there. Only the standard library is used.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from pathlib import Path

__all__ = ["DRAWINGS", "svg"]

WIDTH, SHOWN = 360, 432  # pixels of the drawing's own, and on a page that is wide enough
STYLE = """
text { font: 11px system-ui, sans-serif; fill: #1c1e21 } .middle { text-anchor: middle } .bold { font-weight: 600 }
path { stroke: #1c1e21; fill: none; marker-end: url(#head) } marker path { marker-end: none }
rect { stroke: #9a9a9a } .ground { fill: #ffffff; stroke: none } .light { fill: #ffffff } .empty { fill: none }
.there { fill: #d9dde2 } .used { fill: #2f6fab } .other { fill: #c96f1e }
@media (prefers-color-scheme: dark) { text { fill: #e6e6e6 } path { stroke: #e6e6e6 } rect { stroke: #7a7a7a }
.ground { fill: #131416; stroke: none } .light { fill: #131416 }
.there { fill: #3a3f45 } .used { fill: #5b9bd8 } .other { fill: #e0913f } }
"""


def svg(height: int, title: str, *shapes: str) -> str:
    """Return a drawing; colours follow the reader's light or dark mode."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{SHOWN}" '
            f'height="{height * SHOWN // WIDTH}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style>",
            '<marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto">'
            '<path d="M 2 1 L 9 5 L 2 9"/></marker>',
            f'<rect class="ground" width="{WIDTH}" height="{height}"/>',
            *shapes,
            "</svg>\n",
        ]
    )


def text(x: float, y: float, words: object, kind: str = "") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}">{escape(str(words))}</text>'


def box(x: float, y: float, width: float, height: float, kind: str = "empty", words: object = "") -> str:
    """Return a rectangle with words in its middle."""
    on_dark = "middle light" if kind in ("used", "other") else "middle"
    label = text(x + width / 2, y + height / 2 + 4, words, on_dark) if words != "" else ""
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}"/>{label}'


def cells(
    x: float,
    y: float,
    columns: int,
    rows: int,
    size: float,
    used: Iterable[tuple[int, int]] = (),
    there: Iterable[tuple[int, int]] = (),
) -> str:
    """Return a matrix of squares; `used` and `there`: columns and rows of those that have a colour."""
    kinds = dict.fromkeys(there, "there") | dict.fromkeys(used, "used")
    return "".join(
        box(x + column * size, y + row * size, size, size, kinds.get((column, row), "empty"))
        for row in range(rows)
        for column in range(columns)
    )


def arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    return f'<path d="M {x} {y} L {to_x} {to_y}"/>'


def lanes_of_products() -> str:
    """gemm, naive and coalesced: six lanes in place of 32."""
    shapes = []
    down, across = range(6), range(8)
    for top, name, words in (
        (0, "naive", "neighbouring rows, a line of memory per lane"),
        (132, "coalesced", "neighbouring columns, one line for all lanes"),
    ):
        is_naive = name == "naive"
        rows = [(column, row) for column in across for row in down]
        shapes += [
            text(8, top + 16, f"{name}: {words}"),
            *(text(x + 44, top + 38, letter, "middle bold") for x, letter in ((8, "a"), (136, "b"), (264, "c"))),
            cells(
                8,
                top + 44,
                8,
                6,
                11,
                [(3, row) for row in down] if is_naive else [(3, 2)],
                rows if is_naive else [cell for cell in rows if cell[1] == 2],
            ),
            text(116, top + 81, "×", "middle"),
            cells(
                136,
                top + 44,
                8,
                6,
                11,
                [(5, 3)] if is_naive else [(column, 3) for column in across],
                [cell for cell in rows if cell[1] == 3],
            ),
            text(244, top + 81, "=", "middle"),
            cells(
                264,
                top + 44,
                8,
                6,
                11,
                [(5, row) for row in down] if is_naive else [(c, 2) for c in across],
                rows if is_naive else [cell for cell in rows if cell[1] == 2],
            ),
        ]
    words = "blue: used by a warp for one term; grey: lines read"
    return svg(268, "Which numbers the lanes of a warp read", *shapes, text(8, 262, words))


def tile_in_shared_memory() -> str:
    """gemm, shared_tiled: slabs of both factors, in the proportions 64 to 16."""
    return svg(
        272,
        "A tile's factors in shared memory",
        text(8, 16, "global memory", "bold"),
        text(44, 38, "a", "middle"),
        box(8, 44, 72, 72),
        box(26, 62, 18, 36, "used"),
        text(8, 132, "64 rows, 16 terms"),
        text(44, 158, "b", "middle"),
        box(8, 164, 72, 72),
        box(26, 182, 36, 18, "used"),
        text(8, 252, "16 terms, 64 columns"),
        arrow(84, 80, 126, 80),
        arrow(84, 190, 126, 190),
        text(132, 16, "shared memory", "bold"),
        box(132, 71, 36, 18, "used"),
        box(132, 182, 36, 18, "used"),
        text(132, 132, "each number"),
        text(132, 148, "copied once;"),
        text(132, 164, "a is transposed"),
        arrow(174, 80, 240, 110),
        arrow(174, 190, 240, 164),
        text(246, 16, "registers", "bold"),
        box(246, 84, 100, 100),
        *(box(252 + 25 * i, 90 + 25 * j, 7, 7, "used") for i in range(4) for j in range(4)),
        text(246, 76, "tile: 64 × 64"),
        text(246, 202, "blue: the 16 sums"),
        text(246, 218, "of one thread"),
    )


def copies_ahead() -> str:
    """gemm, vectorized: four stages, of which one is multiplied while three are filled."""
    shapes = [text(8, 16, "four stages of shared memory, and the tile in each")]
    for step in range(7):
        shapes.append(text(105 + 38 * step, 40, step, "middle"))
        for ahead in range(4):
            tile = step + ahead
            kind = "there" if ahead else "used"
            shapes.append(box(86 + 38 * step, 48 + 26 * (tile % 4), 38, 26, kind, tile))
    shapes += [text(8, 40, "step"), *(text(8, 65 + 26 * stage, f"stage {stage}") for stage in range(4))]
    shapes += [box(8, 166, 12, 12, "used"), text(26, 177, "is multiplied")]
    shapes += [box(8, 186, 12, 12, "there"), text(26, 197, "is on its way from global memory, past the registers")]
    return svg(206, "Copies three tiles ahead of the products", *shapes)


def split_products() -> str:
    """gemm, tensor_float32: two numbers of TF32 for each of float32, and three of four products."""
    shapes = []
    for x, name in ((8, "x"), (186, "w")):
        shapes += [
            text(x, 16, f"{name}: 24 significant bits"),
            box(x, 24, 166, 20, "empty"),
            box(x, 24, 76, 20, "used", "11"),
            box(x + 76, 24, 76, 20, "other", "11"),
            text(x + 38, 60, f"hi of {name}", "middle"),
            text(x + 114, 60, f"lo of {name}", "middle"),
        ]
    products = [("hi x · hi w", "used"), ("hi x · lo w", "other"), ("lo x · hi w", "other"), ("lo x · lo w", "empty")]
    for place, (words, kind) in enumerate(products):
        shapes.append(box(8 + 88 * place, 80, 80, 26, kind, words))
    shapes += [
        *(
            text(48 + 88 * place, 124, words, "middle")
            for place, words in enumerate(("added last", "", "", "left out"))
        ),
        text(180, 124, "added first", "middle"),
        text(8, 148, "three instructions of the tensor cores, summed in float32"),
    ]
    return svg(156, "A float32 number as two numbers of TF32", *shapes)


def pixels_of_a_tile() -> str:
    """conv2d, tiled_shared: 4 x 4 outputs of windows 3 x 3 need 6 x 6 pixels."""
    window = [(column, row) for column in (1, 2, 3) for row in (2, 3, 4)]
    needed = [(column, row) for column in range(3, 9) for row in range(1, 7)]
    return svg(
        184,
        "The pixels of a tile in shared memory",
        text(8, 16, "image", "bold"),
        cells(8, 24, 11, 9, 11, (), needed),
        arrow(133, 74, 153, 74),
        text(160, 16, "shared memory", "bold"),
        cells(160, 30, 6, 6, 15, window, [(c, r) for c in range(6) for r in range(6)]),
        arrow(254, 74, 276, 74),
        text(284, 16, "outputs", "bold"),
        cells(284, 45, 4, 4, 15, [(1, 2)], [(c, r) for c in range(4) for r in range(4)]),
        text(8, 146, "grey: pixels that 4 × 4 outputs need, read once"),
        text(8, 164, "blue: one output, and its window of 3 × 3 pixels"),
    )


VOTES = 2, 5, 6, 11, 19, 28, 30


def votes_of_a_warp() -> str:
    """spmspm, warp_vote."""
    shapes = [
        text(8, 16, "32 lanes, a column each; blue: found a non-zero"),
        cells(20, 24, 32, 1, 10, [(lane, 0) for lane in VOTES]),
        text(8, 126, "the list in global memory: 7 places side by side"),
        text(8, 148, "__ballot_sync: every lane sees all votes"),
        text(8, 164, "lane 2, the first: count += 7, one atomic addition"),
        text(8, 180, "place: the old count, plus the votes of lanes before"),
    ]
    for place, lane in enumerate(VOTES):
        shapes += [
            box(96 + 24 * place, 90, 24, 22, "used", f"+{place}"),
            arrow(25 + 10 * lane, 36, 108 + 24 * place, 87),
        ]
    return svg(188, "A vote reserves places for a warp", *shapes)


def rows_of_a_thread() -> str:
    """spmspm, coarsened."""
    return svg(
        196,
        "A thread computes many rows of one column",
        text(108, 16, "columns of weights: from memory"),
        text(108, 32, "once, then from the cache"),
        *(box(108 + 24 * column, 40, 20, 14, "there") for column in range(8)),
        text(8, 62, "rows of"),
        text(8, 78, "features"),
        *(box(8, 86 + 18 * row, 84, 12, "used" if row == 2 else "there") for row in range(5)),
        *(
            box(108 + 24 * column, 84 + 18 * row, 20, 16, "used" if row == 2 else "empty")
            for row in range(5)
            for column in range(8)
        ),
        *(arrow(118 + 24 * column, 62, 118 + 24 * column, 82) for column in range(8)),
        text(8, 190, "a thread walks down its column; all are at the same row"),
    )


def results_of_a_block() -> str:
    """spmspm, privatized: a block of 8 x 4 threads in place of 32 x 32."""
    found = [(1, 0), (6, 0), (3, 1), (0, 2), (4, 2), (7, 3)]
    return svg(
        206,
        "A block collects its results in shared memory",
        text(8, 16, "threads of a block", "bold"),
        cells(8, 24, 8, 4, 14, found),
        text(8, 98, "blue: non-zeros"),
        arrow(126, 52, 196, 52),
        text(204, 16, "shared memory", "bold"),
        cells(204, 44, 10, 1, 14, [(place, 0) for place in range(len(found))]),
        text(204, 76, "an atomic addition each"),
        text(204, 92, "on the block's counter"),
        arrow(246, 104, 246, 148),
        text(8, 126, "one addition of 6 to the global"),
        text(8, 142, "counter, then all write at once"),
        cells(8, 156, 24, 1, 14, [(place, 0) for place in range(14, 20)], [(place, 0) for place in range(14)]),
        text(8, 190, "the list in global memory; grey: of other blocks"),
    )


def row_of_a_warp() -> str:
    """spmspm, row_per_warp: the second non-zero of a row of eight."""
    row, weights, current = (1, 4, 6), {1: (0, 5, 9), 3: (2, 7), 4: (1, 5, 8, 12), 6: (3, 4, 11)}, 4
    entries = [(column, line) for line, columns in weights.items() for column in columns]
    return svg(
        246,
        "Each non-zero of a row adds a row of the weights to the sums",
        text(8, 34, "a row y"),
        cells(24, 40, 1, 8, 16, [(0, current)], [(0, place) for place in row]),
        text(84, 34, "weights W, by input"),
        cells(84, 40, 14, 8, 16, [(column, current) for column in weights[current]], entries),
        arrow(44, 112, 80, 112),
        text(8, 194, "sums, in"),
        text(8, 210, "shared"),
        cells(84, 188, 14, 1, 16, [(column, 0) for column in weights[current]]),
        *(arrow(92 + 16 * column, 122, 92 + 16 * column, 186) for column in weights[current]),
        text(8, 16, "grey: non-zeros; blue: those multiplied now"),
        text(8, 234, "a lane per blue weight: sums[j] += y[i] · W[i, j]"),
    )


def pairs_of_threads() -> str:
    """mlp, whole_net_registers: the first layer."""
    shapes = [
        text(8, 16, "a row of 72 inputs, in shared memory"),
        box(20, 24, 160, 20, "used", "0 … 35"),
        box(180, 24, 160, 20, "other", "36 … 71"),
        arrow(100, 48, 100, 70),
        arrow(260, 48, 260, 70),
        text(100, 86, "thread 2 u", "middle bold"),
        text(260, 86, "thread 2 u + 1", "middle bold"),
        box(20, 94, 160, 20, "used", "36 weights of output u"),
        box(180, 94, 160, 20, "other", "36 weights of output u"),
        text(8, 132, "weights in registers, for all rows of the block"),
        arrow(100, 142, 160, 172),
        arrow(260, 142, 200, 172),
        box(110, 178, 140, 22, "there", "half + half + bias"),
        text(8, 218, "__shfl_xor_sync; then ReLU, and to shared memory"),
    ]
    return svg(226, "Two threads share a column of weights", *shapes)


DRAWINGS = {
    "gemm-lanes": lanes_of_products,
    "gemm-shared": tile_in_shared_memory,
    "gemm-ahead": copies_ahead,
    "gemm-split": split_products,
    "conv2d-tile": pixels_of_a_tile,
    "spmspm-vote": votes_of_a_warp,
    "spmspm-coarsened": rows_of_a_thread,
    "spmspm-privatized": results_of_a_block,
    "spmspm-row": row_of_a_warp,
    "mlp-pairs": pairs_of_threads,
}
"""By file name."""


if __name__ == "__main__":
    for name, draw in DRAWINGS.items():
        Path(__file__).with_name(f"{name}.svg").write_text(draw(), encoding="utf-8")
