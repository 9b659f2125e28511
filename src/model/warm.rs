//! Compiling ahead: what the first steps of a model will dispatch is made and run once, while its
//! weights are still being read.

use super::Decoder;
use super::step::{HeadRows, Span, Step};
use crate::error::Result;
use crate::gpu::cache_file::fnv1a;
use crate::kernels;
use crate::kv::{PAGE_SIZE, PageId};
use std::collections::BTreeMap;

/// A decoded token, a few that are verified, a chunk of a page, and one that is long enough for whatever long
/// ones take: the numbers of tokens that choose between variants. They lie in the 16 pages of one split.
const STEPS: [usize; 5] = [1, 2, 4, PAGE_SIZE, 8 * PAGE_SIZE];
/// Of steps up to so many tokens, each has a row of logits.
const VERIFIED: usize = PAGE_SIZE;

/// Prepares all variants, where there is a driver to do it, that `record` dispatches for the first steps of a model, several at a time,
/// and then runs each of them once, because some drivers compile at the first dispatch only. Keys and
/// values go to the first pages, which nobody owns yet. The weights need not be there: what comes out
/// is looked at by nobody.
///
/// `record` is called twice for each step, with [`Decoder::record`] and whatever follows it as its
/// work.
///
/// # Errors
/// [`crate::Error::Shader`], or what the device reports.
pub fn warm_up(
    decoder: &mut Decoder,
    mut record: impl FnMut(&mut Decoder, Step) -> Result<()>,
) -> Result<()> {
    let gpu = decoder.gpu().clone();
    if gpu.is_host() {
        return Ok(()); // nothing is compiled there
    }
    decoder.recorder().begin_notes();
    let noted = first_steps(decoder, &mut record);
    let variants = decoder.recorder().take_notes();
    noted?;
    gpu.prepare(&variants)?;

    decoder.recorder().begin_rehearsal();
    let ran = first_steps(decoder, &mut record);
    let ended = decoder.recorder().end_rehearsal();
    ran.and(ended)
}

fn first_steps(
    decoder: &mut Decoder,
    record: &mut impl FnMut(&mut Decoder, Step) -> Result<()>,
) -> Result<()> {
    let mut done = 0;
    for num_tokens in STEPS.map(|tokens| tokens.min(decoder.max_batched_tokens())) {
        if num_tokens == done {
            break; // steps are no longer than that
        }
        done = num_tokens;
        let pages = (0..num_tokens.div_ceil(PAGE_SIZE) as PageId).collect();
        let pages: Vec<Vec<PageId>> = vec![pages; decoder.kv().groups().len()];
        let span = Span {
            tokens: &vec![0; num_tokens],
            first_position: 0,
            pages: &pages,
            head_rows: match num_tokens <= VERIFIED.min(decoder.max_head_rows()) {
                true => HeadRows::All,
                false => HeadRows::Last(1),
            },
        };
        let step = decoder.step(&[span]);
        record(decoder, step)?;
    }
    Ok(())
}

/// A hash of the sources of all kernels, for [`PipelineFolder`](crate::gpu::PipelineFolder).
pub fn shader_hash() -> u64 {
    let mut sources = BTreeMap::new();
    for entry in kernels::ALL {
        for variant in (entry.variants)() {
            sources.extend(variant.all_parts().map(|part| (part.name, part.source)));
        }
    }
    fnv1a(
        sources
            .iter()
            .flat_map(|(name, source)| [name.as_bytes(), source.as_bytes()]),
    )
}
