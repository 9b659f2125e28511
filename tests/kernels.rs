//! Every kernel against its CPU twin, on every adapter there is.
use nelumbo::gpu::{Gpu, OpenOptions};
#[test]
fn smoke() {
    let gpu = Gpu::open(&OpenOptions::default()).unwrap();
    let mut wrong = vec![];
    let mut n = 0;
    for entry in nelumbo::kernels::ALL {
        for case in (entry.cases)() {
            if case.missing(gpu.caps()).is_some() {
                continue;
            }
            n += 1;
            wrong.extend(case.run(&gpu).unwrap());
        }
    }
    println!("{n} cases on {:?}", gpu.report());
    for w in wrong.iter().take(40) {
        println!("{w}");
    }
    assert!(wrong.is_empty());
}
