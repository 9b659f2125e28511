//! The harness itself: what it has to notice, it notices.

use crate::{Config, adapters};
use nelumbo::kernels;
use nelumbo::kernels::case::{Case, CaseTensor};

/// A harness that cannot fail proves nothing: an output that is not written, a write beside the
/// output, a changed input, a wrong value.
#[test]
fn the_harness_sees_planted_faults() {
    let Some(report) = adapters().into_iter().next() else {
        return;
    };
    let gpu = Config {
        index: report.index,
        all_caps: true,
        checked: true,
    }
    .open();
    let values = [1.0f32, 2.0, 3.0, 4.0];
    let case = |expected: &[f32]| {
        Case::new(&kernels::gather_rows::GATHER_ROWS, "planted".to_owned())
            .tensor(CaseTensor::f32("x", &[1, 4], &values))
            .tensor(CaseTensor::u32("step", &[1], &[0]))
            .tensor(CaseTensor::output_exact("y", &[1, 4], expected))
    };
    let gather = kernels::gather_rows::record;
    let right = case(&values)
        .record(move |rec, t| gather(rec, t.get("x"), t.get("step"), 0, 1, t.get("y")));
    assert_eq!(right.run(&gpu).unwrap(), Vec::<String>::new());

    let planted = [
        (
            case(&[1.0, 2.0, 3.0, 5.0])
                .record(move |rec, t| gather(rec, t.get("x"), t.get("step"), 0, 1, t.get("y"))),
            "y: word 3",
        ),
        (case(&values).record(|_, _| {}), "y: word 0"),
        (
            case(&values).record(move |rec, t| {
                let before = t
                    .get("y")
                    .whole_buffer()
                    .window(768, t.get("y").dtype(), &[1, 4]);
                gather(rec, t.get("x"), t.get("step"), 0, 1, &before);
                gather(rec, t.get("x"), t.get("step"), 0, 1, t.get("y"));
            }),
            "y: wrote 64 words before its start",
        ),
        (
            case(&values).record(move |rec, t| {
                gather(rec, t.get("x"), t.get("step"), 0, 1, t.get("y"));
                let after = t
                    .get("y")
                    .whole_buffer()
                    .window(1280, t.get("y").dtype(), &[1, 4]);
                gather(rec, t.get("x"), t.get("step"), 0, 1, &after);
            }),
            "y: wrote 61 words past its end",
        ),
        (
            case(&values).record(move |rec, t| {
                gather(rec, t.get("x"), t.get("step"), 0, 1, t.get("y"));
                rec.copy(
                    t.get("step"),
                    &t.get("x").window(0, t.get("step").dtype(), &[1]),
                );
            }),
            "x: word 0",
        ),
    ];
    for (case, expected) in planted {
        let wrong = case.run(&gpu).unwrap();
        assert!(
            wrong.len() == 1 && wrong[0].contains(expected),
            "{wrong:?}, expected {expected}"
        );
    }
}
