// Where a streaming invocation reads: beside its neighbours, all of them going on together.
fn stream_first(invocation: u32) -> u32 { return invocation; }
fn stream_stride() -> u32 { return params.num_invocations; }
fn stream_end(first: u32) -> u32 { return params.num_vecs; }
