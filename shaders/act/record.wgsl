// What those share who write activations: the sum of squares of a record's 32 values.
fn act_squares(v: vec4<f32>) -> f32 {
    return fma(v.w, v.w, fma(v.z, v.z, fma(v.y, v.y, v.x * v.x)));
}

fn act_join(all: array<vec4<f32>, 8>) -> f32 {
    var s = all;
    return ((s[0].x + s[1].x) + (s[2].x + s[3].x)) + ((s[4].x + s[5].x) + (s[6].x + s[7].x));
}
