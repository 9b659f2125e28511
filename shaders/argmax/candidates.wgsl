// Second stage of argmax: a row's candidates (key, id) to the id of the best.
@group(0) @binding(0) var<storage, read> x: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;

fn argmax_load(at: u32, i: u32) -> vec2<u32> {
    return x[at];
}

fn argmax_store(at: u32, best: vec2<u32>) {
    y[at] = best.y;
}
