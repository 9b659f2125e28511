// The Gaussian error linear unit, by the tanh formula:
//   gelu(x) = x / 2 (1 + tanh(u)) = x / (1 + exp(-2 u)),   u = sqrt(2 / pi) (x + 0.044715 x^3)
// The second form cancels nothing, and has no tanh to overflow. Beyond +-10 it is x and 0 as f32 knows them,
// and exp stays below 2^126, where a quotient is still one.
fn gelu(x: vec4<f32>) -> vec4<f32> {
    let c = clamp(x, vec4<f32>(-10.0), vec4<f32>(10.0));
    let twice = c * fma(c * c, vec4<f32>(0.0713548163), vec4<f32>(1.59576912));
    return x / (vec4<f32>(1.0) + exp(-twice));
}
