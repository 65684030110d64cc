"""Loops over a layer's edges that lay them out for `gather_chunks`; `weights.py` says what they write."""

from __future__ import annotations

from sparsenn.formats import Array
from sparsenn.runtime.jit import compiled

EVEN = 20  # what an edge of a warp in the same chunk counts for where one in any chunk counts for 1


@compiled
def find_lines(indptr: Array, indices: Array, group: Array, lines: Array) -> int:
    """Write the place of each input among those that a group reads, -1 elsewhere; return the runs of neighbours.

    `group` is (outputs,) int64; `lines` (groups, inputs) int32, -1 at first.
    """
    for output in range(group.size):
        for edge in range(indptr[output], indptr[output + 1]):
            lines[group[output], indices[edge]] = 0
    runs = 0
    for number in range(lines.shape[0]):
        count, reads = 0, False
        for source in range(lines.shape[1]):
            read_before, reads = reads, lines[number, source] >= 0
            if reads:
                lines[number, source] = count
                count += 1
                runs += not read_before
    return runs


@compiled
def count_edges(
    indptr: Array, indices: Array, group: Array, place: Array, lines: Array, chunk: int, counts: Array
) -> None:
    """Count the edges of each group, chunk and place into `counts`, (groups, chunks, places) int32.

    `place` is of each output in its group; `lines` as `find_lines` writes them, or (1, inputs), the same for all
    groups.
    """
    for output in range(group.size):
        row = group[output] if lines.shape[0] > 1 else 0
        for edge in range(indptr[output], indptr[output + 1]):
            counts[group[output], lines[row, indices[edge]] // chunk, place[output]] += 1


@compiled
def deal_outputs(counts: Array, most: int, load: Array, shared: Array, taken: Array, dealt: Array) -> None:
    """Write the slot in its block of each output into `dealt`, (groups, slots) int64 by place.

    Warps wait for each other at every chunk, so that they should have like work in each: outputs are dealt one after
    the other, each to the warp whose outputs so far have the fewest edges in the same chunks. `load`, (chunks, warps),
    `shared` and `taken`, (warps,), are for the loop's own use.
    """
    warps = taken.size
    full = -(-most // warps)
    for group in range(counts.shape[0]):
        for warp in range(warps):
            taken[warp] = 0
            for chunk in range(counts.shape[1]):
                load[chunk, warp] = 0
        for place in range(most):
            for warp in range(warps):
                shared[warp] = 0
            for chunk in range(counts.shape[1]):
                edges = EVEN * counts[group, chunk, place] + 1
                for warp in range(warps):
                    shared[warp] += edges * load[chunk, warp]
            best = -1
            for warp in range(warps):
                if taken[warp] < full and (best < 0 or shared[warp] < shared[best]):
                    best = warp
            dealt[group, place] = best * (dealt.shape[1] // warps) + taken[best]
            taken[best] += 1
            for chunk in range(counts.shape[1]):
                load[chunk, best] += counts[group, chunk, place]


@compiled
def write_edges(
    indptr: Array,
    indices: Array,
    weights: Array,
    group: Array,
    slot: Array,
    lines: Array,
    chunk: int,
    first: Array,
    rank: Array,
    shape: Array,
    words: Array,
) -> None:
    """Write the edges of all records into `words`, by group, chunk and output.

    `weights` (edges,) int32; `slot` of each output in its group; `first` (groups, chunks, warps), the word at which a
    warp's edges begin; `rank` (groups, chunks, slots), a warp's edges before those of a slot, changed; `shape`: outputs
    of a warp, edges that it reads at once, bytes of a line, the step of an edge's place from output to output, and the
    words of a unit: an input with the weights of a warp's outputs, where these are a team, whose `rank` begins with 0.
    """
    outputs, at_once, line, output_places, unit_words = shape[0], shape[1], shape[2], shape[3], shape[4]
    for output in range(group.size):
        own, number = slot[output], group[output]
        warp, among = own // outputs, own % outputs
        row = number if lines.shape[0] > 1 else 0
        for edge in range(indptr[output], indptr[output + 1]):
            part, within = lines[row, indices[edge]] // chunk, lines[row, indices[edge]] % chunk
            before = rank[number, part, own]
            rank[number, part, own] = before + 1
            if unit_words > 0:
                at = first[number, part, warp] + unit_words * before
                words[at] = within * line
                words[at + 4 + among] = weights[edge]
                continue
            at = first[number, part, warp] + 4 * (before // at_once) + before % at_once
            place = within * line + among * output_places
            if at_once == 2:
                words[at] = weights[edge]
                words[at + at_once] = place
            else:
                words[at] = weights[edge] | place
