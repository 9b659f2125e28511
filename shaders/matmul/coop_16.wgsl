// Cooperative matrices of 16 x 16 x 16. A subgroup has 64 tokens times a band of 16 rows.
alias CoopX = coop_mat16x16<f16, A>;
alias CoopW = coop_mat16x16<f16, B>;
alias CoopSum = coop_mat16x16<f32, C>;

// All of the own tile, from sums of nothing to matmul/out_*. The sums are spelled, since what is indexed
// does not stay in registers.
fn coop_product(first_row: u32, first_token: u32, band: u32, index: u32) {
    coop_clear(index);
    var s0 = coopLoadT<CoopSum>(&coop_sums[0], COOP_TILE);
    var s1 = coopLoadT<CoopSum>(&coop_sums[0], COOP_TILE);
    var s2 = coopLoadT<CoopSum>(&coop_sums[0], COOP_TILE);
    var s3 = coopLoadT<CoopSum>(&coop_sums[0], COOP_TILE);
    for (var group = 0u; group < params.num_groups; group++) {
        coop_stage(group, first_row, first_token, index);
        for (var k = 0u; k < 32u; k += 16u) {
            let w0 = coopLoad<CoopW>(&coop_w[band * 16u * STRIDE + k], STRIDE);
            s0 = coopMultiplyAdd(coopLoadT<CoopX>(&coop_x[k], STRIDE), w0, s0);
            s1 = coopMultiplyAdd(coopLoadT<CoopX>(&coop_x[16u * STRIDE + k], STRIDE), w0, s1);
            s2 = coopMultiplyAdd(coopLoadT<CoopX>(&coop_x[32u * STRIDE + k], STRIDE), w0, s2);
            s3 = coopMultiplyAdd(coopLoadT<CoopX>(&coop_x[48u * STRIDE + k], STRIDE), w0, s3);
        }
    }
    let to = band * 16u;
    for (var round = 0u; round < 4u; round++) {
        switch (round) {
            case 0u: { coopStoreT(s0, &coop_sums[to], COOP_TILE); }
            case 1u: { coopStoreT(s1, &coop_sums[to], COOP_TILE); }
            case 2u: { coopStoreT(s2, &coop_sums[to], COOP_TILE); }
            default: { coopStoreT(s3, &coop_sums[to], COOP_TILE); }
        }
        coop_end(round, first_row, first_token, index);
    }
}
