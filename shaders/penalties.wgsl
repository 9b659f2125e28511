// Penalties and biases on the logits of single tokens, in place. For each listed token of a row:
//   l = l > 0 ? l / repeat : l * repeat      (where count > 0)
//   l = l - presence - count * frequency     (where count > 0)
//   l = l + bias
//
// Shapes   logits: [num_rows, vocab_size] f32; rows and tokens: the words of a step,
//            row    first entry, entries, repeat, presence, frequency      (first as word number)
//            entry  id, count, bias                 each id at most once per row
// Skipped  ids beyond the vocabulary.
// Dispatch x: entries, y: rows.
const PENALTIES_WG: u32 = 64u;
const PENALTIES_ROW: u32 = 5u;
const PENALTIES_ENTRY: u32 = 3u;

struct Params { rows_at: u32, vocab_size: u32 }

@group(0) @binding(0) var<storage, read> rows: array<u32>;
@group(0) @binding(1) var<storage, read_write> logits: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(PENALTIES_WG)
fn penalties(@builtin(global_invocation_id) id: vec3<u32>) {
    let row = params.rows_at + id.y * PENALTIES_ROW;
    if (id.x >= rows[row + 1u]) { return; }
    let entry = rows[row] + id.x * PENALTIES_ENTRY;
    let token = rows[entry];
    let count = rows[entry + 1u];
    if (token >= params.vocab_size) { return; }

    let at = id.y * params.vocab_size + token;
    var logit = logits[at];
    if (count > 0u) {
        let repeat = bitcast<f32>(rows[row + 2u]);
        logit = select(logit * repeat, logit / repeat, logit > 0.0);
        logit -= bitcast<f32>(rows[row + 3u]) + f32(count) * bitcast<f32>(rows[row + 4u]);
    }
    logits[at] = logit + bitcast<f32>(rows[entry + 2u]);
}
