//! What a tensor must hold after a kernel ran, and what is wrong where it does not.

/// What outputs hold before the kernel runs: a NaN as f32, no plausible index as u32.
pub(super) const POISON: u32 = 0x7FC0_BEEF;

/// What a tensor must hold afterwards.
pub enum Expect {
    /// An input: not a bit may change.
    Unchanged,
    /// f32 elements, each within its bound of the exact value.
    F32 {
        /// Exact values.
        values: Vec<f64>,
        /// Permitted distance of each.
        bound: Vec<f64>,
    },
    /// These bytes exactly.
    Bytes(Vec<u8>),
    /// Whatever this accepts; it says what is wrong.
    Judge(Judge),
}

/// Looks at a tensor's bytes and says what is wrong with them.
pub type Judge = Box<dyn Fn(&[u8]) -> Result<(), String> + Send + Sync>;

impl Expect {
    /// Says what is wrong with a tensor's bytes, if anything is.
    ///
    /// # Panics
    /// For [`Expect::Unchanged`], which does not know what there was.
    pub fn judge(&self, body: &[u8]) -> Result<(), String> {
        match self {
            Expect::Unchanged => panic!("who judges an input has to know what it held"),
            Expect::Bytes(expected) => same_bytes(body, expected),
            Expect::Judge(judge) => judge(body),
            Expect::F32 { values, bound } => judge_floats(body, values, bound),
        }
    }
}

fn judge_floats(body: &[u8], values: &[f64], bound: &[f64]) -> Result<(), String> {
    let found: Vec<f32> = bytemuck::pod_collect_to_vec(body);
    let wrong = |i: usize| {
        let distance = (f64::from(found[i]) - values[i]).abs();
        found[i].to_bits() == POISON || distance.is_nan() || distance > bound[i]
    };
    let count = (0..values.len()).filter(|&i| wrong(i)).count();
    let Some(i) = (0..values.len()).find(|&i| wrong(i)) else {
        return Ok(());
    };
    let what = if found[i].to_bits() == POISON {
        "never written".to_owned()
    } else {
        format!("is {:e}", found[i])
    };
    Err(format!(
        "element {i} {what}, expected {:e} +- {:e} ({count} of {} wrong)",
        values[i],
        bound[i],
        values.len()
    ))
}

pub(super) fn same_bytes(found: &[u8], expected: &[u8]) -> Result<(), String> {
    assert_eq!(found.len(), expected.len(), "bytes of a case");
    match found.iter().zip(expected).position(|(f, e)| f != e) {
        None => Ok(()),
        Some(at) => {
            let word = at / 4 * 4;
            let show = |b: &[u8]| format!("{:02x?}", &b[word..b.len().min(word + 4)]);
            Err(format!(
                "word {} is {}, expected {}",
                word / 4,
                show(found),
                show(expected)
            ))
        }
    }
}
