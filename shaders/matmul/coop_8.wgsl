// Cooperative matrices of 8 x 8 x 8. A subgroup has 64 tokens times two bands of 8 rows.
alias CoopX = coop_mat8x8<f16, A>;
alias CoopW = coop_mat8x8<f16, B>;
alias CoopSum = coop_mat8x8<f32, C>;

// All of the own tile, from sums of nothing to matmul/out_*. The sums are spelled, since what is indexed
// does not stay in registers.
fn coop_product(first_row: u32, first_token: u32, band: u32, index: u32) {
    coop_clear(index);
    var s00 = coopLoadT<CoopSum>(&coop_sums[0], COOP_TILE);
    var s01 = coopLoadT<CoopSum>(&coop_sums[0], COOP_TILE);
    var s10 = coopLoadT<CoopSum>(&coop_sums[0], COOP_TILE);
    var s11 = coopLoadT<CoopSum>(&coop_sums[0], COOP_TILE);
    var s20 = coopLoadT<CoopSum>(&coop_sums[0], COOP_TILE);
    var s21 = coopLoadT<CoopSum>(&coop_sums[0], COOP_TILE);
    var s30 = coopLoadT<CoopSum>(&coop_sums[0], COOP_TILE);
    var s31 = coopLoadT<CoopSum>(&coop_sums[0], COOP_TILE);
    var s40 = coopLoadT<CoopSum>(&coop_sums[0], COOP_TILE);
    var s41 = coopLoadT<CoopSum>(&coop_sums[0], COOP_TILE);
    var s50 = coopLoadT<CoopSum>(&coop_sums[0], COOP_TILE);
    var s51 = coopLoadT<CoopSum>(&coop_sums[0], COOP_TILE);
    var s60 = coopLoadT<CoopSum>(&coop_sums[0], COOP_TILE);
    var s61 = coopLoadT<CoopSum>(&coop_sums[0], COOP_TILE);
    var s70 = coopLoadT<CoopSum>(&coop_sums[0], COOP_TILE);
    var s71 = coopLoadT<CoopSum>(&coop_sums[0], COOP_TILE);
    for (var group = 0u; group < params.num_groups; group++) {
        coop_stage(group, first_row, first_token, index);
        for (var k = 0u; k < 32u; k += 8u) {
            let w0 = coopLoad<CoopW>(&coop_w[band * 8u * STRIDE + k], STRIDE);
            let w1 = coopLoad<CoopW>(&coop_w[(band + 4u) * 8u * STRIDE + k], STRIDE);
            let x0 = coopLoadT<CoopX>(&coop_x[k], STRIDE);
            s00 = coopMultiplyAdd(x0, w0, s00);
            s01 = coopMultiplyAdd(x0, w1, s01);
            let x1 = coopLoadT<CoopX>(&coop_x[8u * STRIDE + k], STRIDE);
            s10 = coopMultiplyAdd(x1, w0, s10);
            s11 = coopMultiplyAdd(x1, w1, s11);
            let x2 = coopLoadT<CoopX>(&coop_x[16u * STRIDE + k], STRIDE);
            s20 = coopMultiplyAdd(x2, w0, s20);
            s21 = coopMultiplyAdd(x2, w1, s21);
            let x3 = coopLoadT<CoopX>(&coop_x[24u * STRIDE + k], STRIDE);
            s30 = coopMultiplyAdd(x3, w0, s30);
            s31 = coopMultiplyAdd(x3, w1, s31);
            let x4 = coopLoadT<CoopX>(&coop_x[32u * STRIDE + k], STRIDE);
            s40 = coopMultiplyAdd(x4, w0, s40);
            s41 = coopMultiplyAdd(x4, w1, s41);
            let x5 = coopLoadT<CoopX>(&coop_x[40u * STRIDE + k], STRIDE);
            s50 = coopMultiplyAdd(x5, w0, s50);
            s51 = coopMultiplyAdd(x5, w1, s51);
            let x6 = coopLoadT<CoopX>(&coop_x[48u * STRIDE + k], STRIDE);
            s60 = coopMultiplyAdd(x6, w0, s60);
            s61 = coopMultiplyAdd(x6, w1, s61);
            let x7 = coopLoadT<CoopX>(&coop_x[56u * STRIDE + k], STRIDE);
            s70 = coopMultiplyAdd(x7, w0, s70);
            s71 = coopMultiplyAdd(x7, w1, s71);
        }
    }
    let to = band * 8u;
    for (var round = 0u; round < 4u; round++) {
        switch (round) {
            case 0u: {
                coopStoreT(s00, &coop_sums[to], COOP_TILE);
                coopStoreT(s01, &coop_sums[to + 32u], COOP_TILE);
                coopStoreT(s10, &coop_sums[to + 512u], COOP_TILE);
                coopStoreT(s11, &coop_sums[to + 544u], COOP_TILE);
            }
            case 1u: {
                coopStoreT(s20, &coop_sums[to], COOP_TILE);
                coopStoreT(s21, &coop_sums[to + 32u], COOP_TILE);
                coopStoreT(s30, &coop_sums[to + 512u], COOP_TILE);
                coopStoreT(s31, &coop_sums[to + 544u], COOP_TILE);
            }
            case 2u: {
                coopStoreT(s40, &coop_sums[to], COOP_TILE);
                coopStoreT(s41, &coop_sums[to + 32u], COOP_TILE);
                coopStoreT(s50, &coop_sums[to + 512u], COOP_TILE);
                coopStoreT(s51, &coop_sums[to + 544u], COOP_TILE);
            }
            default: {
                coopStoreT(s60, &coop_sums[to], COOP_TILE);
                coopStoreT(s61, &coop_sums[to + 32u], COOP_TILE);
                coopStoreT(s70, &coop_sums[to + 512u], COOP_TILE);
                coopStoreT(s71, &coop_sums[to + 544u], COOP_TILE);
            }
        }
        coop_end(round, first_row, first_token, index);
    }
}
