use nelumbo::gpu::{Gpu, OpenOptions};
#[test]
fn filtered() {
    let gpu = Gpu::open(&OpenOptions::default()).unwrap();
    let only = std::env::var("NELUMBO_KERNEL").unwrap_or_default();
    let mut wrong = vec![];
    for entry in nelumbo::kernels::ALL {
        if !only.split(',').any(|o| o == entry.kernel.name) { continue; }
        for case in (entry.cases)() {
            let s = std::time::Instant::now();
            let w = case.run(&gpu).unwrap();
            println!("{} {} {:?} {}", entry.kernel.name, case.name, s.elapsed(), w.len());
            wrong.extend(w);
        }
    }
    for w in wrong.iter().take(40) { println!("{w}"); }
    println!("pipelines {} in {:?}", gpu.counters().pipelines, gpu.compile_time());
    assert!(wrong.is_empty());
}
