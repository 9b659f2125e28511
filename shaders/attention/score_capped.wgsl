// Scores of attention within a cap: cap * tanh(score / cap), where score and cap are times log2(e).
//   tanh(x) = (1 - t) / (1 + t) with t = exp(-2 x) for x >= 0: nothing in it overflows. The sign comes last
//   and as a bit: no compiler can make one fma of the product and of a sum that follows.
fn attention_score(score: vec4<f32>) -> vec4<f32> {
    let t = exp2(-abs(score) * params.cap_rate); // params.cap_rate is 2 / cap, of a cap in nats
    let size = params.cap_log2e * ((1.0 - t) / (1.0 + t));
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(size) | (bitcast<vec4<u32>>(score) & vec4<u32>(0x80000000u)));
}

fn attention_score_one(score: f32) -> f32 {
    return attention_score(vec4<f32>(score)).x;
}
