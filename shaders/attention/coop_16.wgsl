// Cooperative matrices of 16 x 16 x 16, for attention_coop.
const COOP_SIZE: u32 = 16u;
alias CoopLeft = coop_mat16x16<f16, A>;
alias CoopRight = coop_mat16x16<f16, B>;
alias CoopSum = coop_mat16x16<f32, C>;
