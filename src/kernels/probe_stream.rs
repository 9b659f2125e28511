//! What memory gives at best: every word is read once, and its xor kept. The denominator of
//! [`super::peaks`] for kernels that are bound by memory.

use super::case::{Case, CaseTensor, Data};
use super::twin::{Effort, Piece};
use crate::error::Result;
use crate::gpu::recorder::grid;
use crate::gpu::{Call, DType, Kernel, Part, Recorder, Tensor, Variant};
use crate::{params, wgsl};

params! {
    /// Checked against `Params` in `shaders/probe_stream.wgsl`.
    pub struct ProbeStreamParams {
        /// Vectors of 16 bytes in `x`.
        pub num_vecs: u32,
        /// Elements of `y`.
        pub num_invocations: u32,
    }
}

const PARTS: &[Part] = &[wgsl!("probe_stream.wgsl")];

static CHUNKS: Part = wgsl!("probe_stream/chunks.wgsl");
static STRIDED: Part = wgsl!("probe_stream/strided.wgsl");

/// The kernel.
pub static PROBE_STREAM: Kernel = Kernel::new::<ProbeStreamParams>("probe_stream", PARTS);

/// Which vectors are an invocation's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    /// A run of its own: what a CPU's caches and prefetchers like.
    Chunks,
    /// Beside its neighbours: what a GPU joins to wide accesses.
    Strided,
}

/// A way to stream: the best of several is what the adapter can do.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    /// Which vectors.
    pub walk: Walk,
    /// Vectors of an invocation.
    pub chunk: u32,
    /// Invocations of a workgroup.
    pub workgroup: u32,
}

impl Stream {
    const fn new(walk: Walk, chunk: u32, workgroup: u32) -> Stream {
        Stream {
            walk,
            chunk,
            workgroup,
        }
    }

    fn variant(&self) -> Variant {
        let part = match self.walk {
            Walk::Chunks => &CHUNKS,
            Walk::Strided => &STRIDED,
        };
        Variant::new(&PROBE_STREAM)
            .part(part)
            .set("WG", self.workgroup)
            .set("CHUNK", self.chunk)
    }

    /// Invocations for `num_vecs` vectors.
    pub fn invocations(&self, num_vecs: usize) -> usize {
        num_vecs.div_ceil(self.chunk as usize)
    }
}

/// Those worth a try on a CPU.
pub const ON_CPU: [Stream; 3] = [
    Stream::new(Walk::Chunks, 256, 32),
    Stream::new(Walk::Chunks, 1024, 8),
    Stream::new(Walk::Chunks, 1024, 32),
];

/// Those worth a try on a GPU.
pub const ON_GPU: [Stream; 3] = [
    Stream::new(Walk::Strided, 8, 256),
    Stream::new(Walk::Strided, 32, 256),
    Stream::new(Walk::Strided, 64, 64),
];

/// The CPU twin. `x`: vectors of 4 words.
pub fn reference(x: &[u32], stream: Stream) -> Vec<u32> {
    let num_vecs = x.len() / 4;
    let count = stream.invocations(num_vecs);
    let mut y = vec![0; count];
    for (vec, words) in x.chunks_exact(4).enumerate() {
        let owner = match stream.walk {
            Walk::Chunks => vec / stream.chunk as usize,
            Walk::Strided => vec % count,
        };
        y[owner] ^= words.iter().fold(0, |sum, word| sum ^ word);
    }
    y
}

/// Streams the whole of `x: [num_vecs, 4]` u32 into `y: [invocations]` u32, or fewer than its
/// elements.
pub fn record(rec: &mut Recorder, stream: Stream, x: &Tensor, y: &Tensor) {
    let [num_vecs, four] = x.dims();
    let count = stream.invocations(num_vecs);
    let [room] = y.dims();
    assert!(four == 4 && count <= room, "{count} sums into {room}");
    rec.dispatch(
        &stream.variant(),
        &[("x", x), ("y", y)],
        ProbeStreamParams {
            num_vecs: num_vecs as u32,
            num_invocations: count as u32,
        },
        grid(count.div_ceil(stream.workgroup as usize)),
    );
}

/// What a dispatch writes.
///
/// # Errors
/// What reading its inputs reports.
pub fn twin(call: &mut Call<'_>, _: Effort) -> Result<Vec<Piece>> {
    let p: ProbeStreamParams = call.params();
    let number = |name| call.number(name).expect("a stream's numbers are set");
    let walk = match call.has_part(STRIDED.name) {
        true => Walk::Strided,
        false => Walk::Chunks,
    };
    let stream = Stream::new(walk, number("CHUNK"), number("WG"));
    let x = call.read_range("x", 0..4 * p.num_vecs as usize)?;
    Ok(vec![Piece::exact("y", 0, reference(&x, stream))])
}

/// All that are tried.
pub fn variants() -> Vec<Variant> {
    ON_CPU.iter().chain(&ON_GPU).map(Stream::variant).collect()
}

/// Sizes around a round of 8, a chunk and a workgroup, both walks.
pub fn cases() -> Vec<Case> {
    let small = [
        Stream::new(Walk::Chunks, 12, 8),
        Stream::new(Walk::Strided, 12, 8),
    ];
    let sizes = [1, 7, 8, 13, 95, 96, 97, 1000];
    let ragged = small.iter().flat_map(|s| sizes.map(|n| (*s, n)));
    ragged
        .chain([(ON_CPU[0], 20_001), (ON_GPU[0], 20_001)])
        .enumerate()
        .map(|(seed, (stream, num_vecs))| case(seed as u64, stream, num_vecs))
        .collect()
}

fn case(seed: u64, stream: Stream, num_vecs: usize) -> Case {
    let mut data = Data::new(seed);
    let x: Vec<u32> = (0..4 * num_vecs).map(|_| data.bits() as u32).collect();
    let y = reference(&x, stream);
    let name = format!("{:?} {num_vecs} by {}", stream.walk, stream.chunk);
    Case::new(&PROBE_STREAM, name)
        .tensor(CaseTensor::input(
            "x",
            DType::U32,
            &[num_vecs, 4],
            bytemuck::cast_slice(&x).to_vec(),
        ))
        .tensor(CaseTensor::output_u32("y", &[y.len()], &y))
        .work(0.0, 16.0 * num_vecs as f64)
        .record(move |rec, t| record(rec, stream, t.get("x"), t.get("y")))
}
