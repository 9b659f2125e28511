// As q8, for matmul_coop: half of a row's group at a time, scaled and rounded to f16.
@group(0) @binding(0) var<storage, read> w: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> w_scales: array<vec2<u32>>;

const QUANT_SPANS: u32 = 2u; // of a row's group

// Span `span` of row `row` of the block and group `at`.
fn quant_span(at: u32, row: u32, span: u32) -> array<vec4<f16>, 4> {
    let words = w[at * 8u + row * 2u + span];
    let pair = unpack2x16float(w_scales[at][row / 2u]);
    let scale = select(pair.x, pair.y, row % 2u == 1u);
    return array<vec4<f16>, 4>(vec4<f16>(vec4<f32>(unpack4xI8(words.x)) * scale), vec4<f16>(vec4<f32>(unpack4xI8(words.y)) * scale),
                               vec4<f16>(vec4<f32>(unpack4xI8(words.z)) * scale), vec4<f16>(vec4<f32>(unpack4xI8(words.w)) * scale));
}
