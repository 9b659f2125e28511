// Scores of attention as they are.
fn attention_score(score: vec4<f32>) -> vec4<f32> {
    return score;
}

fn attention_score_one(score: f32) -> f32 {
    return score;
}
