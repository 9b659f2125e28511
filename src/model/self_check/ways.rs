//! Other ways to the same bits: what is tried where a kernel is wrong. Pure.

use crate::kernels::Tuning;

/// `base` with as little of everything as there is: no subgroups, no wide loads, one token at a time,
/// the smallest workgroup. What is wrong with this as well is wrong with every way.
pub fn plainest(base: Tuning) -> Tuning {
    Tuning {
        workgroup: 8 * base.lanes,
        tile_tokens: 1,
        subgroups: false,
        wide: false,
        ..base
    }
}

/// Ways from the one nearest to `base` to the plainest, each once, `base` not among them. Activations
/// and lanes stay: they are part of the numerics.
pub fn ways(base: Tuning) -> Vec<Tuning> {
    let mut all: Vec<Tuning> = Vec::new();
    for tile_tokens in [base.tile_tokens, 1] {
        for workgroup in [base.workgroup, 8 * base.lanes] {
            for (subgroups, wide) in [
                (base.subgroups, base.wide),
                (base.subgroups, false),
                (false, false),
            ] {
                let way = Tuning {
                    workgroup,
                    tile_tokens,
                    subgroups,
                    wide,
                    ..base
                };
                if way != base && !all.contains(&way) {
                    all.push(way);
                }
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Activations;

    #[test]
    fn ways_begin_near_and_end_at_the_plainest() {
        let base = Tuning {
            activations: Activations::Q8,
            lanes: 8,
            workgroup: 128,
            tile_tokens: 8,
            subgroups: true,
            wide: true,
        };
        let all = ways(base);
        assert_eq!(
            all[0],
            Tuning {
                wide: false,
                ..base
            }
        );
        assert_eq!(all.last(), Some(&plainest(base)));
        let unlike = all.iter().all(|way| *way != base);
        let numerics = all
            .iter()
            .all(|way| (way.activations, way.lanes) == (base.activations, base.lanes));
        assert!(unlike && numerics);
        assert_eq!(ways(plainest(base)), []);
    }
}
