// Cooperative matrices of 8 x 8 x 8, for attention_coop.
const COOP_SIZE: u32 = 8u;
alias CoopLeft = coop_mat8x8<f16, A>;
alias CoopRight = coop_mat8x8<f16, B>;
alias CoopSum = coop_mat8x8<f32, C>;
