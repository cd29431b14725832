"""Triton kernels of `ilme.search.recorded`: what a frame does beside the networks, a program for each utterance or row.

Legend: B utterances, K places of a beam, R labels that a frame may have, W = (R + 1) K places for those that ended the
frame, S slots of an utterance in the pool, V output units, P labels of a row that are looked at, M rows at most.

Sequences that are open after r labels of this frame stand in opened (fields, R + 1, B, K), those that took blank in
ended (fields, B, W); an empty place has path = −inf.
"""

# A kernel's arguments are typed when it is compiled, and Triton has no types that a Python type checker knows.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl

CHUNK: tl.constexpr = tl.constexpr(32)  # places that are compared at once


@triton.jit
def fused(path, lm, subtracted, phrases, length, weights):
    """path + λ lm − μ subtracted + β length + κ phrases."""
    score = path + tl.load(weights) * lm - tl.load(weights + 1) * subtracted
    return score + tl.load(weights + 2) * length + tl.load(weights + 3) * phrases


@triton.jit
def logaddexp(a, b):
    top = tl.maximum(a, b)
    small = tl.exp(tl.minimum(a, b) - tl.where(top == float("-inf"), 0.0, top))
    return tl.where(top == float("-inf"), top, top + tl.log(1.0 + small))


@triton.jit
def blank_aware(log_blank, weights, AWARE: tl.constexpr):
    """λ ln(1 − p_blank), or nothing; −expm1(x) by its series near 0."""
    if AWARE:
        x = tl.minimum(log_blank, -1e-7)
        near = -x * (1.0 + x / 2 * (1.0 + x / 3 * (1.0 + x / 4)))
        return tl.load(weights) * tl.log(tl.where(x > -0.01, near, 1.0 - tl.exp(x)))
    return log_blank * 0.0


@triton.jit
def place_among(totals, total, W, w, WP: tl.constexpr):
    """How many of the W totals are better than each (WP,); of equals the first is."""
    rank = tl.zeros((WP,), tl.int32)
    for start in range(0, WP, CHUNK):
        j = start + tl.arange(0, CHUNK)
        other = tl.load(totals + j, mask=j < W, other=float("-inf"))[None, :]
        better = (other > total[:, None]) | ((other == total[:, None]) & (j[None, :] < w[:, None]))
        rank += tl.sum((better & (j < W)[None, :]).to(tl.int32), 1)
    return rank


@triton.jit(do_not_specialize=["B"])
def settle_kernel(
    ended, ended_ids, opened, opened_ids, totals, weights, used, frame, step, round, B,
    K: tl.constexpr, W: tl.constexpr, WP: tl.constexpr, R: tl.constexpr, S: tl.constexpr, ADVANCE: tl.constexpr,
):  # fmt: skip
    """The K best that ended the frame become the beam; ADVANCE: the next frame begins."""
    b = tl.program_id(0).to(tl.int64)
    w = tl.arange(0, WP)
    inside = w < W
    at = b * W + w
    path = tl.load(ended + at, mask=inside, other=float("-inf"))
    lm = tl.load(ended + 2 * B * W + at, mask=inside, other=0.0)
    subtracted = tl.load(ended + 3 * B * W + at, mask=inside, other=0.0)
    phrases = tl.load(ended + 4 * B * W + at, mask=inside, other=0.0)
    length = tl.load(ended + 5 * B * W + at, mask=inside, other=0.0)
    total = fused(path, lm, subtracted, phrases, length, weights)
    total = tl.where(total == total, total, float("-inf"))
    tl.store(totals + at, total, mask=inside)
    now = tl.load(frame + b)
    here = tl.load(step + b)
    tl.debug_barrier()
    rank = place_among(totals + b * W, total, W, w, WP)
    kept = inside & (rank < K)
    to = b * K + rank
    field = (R + 1) * B * K
    tl.store(opened + to, path, mask=kept)
    tl.store(opened + field + to, tl.load(ended + B * W + at, mask=inside, other=0.0), mask=kept)
    tl.store(opened + 2 * field + to, lm, mask=kept)
    tl.store(opened + 3 * field + to, subtracted, mask=kept)
    tl.store(opened + 4 * field + to, phrases, mask=kept)
    tl.store(opened + 5 * field + to, length, mask=kept)
    slot = tl.load(ended_ids + 2 * B * W + at, mask=inside, other=0)
    tl.store(opened_ids + to, tl.load(ended_ids + at, mask=inside, other=0), mask=kept)
    tl.store(opened_ids + field + to, tl.load(ended_ids + B * W + at, mask=inside, other=0), mask=kept)
    tl.store(opened_ids + 2 * field + to, slot, mask=kept)
    tl.store(used + slot, tl.zeros_like(slot) + (now + 2) * (R + 2), mask=kept)
    if ADVANCE:
        tl.debug_barrier()
        tl.store(frame + b, now + 1)
        tl.store(step + b, here + 1)
        tl.store(round + b, 0)


@triton.jit
def terms_kernel(
    f, g, utterances, slots, step, counts, out_f, out_g,
    T: tl.constexpr, F: tl.constexpr, G: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out_f[i] = f[utterance, frame], out_g[i] = g[slot]: what the joint network adds; no row is promising yet."""
    i = tl.program_id(0).to(tl.int64)
    j = tl.arange(0, BLOCK)
    b = tl.load(utterances + i)
    t = tl.load(step + b)
    tl.store(out_f + i * F + j, tl.load(f + (b * T + t) * F + j, mask=j < F), mask=j < F)
    tl.store(out_g + i * G + j, tl.load(g + tl.load(slots + i) * G + j, mask=j < G), mask=j < G)
    if i == 0:
        tl.store(counts, 0)


@triton.jit
def normalise_kernel(z, kept, norms, M, V: tl.constexpr, BLANK: tl.constexpr, BLOCK: tl.constexpr):
    """Of each row of logits: log Σ exp, log P(blank), and the largest log P of a label; and a copy of the row."""
    i = tl.program_id(0).to(tl.int64)
    dtype = norms.dtype.element_ty
    top = tl.full((), -1e30, dtype)
    total = tl.full((), 0.0, dtype)
    most = tl.full((), float("-inf"), dtype)
    blank = tl.full((), 0.0, dtype)
    for start in range(0, V, BLOCK):
        v = start + tl.arange(0, BLOCK)
        raw = tl.load(z + i * V + v, mask=v < V, other=float("-inf"))
        tl.store(kept + i * V + v, raw, mask=v < V)
        x = raw.to(dtype)
        new_top = tl.maximum(top, tl.max(x, 0))
        total = total * tl.exp(top - new_top) + tl.sum(tl.exp(x - new_top), 0)
        top = new_top
        most = tl.maximum(most, tl.max(tl.where(v == BLANK, float("-inf"), x), 0))
        blank += tl.sum(tl.where(v == BLANK, x, 0.0), 0)
    lse = top + tl.log(total)
    tl.store(norms + i, lse)
    tl.store(norms + M + i, blank - lse)
    tl.store(norms + 2 * M + i, most - lse)


@triton.jit(do_not_specialize=["B", "M"])
def end_kernel(
    ended, ended_ids, opened, opened_ids, totals, weights, norms, at, lift, limits, until, step, round, floors,
    open_totals, picked, rows, row_slots, counts, B, M,
    K: tl.constexpr, KP: tl.constexpr, W: tl.constexpr, WP: tl.constexpr, R: tl.constexpr, AWARE: tl.constexpr,
    ROUNDING: tl.constexpr,
):  # fmt: skip
    """Those that are open take blank and join those that ended the frame; which of them may take a label first.

    Equal sequences become one (log-add). A label may pass the floor, the K-th best that ended the frame, only if
    max_v log P(v) + max_v [language] does; `lift` is the second maximum.
    """
    b = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, KP)
    w = tl.arange(0, WP)
    inside = k < K
    r = tl.load(round + b)
    live = tl.load(step + b) < tl.load(until + b)
    source = (r * B + b) * K + k
    field = (R + 1) * B * K
    nothing = float("-inf")
    path = tl.load(opened + source, mask=inside, other=nothing)
    asr = tl.load(opened + field + source, mask=inside, other=nothing)
    lm = tl.load(opened + 2 * field + source, mask=inside, other=0.0)
    subtracted = tl.load(opened + 3 * field + source, mask=inside, other=0.0)
    phrases = tl.load(opened + 4 * field + source, mask=inside, other=0.0)
    length = tl.load(opened + 5 * field + source, mask=inside, other=0.0)
    hashes = tl.load(opened_ids + source, mask=inside, other=0)
    node = tl.load(opened_ids + field + source, mask=inside, other=0)
    slot = tl.load(opened_ids + 2 * field + source, mask=inside, other=0)
    row = tl.load(at + b * K + k, mask=inside, other=-1)
    there = inside & (path > nothing) & (row >= 0) & live
    log_blank = tl.load(norms + M + row, mask=there, other=0.0)
    closed = path + tl.load(weights + 4) * log_blank
    closed_asr = asr + log_blank

    before = w < r * K  # those that ended it with fewer labels
    to = b * W + w
    old = tl.load(ended + to, mask=before, other=nothing)
    old_asr = tl.load(ended + B * W + to, mask=before, other=nothing)
    old_lm = tl.load(ended + 2 * B * W + to, mask=before, other=0.0)
    old_subtracted = tl.load(ended + 3 * B * W + to, mask=before, other=0.0)
    old_phrases = tl.load(ended + 4 * B * W + to, mask=before, other=0.0)
    old_length = tl.load(ended + 5 * B * W + to, mask=before, other=0.0)
    old_hashes = tl.load(ended_ids + to, mask=before, other=0)
    new = b * W + r * K + k
    tl.store(ended + new, closed, mask=inside)
    tl.store(ended + B * W + new, closed_asr, mask=inside)
    tl.store(ended_ids + new, hashes, mask=inside)
    tl.debug_barrier()
    across = b * W + r * K + tl.arange(0, KP)[None, :]  # read again, as a row
    fits = tl.arange(0, KP)[None, :] < K
    theirs = tl.load(ended + across, mask=fits, other=nothing)
    theirs_asr = tl.load(ended + B * W + across, mask=fits, other=nothing)
    same = old_hashes[:, None] == tl.load(ended_ids + across, mask=fits, other=0)
    same &= (old > nothing)[:, None] & (theirs > nothing)
    old = logaddexp(old, tl.max(tl.where(same, theirs, nothing), 1))
    old_asr = logaddexp(old_asr, tl.max(tl.where(same, theirs_asr, nothing), 1))
    merged = tl.max(same.to(tl.int32), 0) > 0
    closed = tl.where(merged, nothing, closed)
    tl.store(ended + to, old, mask=before | ((w >= (r + 1) * K) & (w < W)))
    tl.store(ended + B * W + to, old_asr, mask=before)
    tl.debug_barrier()
    tl.store(ended + new, closed, mask=inside)
    tl.store(ended + 2 * B * W + new, lm, mask=inside)
    tl.store(ended + 3 * B * W + new, subtracted, mask=inside)
    tl.store(ended + 4 * B * W + new, phrases, mask=inside)
    tl.store(ended + 5 * B * W + new, length, mask=inside)
    tl.store(ended_ids + B * W + new, node, mask=inside)
    tl.store(ended_ids + 2 * B * W + new, slot, mask=inside)

    old_total = fused(old, old_lm, old_subtracted, old_phrases, old_length, weights)
    tl.store(totals + to, old_total, mask=before | ((w >= (r + 1) * K) & (w < W)))
    tl.store(totals + new, fused(closed, lm, subtracted, phrases, length, weights), mask=inside)
    tl.debug_barrier()
    total = tl.load(totals + to, mask=w < W, other=nothing)
    total = tl.where(total == total, total, nothing)
    rank = place_among(totals + b * W, total, W, w, WP)
    floor = tl.max(tl.where((rank == K - 1) & (w < W), total, nothing), 0)
    tl.store(floors + b, floor)

    open_total = fused(path, lm, subtracted, phrases, length, weights)
    tl.store(open_totals + b * K + k, open_total, mask=inside)
    needed = floor - open_total
    needed = needed - ROUNDING * (1.0 + tl.abs(needed))
    bound = tl.load(norms + 2 * M + row, mask=there, other=nothing) + tl.load(lift + slot, mask=there, other=0.0)
    bound = bound + blank_aware(log_blank, weights, AWARE)
    wanted = there & (bound >= needed) & (length < tl.load(limits + b))
    flags = wanted.to(tl.int32)
    number = tl.atomic_add(counts, tl.sum(flags, 0)) + tl.cumsum(flags, 0) - 1
    tl.store(rows + number, row, mask=wanted)
    tl.store(row_slots + number, slot, mask=wanted)
    tl.store(picked + b * K + k, tl.where(wanted, number, -1), mask=inside)


@triton.jit(do_not_specialize=["M"])
def gains_kernel(
    kept, norms, lm, subtracted, phrases, weights, rows, row_slots, counts, gains, M,
    LM_ROW, LM_COL, SUB_ROW, SUB_COL, PHR_ROW, PHR_COL,
    V: tl.constexpr, BLANK: tl.constexpr, AWARE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """What each label adds to the score, of the rows that are promising; no sequence has grown yet."""
    i = tl.program_id(0).to(tl.int64)
    if i == 0:
        tl.store(counts + 1, 0)
        tl.store(counts + 2, 0)
    if i < tl.load(counts):
        row = tl.load(rows + i)
        slot = tl.load(row_slots + i)
        lse = tl.load(norms + row)
        more = blank_aware(tl.load(norms + M + row), weights, AWARE) + tl.load(weights + 2)
        for start in range(0, V, BLOCK):
            v = start + tl.arange(0, BLOCK)
            inside = v < V
            x = tl.load(kept + row * V + v, mask=inside, other=0.0).to(gains.dtype.element_ty) - lse
            x += tl.load(weights) * tl.load(lm + slot * LM_ROW + v * LM_COL, mask=inside, other=0.0)
            x -= tl.load(weights + 1) * tl.load(subtracted + slot * SUB_ROW + v * SUB_COL, mask=inside, other=0.0)
            x += tl.load(weights + 3) * tl.load(phrases + slot * PHR_ROW + v * PHR_COL, mask=inside, other=0.0)
            tl.store(gains + i * V + v, tl.where(v == BLANK, float("-inf"), x + more), mask=inside)


@triton.jit
def spread_kernel(best, labels, picked, open_totals, scores, units, P: tl.constexpr, PP: tl.constexpr):
    """Scores and labels of the best P of each place of the beam; −inf where the place is not promising."""
    i = tl.program_id(0).to(tl.int64)
    p = tl.arange(0, PP)
    number = tl.load(picked + i)
    wanted = (p < P) & (number >= 0)
    gain = tl.load(best + number * P + p, mask=wanted, other=float("-inf"))
    tl.store(scores + i * P + p, gain + tl.load(open_totals + i), mask=wanted)
    tl.store(scores + i * P + p, gain, mask=(p < P) & (number < 0))
    tl.store(units + i * P + p, tl.load(labels + number * P + p, mask=wanted, other=0), mask=p < P)


@triton.jit(do_not_specialize=["B", "M"])
def grow_kernel(
    scores, index, units, kept, norms, lm, subtracted, phrases, weights, opened, opened_ids, floors, picked, rows,
    frame, step, round, tree, pool_hashes, pool_labels, used, counts, at, children, parents, utterances, slots, B, M,
    LM_ROW, LM_COL, SUB_ROW, SUB_COL, PHR_ROW, PHR_COL,
    K: tl.constexpr, KP: tl.constexpr, P: tl.constexpr, R: tl.constexpr, S: tl.constexpr, SP: tl.constexpr,
    V: tl.constexpr, AWARE: tl.constexpr,
):  # fmt: skip
    """The K best one label longer are opened: a place in the pool, a node of the tree, and lists of what is new."""
    b = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, KP)
    inside = k < K
    nothing = float("-inf")
    r = tl.load(round + b)
    here = tl.load(step + b)
    now = tl.load(frame + b)
    score = tl.load(scores + b * K + k, mask=inside, other=nothing)
    valid = inside & (score > tl.load(floors + b)) & (score > nothing)
    chosen = tl.load(index + b * K + k, mask=valid, other=0)
    parent = chosen // P
    label = tl.load(units + b * K * P + chosen, mask=valid, other=0)
    row = tl.load(rows + tl.load(picked + b * K + parent, mask=valid, other=0), mask=valid, other=0)
    logp = tl.load(kept + row * V + label, mask=valid, other=0.0).to(norms.dtype.element_ty)
    logp = logp - tl.load(norms + row, mask=valid, other=0.0)
    more = blank_aware(tl.load(norms + M + row, mask=valid, other=-1.0), weights, AWARE)

    source = (r * B + b) * K + parent
    field = (R + 1) * B * K
    parent_slot = tl.load(opened_ids + 2 * field + source, mask=valid, other=0)
    parent_node = tl.load(opened_ids + field + source, mask=valid, other=0)
    old_hash = tl.load(opened_ids + source, mask=valid, other=0)
    old_path = tl.load(opened + source, mask=valid, other=0.0)
    old_asr = tl.load(opened + field + source, mask=valid, other=0.0)
    new_lm = tl.load(opened + 2 * field + source, mask=valid, other=0.0)
    new_lm += tl.load(lm + parent_slot * LM_ROW + label * LM_COL, mask=valid, other=0.0)
    new_subtracted = tl.load(opened + 3 * field + source, mask=valid, other=0.0)
    new_subtracted += tl.load(subtracted + parent_slot * SUB_ROW + label * SUB_COL, mask=valid, other=0.0)
    new_phrases = tl.load(opened + 4 * field + source, mask=valid, other=0.0)
    new_phrases += tl.load(phrases + parent_slot * PHR_ROW + label * PHR_COL, mask=valid, other=0.0)
    new_length = tl.load(opened + 5 * field + source, mask=valid, other=0.0) + 1.0
    mixed = old_hash * 6364136223846793005 + (label + 1) * 1442695040888963407
    new_hash = mixed ^ (mixed >> 29)

    s = tl.arange(0, SP)
    held = s < S
    there = tl.load(pool_hashes + b * S + s, mask=held, other=0)
    same = (new_hash[:, None] == there[None, :]) & held[None, :] & valid[:, None]
    found = tl.max(tl.where(same, s[None, :], -1), 1)
    known = found >= 0
    tick = (now + 1) * (R + 2) + r + 1
    age = tl.load(used + b * S + s, mask=held, other=0)
    age = tl.where(tl.max(same.to(tl.int32), 0) > 0, tick, age)  # a known sequence's slot must not be given away
    tl.store(used + b * S + s, age, mask=held)
    tl.debug_barrier()
    rank = tl.zeros((SP,), tl.int32)
    for start in range(0, SP, CHUNK):
        j = start + tl.arange(0, CHUNK)
        other = tl.load(used + b * S + j, mask=j < S, other=0)[None, :]
        older = (other < age[:, None]) | ((other == age[:, None]) & (j[None, :] < s[:, None]))
        rank += tl.sum((older & (j < S)[None, :]).to(tl.int32), 1)
    oldest = tl.sum(tl.where((rank[None, :] == k[:, None]) & held[None, :], s[None, :], 0), 1)
    slot = b * S + tl.where(known, found, oldest)
    fresh = valid & (found < 0)
    tl.debug_barrier()
    tl.store(used + slot, tl.zeros_like(slot) + tick, mask=valid)
    tl.store(pool_hashes + slot, new_hash, mask=fresh)
    tl.store(pool_labels + slot, label, mask=fresh)

    flags = fresh.to(tl.int32)
    number = tl.atomic_add(counts + 1, tl.sum(flags, 0)) + tl.cumsum(flags, 0) - 1
    tl.store(children + number, slot, mask=fresh)
    tl.store(parents + number, parent_slot, mask=fresh)
    flags = valid.to(tl.int32)
    number = tl.atomic_add(counts + 2, tl.sum(flags, 0)) + tl.cumsum(flags, 0) - 1
    tl.store(utterances + number, tl.zeros_like(slot) + b, mask=valid)
    tl.store(slots + number, slot, mask=valid)
    tl.store(at + b * K + k, tl.where(valid, number, -1), mask=inside)

    entry = (here * R + r) * 2
    tl.store(tree + (entry * B + b) * K + k, parent_node, mask=valid)
    tl.store(tree + ((entry + 1) * B + b) * K + k, label, mask=valid)
    to = ((r + 1) * B + b) * K + k
    tl.store(opened + to, tl.where(valid, old_path + logp + more, nothing), mask=inside)
    tl.store(opened + field + to, tl.where(valid, old_asr + logp, nothing), mask=inside)
    tl.store(opened + 2 * field + to, new_lm, mask=inside)
    tl.store(opened + 3 * field + to, new_subtracted, mask=inside)
    tl.store(opened + 4 * field + to, new_phrases, mask=inside)
    tl.store(opened + 5 * field + to, new_length, mask=inside)
    tl.store(opened_ids + to, new_hash, mask=inside)
    tl.store(opened_ids + field + to, (now * R + r) * K + k, mask=inside)
    tl.store(opened_ids + 2 * field + to, slot, mask=inside)
    tl.debug_barrier()
    tl.store(round + b, r + 1)
