// First stage of argmax: logits, as bits, to one candidate (key, id) per slice.
@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<vec2<u32>>;

fn argmax_load(at: u32, i: u32) -> vec2<u32> {
    return vec2<u32>(order_key(x[at]), i);
}

fn argmax_store(at: u32, best: vec2<u32>) {
    y[at] = best;
}
