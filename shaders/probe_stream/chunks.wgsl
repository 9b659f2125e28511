// Where a streaming invocation reads: a run of its own, one vector after another.
fn stream_first(invocation: u32) -> u32 { return invocation * CHUNK; }
fn stream_stride() -> u32 { return 1u; }
fn stream_end(first: u32) -> u32 { return min(first + CHUNK, params.num_vecs); }
