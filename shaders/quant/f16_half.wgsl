// As f16, for matmul_coop: a quarter of a row's group at a time, as it is.
@group(0) @binding(0) var<storage, read> w: array<vec4<u32>>;

const QUANT_SPANS: u32 = 4u; // of a row's group

// Span `span` of row `row` of the block and group `at`.
fn quant_span(at: u32, row: u32, span: u32) -> array<vec4<f16>, 2> {
    let words = w[at * 16u + row * 4u + span];
    return array<vec4<f16>, 2>(coop_halves(words.x, words.y), coop_halves(words.z, words.w));
}
