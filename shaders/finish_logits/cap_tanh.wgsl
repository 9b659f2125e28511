// Logits stay below a cap:   cap * tanh(x / cap),   tanh(a) = (1 - e) / (1 + e),  e = exp(-2 a),  a >= 0
// The exponential is at most 1, so that nothing overflows; the sign is put back.
fn finish_cap(x: f32) -> f32 {
    let e = exp(-2.0 * abs(x / params.cap));
    let capped = params.cap * ((1.0 - e) / (1.0 + e));
    return select(-capped, capped, x >= 0.0);
}
