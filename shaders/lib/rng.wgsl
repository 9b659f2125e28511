// Random numbers by counter: what (seed, position, id) draws depends on nothing else.
// Hash: pcg4d (Jarzynski and Olano, "Hash Functions for GPU Rendering", 2020).

fn rng_pcg4d(value: vec4<u32>) -> vec4<u32> {
    var v = value * 1664525u + 1013904223u;
    v.x += v.y * v.w;
    v.y += v.z * v.x;
    v.z += v.x * v.y;
    v.w += v.y * v.z;
    v ^= v >> vec4<u32>(16u);
    v.x += v.y * v.w;
    v.y += v.z * v.x;
    v.z += v.x * v.y;
    v.w += v.y * v.z;
    return v;
}

// The stream of one position of a seeded sequence.
fn rng_stream(seed_lo: u32, seed_hi: u32, position: u32) -> vec4<u32> {
    return rng_stream_for(seed_lo, seed_hi, position, 0x6e656c75u);
}

// Another one, for what must not hang together with it: the hash is a permutation, so streams for two
// purposes have no state in common.
fn rng_stream_for(seed_lo: u32, seed_hi: u32, position: u32, purpose: u32) -> vec4<u32> {
    return rng_pcg4d(vec4<u32>(seed_lo, seed_hi, position, purpose));
}

// 32 random bits for `id` of a stream.
fn rng_bits(stream: vec4<u32>, id: u32) -> u32 {
    return rng_pcg4d(vec4<u32>(stream.x, stream.y, stream.z, stream.w ^ id)).x;
}

// A draw from the Gumbel distribution, -log(-log(u)). Fine where it matters: large values, u near
// 1, are made from 1 - u, so that they are as many as the bits, not as the floats below 1.
fn rng_gumbel(bits: u32) -> f32 {
    let rest = (f32(bits) + 0.5) * 2.3283064365386963e-10; // 1 - u, by 2^-32
    let series = rest * (1.0 + rest * (0.5 + rest * (0.33333334 + rest * (0.25 + rest * (0.2 + rest * 0.16666667)))));
    let u = (f32(~bits) + 0.5) * 2.3283064365386963e-10;
    return -log(select(-log(u), series, rest < 0.0625));
}
