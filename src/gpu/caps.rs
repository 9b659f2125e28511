//! What an adapter can do beyond the baseline, as independent facts.
//!
//! No kernel needs any of them: each has a form for the baseline. A capability only ever selects
//! another part of the same kernel.

use std::fmt;

/// A configuration of cooperative matrices that kernels can use: f16 times f16, sums in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Coop {
    /// Rows, columns and products of a multiplication: 8 or 16.
    pub size: u32,
    /// Invocations of the largest subgroup that the adapter can have, at most 64.
    pub subgroup: u32,
}

impl Coop {
    /// Why a kernel made for this cannot run with `caps`, if it cannot: the size must be the same, and
    /// subgroups no larger.
    pub fn missing(self, caps: Caps) -> Option<String> {
        let has = match caps.coop {
            Some(has) if has.size == self.size && has.subgroup <= self.subgroup => return None,
            Some(has) => format!("those of {} in subgroups of {}", has.size, has.subgroup),
            None => "none".to_owned(),
        };
        Some(format!(
            "needs cooperative matrices of {} in subgroups of at most {}, has {has}",
            self.size, self.subgroup
        ))
    }
}

/// Capabilities of an open device. Independent: none implies another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caps {
    /// Subgroup operations, with the smallest size a subgroup of this adapter can have.
    pub subgroup: Option<u32>,
    /// `enable f16;`
    pub f16: bool,
    /// `dot4I8Packed` is more than a polyfill.
    pub dot4: bool,
    /// Cooperative matrices in a configuration that kernels can use. An open device has them only
    /// where [`OpenOptions::coop`](crate::gpu::OpenOptions::coop) asked for them.
    pub coop: Option<Coop>,
    /// 64-bit integers.
    pub int64: bool,
}

impl Caps {
    /// The baseline: nothing beyond WebGPU's defaults.
    pub const NONE: Caps = Caps {
        subgroup: None,
        f16: false,
        dot4: false,
        coop: None,
        int64: false,
    };

    /// Keeps only what `allowed` names: a comma-separated list of `subgroup`, `f16`, `dot4`,
    /// `coop`, `int64`; empty or `none` keeps nothing. This is the value of `NELUMBO_CAPS`.
    ///
    /// # Errors
    /// The first word that names no capability.
    pub fn restrict(self, allowed: &str) -> Result<Caps, String> {
        let mut kept = Caps::NONE;
        for word in allowed
            .split(',')
            .map(str::trim)
            .filter(|w| !w.is_empty() && *w != "none")
        {
            match word {
                "subgroup" => kept.subgroup = self.subgroup,
                "f16" => kept.f16 = self.f16,
                "dot4" => kept.dot4 = self.dot4,
                "coop" => kept.coop = self.coop,
                "int64" => kept.int64 = self.int64,
                other => {
                    return Err(format!(
                        "\"{other}\" (known: subgroup, f16, dot4, coop, int64, none)"
                    ));
                }
            }
        }
        Ok(kept)
    }

    /// The names of what is there, as `NELUMBO_CAPS` spells them.
    pub fn names(&self) -> Vec<&'static str> {
        let all = [
            (self.subgroup.is_some(), "subgroup"),
            (self.f16, "f16"),
            (self.dot4, "dot4"),
            (self.coop.is_some(), "coop"),
            (self.int64, "int64"),
        ];
        all.iter()
            .filter(|(there, _)| *there)
            .map(|(_, name)| *name)
            .collect()
    }
}

impl fmt::Display for Caps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.names();
        if names.is_empty() {
            f.write_str("none")
        } else {
            f.write_str(&names.join(","))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: Caps = Caps {
        subgroup: Some(8),
        f16: true,
        dot4: true,
        coop: Some(Coop {
            size: 8,
            subgroup: 32,
        }),
        int64: true,
    };

    #[test]
    fn restriction_keeps_only_what_is_named_and_there() {
        assert_eq!(FULL.restrict("none"), Ok(Caps::NONE));
        assert_eq!(FULL.restrict(""), Ok(Caps::NONE));
        assert_eq!(
            FULL.restrict("f16, dot4"),
            Ok(Caps {
                f16: true,
                dot4: true,
                ..Caps::NONE
            })
        );
        assert_eq!(Caps::NONE.restrict("subgroup,f16"), Ok(Caps::NONE));
        assert_eq!(FULL.restrict("subgroup,f16,dot4,coop,int64"), Ok(FULL));
    }

    #[test]
    fn an_unknown_capability_is_named() {
        assert!(
            FULL.restrict("f16,tensor")
                .unwrap_err()
                .contains("\"tensor\"")
        );
    }

    #[test]
    fn smaller_subgroups_will_do_and_other_matrices_will_not() {
        let coop = |size, subgroup| Coop { size, subgroup };
        assert_eq!(coop(8, 32).missing(FULL), None);
        assert_eq!(coop(8, 64).missing(FULL), None);
        for needed in [coop(8, 16), coop(16, 32)] {
            let why = needed.missing(FULL).unwrap();
            assert!(why.ends_with("has those of 8 in subgroups of 32"), "{why}");
        }
        assert!(
            coop(8, 8)
                .missing(Caps::NONE)
                .unwrap()
                .ends_with("has none")
        );
    }

    #[test]
    fn display_is_what_restrict_reads() {
        assert_eq!(FULL.restrict(&FULL.to_string()), Ok(FULL));
        assert_eq!(Caps::NONE.to_string(), "none");
    }
}
