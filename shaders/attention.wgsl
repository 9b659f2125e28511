// Causal attention over paged keys and values, with an online softmax and no scores in memory.
//   out[t, h] = sum_j p_j v[j, h / G],  p = softmax of s_j = scale * q[t, h] . k[j, h / G], or of
//   cap * tanh(s_j / cap), over position[t] - window < j <= position[t]
//
// Shapes   q: [num_tokens, num_heads, head_dim] f32; k, v: [page][kv_head][16][head_dim];
//          partials: [slot][head][head_dim + 4] f32, an unnormalised result and then m, l, 0, 0;
//          out, act_out: see attention/out_*.
// Order    a score is one chain of fma over dims ascending, of q times scale * log2(e). Inside a split,
//          pages ascending: m = max(m, page's); o rescaled, then o = fma(p, v, o) key by key;
//          l = fma(l, keep, the page's p summed key by key). Splits are folded by lib/softmax. A row's
//          bits depend on its position and the cache alone; masked keys, pages and splits change none.
// Dispatch a team of eight neighbours for each tile of ROW_FOURS * 4 rows (lib/attention_items), and
//          TEAM_SLOTS / 8 teams to a workgroup, folded over x and y. For each page of 16 keys a member
//          finds the scores and the p of two keys for all rows, then adds all 16 to its eight dims of
//          each row (HELD times eight, eight octs apart): each key and value is loaded once, each exp2
//          taken once, and what a member needs of the others it hears from them.
// Parts    kv/*, attention/rows_*, attention/dims_*, attention/score_*, attention/out_*, act/*, lib/team_*,
//          lib/softmax, lib/attention_items
//
// Where a member has to be named by a literal (TEAM_SPELLED) all eight are written out, else looped over,
// from `start`, which is any number of all that is not constant: the loop would be unrolled.
// Arrays have constant indices, and what is done for each four rows or each oct is written
// out under conditions that are constant: a loop with a bound on its count is not unrolled by every
// driver, and an index that varies would put the array into memory.
const ATTENTION_FOLD: u32 = 0xFFFFFFFFu;
const ATTENTION_NEVER: u32 = 0x7FFFFFF0u;               // a page's first key, after all positions
const ATTENTION_FOUR: u32 = ROW_FOURS - 1u;             // the last four rows
const ATTENTION_Q: u32 = ROW_FOURS * HELD * 8u;         // places of team_keep: queries, then the page's
override HEAD_DIM: u32 = 64u;

struct Params {
    items_at: u32, num_items: u32, num_heads: u32, num_kv_heads: u32, tiles: u32,
    first_page: u32, num_pages: u32, scale_log2e: f32,
    window: u32, cap_log2e: f32, cap_rate: f32,
}

@group(0) @binding(1) var<storage, read> step_meta: array<u32>;
@group(0) @binding(2) var<storage, read_write> partials: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> k: array<KvOct>;
@group(0) @binding(5) var<storage, read> v: array<KvOct>;
@group(1) @binding(0) var<uniform> params: Params;

alias AttentionFours = array<vec4<f32>, ROW_FOURS>;        // a number of each row
alias AttentionKept = array<TeamKept, ROW_FOURS>;
alias AttentionQueries = array<AttentionKept, HELD * 8u>;  // by dim of the own octs
alias AttentionOct = array<mat2x4<f32>, ROW_FOURS * 4u>;   // eight dims of each row

struct AttentionState {
    m: AttentionFours, l: AttentionFours, o: array<AttentionOct, HELD>,
    sum: AttentionFours, // of the page's p
}

fn attention_empty() -> AttentionState {
    var state: AttentionState;
    state.m[0] = vec4<f32>(SOFTMAX_MASKED);
    state.m[ATTENTION_FOUR] = vec4<f32>(SOFTMAX_MASKED);
    return state;
}

// Positions of four rows, and their queries.
fn attention_rows(tile: AttentionTile, four: u32) -> vec4<u32> {
    return min(vec4<u32>(tile.row0 + four * 4u) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(max(tile.rows, 1u) - 1u));
}

fn attention_query(kept: ptr<function, AttentionQueries>, tile: AttentionTile, four: u32, held: u32, lane: u32) {
    let group = params.num_heads / params.num_kv_heads;
    let row = attention_rows(tile, four);
    let oct = min(held * 8u + lane % 8u, HEAD_DIM / 8u - 1u);
    let head = (tile.token0 + row / group) * params.num_heads + tile.kv_head * group + row % group;
    let at = head * (HEAD_DIM / 4u) + oct * 2u;
    let low = transpose(mat4x4<f32>(q[at.x], q[at.y], q[at.z], q[at.w])) * params.scale_log2e;
    let high = transpose(mat4x4<f32>(q[at.x + 1u], q[at.y + 1u], q[at.z + 1u], q[at.w + 1u])) * params.scale_log2e;
    let place = (four * HELD + held) * 8u;
    (*kept)[held * 8u + 0u][four] = team_keep(low[0], place + 0u, lane);
    (*kept)[held * 8u + 1u][four] = team_keep(low[1], place + 1u, lane);
    (*kept)[held * 8u + 2u][four] = team_keep(low[2], place + 2u, lane);
    (*kept)[held * 8u + 3u][four] = team_keep(low[3], place + 3u, lane);
    (*kept)[held * 8u + 4u][four] = team_keep(high[0], place + 4u, lane);
    (*kept)[held * 8u + 5u][four] = team_keep(high[1], place + 5u, lane);
    (*kept)[held * 8u + 6u][four] = team_keep(high[2], place + 6u, lane);
    (*kept)[held * 8u + 7u][four] = team_keep(high[3], place + 7u, lane);
}

fn attention_queries(kept: ptr<function, AttentionQueries>, tile: AttentionTile, four: u32, lane: u32) {
    attention_query(kept, tile, four, 0u, lane);
    if (HELD > 1u) { attention_query(kept, tile, four, HELD / 2u, lane); }
    if (HELD > 2u) { attention_query(kept, tile, four, 1u % HELD, lane); attention_query(kept, tile, four, HELD - 1u, lane); }
}

// Scores of a member's two keys.
struct AttentionScores { first: AttentionFours, second: AttentionFours }

// One dim of both.
fn attention_dim(scores: ptr<function, AttentionScores>, kept: AttentionKept, member: u32, first: f32, second: f32) {
    let heard = team_from(kept[0], member);
    (*scores).first[0] = fma(heard, vec4<f32>(first), (*scores).first[0]);
    (*scores).second[0] = fma(heard, vec4<f32>(second), (*scores).second[0]);
    if (ROW_FOURS > 1u) {
        let more = team_from(kept[ATTENTION_FOUR], member);
        (*scores).first[ATTENTION_FOUR] = fma(more, vec4<f32>(first), (*scores).first[ATTENTION_FOUR]);
        (*scores).second[ATTENTION_FOUR] = fma(more, vec4<f32>(second), (*scores).second[ATTENTION_FOUR]);
    }
}

// One oct of both, whose queries `member` holds; the first key is at `at`.
fn attention_oct(scores: ptr<function, AttentionScores>, kept: ptr<function, AttentionQueries>, held: u32, member: u32, at: u32) {
    if (held * 8u + member < HEAD_DIM / 8u) {
        let first = kv_unpack(k[at + held * 8u + member]);
        let second = kv_unpack(k[at + HEAD_DIM + held * 8u + member]);
        attention_dim(scores, (*kept)[held * 8u + 0u], member, first[0].x, second[0].x);
        attention_dim(scores, (*kept)[held * 8u + 1u], member, first[0].y, second[0].y);
        attention_dim(scores, (*kept)[held * 8u + 2u], member, first[0].z, second[0].z);
        attention_dim(scores, (*kept)[held * 8u + 3u], member, first[0].w, second[0].w);
        attention_dim(scores, (*kept)[held * 8u + 4u], member, first[1].x, second[1].x);
        attention_dim(scores, (*kept)[held * 8u + 5u], member, first[1].y, second[1].y);
        attention_dim(scores, (*kept)[held * 8u + 6u], member, first[1].z, second[1].z);
        attention_dim(scores, (*kept)[held * 8u + 7u], member, first[1].w, second[1].w);
    }
}

fn attention_octs(scores: ptr<function, AttentionScores>, kept: ptr<function, AttentionQueries>, held: u32, at: u32, start: u32) {
    if (TEAM_SPELLED) {
        attention_oct(scores, kept, held, 0u, at);
        attention_oct(scores, kept, held, 1u, at);
        attention_oct(scores, kept, held, 2u, at);
        attention_oct(scores, kept, held, 3u, at);
        attention_oct(scores, kept, held, 4u, at);
        attention_oct(scores, kept, held, 5u, at);
        attention_oct(scores, kept, held, 6u, at);
        attention_oct(scores, kept, held, 7u, at);
    } else {
        for (var next = start; next < start + 8u; next++) { attention_oct(scores, kept, held, next - start, at); }
    }
}

fn attention_scores(kept: ptr<function, AttentionQueries>, at: u32, start: u32) -> AttentionScores {
    var scores: AttentionScores;
    attention_octs(&scores, kept, 0u, at, start);
    if (HELD > 1u) { attention_octs(&scores, kept, 1u % HELD, at, start); }
    if (HELD > 2u) { attention_octs(&scores, kept, 2u % HELD, at, start); attention_octs(&scores, kept, HELD - 1u, at, start); }
    return scores;
}

// o += p v for four rows.
fn attention_add_four(state: ptr<function, AttentionState>, held: u32, row: u32, p: vec4<f32>, value: mat2x4<f32>) {
    let x = (*state).o[held][row];
    (*state).o[held][row] = mat2x4<f32>(fma(vec4<f32>(p.x), value[0], x[0]), fma(vec4<f32>(p.x), value[1], x[1]));
    let y = (*state).o[held][row + 1u];
    (*state).o[held][row + 1u] = mat2x4<f32>(fma(vec4<f32>(p.y), value[0], y[0]), fma(vec4<f32>(p.y), value[1], y[1]));
    let z = (*state).o[held][row + 2u];
    (*state).o[held][row + 2u] = mat2x4<f32>(fma(vec4<f32>(p.z), value[0], z[0]), fma(vec4<f32>(p.z), value[1], z[1]));
    let w = (*state).o[held][row + 3u];
    (*state).o[held][row + 3u] = mat2x4<f32>(fma(vec4<f32>(p.w), value[0], w[0]), fma(vec4<f32>(p.w), value[1], w[1]));
}

// o += p v for one key, whose values begin at `at`.
fn attention_add(state: ptr<function, AttentionState>, held: u32, p: AttentionFours, at: u32, member: u32, seen: bool) {
    let oct = min(held * 8u + member, HEAD_DIM / 8u - 1u);
    let value = kv_unpack(kv_seen(v[at + oct], seen));
    attention_add_four(state, held, 0u, p[0], value);
    if (ROW_FOURS > 1u) { attention_add_four(state, held, ATTENTION_FOUR * 4u, p[ATTENTION_FOUR], value); }
}

fn attention_key(state: ptr<function, AttentionState>, p: AttentionFours, at: u32, member: u32, seen: bool) {
    (*state).sum[0] += p[0];
    if (ROW_FOURS > 1u) { (*state).sum[ATTENTION_FOUR] += p[ATTENTION_FOUR]; }
    attention_add(state, 0u, p, at, member, seen);
    if (HELD > 1u) { attention_add(state, HELD / 2u, p, at, member, seen); }
    if (HELD > 2u) { attention_add(state, 1u % HELD, p, at, member, seen); attention_add(state, HELD - 1u, p, at, member, seen); }
}

fn attention_heard(kept: AttentionKept, member: u32) -> AttentionFours {
    var heard: AttentionFours;
    heard[0] = team_from(kept[0], member);
    if (ROW_FOURS > 1u) { heard[ATTENTION_FOUR] = team_from(kept[ATTENTION_FOUR], member); }
    return heard;
}

// Eight neighbouring keys' values, one after another, by the p that the members keep. The first key is
// `ago` before the tile's last token, less than 0 if it is after it; then the number is beyond any `span`.
fn attention_keys(state: ptr<function, AttentionState>, kept: AttentionKept, at: u32, member: u32, ago: u32, span: u32, start: u32) {
    let next = HEAD_DIM / 8u;
    if (TEAM_SPELLED) {
        attention_key(state, attention_heard(kept, 0u), at + 0u * next, member, ago - 0u < span);
        attention_key(state, attention_heard(kept, 1u), at + 1u * next, member, ago - 1u < span);
        attention_key(state, attention_heard(kept, 2u), at + 2u * next, member, ago - 2u < span);
        attention_key(state, attention_heard(kept, 3u), at + 3u * next, member, ago - 3u < span);
        attention_key(state, attention_heard(kept, 4u), at + 4u * next, member, ago - 4u < span);
        attention_key(state, attention_heard(kept, 5u), at + 5u * next, member, ago - 5u < span);
        attention_key(state, attention_heard(kept, 6u), at + 6u * next, member, ago - 6u < span);
        attention_key(state, attention_heard(kept, 7u), at + 7u * next, member, ago - 7u < span);
    } else {
        for (var turn = start; turn < start + 8u; turn++) {
            let j = turn - start;
            attention_key(state, attention_heard(kept, j), at + j * next, member, ago - j < span);
        }
    }
}

fn attention_scale(state: ptr<function, AttentionState>, held: u32, row: u32, keep: vec4<f32>) {
    (*state).o[held][row] *= keep.x;
    (*state).o[held][row + 1u] *= keep.y;
    (*state).o[held][row + 2u] *= keep.z;
    (*state).o[held][row + 3u] *= keep.w;
}

// Which of four rows see a key. What is after a position is before it by a number beyond any window.
fn attention_sees(position: vec4<u32>, key: u32) -> vec4<bool> {
    return position - vec4<u32>(key) < vec4<u32>(params.window);
}

// The largest of a member's two scores of four rows; keys that a row may not see have none.
fn attention_mask(scores: ptr<function, AttentionScores>, four: u32, key: u32, position: vec4<u32>) -> vec4<f32> {
    (*scores).first[four] = select(vec4<f32>(SOFTMAX_MASKED), attention_score((*scores).first[four]), attention_sees(position, key));
    (*scores).second[four] = select(vec4<f32>(SOFTMAX_MASKED), attention_score((*scores).second[four]), attention_sees(position, key + 8u));
    return max((*scores).first[four], (*scores).second[four]);
}

fn attention_top(all: array<vec4<f32>, 8>) -> vec4<f32> {
    return max(max(max(all[0], all[1]), max(all[2], all[3])), max(max(all[4], all[5]), max(all[6], all[7])));
}

fn attention_weight(score: vec4<f32>, top: vec4<f32>, key: u32, position: vec4<u32>) -> vec4<f32> {
    return select(vec4<f32>(0.0), exp2(score - top), attention_sees(position, key));
}

// Four rows meet a new maximum: what is there is rescaled.
fn attention_raise(state: ptr<function, AttentionState>, four: u32, page_top: vec4<f32>) -> vec4<f32> {
    let old = (*state).m[four];
    let top = max(old, page_top);
    let keep = vec4<f32>(softmax_rescale(old.x, top.x), softmax_rescale(old.y, top.y),
                         softmax_rescale(old.z, top.z), softmax_rescale(old.w, top.w));
    (*state).m[four] = top;
    attention_scale(state, 0u, four * 4u, keep);
    if (HELD > 1u) { attention_scale(state, HELD / 2u, four * 4u, keep); }
    if (HELD > 2u) { attention_scale(state, 1u % HELD, four * 4u, keep); attention_scale(state, HELD - 1u, four * 4u, keep); }
    return keep;
}

fn attention_fold_values(folded: ptr<function, AttentionState>, state: ptr<function, AttentionState>, held: u32, row: u32, fold: SoftmaxFold) {
    let old = (*folded).o[held][row];
    let split = (*state).o[held][row];
    (*folded).o[held][row] = mat2x4<f32>(softmax_fold_values(old[0], split[0], fold.keep, fold.add),
                                         softmax_fold_values(old[1], split[1], fold.keep, fold.add));
}

fn attention_fold_row(folded: ptr<function, AttentionState>, state: ptr<function, AttentionState>, row: u32, fold: SoftmaxFold) {
    attention_fold_values(folded, state, 0u, row, fold);
    if (HELD > 1u) { attention_fold_values(folded, state, HELD / 2u, row, fold); }
    if (HELD > 2u) { attention_fold_values(folded, state, 1u % HELD, row, fold); attention_fold_values(folded, state, HELD - 1u, row, fold); }
}

// Folds a split's state of four rows.
fn attention_fold(folded: ptr<function, AttentionState>, state: ptr<function, AttentionState>, four: u32) {
    let old_m = (*folded).m[four];
    let old_l = (*folded).l[four];
    let m = (*state).m[four];
    let l = (*state).l[four];
    let x = softmax_fold(old_m.x, old_l.x, m.x, l.x);
    let y = softmax_fold(old_m.y, old_l.y, m.y, l.y);
    let z = softmax_fold(old_m.z, old_l.z, m.z, l.z);
    let w = softmax_fold(old_m.w, old_l.w, m.w, l.w);
    (*folded).m[four] = vec4<f32>(x.m, y.m, z.m, w.m);
    (*folded).l[four] = vec4<f32>(x.l, y.l, z.l, w.l);
    attention_fold_row(folded, state, four * 4u, x);
    attention_fold_row(folded, state, four * 4u + 1u, y);
    attention_fold_row(folded, state, four * 4u + 2u, z);
    attention_fold_row(folded, state, four * 4u + 3u, w);
}

// Stores eight dims of a row: the result, or the one split's own state, not folded into the empty one.
fn attention_store_oct(tile: AttentionTile, i: u32, held: u32, lane: u32, value: mat2x4<f32>, m: f32, l: f32) {
    let group = params.num_heads / params.num_kv_heads;
    let row = tile.row0 + i;
    let token = row / group;
    let head = tile.kv_head * group + row % group;
    let oct = held * 8u + lane % 8u;
    let own = row < tile.rows && oct < HEAD_DIM / 8u;
    let whole = tile.slot0 == ATTENTION_FOLD;
    let result = mat2x4<f32>(softmax_normalise(value[0], l), softmax_normalise(value[1], l));
    attention_out(tile.token0 + token, head, oct, result, lane, own && whole);
    if (own && !whole) {
        let to = ((tile.slot0 + token) * params.num_heads + head) * (HEAD_DIM / 4u + 1u);
        partials[to + oct * 2u] = value[0];
        partials[to + oct * 2u + 1u] = value[1];
        if (oct == 0u) {
            partials[to + HEAD_DIM / 4u] = vec4<f32>(m, l, 0.0, 0.0);
        }
    }
}

fn attention_store_row(tile: AttentionTile, state: ptr<function, AttentionState>, row: u32, lane: u32, m: f32, l: f32) {
    attention_store_oct(tile, row, 0u, lane, (*state).o[0][row], m, l);
    if (HELD > 1u) { attention_store_oct(tile, row, HELD / 2u, lane, (*state).o[HELD / 2u][row], m, l); }
    if (HELD > 2u) {
        attention_store_oct(tile, row, 1u % HELD, lane, (*state).o[1u % HELD][row], m, l);
        attention_store_oct(tile, row, HELD - 1u, lane, (*state).o[HELD - 1u][row], m, l);
    }
}

fn attention_store(tile: AttentionTile, state: ptr<function, AttentionState>, four: u32, lane: u32) {
    let m = (*state).m[four];
    let l = (*state).l[four];
    attention_store_row(tile, state, four * 4u, lane, m.x, l.x);
    attention_store_row(tile, state, four * 4u + 1u, lane, m.y, l.y);
    attention_store_row(tile, state, four * 4u + 2u, lane, m.z, l.z);
    attention_store_row(tile, state, four * 4u + 3u, lane, m.w, l.w);
}

@compute @workgroup_size(TEAM_SLOTS)
fn attention(@builtin(workgroup_id) workgroup: vec3<u32>,
             @builtin(num_workgroups) workgroups: vec3<u32>,
             @builtin(local_invocation_index) lane: u32) {
    let first_tile = (workgroup.y * workgroups.x + workgroup.x) * (TEAM_SLOTS / 8u);
    var num_pages = 0u; // the most of a team: all go the same way
    for (var team = first_tile; team < first_tile + TEAM_SLOTS / 8u; team++) {
        num_pages = max(num_pages, attention_tile(team).num_pages);
    }
    let tile = attention_tile(first_tile + lane / 8u);
    let member = lane % 8u;
    let group = params.num_heads / params.num_kv_heads;

    var kept: AttentionQueries;
    attention_queries(&kept, tile, 0u, lane);
    if (ROW_FOURS > 1u) { attention_queries(&kept, tile, ATTENTION_FOUR, lane); }
    team_told();
    let position = tile.position0 + attention_rows(tile, 0u) / group;
    let positions = tile.position0 + attention_rows(tile, ATTENTION_FOUR) / group;

    var state = attention_empty();
    var folded = attention_empty();
    for (var walked = 0u; walked < num_pages; walked++) {
        // A team that is through goes on with its last page, and sees none of its keys.
        let page = tile.first_page + min(walked, max(tile.num_pages, 1u) - 1u);
        let key = select(ATTENTION_NEVER, page * 16u, walked < tile.num_pages);
        let own = key + member;
        let at = attention_page(tile, page);

        var scores = attention_scores(&kept, at + member * (HEAD_DIM / 8u), walked);
        var tops: AttentionKept;
        tops[0] = team_keep(attention_mask(&scores, 0u, own, position), ATTENTION_Q, lane);
        if (ROW_FOURS > 1u) { tops[ATTENTION_FOUR] = team_keep(attention_mask(&scores, ATTENTION_FOUR, own, positions), ATTENTION_Q + 1u, lane); }
        team_told();

        var low: AttentionKept;
        var high: AttentionKept;
        let keep = attention_raise(&state, 0u, attention_top(team_heard(tops[0])));
        low[0] = team_keep(attention_weight(scores.first[0], state.m[0], own, position), ATTENTION_Q + ROW_FOURS, lane);
        high[0] = team_keep(attention_weight(scores.second[0], state.m[0], own + 8u, position), ATTENTION_Q + ROW_FOURS + 1u, lane);
        var keeps = keep;
        if (ROW_FOURS > 1u) {
            keeps = attention_raise(&state, ATTENTION_FOUR, attention_top(team_heard(tops[ATTENTION_FOUR])));
            low[ATTENTION_FOUR] = team_keep(attention_weight(scores.first[ATTENTION_FOUR], state.m[ATTENTION_FOUR], own, positions), ATTENTION_Q + ROW_FOURS + 2u, lane);
            high[ATTENTION_FOUR] = team_keep(attention_weight(scores.second[ATTENTION_FOUR], state.m[ATTENTION_FOUR], own + 8u, positions), ATTENTION_Q + ROW_FOURS + 3u, lane);
        }
        team_told();

        state.sum = AttentionFours();
        let ago = tile.last - key;
        attention_keys(&state, low, at, member, ago, tile.span, walked);
        attention_keys(&state, high, at + HEAD_DIM, member, ago - 8u, tile.span, walked);
        state.l[0] = fma(state.l[0], keep, state.sum[0]);
        if (ROW_FOURS > 1u) { state.l[ATTENTION_FOUR] = fma(state.l[ATTENTION_FOUR], keeps, state.sum[ATTENTION_FOUR]); }

        if (tile.slot0 == ATTENTION_FOLD && ((tile.first_page + walked) % 16u == 15u || walked + 1u == num_pages)) {
            attention_fold(&folded, &state, 0u);
            if (ROW_FOURS > 1u) { attention_fold(&folded, &state, ATTENTION_FOUR); }
            state = attention_empty();
        }
    }
    if (tile.slot0 == ATTENTION_FOLD) { state = folded; }
    attention_store(tile, &state, 0u, lane);
    if (ROW_FOURS > 1u) { attention_store(tile, &state, ATTENTION_FOUR, lane); }
}
