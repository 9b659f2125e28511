// Rotary position embedding of two pairs that lie side by side, (a, b, a', b'), by angles
// (cos, sin, cos', sin'):   a cos - b sin,  b cos + a sin
// One product rounded, then one fma.
fn rope_turn(value: vec4<f32>, angles: vec4<f32>) -> vec4<f32> {
    let low = fma(value.xz, angles.xz, -(value.yw * angles.yw));
    let high = fma(value.yw, angles.xz, value.xz * angles.yw);
    return vec4<f32>(low.x, high.x, low.y, high.y);
}
