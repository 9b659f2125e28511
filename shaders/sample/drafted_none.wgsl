// The draw of a row of `sample` where no row has a drafted token.
fn drafted_row(row: u32, first: u32, tokens: SampleTokens, kept: SampleKept, lane: u32) -> SampleDrawn {
    return SampleDrawn(sample_draw(row, tokens, kept, lane), kept.best.y);
}
