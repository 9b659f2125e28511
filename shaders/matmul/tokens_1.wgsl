// Tokens that one invocation of matmul holds at once.
const TOKENS: u32 = 1u;
